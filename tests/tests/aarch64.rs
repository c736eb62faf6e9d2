//! The portable build for 64-bit Arm, under an emulator: what the host of a DGX Spark runs without its GPU.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::Compute;
use monomorph_compiler::toolchain::{Dependencies, Levels, Linking};
use monomorph_tests::goldens::goldens;
use monomorph_tests::logits::{distance, read};
use monomorph_tests::{program, root, server};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a server whose dependencies no other test needs. They stay unoptimised: the kernels are under test,
/// not they.
fn build(targets: &Path, target: &str) -> PathBuf {
    let search = [targets.to_owned(), root().join("targets")];
    let target = spec::load(&search, target).unwrap_or_else(|error| panic!("{error}"));
    let levels = Levels { dependencies: Dependencies::All(0), generated: 1 };
    server::link(&target, &Linking { levels, ..server::linking(&target.hardware.name) })
}

/// The root file system of the server's image, which has all that it is linked to.
fn unpacked(targets: &Path, target: &str, server: &Path) -> PathBuf {
    let run = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let archive = targets.join(format!("{}.tar", target.replace('/', "-")));
    let mut xtask = Command::new(program(&["--bin", "xtask"], "xtask"));
    xtask.args(["image", "--target", target, "--targets-dir"]).arg(targets);
    run(xtask.arg("--server").arg(server).arg("--out").arg(targets));
    let [layout, system] = ["layout", "system"].map(|name| targets.join(name));
    for (archive, to) in [(&archive, &layout), (&layout.join("layer"), &system)] {
        std::fs::create_dir(to).expect("a new directory");
        run(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(to));
        if let Ok(manifest) = std::fs::read(to.join("manifest.json")) {
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
            let layer = to.join(manifest[0]["Layers"][0].as_str().expect("a path"));
            std::fs::rename(layer, to.join("layer")).expect("a layer");
        }
    }
    system
}

/// Run by `cargo xtask test --slow` if a cross compiler and an emulator are installed.
#[test]
#[ignore = "needs a cross compiler and an emulator: xtask/cross/debian.sh"]
fn a_server_for_arm_agrees_with_transformers_under_an_emulator() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let golden = goldens().into_iter().find(|it| it.name == "llama-grouped").expect("it is committed");
    golden.import_into(targets.path(), Compute::F32);
    let target = format!("aarch64/{}/f32", golden.name);
    let server = build(targets.path(), &target);
    let system = unpacked(targets.path(), &target, &server);
    let head = std::fs::read(&server).expect("a server was built");
    assert_eq!(u16::from_le_bytes([head[18], head[19]]), 183, "an ELF file for EM_AARCH64");

    let weights = golden.directory.join("f32");
    let expected = read(&weights.join("logits.safetensors"));
    let vocabulary = expected[0].len() / golden.prompts[0].len();
    let found = targets.path().join("logits.safetensors");
    for mode in [None, Some("--decode")] {
        // One thread: a team that spins while it waits starves itself on emulated cores.
        let output = Command::new("qemu-aarch64")
            .arg("-L")
            .arg(&system)
            .arg(&server)
            .args(["logits", "--threads", "1", "--weights"])
            .arg(&weights)
            .arg("--tokens")
            .arg(golden.directory.join("tokens.json"))
            .arg("--out")
            .arg(&found)
            .args(mode)
            .output()
            .expect("the emulator is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let apart = distance(&read(&found), &expected, vocabulary);
        println!("{} f32 {mode:?}: {apart:.1e}", golden.name);
        assert!(apart <= 2e-4, "{mode:?}: {apart:e}");
    }
}
