//! `cargo xtask image`: what others' tools read of an image, and that it answers from inside itself.

use monomorph_tests::{program, server, smollm2};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86-64-v3/smollm2-135m/q4_1";
const PROMPT: [&str; 6] = ["--prompt", "Say one word.", "--max-tokens", "8", "--temperature", "0"];

/// Runs a program to its end and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The archive of an image with this server.
fn image(xtask: &Path, server: &Path, out: &Path) -> PathBuf {
    let mut command = Command::new(xtask);
    run(command.args(["image", "--target", TARGET, "--server"]).arg(server).arg("--out").arg(out));
    out.join("x86-64-v3-smollm2-135m-q4_1.tar")
}

#[test]
#[ignore = "needs skopeo, umoci, bubblewrap and SmolLM2's weights: cargo xtask test"]
fn an_image_is_the_same_twice_is_read_by_others_and_answers_as_nobody_on_a_read_only_root() {
    let (weights, xtask) = (smollm2(), program(&["--bin", "xtask"], "xtask"));
    // Built for this very machine; its image only says another name.
    let server = server::build(None, "cpu/smollm2-135m/q4_1");
    let below = tempfile::tempdir().expect("a directory");
    let [first, second] = ["1", "2"].map(|name| image(&xtask, &server, &below.path().join(name)));
    let bytes = std::fs::read(&first).expect("it was written");
    assert!(bytes == std::fs::read(second).expect("it was written"), "two runs wrote two archives");
    assert!(bytes.len() < 60_000_000, "{} bytes", bytes.len());

    for kind in ["oci-archive", "docker-archive"] {
        let said = run(Command::new("skopeo").arg("inspect").arg(format!("{kind}:{}", first.display())));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["Architecture"], "amd64", "{kind}");
        assert_eq!(said["Labels"]["io.github.monomorph.target"], TARGET, "{kind}");
        let specs = said["Labels"].as_object().expect("labels").keys().filter(|it| it.contains(".spec."));
        assert_eq!(specs.count(), 3, "{kind}");
        // Checks every digest on the way.
        let to = below.path().join(kind);
        run(Command::new("skopeo")
            .args(["copy", "--quiet"])
            .args([format!("{kind}:{}", first.display()), format!("oci:{}:it", to.display())]));
    }
    let bundle = below.path().join("bundle");
    let layout = format!("{}:it", below.path().join("oci-archive").display());
    run(Command::new("umoci").args(["unpack", "--rootless", "--image", &layout]).arg(&bundle));

    let contained = || {
        let mut command = Command::new("bwrap");
        command.arg("--ro-bind").arg(bundle.join("rootfs")).arg("/");
        command.arg("--ro-bind").arg(weights.parent().expect("it is in a directory")).arg("/weights");
        command.args([
            "--unshare-all",
            "--uid",
            "65532",
            "--gid",
            "65532",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]);
        command.args(["--tmpfs", "/tmp", "/server"]);
        command
    };
    let inside = run(contained().args(["generate", "--weights", "/weights"]).args(PROMPT));
    let outside = run(Command::new(&server).arg("generate").arg("--weights").arg(&weights).args(PROMPT));
    assert!(!inside.trim().is_empty());
    assert_eq!(inside, outside);
    assert!(run(contained().arg("--version")).contains("cpu/smollm2-135m/q4_1"));
    let notices = std::fs::read_to_string(bundle.join("rootfs/licenses/rust.txt")).expect("a file");
    assert!(notices.contains("tokio 1.") && notices.contains("Permission is hereby granted"));
    assert!(!notices.contains("jsonschema"), "a crate that only tests have");
}

#[test]
fn an_image_for_this_very_machine_is_refused() {
    let xtask = program(&["--bin", "xtask"], "xtask");
    let output = Command::new(xtask).args(["image", "--target", "cpu/smollm2-135m/q4_1"]).output();
    let output = output.expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("x86-64-v3"), "{errors}");
}
