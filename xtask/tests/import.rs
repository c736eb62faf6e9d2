//! `cargo xtask import` on the command line: a config.json given by its own path uses the checkpoint beside
//! it too, and of two forms in a directory one is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files that `import CONFIG` writes when started in `directory`, by name.
fn imported(directory: &Path, config: &str) -> BTreeMap<String, String> {
    imported_and_said(directory, config).0
}

/// The same, and what it said besides.
fn imported_and_said(directory: &Path, config: &str) -> (BTreeMap<String, String>, String) {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .current_dir(directory)
        .args(["import", config, "--name", "it", "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{config}: {said}");
    let files = fs::read_dir(out.path().join("models/it")).unwrap().map(|entry| entry.unwrap());
    let text =
        |it: fs::DirEntry| (it.file_name().into_string().unwrap(), fs::read_to_string(it.path()).unwrap());
    (files.map(text).collect(), said)
}

#[test]
fn a_config_by_its_path_is_read_with_what_stands_beside_it() {
    let golden = monomorph_tests::fixtures().join("goldens/qwen3-deep");
    let directory = tempfile::tempdir().unwrap();
    fs::copy(golden.join("config.json"), directory.path().join("config.json")).unwrap();
    // Without a checkpoint the storage is unknown: one spec per guess.
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&imported(directory.path(), "config.json")), ["MODEL.toml", "bf16.toml", "f32.toml"]);

    fs::copy(golden.join("bf16/model.safetensors"), directory.path().join("model.safetensors")).unwrap();
    let by_directory = imported(directory.path(), ".");
    assert_eq!(names(&by_directory), ["MODEL.toml", "bf16.toml"]);
    let absolute = directory.path().join("config.json");
    for config in ["config.json", "./config.json", absolute.to_str().unwrap()] {
        assert_eq!(imported(directory.path(), config), by_directory, "{config}");
    }
}

#[test]
fn the_makers_own_files_are_read_where_there_are_no_others_or_when_named() {
    let directory = tempfile::tempdir().unwrap();
    let golden = &monomorph_tests::makers::in_the_makers_form(directory.path())[0];
    let beside = golden.directory.join("f32");
    fs::copy(golden.directory.join("params.json"), beside.join("params.json")).unwrap();
    let (own, said) = imported_and_said(&beside, ".");
    assert!(
        own["MODEL.toml"].starts_with("# it: imported from a Mistral params.json"),
        "{}",
        own["MODEL.toml"]
    );
    assert!(own["f32.toml"].contains("tok_embeddings.weight"), "{}", own["f32.toml"]);
    assert!(!own["MODEL.toml"].contains("tools =") && said.is_empty(), "{said}");

    // The formats of its answers are those of the template beside it.
    fs::write(beside.join("chat_template.jinja"), "[INST]{{ m }}[/INST][THINK][TOOL_CALLS]{{ f }}[ARGS]")
        .unwrap();
    let named = imported(&beside, ".");
    assert!(named["MODEL.toml"].contains("tools = \"mistral\""), "{}", named["MODEL.toml"]);
    assert!(named["MODEL.toml"].contains("reasoning = \"mistral\""), "{}", named["MODEL.toml"]);

    let theirs = monomorph_tests::fixtures().join("goldens/mistral4");
    fs::copy(theirs.join("config.json"), beside.join("config.json")).unwrap();
    fs::copy(theirs.join("f32/model.safetensors"), beside.join("model.safetensors")).unwrap();
    let (both, said) = imported_and_said(&beside, ".");
    assert!(both["f32.toml"].contains("language_model.model.embed_tokens.weight"), "{}", both["f32.toml"]);
    assert!(said.contains("params.json is there too"), "{said}");
    assert_eq!(imported(&beside, "params.json"), named);
}
