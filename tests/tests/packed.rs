//! Packed weights: a stack that maps them computes, to the bit, what one does that packs a checkpoint; and
//! every file that is not the one is refused by name.

use monomorph_abi::packed_file::{Header, PREFIX, Prefix};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::goldens::{Golden, blocks, golden, whole_blocks};
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::scaled::with_static_scales;
use monomorph_tests::server::{Serving, build, get, post};
use monomorph_tests::stacks::{WITH_PACK, build_with};
use monomorph_tests::{root, smollm2};
use monomorph_weights::digest;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A model in a format: its target, its checkpoint, and prompts.
struct Case {
    target: Target,
    weights: PathBuf,
    golden: Golden,
}

fn load(targets: &Path, golden: &Golden, quant: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("cpu/{}/{quant}", golden.name)).unwrap_or_else(|error| panic!("{error}"))
}

/// Floats, codes with scales of each kind beside them, and blocks of GGUF; mixtures, hybrids, latents; floats
/// that are packed as f16 has them; static scales of keys, which are read of the checkpoint themselves.
fn cases(directory: &Path) -> Vec<Case> {
    let targets = directory.join("targets");
    let mut cases = Vec::new();
    for (name, quant, compute) in [
        ("qwen35-moe-text", "f32", Compute::F32),
        ("nemotron-h-nano", "bf16", Compute::F32),
        ("mistral4", "bf16", Compute::F32),
        ("gemma4-dense", "bf16", Compute::F16),
    ] {
        let golden = golden(name);
        golden.import_into(&targets, compute);
        let weights = golden.directory.join(quant);
        cases.push(Case { target: load(&targets, &golden, quant), weights, golden });
    }
    let [small, whole] = [blocks(directory), whole_blocks(directory)];
    for (golden, storage, compute) in [
        (&small, "q8_0", Compute::Int8Block32),
        (&small, "nvfp4-modelopt", Compute::F16),
        (&small, "fp8-block128", Compute::F32),
        (&whole, "q4_k-q6_k", Compute::Int8Block32),
    ] {
        golden.import_into(&targets, Compute::F32);
        let (plain, out) = (load(&targets, golden, "f32"), directory.join(storage));
        let storage = Storage::called(storage);
        let quant = requantise(golden, &plain, storage, compute, Format::F32, &targets, &out);
        let target = load(&targets, golden, &quant);
        cases.push(Case { target, weights: out.join("stored"), golden: golden.clone() });
    }
    let golden = golden("llama-grouped");
    golden.import_into(&targets, Compute::F32);
    let kv = KvFormats::both(Cached::Fp8);
    let mut target =
        spec::with_kv(load(&targets, &golden, "f32"), kv).unwrap_or_else(|error| panic!("{error}"));
    let weights = directory.join("scaled");
    std::fs::create_dir(&weights).expect("a temporary directory is writable");
    target.quant.kv_scales = Some(with_static_scales(&target, &golden.directory.join("f32"), &weights));
    cases.push(Case { target, weights, golden });
    cases
}

/// Runs a verb of a stack.
fn run(binary: &Path, verb: &str, arguments: &[(&str, &Path)], more: &[&str]) -> Output {
    let mut command = Command::new(binary);
    command.arg(verb).args(more);
    arguments.iter().for_each(|(flag, value)| {
        command.arg(flag).arg(value);
    });
    command.output().expect("it starts")
}

