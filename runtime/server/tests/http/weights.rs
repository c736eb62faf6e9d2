//! Weights that are not what they should be: what a server finds out before it says that it is ready, and
//! what it says then.

use crate::process::{KNOWN, OTHERS, Server, checkpoint, command_as, run};
use crate::scripted::{Bytes, GREETING, Loaded};
use monomorph_engine::scripted::Shape;
use monomorph_hub::stand_in::{COMMIT, StandIn};
use monomorph_model::{CanarySpec, ModelSpec};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::Output;

/// A build that knows what its weights answer: what they do.
pub struct KnownBytes;
/// One whose weights answer something else, as damaged ones do.
pub struct OtherBytes;

const GREETS: [u32; 5] = {
    let greeting = GREETING.as_bytes();
    [greeting[0] as u32, greeting[1] as u32, greeting[2] as u32, greeting[3] as u32, greeting[4] as u32]
};
const PROMPT: &[u32] = &[104, 105, 33];
static RIGHT: [CanarySpec; 2] = [
    CanarySpec { prompt: PROMPT, answer: &GREETS, margin: 2.5 },
    CanarySpec { prompt: &[33], answer: &GREETS, margin: 3.5 },
];
static WRONG: [CanarySpec; 2] = [
    CanarySpec { prompt: PROMPT, answer: &GREETS, margin: 2.5 },
    CanarySpec { prompt: PROMPT, answer: &[GREETS[0], GREETS[1], 7], margin: 2.5 },
];

impl Shape for KnownBytes {
    const SPEC: &'static ModelSpec = &ModelSpec { canaries: &RIGHT, ..*Bytes::SPEC };
}

impl Shape for OtherBytes {
    const SPEC: &'static ModelSpec = &ModelSpec { canaries: &WRONG, ..*Bytes::SPEC };
}

pub type EchoKnown = Loaded<KnownBytes>;
pub type EchoOthers = Loaded<OtherBytes>;

/// Standard error of a server that is to end by itself, with exit code 1.
fn refused(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
}

pub fn known() {
    let server = Server::start_as(KNOWN, &[]);
    assert!(server.opening.contains("; 2 known answers are right"), "{}", server.opening);
    assert_eq!(server.get("/health").json()["canary"]["known_answers"], 2);
    assert_eq!(server.stats()["finished"], 0, "canaries are in no count");
    // One that knows none says so.
    let server = Server::start(&[]);
    assert!(server.opening.contains("; no answers of these weights are known"), "{}", server.opening);
    assert_eq!(server.get("/health").json()["canary"]["known_answers"], 0);
    let info = |model| {
        let output = command_as(model, &["info"]).output().expect("the verb starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(
        info(KNOWN).contains("2 known answers, each token of which leads by 2.5 logits"),
        "{}",
        info(KNOWN)
    );
    assert!(info("echo").contains("none known"), "{}", info("echo"));
}

/// Weights that answer alike whenever they are asked, and wrongly: a canary that is learnt from them finds
/// nothing.
pub fn others() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let serve = ["serve", "--port", "0", "--weights", path];
    let words = refused(command_as(OTHERS, &serve).output().expect("the server starts"));
    for part in ["canary 2", "token 2 of the answer should be 7 and is 108", "--verify", "--canary learned"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    // `--canary learned` accepts other weights; made-up ones are not checked.
    let server = Server::start_as(OTHERS, &["--canary", "learned"]);
    assert!(server.opening.contains("no answers of these weights are known"), "{}", server.opening);
    let server = Server::start_dummy_as(OTHERS, &[]);
    assert_eq!(server.get("/health").json()["weights"], "dummy");
}

pub fn digests() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let start = ["serve", "--port", "0", "--weights", path, "--verify"];
    let words = refused(run(&start));
    assert!(words.contains("no digest of") && words.contains("model.safetensors"), "{words}");
    write_sums(weights.path());
    // What is verified is loaded: this goes on to refuse another flag.
    let words = refused(run(&[&start[..], &["--warm-up", "/nonexistent"]].concat()));
    assert!(words.contains("are whole (") && words.contains("/nonexistent"), "{words}");
    let file = weights.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("readable");
    *bytes.last_mut().expect("a tensor") ^= 1;
    std::fs::write(&file, bytes).expect("writable");
    let words = refused(run(&start));
    assert!(words.contains("model.safetensors has SHA-256") && words.contains("and should have"), "{words}");
    let words = refused(run(&["serve", "--port", "0", "--weights", "dummy", "--verify"]));
    assert!(words.contains("made-up weights have no digests"), "{words}");
}

