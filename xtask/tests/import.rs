//! `cargo xtask import` on the command line: a config.json given by its own path uses the checkpoint beside
//! it too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files that `import CONFIG` writes when started in `directory`, by name.
fn imported(directory: &Path, config: &str) -> BTreeMap<String, String> {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .current_dir(directory)
        .args(["import", config, "--name", "it", "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{config}: {}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(out.path().join("models/it")).unwrap().map(|entry| entry.unwrap());
    files.map(|it| (it.file_name().into_string().unwrap(), fs::read_to_string(it.path()).unwrap())).collect()
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
