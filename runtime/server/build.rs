//! Says which rustc compiles the server.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").expect("cargo names the compiler");
    let output = Command::new(rustc).arg("--version").output().expect("cargo runs it too");
    let words = String::from_utf8_lossy(&output.stdout);
    println!("cargo::rustc-env=MONOMORPH_RUSTC={}", words.trim());
}
