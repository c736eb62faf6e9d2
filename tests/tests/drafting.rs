//! Servers that draft with a model's own head: they answer as those that do not, token for token, whoever joins or leaves the
//! batch; and what they draft is what the interpreter drafts.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, DraftOption, Target};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::goldens::{Golden, goldens};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, build, build_to_draft, get};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use std::path::Path;

/// Which goldens, how many drafts, and for how many tokens each server has memory.
const SERVERS: [(&str, &[(usize, &str)]); 2] =
    [("qwen35-vision", &[(1, ROOM), (3, "640")]), ("qwen35-moe-vision", &[(2, "768")])];
/// Memory for all.
const ROOM: &str = "8192";
/// At a time.
const CLIENTS: usize = 12;

fn golden(name: &str) -> Golden {
    goldens().into_iter().find(|golden| golden.name == name).expect("it is committed")
}

fn option(drafts: usize) -> DraftOption {
    DraftOption { drafts, vocabulary: None, forced_acceptance: None }
}

fn load(targets: &Path, name: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("cpu/{name}/f32")).unwrap_or_else(|error| panic!("{error}"))
}

/// The weights in `directory` made to repeat themselves, mostly: what layers add to the residual stream is made small, so that the
/// likeliest token is the one fed; and the draft head says so too. Most drafts hold.
fn repeat(directory: &Path) {
    let file = directory.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("it was just written");
    let tensors = SafeTensors::deserialize(&bytes).expect("it is sound");
    let changed: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let values =
                view.data().chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]]));
            let mut values: Vec<f32> = values.collect();
            if ["o_proj", "out_proj", "down_proj"].iter().any(|it| name.contains(it)) {
                values.iter_mut().for_each(|value| *value *= 0.8);
            }
            if name == "mtp.fc.weight" {
                let columns = view.shape()[1];
                for (at, value) in values.iter_mut().enumerate() {
                    *value = if at % columns == at / columns { 1.0 } else { 0.1 * *value };
                }
            }
            if name == "lm_head.weight" {
                let embedding =
                    tensors.tensor("model.language_model.embed_tokens.weight").expect("it has one");
                return (name, view.shape().to_vec(), embedding.data().to_vec());
            }
            (name, view.shape().to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = changed.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    std::fs::write(&file, serialize(views, None).expect("the tensors are sound")).expect("it is writable");
}

/// Greedy, sampled and penalised requests, some of which leave midway.
fn requests(vocabulary: usize, random: &mut Random) -> Vec<Request> {
    let sampling = |number: usize| match number % 6 {
        0 | 1 => json!({"temperature": 0}),
        2 => json!({"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.4}),
        3 => json!({"temperature": 0.7, "seed": number}),
        4 => json!({"temperature": 1.0, "seed": number, "top_k": 9, "repetition_penalty": 1.3}),
        _ => json!({"temperature": 0.3, "seed": number, "top_p": 0.9, "frequency_penalty": 0.5}),
    };
    let request = |number: usize| {
        // Long prompts are cut into chunks; long answers cross many blocks.
        let length = random.within(if number.is_multiple_of(8) { 200..300 } else { 1..80 });
        let tokens = if number.is_multiple_of(10) { 200 } else { random.within(1..60) };
        let surplus = if number % 9 == 4 { 40 } else { 0 };
        Request { prompt: random.ids(length, vocabulary), tokens, sampling: sampling(number), surplus }
    };
    (0..90).map(request).collect()
}

/// One server with one set of weights: every request alone, of a server that does not draft, and together, of one that does.
struct Case<'a> {
    name: &'a str,
    weights: &'a Path,
    requests: &'a [Request],
    expected: &'a [Answer],
}

impl Case<'_> {
    /// Drafts that were verified, and those that held.
    fn check(&self, server: &Path, memory: &str) -> (f64, f64) {
        let serving = serve(server, self.weights, memory);
        let together = crowd(&serving.address, self.requests, CLIENTS);
        let (_, health) = get(&serving.address, "/health").expect("it answers");
        let health: Value = serde_json::from_str(&health).expect("health is JSON");
        let count = |key: &str| health["stats"][key].as_f64().expect("it is counted");
        for (number, ((request, alone), found)) in
            self.requests.iter().zip(self.expected).zip(&together).enumerate()
        {
            assert_eq!(alone.text.len(), request.tokens, "{}, request {number}", self.name);
            assert!(
                alone == found,
                "{}, request {number} ({} tokens, {:?}):\n  {alone:?}\n  {found:?}",
                self.name,
                request.prompt.len(),
                request.sampling
            );
        }
        println!("{}: {} steps, {} pre-empted", self.name, count("steps"), count("preemptions"));
        assert!(memory == ROOM || count("preemptions") > 0.0, "{}: nobody was pre-empted", self.name);
        assert!(count("cancelled") > 0.0, "{}: nobody left midway", self.name);
        (count("drafts_verified"), count("drafts_accepted"))
    }
}

fn serve(server: &Path, weights: &Path, memory: &str) -> Serving {
    Serving::start(server, weights, &["--threads", "2", "--context", "505", "--kv-tokens", memory])
}

#[test]
fn drafts_change_no_answer() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut random = Random(13);
    for (name, servers) in SERVERS {
        let golden = golden(name);
        golden.import_into(targets.path(), Compute::F32);
        let vocabulary = load(targets.path(), name).model.vocabulary;
        let requests = requests(vocabulary, &mut random);
        let target = format!("cpu/{name}/f32");
        let plain = build(Some(targets.path()), &target);
        let weights = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
        weights.iter().for_each(|it| with_tokenizer(&golden, vocabulary, it.path()));
        repeat(weights[1].path());
        let expected = weights.each_ref().map(|weights| {
            let serving = serve(&plain, weights.path(), ROOM);
            requests.iter().map(|request| request.whole(&serving.address)).collect::<Vec<_>>()
        });
        for (drafts, memory) in servers {
            let server = build_to_draft(Some(targets.path()), &target, Some(&option(*drafts)));
            let rates = [0, 1].map(|at| {
                let (weights, expected) = (weights[at].path(), &expected[at]);
                let case = Case { name, weights, requests: &requests, expected };
                let (verified, accepted) = case.check(&server, memory);
                println!("{name}, {drafts} drafts: {accepted} of {verified} held");
                assert!(verified > 1000.0, "{name}: {verified} drafts were verified");
                accepted / verified
            });
            assert!(
                rates[0] < 0.1 && (0.3..0.97).contains(&rates[1]),
                "{name}: {rates:?} of the drafts held"
            );
        }
    }
}
