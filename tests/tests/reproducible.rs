//! What cargo makes of an emitted crate does not depend on where the checkout is, and holds no path of it.

use monomorph_compiler::spec;
use monomorph_compiler::toolchain::{self, Dependencies, Levels, Linking};
use monomorph_tests::{root, server};
use std::path::{Path, PathBuf};

const MANIFEST: &str = r#"
[package]
name = "reproduced"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
monomorph-formats = { path = "runtime/formats" }
half.workspace = true

[profile.release]
strip = true
"#;

/// A panic in it names a source file, and one in the crate that converts slices of one length another.
const MAIN: &str = "use half::slice::HalfFloatSliceExt;

fn main() {
    let halves: Vec<f32> = std::env::args().skip(1).map(|it| it.parse().expect(\"a number\")).collect();
    let mut one = [half::f16::ZERO];
    one.convert_from_f32_slice(&halves);
    println!(\"{} {one:?} {}\", monomorph_formats::Format::F16, file!());
}
";

/// The binary of a crate that is emitted into a checkout of this name.
fn built(below: &Path, name: &str) -> PathBuf {
    let checkout = below.join(name);
    std::fs::create_dir(&checkout).expect("a new directory");
    for file in ["Cargo.toml", "Cargo.lock"] {
        std::fs::copy(root().join(file), checkout.join(file)).expect("it is a file");
    }
    std::os::unix::fs::symlink(root().join("runtime"), checkout.join("runtime")).expect("a new link");
    let directory = checkout.join("generated/reproduced");
    toolchain::write_if_changed(&directory.join("src/main.rs"), MAIN.as_bytes()).expect("it is written");
    toolchain::workspace(&checkout, &directory, MANIFEST).expect("it is written");
    let target = spec::load(&[root().join("targets")], "cpu/smollm2-135m/q4_1")
        .unwrap_or_else(|error| panic!("{error}"));
    let levels = Levels { dependencies: Dependencies::All(0), generated: 0 };
    let linking = Linking { levels, ..Linking::new("reproduced") };
    let directory = toolchain::compile(&checkout, &target, &directory, "reproduced", &linking)
        .unwrap_or_else(|error| panic!("{error}"));
    directory.expect("this machine links for itself").join("reproduced")
}

#[test]
fn two_checkouts_make_one_binary() {
    let below = tempfile::tempdir().expect("a directory");
    let [first, second] = ["here", "elsewhere-and-longer"].map(|name| built(below.path(), name));
    let [first, second] = [first, second].map(|path| std::fs::read(path).expect("it was built"));
    assert!(first == second, "two binaries, of {} and {} bytes", first.len(), second.len());
    assert!(!server::names(&first, below.path()), "it has the checkout's path");
    let named = |path: &str| server::names(&first, Path::new(path));
    assert!(named("/cargo/registry"), "no source of another crate is named");
    assert!(!named(".cargo/registry"), "it has the path of cargo's sources");
}
