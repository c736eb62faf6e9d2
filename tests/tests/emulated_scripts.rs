//! The scripts that check servers on machines with several GPUs (`cargo xtask gpu --tp`), run on servers of
//! emulated cards, where every check must pass.
//!
//! Planted in a program that only pretends to be a server, and caught: blocks of clients that hung up that do
//! not come back, and a rank with a step more (`storm`); another token in an answer (`ranks`).

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_tests::emulated;
use monomorph_tests::root;
use monomorph_tests::served::served;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Sequences of the batch-invariant servers.
const SEQUENCES: usize = 8;

/// A program below `store` that starts a server on its emulated card; its path there.
fn installed(server: &emulated::Server, store: &Path, name: &str) -> String {
    let command = server.command();
    let driver = command.get_envs().find(|(key, _)| *key == "LD_LIBRARY_PATH").and_then(|(_, value)| value);
    let driver = driver.expect("the driver's directory").display();
    let text = format!("#!/bin/sh\nLD_LIBRARY_PATH={driver} exec {} \"$@\"\n", server.binary.display());
    let path = store.join(name);
    std::fs::write(&path, text).expect("it is writable");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    name.to_owned()
}

#[test]
#[ignore = "minutes"]
fn scripts_for_two_gpus_pass_on_two_emulated_cards() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let [targets, store, here] = ["targets", "store", "here"].map(|name| directory.path().join(name));
    std::fs::create_dir_all(here.join("checks")).expect("it is writable");
    let served = served("shared-slim", &targets, &store.join("ranks"));
    let hardware = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let search = [targets, root().join("targets")];
    let build = |ranks: usize, batch_invariant: Option<usize>, draft: Option<DraftOption>, name: &str| {
        let options = BuildOptions { ranks: Some(ranks), batch_invariant, draft, ..BuildOptions::default() };
        let target = spec::load_with(&search, &format!("{hardware}/{}", served.name), &options);
        let target = target.unwrap_or_else(|error| panic!("{error}"));
        installed(&emulated::build(&target), &store, name)
    };
    let draft =
        DraftOption { method: DraftMethod::Layers, drafts: 2, vocabulary: None, forced_acceptance: None };
    let one = build(1, Some(SEQUENCES), None, "one");
    let several = build(2, Some(SEQUENCES), None, "several");
    let layers = json!({
        "one": build(1, None, Some(draft), "layers-of-one"),
        "several": build(2, None, Some(draft), "layers"),
    });

    let below = |path: &Path| path.strip_prefix(&store).expect("it stands there").to_owned();
    let flags = ["--threads", "2"];
    let manifest = json!({
        "commit": "none", "cut": {}, "executables": [], "programs": [], "instruments": [], "goldens": [], "joins": [],
        "engine": [], "sanitized": [], "benches": [],
        "storm": [{
            "name": "storm", "server": several, "weights": below(&served.random), "vocabulary": served.vocabulary,
            "ranks": 2, "requests": 150, "kv_tokens": 4096, "flags": ["--context", "480", "--threads", "2"],
        }],
        "ranks": [{
            "name": "ranks", "ranks": 2, "one": one, "several": several, "drafting": { "layers": layers },
            "weights": [below(&served.random), below(&served.repeating)], "swap_gb": 0.02, "flags": flags,
            "context": served.context, "vocabulary": served.vocabulary, "experts": served.experts, "lengths": [1, 17, 64, 130, 65],
        }],
    });
    std::fs::write(here.join("manifest.json"), manifest.to_string()).expect("it is writable");
    let scripts = root().join("xtask/src/gpu");
    std::fs::copy(scripts.join("run.py"), here.join("run.py")).expect("it is readable");
    for script in std::fs::read_dir(scripts.join("checks")).expect("it is readable").flatten() {
        std::fs::copy(script.path(), here.join("checks").join(script.file_name())).expect("it is readable");
    }
    let mut python = Command::new("python3");
    python
        .arg(here.join("run.py"))
        .args(["--only", "ranks,storm", "--out"])
        .arg(&here)
        .arg("--store")
        .arg(&store);
    let status = python.status().expect("python3 starts");
    let results = std::fs::read_to_string(here.join("results.json")).expect("it was written");
    let results: Value = serde_json::from_str(&results).expect("it is JSON");
    let checks = results["checks"].as_array().expect("a list");
    assert!(status.success(), "{checks:#?}");
    // As many as there are names of ways: each ran.
    assert_eq!(checks.len(), 1 + 2 * (5 + 2 * 2), "{checks:#?}");
}