/// To be caught: the flag not carried from the command line; `/info` without the reason.
pub fn fast_load() {
    let words = refused(run(&["serve", "--port", "0", "--weights", "dummy", "--no-fast-load"]));
    assert!(words.contains("--no-fast-load: made-up weights are not read"), "{words}");
    let server = Server::start(&["--no-fast-load"]);
    let reading = &server.get("/info").json()["engine"]["reading"];
    assert_eq!(reading["why_plain"], "--no-fast-load");
    assert_eq!(reading["direct_bytes"], 0);
    let reading = &Server::start_dummy_as("echo", &[]).get("/info").json()["engine"]["reading"];
    assert!(reading.is_null(), "{reading}");

    let weights = checkpoint();
    let output = run(&["read", "--threads", "2", "--weights", weights.path().to_str().expect("UTF-8")]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}");
    for way in ["directly", "--no-fast-load", "mapped"] {
        for state in ["cold", "warm"] {
            assert!(words.contains(&format!("{way}, {state}: ")), "{way} {state}: {words}");
        }
    }
    let words = refused(run(&["read", "--weights", "dummy"]));
    assert!(words.contains("read: made-up weights are not read"), "{words}");
}

fn write_sums(directory: &Path) {
    let bytes = std::fs::read(directory.join("model.safetensors")).expect("readable");
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(directory.join("SHA256SUMS"), format!("{digest}  model.safetensors\n")).expect("writable");
}

/// Without `--weights` a server looks where weights are fetched to, and says so.
pub fn default_place() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let place = cache.path().join("monomorph/echo/none");
    let start = |arguments: &[&str]| {
        let mut command = command_as("echo", &[&["serve", "--port", "0"], arguments].concat());
        command.env("XDG_CACHE_HOME", cache.path()).output().expect("the server starts")
    };
    let words = refused(start(&[]));
    for part in [place.to_str().expect("UTF-8"), "cargo xtask fetch --target cpu/echo/none", "--weights PATH"]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    // As `fetch` leaves it of a hub: a link to a snapshot.
    let snapshot = checkpoint();
    std::fs::create_dir_all(place.parent().expect("a directory")).expect("writable");
    std::os::unix::fs::symlink(snapshot.path(), &place).expect("writable");
    let words = refused(start(&["--warm-up", "/nonexistent"]));
    assert!(words.contains("/nonexistent"), "the weights were found: {words}");
    assert!(words.contains(&format!("weights: {}, where fetch puts them", place.display())), "{words}");
}

/// Weights are had by the name of a repository, once.
pub fn of_a_hub() {
    let (source, cache) = (checkpoint(), tempfile::tempdir().expect("a temporary directory"));
    let hub = StandIn::serve("owner/echo", StandIn::files_of(source.path()), None);
    let path = cache.path().join("hub");
    let start = |weights: &str, more: &[&str]| {
        let cache_dir = ["--cache-dir", path.to_str().expect("UTF-8")];
        let serve = ["serve", "--port", "0", "--weights", weights, "--warm-up", "/nonexistent"];
        let mut command = command_as("echo", &[&serve[..], &cache_dir, more].concat());
        command.env("HF_ENDPOINT", hub.endpoint()).env("HF_HOME", cache.path());
        for variable in ["HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"] {
            command.env_remove(variable);
        }
        command
    };
    let words = |mut command: std::process::Command| refused(command.output().expect("the server starts"));
    // What is loaded goes on to refuse another flag.
    let first = words(start("owner/echo", &["--verify"]));
    assert!(first.contains(&format!("weights: owner/echo at {COMMIT}, in ")), "{first}");
    assert!(first.contains("are whole (") && first.contains("/nonexistent"), "{first}");
    hub.plant(&[]);
    let again = words(start(&format!("owner/echo@{COMMIT}"), &[]));
    assert!(again.contains("/nonexistent"), "{again}");
    assert!(hub.requests().iter().all(|it| !it.elsewhere), "nothing is fetched again");
    for weights in ["owner/echo", &format!("owner/echo@{COMMIT}")] {
        let mut offline = start(weights, &[]);
        offline.env("HF_HUB_OFFLINE", "1");
        let offline = words(offline);
        assert!(offline.contains("/nonexistent"), "the cache is enough: {offline}");
    }
    let mut offline = start("owner/other", &[]);
    offline.env("HF_HUB_OFFLINE", "1");
    let other = words(offline);
    assert!(other.contains("--weights owner/other, which is no path here: "), "{other}");
    assert!(other.contains("HF_HUB_OFFLINE forbids"), "{other}");
    for (weights, said) in [
        ("owner/nothing", "has no model owner/nothing"),
        ("owner/echo@v9", "owner/echo has no revision \"v9\""),
        ("dummy", "--cache-dir goes with --weights OWNER/NAME"),
        ("/nonexistent", "--cache-dir goes with --weights OWNER/NAME"),
    ] {
        let words = words(start(weights, &[]));
        assert!(words.contains(said), "{weights}: {words}");
    }
}
