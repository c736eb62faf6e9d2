//! `cargo xtask run --model` against a stand-in of the hub: a model that no spec names is imported from its
//! headers, chosen for this machine, and fetched through a connection that breaks.

use monomorph_hub::stand_in::{COMMIT, Fault, On, StandIn};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const ID: &str = "Owner/Tiny";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A golden's checkpoint as a repository: in two shards, with an index, a tokenizer and a template.
fn repository(config: &str) -> Vec<(String, Vec<u8>)> {
    let golden = monomorph_tests::fixtures().join("goldens/qwen3-tied/bf16/model.safetensors");
    let bytes = fs::read(golden).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = whole.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let half = tensors.len() / 2;
    let mut map = serde_json::Map::new();
    let mut files = Vec::new();
    for (shard, part) in SHARDS.iter().zip([&tensors[..half], &tensors[half..]]) {
        map.extend(part.iter().map(|(name, _)| (name.clone(), (*shard).into())));
        let part = part.iter().map(|(name, view)| (name.as_str(), view));
        files.push(((*shard).to_owned(), safetensors::serialize(part, None).unwrap()));
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    let text = [
        ("README.md", "a model"),
        ("chat_template.jinja", "{% for m in messages %}<think></think>{{ m }}{% endfor %}"),
        ("config.json", config),
        ("model.safetensors.index.json", index.as_str()),
        ("tokenizer.json", "{}"),
    ];
    let text = text.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    files.into_iter().chain(text).collect()
}

fn config() -> String {
    fs::read_to_string(monomorph_tests::fixtures().join("goldens/qwen3-tied/config.json")).unwrap()
}

/// Runs xtask as someone whose caches are in `home`.
fn xtask(home: &Path, endpoint: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).env("XDG_CACHE_HOME", home).env("HF_ENDPOINT", endpoint);
    for unset in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
        command.env_remove(unset);
    }
    command.env("HF_TOKEN", "hf_right").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_without_a_spec_is_imported_planned_and_fetched() {
    let stand_in = StandIn::serve(ID, repository(&config()), Some("hf_right"));
    let home = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let arguments = [&["run", "--model", ID, "--hardware", "cpu", "--dry-run"], more].concat();
        xtask(home.path(), &stand_in.endpoint(), &arguments)
    };
    let planned = run(&[]);
    let words = said(&planned);
    assert!(planned.status.success(), "{words}");
    let out = home.path().join("monomorph/.imported/owner--tiny").join(COMMIT).join("f32");
    assert!(
        words.contains(&format!("target   cpu/owner--tiny/bf16, imported into {}", out.display())),
        "{words}"
    );
    assert!(words.contains("weights  ") && words.contains("to be fetched into"), "{words}");
    let spec = fs::read_to_string(out.join("models/owner--tiny/bf16.toml")).unwrap();
    assert!(spec.contains(&format!("revision = \"{COMMIT}\"")), "{spec}");
    assert!(spec.contains(&format!("sha256 = \"{}\"", stand_in.sha256(SHARDS[1]).unwrap())), "{spec}");
    assert!(!spec.contains("README.md"), "{spec}");
    let model = fs::read_to_string(out.join("models/owner--tiny/MODEL.toml")).unwrap();
    assert!(model.contains("reasoning = "), "the template was looked at: {model}");
    let whole = |shard: &str| {
        stand_in
            .requests()
            .iter()
            .any(|it| it.path.ends_with(shard) && it.end.is_none() && it.method == "GET")
    };
    assert!(!SHARDS.iter().any(|it| whole(it)), "of weights the headers are enough");

    // The spec that was written is a source: what breaks is resumed, and what the server reads is there.
    stand_in.plant(&[Fault { on: On::Bytes("00001"), times: 1, does: |_, it| it.cut = Some(30_000) }]);
    let arguments = ["fetch", "--target", "cpu/owner--tiny/bf16", "--targets-dir", out.to_str().unwrap()];
    let fetched = xtask(home.path(), &stand_in.endpoint(), &arguments);
    assert!(fetched.status.success(), "{}", said(&fetched));
    assert!(stand_in.requests().iter().any(|it| it.elsewhere && it.begin == Some(30_000)), "it was resumed");
    let weights = home.path().join("monomorph/owner--tiny/bf16");
    for (path, content) in repository(&config()).into_iter().filter(|(path, _)| path != "README.md") {
        assert!(fs::read(weights.join(&path)).unwrap() == content, "{path}");
    }
    assert!(said(&run(&[])).contains("there already, in"));
    let other = run(&["--quant", "q4"]);
    assert!(said(&other).contains("there is no quant spec \"q4\"; there is bf16"), "{}", said(&other));
}

#[test]
fn what_cannot_be_run_is_named_before_anything_is_built() {
    let home = tempfile::tempdir().unwrap();
    let unknown = config().replace("\"qwen3\"", "\"qwen9\"");
    let refused = |stand_in: &StandIn, arguments: &[&str]| {
        let arguments = [&["run", "--hardware", "cpu", "--dry-run", "--model"], arguments].concat();
        let output = xtask(home.path(), &stand_in.endpoint(), &arguments);
        assert!(!output.status.success());
        said(&output)
    };
    let stand_in = StandIn::serve(ID, repository(&unknown), None);
    let family = refused(&stand_in, &[ID]);
    assert!(
        family.contains("Owner/Tiny: this config cannot be imported") && family.contains("qwen9"),
        "{family}"
    );
    let missing = refused(&stand_in, &["Owner/Other"]);
    assert!(missing.contains("has no model Owner/Other"), "{missing}");
    let revision = refused(&stand_in, &["Owner/Tiny@v9"]);
    assert!(revision.contains("has no revision \"v9\""), "{revision}");
    let name = refused(&stand_in, &["tiny"]);
    assert!(name.contains("write owner/name or owner/name@revision"), "{name}");
    let gguf = StandIn::serve(ID, vec![("model.gguf".to_owned(), b"GGUF".to_vec())], None);
    assert!(refused(&gguf, &[ID]).contains("neither config.json nor params.json"));
}

#[test]
fn a_directory_and_a_model_that_a_spec_names_need_no_hub() {
    let home = tempfile::tempdir().unwrap();
    let checkpoint = tempfile::tempdir().unwrap();
    let directory = checkpoint.path().join("My Model");
    fs::create_dir(&directory).unwrap();
    for (path, content) in repository(&config()) {
        fs::write(directory.join(path), content).unwrap();
    }
    let run = |model: &str, more: &[&str]| {
        let arguments = [&["run", "--dry-run", "--model", model], more].concat();
        xtask(home.path(), "http://127.0.0.1:1", &arguments)
    };
    let own = run(directory.to_str().unwrap(), &["--hardware", "cpu"]);
    assert!(own.status.success(), "{}", said(&own));
    assert!(said(&own).contains("target   cpu/local--my-model/bf16"), "{}", said(&own));
    assert!(said(&own).contains(&format!("there already, in {}", directory.display())), "{}", said(&own));
    // Whatever hardware this machine has, the specs of the tree are found.
    let named = run("huggingfacetb/smollm2-135m-instruct", &["--hardware", "cpu"]);
    assert!(said(&named).contains("target   cpu/smollm2-135m/bf16, specs name"), "{}", said(&named));
}
