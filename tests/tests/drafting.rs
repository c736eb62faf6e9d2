//! Servers that draft, with a model's own draft head, by lookup, or with the model without its recurrent
//! layers. They answer token for token as servers that do not, while other sequences join and leave the
//! batch; and a stack's drafts are the interpreter's.
//!
//! Planted, one at a time, in servers that draft without recurrent layers (docs/adr/0025), and caught here:
//!
//! * Passes one position early: different answers, because they overwrite an accepted token, and different
//!   drafts. One position late: a block is missing. (The unit test beside `Drafting` catches both, too.)
//! * A draft accepted that was not sampled: the engine ends with a message.
//! * Keys and values of the last sampled token left as its pass wrote them, by the step that verifies:
//!   different answers and drafts.
//! * Passes through the recurrent layers too, which then write state: different drafts, and the plan's test
//!   fails. The answers stay the same: a CPU keeps state by position, and the step that verifies continues
//!   from its own position's.
//! * A reach of 2K − 1: too few blocks. (Caught by the engine's `tests/engine/drafts.rs`, too.)
//!
//! Caught by `kv_offload.rs`: passes that read only the last layer's part from disk; a pass prepared after
//! the last one, at a position without a block, as draft heads did until then.

use monomorph_compiler::plan::{PhaseKind, Plan};
use monomorph_compiler::reference::{Fed, Interpreter};
use monomorph_compiler::spec::types::DraftMethod::{Layers, Mtp, Ngram};
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption, Target};
use monomorph_compiler::{graph, passes, report, spec};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::goldens::{Golden, goldens};
use monomorph_tests::repeating::{KEPT, repeat};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, build, build_with, stats};
use monomorph_tests::speculated::{SHOWN, SKIPPED, Speculated};
use monomorph_weights::Checkpoint;
use serde_json::json;
use std::path::Path;

/// Draft method, drafts per step, and the tokens that memory is limited to.
type Drafts = (DraftMethod, usize, &'static str);

/// Goldens and their servers.
const SERVERS: [(&str, &[Drafts]); 3] = [
    ("qwen35-vision", &[(Mtp, 3, "528"), (Layers, 3, "528")]),
    ("qwen35-moe-vision", &[(Mtp, 2, "528")]),
    // A head of two layers, beside Mamba's states.
    ("nemotron-h-mtp", &[(Mtp, 2, "528")]),
];
const OTHERS: [(&str, &[Drafts]); 2] =
    [("qwen35-vision", &[(Mtp, 1, ROOM), (Ngram, 4, "528")]), ("qwen35-moe-vision", &[(Layers, 1, ROOM)])];
/// Tokens of the longest sequence.
const CONTEXT: usize = 505;
/// Memory for all sequences.
const ROOM: &str = "8192";
/// Concurrent clients.
const CLIENTS: usize = 12;

fn golden(name: &str) -> Golden {
    goldens().into_iter().find(|golden| golden.name == name).expect("it is committed")
}

fn drafting(option: DraftOption) -> BuildOptions {
    BuildOptions { draft: Some(option), ..BuildOptions::default() }
}

fn option(method: DraftMethod, drafts: usize) -> DraftOption {
    DraftOption { method, drafts, vocabulary: None, forced_acceptance: None }
}

fn load(targets: &Path, name: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("cpu/{name}/f32")).unwrap_or_else(|error| panic!("{error}"))
}

