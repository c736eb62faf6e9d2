//! `cargo xtask verify` on a golden's server: what transformers computed is verified, another model is not,
//! and a reference that says nothing of rounding decides nothing that rounding could have moved.

use monomorph_compiler::spec::types::Compute;
use monomorph_tests::goldens::golden;
use monomorph_tests::logits::{Logits, read};
use monomorph_tests::{program, server};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Writes what xtask/verify/reference.py does.
fn reference(path: &Path, prompts: &[Vec<u32>], logits: &Logits, rounded: Option<&Logits>) {
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (at, ids) in prompts.iter().enumerate() {
        let bytes = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
        tensors.push((format!("tokens/{at}"), Dtype::I64, vec![ids.len()], bytes));
        let mut matrix = |name: String, rows: &[f32]| {
            let shape = vec![ids.len(), rows.len() / ids.len()];
            tensors.push((name, Dtype::F32, shape, rows.iter().flat_map(|it| it.to_le_bytes()).collect()));
        };
        matrix(at.to_string(), &logits[at]);
        if let Some(rounded) = rounded {
            matrix(format!("rounded/{at}"), &rounded[at]);
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            name.as_str(),
            TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as its shape says"),
        )
    });
    serialize_to_file(views, None, path).expect("the directory is writable");
}

#[test]
fn a_server_passes_by_its_own_reference_and_by_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let targets = directory.path().join("targets");
    let golden = golden("llama-grouped");
    golden.import_into(&targets, Compute::F32);
    let target = format!("cpu/{}/f32", golden.name);
    let server = server::build(Some(&targets), &target);
    let xtask = program(&["--bin", "xtask"], "xtask");
    let [right, rounded] =
        ["f32", "bf16"].map(|quant| read(&golden.directory.join(quant).join("logits.safetensors")));
    let verdict = |weights: &str, logits: &Logits, rounded: Option<&Logits>| {
        let path = directory.path().join("reference.safetensors");
        reference(&path, &golden.prompts, logits, rounded);
        let mut command = Command::new(&xtask);
        command.args(["verify", "--json", "--target", &target, "--targets-dir"]).arg(&targets);
        command.arg("--weights").arg(golden.directory.join(weights));
        let output = command.arg("--server").arg(&server).arg("--reference").arg(path).output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        let word = report["verdict"].as_str().expect("a word").to_owned();
        assert_eq!(output.status.success(), word == "PASS", "{report}");
        println!("{report}");
        word
    };
    assert_eq!(verdict("f32", &right, Some(&rounded)), "PASS");
    assert_eq!(verdict("f32", &right, None), "PASS", "f32 against f32");
    assert_eq!(verdict("f32", &rounded, None), "INCONCLUSIVE");
    // Of each row another id leads.
    let width = right[0].len() / golden.prompts[0].len();
    let turned: Logits = right
        .iter()
        .map(|it| it.chunks_exact(width).flat_map(|row| [&row[1..], &row[..1]].concat()).collect())
        .collect();
    assert_eq!(verdict("f32", &turned, Some(&turned)), "FAIL");
}