/// What it says when it fails.
fn refusal(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    words
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A stack, what it was packed from, and the prompts that it is asked.
struct Stack {
    binary: PathBuf,
    weights: PathBuf,
    tokens: PathBuf,
    out: PathBuf,
}

impl Stack {
    /// The file that the verb `logits` writes of these weights.
    fn logits(&self, weights: &Path, more: &[&str]) -> Vec<u8> {
        done(&self.try_logits(weights, more));
        std::fs::read(&self.out).expect("it was written")
    }

    fn try_logits(&self, weights: &Path, more: &[&str]) -> Output {
        let arguments = [("--weights", weights), ("--tokens", &self.tokens), ("--out", &self.out)];
        run(&self.binary, "logits", &arguments, more)
    }

    fn pack(&self, out: &Path) -> Output {
        run(&self.binary, "pack", &[("--weights", &self.weights), ("--out", out)], &[])
    }
}

#[test]
fn mapped_weights_compute_what_packed_ones_do_and_others_are_refused() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let cases = cases(directory.path());
    let targets: Vec<Target> = cases.iter().map(|case| case.target.clone()).collect();
    let binaries = build_with("packed", &targets, WITH_PACK);
    let mut files = Vec::new();
    for (at, (case, binary)) in cases.iter().zip(binaries).enumerate() {
        let [tokens, out, packed] =
            ["tokens", "logits", "packed"].map(|name| directory.path().join(format!("{at}.{name}")));
        std::fs::write(&tokens, serde_json::json!(case.golden.prompts).to_string()).expect("it is writable");
        let stack = Stack { binary, weights: case.weights.clone(), tokens, out };
        done(&stack.pack(&packed));
        let mode = std::fs::metadata(&packed).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o444, "nobody writes to what is mapped");
        for more in [&[][..], &["--verify"], &["--decode", "--threads", "1"]] {
            let more: Vec<&str> = more.to_vec();
            let plain: Vec<&str> = more.iter().copied().filter(|flag| *flag != "--verify").collect();
            let [made, mapped] = [stack.logits(&stack.weights, &plain), stack.logits(&packed, &more)];
            assert!(made == mapped, "{} {more:?}: other logits", case.target.name());
        }
        // Made-up weights are packed as others are, and what is computed of them are numbers.
        let (dummy, made_up) = (Path::new("dummy:3"), directory.path().join(format!("{at}.made-up")));
        done(&run(&stack.binary, "pack", &[("--weights", dummy), ("--out", &made_up)], &[]));
        let [made, mapped] = [dummy, &made_up].map(|weights| stack.logits(weights, &[]));
        assert!(made == mapped, "{}: other logits of made-up weights", case.target.name());
        let start = 8 + u64::from_le_bytes(*made.first_chunk().expect("a length")) as usize;
        assert!(Format::F32.is_finite(&made[start..]), "{}: made-up weights", case.target.name());
        let other = stack.logits(Path::new("dummy:4"), &[]);
        assert!(made != other, "{}: another seed gives the same", case.target.name());
        println!("{}: {} bytes", case.target.name(), std::fs::metadata(&packed).expect("it is there").len());
        files.push((stack, packed));
    }
    let left = std::fs::read_dir(directory.path()).expect("it is readable");
    let left =
        left.map(|entry| entry.expect("entries are readable").file_name().to_string_lossy().into_owned());
    assert!(left.into_iter().all(|name| !name.ends_with(".partial")), "a file of another name is left");

    // Another model's file, and what is no file of packed weights.
    let [(first, packed), (second, other)] = [&files[0], &files[1]];
    let words = refusal(&first.try_logits(other, &[]));
    assert!(
        words
            .contains("holds packed weights of nemotron-h-nano/bf16, and this server is qwen35-moe-text/f32"),
        "{words}"
    );
    let words = refusal(&run(&second.binary, "pack", &[("--weights", packed), ("--out", other)], &[]));
    assert!(words.contains("holds weights that are packed already"), "{words}");
    let weights = first.weights.join("model.safetensors");
    let before = std::fs::metadata(&weights).expect("it is there");
    let words = refusal(&first.pack(&weights));
    assert!(words.contains("is there already, and is no file of packed weights"), "{words}");
    assert_eq!(std::fs::metadata(&weights).expect("it is there").ino(), before.ino());
    // One that keeps something of the checkpoint: its static scales.
    let (last, packed) = files.last().expect("there are some");
    damages(last, packed, directory.path());
}

/// Damages a file in every way.
fn damages(stack: &Stack, packed: &Path, directory: &Path) {
    let good = std::fs::read(packed).expect("it is readable");
    let damaged = directory.join("damaged.packed");
    let words_of = |bytes: &[u8], more: &[&str]| {
        std::fs::write(&damaged, bytes).expect("it is writable");
        let words = refusal(&stack.try_logits(&damaged, more));
        assert!(words.contains("damaged.packed"), "the file is named: {words}");
        words
    };
    let words = words_of(&good[..good.len() - 1], &[]);
    assert!(words.contains("it was cut short") && words.contains("with the verb `pack`"), "{words}");
    let change = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    assert!(words_of(&change(8, 9), &[]).contains("is version 9 of packed weights"));
    assert!(
        words_of(&change(PREFIX + 20, 0xff), &[]).contains("has a damaged header: its digest is another")
    );
    // A header that is whole and says otherwise.
    let prefix =
        Prefix::decode(good.first_chunk().expect("it has one"), good.len() as u64).expect("it is good");
    let header = prefix.header as usize;
    let mut layout = change(PREFIX, 77);
    let sum = digest(&layout[PREFIX..header]);
    layout[..PREFIX].copy_from_slice(&Prefix { digest: sum, ..prefix }.encode());
    assert!(words_of(&layout, &[]).contains("is packed in layout 77, and this server reads layout 1"));
    // What is kept of the checkpoint is compared whenever the file is opened.
    let whole = Header::decode(&good[PREFIX..header], &prefix).expect("it is good");
    let kept = whole.kept().next().expect("there are static scales").1.place.start as usize;
    assert!(words_of(&change(kept, good[kept] ^ 1), &[]).contains("is damaged: its copy of"));
    // An array is not: a bit of it is noticed by who asks.
    let last = good.len() - 3;
    let words = words_of(&change(last, good[last] ^ 1), &["--verify"]);
    assert!(words.contains("--verify") && words.contains("is damaged: array"), "{words}");
    done(&stack.try_logits(&damaged, &[]));
}