/// Greedy, sampled and penalised requests, some of which disconnect midway.
fn requests(vocabulary: usize, random: &mut Random) -> Vec<Request> {
    let sampling = |number: usize| match number % 6 {
        0 | 1 => json!({"temperature": 0}),
        2 => json!({"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.4}),
        3 => json!({"temperature": 0.7, "seed": number}),
        4 => json!({"temperature": 1.0, "seed": number, "top_k": 9, "repetition_penalty": 1.3}),
        _ => json!({"temperature": 0.3, "seed": number, "top_p": 0.9, "frequency_penalty": 0.5}),
    };
    let request = |number: usize| {
        // Long prompts are cut into prefill chunks; long answers span many blocks.
        let length = random.within(if number.is_multiple_of(8) { 200..300 } else { 1..80 });
        let tokens = if number.is_multiple_of(10) { 200 } else { random.within(1..60) };
        // Up to the end of the context, so that a server that notices the disconnect late is still
        // generating.
        let surplus = if number % 9 == 4 { CONTEXT - length - tokens } else { 0 };
        Request { prompt: random.ids(length, vocabulary), tokens, sampling: sampling(number), surplus }
    };
    (0..60).map(request).collect()
}

/// A server and its weights: every request alone on a server that does not draft, and all together on one
/// that does.
struct Case<'a> {
    name: &'a str,
    weights: &'a Path,
    requests: &'a [Request],
    expected: &'a [Answer],
}

impl Case<'_> {
    /// Verified drafts, accepted drafts, and pre-empted sequences.
    fn check(&self, server: &Path, memory: &str) -> [f64; 3] {
        let serving = serve(server, self.weights, memory);
        let together = crowd(&serving.address, self.requests, CLIENTS);
        let stats = stats(&serving.address);
        let count = |key: &str| stats[key].as_f64().expect("it is counted");
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
        assert!(count("cancelled") > 0.0, "{}: nobody left midway", self.name);
        ["drafts_verified", "drafts_accepted", "preemptions"].map(count)
    }
}

fn serve(server: &Path, weights: &Path, memory: &str) -> Serving {
    let context = CONTEXT.to_string();
    Serving::start(server, weights, &["--threads", "2", "--context", &context, "--kv-tokens", memory])
}

#[test]
fn drafts_change_no_answer() {
    change_no_answer(&SERVERS);
}

#[test]
#[ignore = "minutes"]
fn other_drafts_change_no_answer() {
    change_no_answer(&OTHERS);
}

fn change_no_answer(servers: &[(&str, &[Drafts])]) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut random = Random(13);
    for (name, servers) in servers {
        let golden = golden(name);
        golden.import_into(targets.path(), Compute::F32);
        let vocabulary = load(targets.path(), name).model.vocabulary;
        let requests = requests(vocabulary, &mut random);
        let target = format!("cpu/{name}/f32");
        let plain = build(Some(targets.path()), &target);
        let weights = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
        weights.iter().for_each(|it| with_tokenizer(&golden, vocabulary, it.path()));
        repeat(weights[1].path(), KEPT);
        let expected = weights.each_ref().map(|weights| {
            let serving = serve(&plain, weights.path(), ROOM);
            requests.iter().map(|request| request.whole(&serving.address)).collect::<Vec<_>>()
        });
        for (method, drafts, memory) in *servers {
            let server = build_with(Some(targets.path()), &target, &drafting(option(*method, *drafts)));
            let mut all_preempted = 0.0;
            let figures = [0, 1].map(|at| {
                let (weights, expected) = (weights[at].path(), &expected[at]);
                let case = Case { name, weights, requests: &requests, expected };
                let [verified, accepted, preempted] = case.check(&server, memory);
                all_preempted += preempted;
                println!("{name}, {drafts} drafts of {method:?}: {accepted} of {verified} held");
                (verified, accepted / verified)
            });
            assert!(*memory == ROOM || all_preempted > 0.0, "{name}: nobody was pre-empted");
            let [(random, random_rate), (repeats, repeats_rate)] = figures;
            match method {
                // A draft head of random weights drafts at random.
                Mtp => assert!(
                    random > 600.0
                        && repeats > 600.0
                        && random_rate < 0.1
                        && (0.3..0.98).contains(&repeats_rate),
                    "{name}: {figures:?}"
                ),
                // So, mostly, does a model of random weights without three of its four layers.
                Layers => assert!(
                    random > 600.0
                        && repeats > 600.0
                        && random_rate < 0.5
                        && (0.3..0.99).contains(&repeats_rate),
                    "{name}: {figures:?}"
                ),
                // The output of random weights repeats only by chance.
                DraftMethod::Dflash { .. } => unreachable!("tests/tests/dflash.rs has those"),
                Ngram => assert!(repeats > 60.0 && repeats_rate > 0.1, "{name}: {figures:?}"),
            }
        }
    }
}

