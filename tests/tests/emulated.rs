//! CUDA servers on an emulated card (tests/emulated) against the goldens of transformers.

use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_compiler::spec;
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::goldens::{Golden, goldens};
use monomorph_tests::logits::{Logits, distance, read};
use monomorph_tests::root;
use std::path::Path;
use std::time::Instant;

/// Logits of a server.
fn logits(server: &Server, weights: &Path, tokens: &Path, flags: &[&str]) -> Logits {
    let out = tempfile::tempdir().expect("temporary directories can be made");
    let found = out.path().join("logits.safetensors");
    let mut command = server.command();
    command.arg("logits").arg("--weights").arg(weights).arg("--tokens").arg(tokens).arg("--out").arg(&found);
    let output = command.args(flags).output().expect("the server starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {flags:?}: {}\n{words}", server.binary.display(), output.status);
    read(&found)
}

fn target(targets: &Path, hardware: &str, golden: &Golden, quant: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("{hardware}/{}/{quant}", golden.name)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
#[ignore = "hours"]
fn every_golden() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let wanted = std::env::var("GOLDENS").unwrap_or_default();
    let mut bad = 0;
    for hardware in ["h200", "gb10"] {
        let name = emulated::hardware(targets.path(), hardware);
        for golden in goldens() {
            golden.import_into(targets.path(), Compute::Bf16);
            for quant in ["bf16", "f32"] {
                let target = target(targets.path(), &name, &golden, quant);
                if !wanted.is_empty() && !wanted.split(',').any(|it| target.name().contains(it)) {
                    continue;
                }
                let start = Instant::now();
                let server = emulated::build(&target);
                let built = start.elapsed().as_secs_f32();
                let weights = golden.directory.join(quant);
                let expected = read(&weights.join("logits.safetensors"));
                for flags in [&[][..], &["--decode"]] {
                    let start = Instant::now();
                    let found = logits(&server, &weights, &golden.directory.join("tokens.json"), flags);
                    let apart = distance(&found, &expected, target.model.vocabulary);
                    println!(
                        "{} {flags:?}: {apart:.1e} (built in {built:.1} s, run in {:.1} s)",
                        target.name(),
                        start.elapsed().as_secs_f32()
                    );
                    bad += usize::from(apart > 2e-2);
                }
            }
        }
    }
    assert_eq!(bad, 0);
}
