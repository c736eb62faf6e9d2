//! Sequences that join and leave batches, compared with lone runs: models, prompts, and the comparison.

use crate::crowd::write_tokenizer;
use crate::goldens::{golden, shared, shared_slim, slim, wide, wide_mistral};
use crate::requantise::{Storage, requantise};
use crate::root;
use monomorph_compiler::spec::types::Compute;
use monomorph_compiler::spec::{self, has_experts};
use monomorph_formats::Format;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tokens generated for each prompt, unless [`Stored::tokens`] says otherwise.
pub const TOKENS: usize = 63;
/// Longest prompt.
const LONGEST: usize = 200;

/// A model with weights and a tokenizer.
#[derive(Clone, Debug)]
pub struct Stored {
    /// `model/quant`.
    pub name: String,
    /// Directory of its weights.
    pub weights: PathBuf,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Most tokens of a sequence.
    pub context: usize,
    /// Whether it has experts, between which rounding may decide.
    pub experts: bool,
    /// Tokens to generate for each prompt.
    pub tokens: usize,
}

/// A model in a storage, whose products compute in `compute`: a committed golden as stored in `bf16`, or one
/// of the made-up ones (`wide`, `wide-mistral`, `slim`, `shared` and `shared-slim`) in any format. Its specs
/// are written to `targets`, its weights below `out`.
///
/// # Panics
/// If there is no model of that name, or a directory is not writable.
pub fn store(name: &str, storage: &str, compute: Compute, targets: &Path, out: &Path) -> Stored {
    let out = out.join(name).join(storage).join(compute.name());
    let load = |quant: &str| {
        let search = [targets.to_owned(), root().join("targets")];
        spec::load(&search, &format!("h200/{name}/{quant}")).unwrap_or_else(|error| panic!("{error}"))
    };
    let made_up = match name {
        "wide" => Some(wide(&out)),
        "wide-mistral" => Some(wide_mistral(&out)),
        "slim" => Some(slim(&out)),
        "shared" => Some(shared(&out)),
        "shared-slim" => Some(shared_slim(&out)),
        _ => None,
    };
    let (quant, weights) = if let Some(golden) = made_up {
        // As stored, there are no codes to multiply codes by.
        golden.import_into(targets, if compute == Compute::Fp8 { Compute::F16 } else { compute });
        let found = Storage::called(storage);
        let quant = requantise(&golden, &load("f32"), found, compute, Format::Bf16, targets, &out);
        (quant, out.join("stored"))
    } else {
        let golden = golden(name);
        golden.import_into(targets, compute);
        let file = "model.safetensors";
        std::fs::create_dir_all(&out).expect("a temporary directory is writable");
        std::fs::copy(golden.directory.join(storage).join(file), out.join(file)).expect("it is writable");
        (storage.to_owned(), out)
    };
    let model = load(&quant).model;
    let tokens = (0..model.vocabulary).map(|id| (format!("token {id}"), id.into())).collect();
    write_tokenizer(tokens, &weights);
    Stored {
        name: format!("{name}/{quant}"),
        weights,
        vocabulary: model.vocabulary,
        context: model.context,
        experts: has_experts(&model),
        tokens: TOKENS,
    }
}

impl Stored {
    /// `count` different prompts: of one token, around the ends of prefill chunks and tiles, and of any
    /// length in between. With [`Stored::tight`] the first runs alone; where a step takes 256 tokens, the
    /// next two share one, which leaves a single token of the second for the step after.
    pub fn prompts(&self, count: usize) -> Vec<Vec<u32>> {
        let longest = LONGEST.min(self.context - self.tokens);
        let ends = [longest, 192, 65, 1, 2, 64, 129, 63, 128, 127, 193];
        let lengths = ends.into_iter().filter(|length| *length <= longest);
        let lengths = lengths.chain((0..).map(|at| 1 + at * 37 % longest)).take(count);
        let id = |number: usize, at: usize| (7 + number * 31 + at * (at + number + 5)) % self.vocabulary;
        let prompt = |(number, length)| (0..length).map(|at| id(number, at) as u32).collect();
        lengths.enumerate().map(prompt).collect()
    }

    /// Tokens of K/V that are too few for the prompts that begin together, so that some are pre-empted.
    pub fn tight(&self) -> usize {
        self.longest() + 80
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.context.min(LONGEST + self.tokens)
    }
}

/// What a server generated: per prompt, a list of pairs of an id and its log-probability; and the server's
/// counters.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The lists as JSON.
    pub lists: Vec<Value>,
    /// Prefill chunks that did not end their prompt.
    pub chunks: usize,
    /// Pre-empted sequences.
    pub preempted: usize,
}

/// Runs a server that continues the prompts, with further `flags`.
///
/// # Panics
/// If it fails.
pub fn generate(mut server: Command, stored: &Stored, prompts: &[Vec<u32>], flags: &[&str]) -> Generated {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let tokens = directory.path().join("tokens.json");
    std::fs::write(&tokens, json!(prompts).to_string()).expect("it is writable");
    server.arg("generate").arg("--weights").arg(&stored.weights).arg("--tokens").arg(&tokens);
    server
        .args(["--ignore-eos", "--temperature", "0", "--logprobs", "--max-tokens"])
        .arg(stored.tokens.to_string());
    server.arg("--context").arg(stored.longest().to_string()).args(flags);
    let output = server.output().expect("the server starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{server:?}: {}\n{said}", output.status);
    let lists = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let before = |what: &str| {
        let number = said.split_once(what).and_then(|(before, _)| before.split_whitespace().next_back());
        number.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("it says nothing of {what:?}: {said}"))
    };
    Generated { lists, chunks: before(" prefill chunks"), preempted: before(" sequences pre-empted") }
}

/// Prompts with different answers, each with the first token that differs.
pub fn others(one: &Generated, other: &Generated) -> Vec<(usize, usize)> {
    assert_eq!(one.lists.len(), other.lists.len(), "both answer every prompt");
    let first = |(number, (one, other)): (usize, (&Value, &Value))| {
        let (one, other) = (one.as_array().expect("a list"), other.as_array().expect("a list"));
        assert_eq!(one.len(), other.len(), "prompt {number} is answered as often");
        Some((number, one.iter().zip(other).position(|(one, other)| one != other)?))
    };
    one.lists.iter().zip(&other.lists).enumerate().filter_map(first).collect()
}