#[test]
fn drafts_are_those_of_the_interpreter() {
    shows("qwen35-vision", SHOWN);
    // Two of five layers attend, the first among them.
    shows("qwen35-quarters", SKIPPED);
}

#[test]
#[ignore = "minutes"]
fn drafts_of_a_head_of_two_layers_are_those_of_the_interpreter() {
    shows("nemotron-h-mtp", SHOWN);
}

/// A server that accepts drafts by rate, so that its answers contain its drafts.
fn shows(name: &str, shown: DraftOption) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let golden = golden(name);
    golden.import_into(targets.path(), Compute::F32);
    let target = load(targets.path(), name);
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&golden, target.model.vocabulary, weights.path());
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(weights.path()).expect("it was just written");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let server = build_with(Some(targets.path()), &target.name(), &drafting(shown));
    let serving = serve(&server, weights.path(), ROOM);

    // Short prompts, and long ones, which are cut into chunks when several arrive at once.
    let mut random = Random(5);
    let mut request = |length: usize| Request {
        prompt: random.ids(length, target.model.vocabulary),
        tokens: 60,
        sampling: json!({"temperature": 0}),
        surplus: 0,
    };
    let requests: Vec<Request> =
        (0..24).map(|at| request(if at % 3 == 0 { 1 + at } else { 230 + at })).collect();
    let answers = crowd(&serving.address, &requests, CLIENTS);
    for (number, (request, found)) in requests.iter().zip(&answers).enumerate() {
        let found: Vec<u32> = found.text.bytes().map(|token| u32::from(token - b'!')).collect();
        let fed = Fed::text(&request.prompt);
        let speculated = Speculated::new(&interpreter, shown, &target.model, &fed, 0);
        let best = speculated.alike_in_any_slot(&found);
        assert_eq!(best, request.tokens, "{:?}, request {number}: {found:?}", shown.method);
    }
}

#[test]
fn a_pass_runs_the_layers_that_attend_and_adds_no_memory() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let name = "qwen35-quarters";
    golden(name).import_into(targets.path(), Compute::F32);
    let plain = load(targets.path(), name);
    let planned = |option: DraftOption| {
        let target = spec::with_draft(plain.clone(), &option).unwrap_or_else(|error| panic!("{error}"));
        passes::assemble::plan(&target, &graph::build(&target.model, &target.quant))
            .expect("the rules cover it")
    };
    let (plan, verifies) = (planned(option(Layers, 2)), planned(option(Ngram, 2)));
    assert_eq!(plan.target.build(), "cpu/qwen35-quarters/f32+self2");
    let report = report::draft::report(&plan).expect("it drafts");
    let pass = ["embed", "attention", "attention", "draft_head"];
    assert_eq!(report.passes, [pass, pass].concat());
    let text = report::draft::text(&report);
    assert_eq!(text[0], "drafts: self, 2 after every token sampled, of the first 43 ids");
    assert_eq!(
        text[1],
        "behind the model: embed, attention x 2, draft_head, embed, attention x 2, draft_head"
    );
    for body in plan.draft_schedule() {
        let phases = &plan.bodies[body.0].phases;
        assert!(phases.iter().all(|phase| !matches!(phase.kind, PhaseKind::Delta(_))));
    }
    // It reads only what is in memory already, and reports what that costs.
    assert_eq!(plan.memory, verifies.memory);
    let bytes = |plan: &Plan| plan.speculation.expect("it drafts").bytes;
    assert!(bytes(&plan) > bytes(&verifies) && plan.prediction == verifies.prediction);
}