/// Kilobytes that a line of a process's memory sums up.
fn kilobytes(serving: &Serving, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", serving.id())).expect("it runs");
    let found = text.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(':'));
    found
        .and_then(|it| it.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| panic!("{line}: {text}"))
}

/// Memory that is a process's own.
fn own(serving: &Serving) -> u64 {
    kilobytes(serving, "Private_Clean") + kilobytes(serving, "Private_Dirty")
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn servers_of_a_packed_file_share_it() {
    let (weights, server) = (smollm2(), build(None, "cpu/smollm2-135m/q4_1"));
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let packed = directory.path().join("smollm2.packed");
    done(&run(&server, "pack", &[("--weights", &weights), ("--out", &packed)], &[]));
    let bytes = std::fs::metadata(&packed).expect("it is there").len() / 1024;
    let start = |weights| Serving::start(&server, weights, &["--context", "512", "--kv-tokens", "512"]);
    let ask = |serving: &Serving| {
        let body =
            r#"{"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "logprobs": 0}"#;
        let (status, text) = post(&serving.address, "/v1/completions", body).expect("it answers");
        assert_eq!(status, 200, "{text}");
        let answer: serde_json::Value = serde_json::from_str(&text).expect("answers are JSON");
        answer["choices"][0].clone()
    };
    let made = start(&weights);
    let answer = ask(&made);
    let of_made = own(&made);
    drop(made);
    let [first, second] = [start(&packed), start(&packed)];
    for serving in [&first, &second] {
        assert_eq!(ask(serving), answer);
        let (_, health) = get(&serving.address, "/health").expect("it answers");
        let health: serde_json::Value = serde_json::from_str(&health).expect("health is JSON");
        assert!(health["canary"]["known_answers"].as_u64() >= Some(1), "{health}");
    }
    let (own_of, shared) = (own(&first), kilobytes(&first, "Shared_Clean"));
    println!(
        "ready after {:.3?}; {of_made} kB own with a checkpoint, {own_of} kB and {shared} kB shared of a file of {bytes} kB",
        first.ready_after
    );
    // An answer goes through all matrices, and both have given one.
    assert!(shared > bytes * 9 / 10, "{shared} kB of {bytes} are shared");
    assert!(own_of + bytes * 9 / 10 < of_made, "{own_of} kB are its own, and {of_made} with a checkpoint");
}

/// A file that is cut short under a server ends it at once, and says which.
#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn a_mapped_file_that_is_cut_short_ends_the_server_with_its_name() {
    let (weights, server) = (smollm2(), build(None, "cpu/smollm2-135m/q4_1"));
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let packed = directory.path().join("cut.packed");
    done(&run(&server, "pack", &[("--weights", &weights), ("--out", &packed)], &[]));
    let mut command = Command::new(&server);
    let said = directory.path().join("said");
    command.stderr(std::fs::File::create(&said).expect("it is writable"));
    let serving = Serving::start_command(command, &packed, &["--context", "512", "--kv-tokens", "512"]);
    // Another file in its place changes nothing.
    done(&run(&server, "pack", &[("--weights", &weights), ("--out", &packed)], &[]));
    let body = r#"{"prompt": "The capital of France is", "max_tokens": 4}"#;
    let (status, _) = post(&serving.address, "/v1/completions", body).expect("it answers");
    assert_eq!(status, 200);
    drop(serving);
    let mut command = Command::new(&server);
    command.stderr(std::fs::File::create(&said).expect("it is writable"));
    let serving = Serving::start_command(command, &packed, &["--context", "512", "--kv-tokens", "512"]);
    std::fs::set_permissions(&packed, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let file = std::fs::OpenOptions::new().write(true).open(&packed).expect("it is writable now");
    file.write_all_at(b"", 0).expect("it is writable");
    file.set_len(1 << 20).expect("it is writable");
    let _ = post(&serving.address, "/v1/completions", body);
    assert_eq!(serving.end(std::time::Duration::from_secs(20)), Some(4), "as a device that failed");
    let said = std::fs::read_to_string(&said).expect("it is readable");
    assert!(said.contains("cut.packed") && said.contains("cannot be read any more"), "{said}");
}
