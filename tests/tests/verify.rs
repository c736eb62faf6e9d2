//! The worked example of docs/adding-a-model.md: a model that nobody has compiled is imported, built,
//! verified by the logits that a script computed, and served. Of `cargo xtask verify` besides: another
//! model's logits do not pass, and a reference that says nothing of rounding decides nothing that rounding
//! could have moved.

use monomorph_tests::logits::Logits;
use monomorph_tests::server::{Serving, post};
use monomorph_tests::{program, root, server};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// What the script names its second prompt, and the place of that.
const PROMPT: (&str, usize) = ("The sea was calm", 1);

/// The prompts of a reference, its logits, and the same rounded.
fn read(path: &Path) -> (Vec<Vec<u32>>, [Logits; 2]) {
    let bytes = std::fs::read(path).expect("it was written");
    let file = SafeTensors::deserialize(&bytes).expect("it holds tensors");
    let prompts = file.names().iter().filter(|name| name.starts_with("tokens/")).count();
    let ids = |at: usize| -> Vec<u32> {
        let tensor = file.tensor(&format!("tokens/{at}")).expect("it has the prompt");
        let ids = tensor.data().as_chunks::<8>().0.iter();
        ids.map(|id| u32::try_from(i64::from_le_bytes(*id)).expect("an id")).collect()
    };
    let logits = |prefix: &str| -> Logits {
        let matrix = |at: usize| -> Vec<f32> {
            let tensor = file.tensor(&format!("{prefix}{at}")).expect("it has the logits");
            tensor.data().as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
        };
        (0..prompts).map(matrix).collect()
    };
    ((0..prompts).map(ids).collect(), ["", "rounded/"].map(logits))
}

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

/// Runs a program to its end.
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
}

#[test]
fn a_model_nobody_has_compiled_is_imported_verified_by_its_own_reference_alone_and_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let [weights, targets, own, path] = ["tiny", "targets", "own.safetensors", "reference.safetensors"]
        .map(|name| directory.path().join(name));
    let xtask = program(&["--bin", "xtask"], "xtask");
    run(Command::new("python3").arg(root().join("xtask/book/tiny.py")).arg(&weights).arg("--out").arg(&own));
    run(Command::new(&xtask).arg("import").arg(&weights).args(["--name", "tiny", "--out"]).arg(&targets));
    let target = "cpu/tiny/bf16";
    let server = server::build(Some(&targets), target);

    let (prompts, [right, rounded]) = read(&own);
    let verdict = |logits: &Logits, rounded: Option<&Logits>| {
        reference(&path, &prompts, logits, rounded);
        let mut command = Command::new(&xtask);
        command.args(["verify", "--json", "--target", target, "--targets-dir"]).arg(&targets);
        command.arg("--weights").arg(&weights);
        let output = command.arg("--server").arg(&server).arg("--reference").arg(&path).output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        let word = report["verdict"].as_str().expect("a word").to_owned();
        assert_eq!(output.status.success(), word == "PASS", "{report}");
        println!("{report}");
        word
    };
    assert_eq!(verdict(&right, Some(&rounded)), "PASS");
    assert_eq!(verdict(&right, None), "PASS", "f32 against f64");
    assert_eq!(verdict(&rounded, None), "INCONCLUSIVE");
    // Of each row another id leads.
    let width = right[0].len() / prompts[0].len();
    let turned: Logits = right
        .iter()
        .map(|it| it.chunks_exact(width).flat_map(|row| [&row[1..], &row[..1]].concat()).collect())
        .collect();
    assert_eq!(verdict(&turned, Some(&turned)), "FAIL");

    let (text, at) = PROMPT;
    let last = right[at].chunks_exact(width).next_back().expect("a prompt has tokens");
    let leads = (0..width).max_by(|a, b| last[*a].total_cmp(&last[*b])).expect("a vocabulary has ids");
    let serving = Serving::start(&server, &weights, &[]);
    let body = json!({"prompt": text, "max_tokens": 1, "temperature": 0, "return_token_ids": true});
    let answer = post(&serving.address, "/v1/completions", &body.to_string());
    let (status, answer) = answer.expect("it answers");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &answer["choices"][0]["token_ids"]), (200, &json!([leads])), "{answer}");
}
