//! CUDA servers of two ranks on two emulated cards (tests/emulated): each rank a host thread with its part of
//! the weights, exchanging sums and logits through each other's memory. Logits are the interpreter's, which
//! knows of no ranks, and answers are those of a server of a CPU target.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::DraftMethod::Layers;
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftOption, Ranks, Target};
use monomorph_formats::Format;
use monomorph_formats::cached::KvFormats;
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::feedings::{Case, EXACT, case, run};
use monomorph_tests::goldens::golden;
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::root;
use monomorph_tests::server::{self, Serving, get, metric, stats};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Largest distance between rows whose operands are rounded to f16.
const ROUNDED: f32 = 3e-2;
/// The same of exact products where keys and values have codes, some of which sums over ranks make the next
/// ones.
const NEXT_CODES: f32 = 2e-3;

/// A golden on a kind of card: exact, or stored and computed in 16 bits.
struct Kind {
    hardware: &'static str,
    golden: &'static str,
    exact: bool,
    ranks: Ranks,
    /// Formats of keys and values, if not the spec's.
    kv: Option<&'static str>,
}

const TWO: Ranks = Ranks::tensor_parallel(2);

const fn exact(hardware: &'static str, golden: &'static str) -> Kind {
    Kind { hardware, golden, exact: true, ranks: TWO, kv: None }
}

const fn rounded(hardware: &'static str, golden: &'static str) -> Kind {
    Kind { hardware, golden, exact: false, ranks: TWO, kv: None }
}

/// Of ranks that hold whole experts.
const fn experts(hardware: &'static str, golden: &'static str) -> Kind {
    Kind { ranks: Ranks::expert_parallel(2), ..rounded(hardware, golden) }
}

fn load(targets: &Path, name: &str, options: &BuildOptions) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load_with(&search, name, options).unwrap_or_else(|error| panic!("{error}"))
}

/// A server of two ranks for a golden of sizes that ranks can share, with the interpreter's logits.
fn two_ranks(directory: &Path, kind: &Kind) -> Case {
    let targets = directory.join("targets");
    let hardware = emulated::hardware(&targets, kind.hardware, Some(emulated::FEW));
    let small = golden(kind.golden);
    let mut golden = small.for_ranks(&directory.join(kind.golden));
    golden.import_into(&targets, Compute::F16);
    let name = |quant: &str| format!("{hardware}/{}/{quant}", golden.name);
    let plain = load(&targets, &name("f32"), &BuildOptions::default());
    let kv = kind.kv.map(|kv| KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}")));
    let several = kind.ranks.of(BuildOptions { kv, ..BuildOptions::default() });
    let (target, weights) = if kind.exact {
        (load(&targets, &name("f32"), &several), golden.directory.join("f32"))
    } else {
        let storage = Storage::called("bf16");
        let out = directory.join("stored").join(kind.golden);
        let quant = requantise(&golden, &plain, storage, Compute::F16, Format::Bf16, &targets, &out);
        (load(&targets, &name(&quant), &several), out.join("stored"))
    };
    golden.prompts = small.prompts;
    golden.prompts.iter_mut().flatten().for_each(|id| *id %= target.model.vocabulary as u32);
    let bound = match (kind.exact, kind.kv) {
        (true, None) => EXACT,
        (true, Some(_)) => NEXT_CODES,
        (false, _) => ROUNDED,
    };
    let case = case(target, &golden, &weights, None, bound);
    case.unwrap_or_else(|| panic!("{} is refused", kind.golden))
}

/// Attention and dense layers, delta-nets and experts.
#[test]
fn two_ranks_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut wrong = Vec::new();
    let feedings = ["prompts", "prompts together", "steps behind prompts", "9 and fewer"];
    run(&two_ranks(directory.path(), &exact("h200", "llama-aligned")), &mut wrong, &feedings);
    run(&two_ranks(directory.path(), &rounded("h200", "qwen3-next-one")), &mut wrong, &feedings[1..]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A rank has blocks, and scales in front of them, of its own heads.
#[test]
#[ignore = "minutes"]
fn two_ranks_attend_to_what_the_interpreter_reads_back() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut wrong = Vec::new();
    let [narrow, whole] = [Some("fp8"), None].map(|kv| {
        let of = directory.path().join(kv.unwrap_or("whole"));
        two_ranks(&of, &Kind { kv, ..exact("h200", "llama-aligned") })
    });
    assert!(narrow.sees(&whole.expected), "keys and values as they are would pass");
    run(&narrow, &mut wrong, &["prompts together", "9 and fewer"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Some tokens choose no expert of a rank, and some steps none at all.
#[test]
fn two_ranks_of_whole_experts_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut wrong = Vec::new();
    let feedings = ["prompts together", "9 and fewer"];
    run(&two_ranks(directory.path(), &experts("h200", "qwen3-next-one")), &mut wrong, &feedings);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The other kind of card, Mamba, experts without a shared one, a K/V head that both ranks hold, norms of
/// rows that both have a part of, norms of sums. `MONOMORPH_GOLDENS` as in `emulated.rs`.
#[test]
#[ignore = "minutes"]
fn two_ranks_of_other_goldens_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let mut wrong = Vec::new();
    let others = [
        exact("gb10", "llama-aligned"),
        rounded("gb10", "qwen35-moe-wide"),
        exact("gb10", "qwen3-deep"),
        exact("h200", "qwen35-text"),
        rounded("h200", "nemotron-h-mamba"),
        rounded("h200", "nemotron-h-nano"),
        rounded("h200", "qwen35-moe-wide"),
        exact("h200", "llama-multi-query"),
        rounded("h200", "minimax-m2"),
        rounded("gb10", "minimax-m2"),
        rounded("h200", "gemma4-dense"),
        exact("gb10", "gemma4-dense"),
        rounded("h200", "gemma4-few"),
        experts("gb10", "gemma4-few"),
        experts("gb10", "qwen3-next"),
        experts("h200", "qwen35-moe-wide"),
        experts("h200", "qwen35-moe-vision"),
    ];
    for kind in others {
        let cut = if kind.ranks.whole_experts { "+ep2" } else { "" };
        let full = format!("{}/{}{cut}", kind.hardware, kind.golden);
        if wanted.is_empty() || wanted.split(',').any(|it| full.contains(it)) {
            run(&two_ranks(directory.path(), &kind), &mut wrong, &[]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Some that are constrained to [`FORMATS`]; then prompts of which some begin alike, with answers that need
/// nothing of the host, or their tokens so far.
fn requests(vocabulary: usize) -> Vec<Request> {
    let mut random = Random(11);
    let mut requests: Vec<Request> = Vec::new();
    let ways = [
        json!({"temperature": 0}),
        json!({"temperature": 0, "frequency_penalty": 0.3}),
        json!({"temperature": 0, "presence_penalty": 0.4, "repetition_penalty": 1.2}),
    ];
    for first in [40, 97] {
        let mut prompt = random.ids(first, vocabulary);
        for (more, sampling) in [1, 33, 25].into_iter().zip(ways.clone()) {
            requests.push(Request {
                prompt: prompt.clone(),
                tokens: 8 + 3 * requests.len(),
                sampling,
                surplus: 0,
            });
            prompt.extend(random.ids(more, vocabulary));
        }
    }
    let held = [7, 61, 18].into_iter().zip(FORMATS).map(|(length, (format, _))| {
        let mut sampling: Value = serde_json::from_str(format).expect("it is JSON");
        // An answer ends where its format does.
        sampling["ignore_eos"] = false.into();
        Request { prompt: random.ids(length, vocabulary), tokens: 40, sampling, surplus: 0 }
    });
    held.collect::<Vec<_>>().into_iter().chain(requests).collect()
}

type Fits = fn(&str) -> bool;

/// Fields of bodies that constrain answers, and whether a text fits.
const FORMATS: [(&str, Fits); 3] = [
    (r#"{"guided_regex": "([%-'][(-+]){3,5}!", "temperature": 0.9, "seed": 5}"#, is_of_pairs),
    (r#"{"guided_choice": ["$%&'()*+,-./", "$%&!", "%%%%%%%%"], "temperature": 0}"#, |text| {
        ["$%&'()*+,-./", "$%&!", "%%%%%%%%"].contains(&text)
    }),
    (
        r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": {
            "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": false}}}, "temperature": 0}"#,
        |text| serde_json::from_str::<Value>(text).is_ok_and(|it| it["a"].is_boolean()),
    ),
];

/// Whether a text matches the regular expression above: pairs, and a sign at the end.
fn is_of_pairs(text: &str) -> bool {
    let Some(pairs) = text.strip_suffix('!') else { return false };
    let fits = |pair: &[u8]| matches!(pair, [b'%'..=b'\'', b'('..=b'+']);
    (6..=10).contains(&pairs.len()) && pairs.as_bytes().chunks(2).all(fits)
}

fn texts(answers: &[Answer]) -> Vec<&str> {
    answers.iter().map(|answer| answer.text.as_str()).collect()
}

/// Values of a metric, by rank.
fn of_ranks(address: &str, name: &str) -> [f64; 2] {
    let (_, text) = get(address, "/metrics").expect("it answers");
    [0, 1].map(|rank| {
        let label = format!("rank=\"{rank}\"");
        let mut lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&label));
        let line = lines.next().unwrap_or_else(|| panic!("no {name} of rank {rank}:\n{text}"));
        line.split_whitespace().last().and_then(|value| value.parse().ok()).expect("a number")
    })
}

/// Every step is a pass through the layers with two sums each, and one gather where logits are wanted, which
/// is everywhere here; and what is sent is their rows.
fn exchanges_are_counted(address: &str, target: &Target) {
    let counted =
        ["steps", "exchanges", "sent_bytes"].map(|it| of_ranks(address, &format!("monomorph:rank_{it}")));
    assert!(counted.iter().all(|[one, other]| one == other), "{counted:?}");
    let [steps, exchanges, bytes] = counted.map(|[one, _]| one);
    let (layers, hidden) = (target.model.layers as f64, target.model.hidden as f64);
    assert_eq!(exchanges, steps * (2.0 * layers + 1.0), "of {steps} steps");
    // A row's sums, and a part of its logits: prompts have more of the first.
    let row = 4.0 * (2.0 * layers * hidden);
    assert!(bytes > steps * row, "{bytes} bytes of {steps} steps");
    let [one, other] = of_ranks(address, "monomorph:rank_exchange_seconds");
    assert!(one > 0.0 && other > 0.0, "{one} and {other} s");
}

/// A golden that two ranks serve, with recurrent state, so that both blocks and states are kept; and what a
/// processor answers.
struct Served {
    directory: tempfile::TempDir,
    name: String,
    requests: Vec<Request>,
    expected: Vec<Answer>,
    /// Two whose answers are longer than their prompts.
    growing: Vec<Request>,
    grown: Vec<Answer>,
}

/// No prefix cache.
const PLAIN: [&str; 6] = ["--context", "256", "--kv-tokens", "2048", "--prefix-cache", "off"];

impl Served {
    fn new() -> Served {
        let directory = tempfile::tempdir().expect("temporary directories can be made");
        let targets = directory.path().join("targets");
        let hardware = emulated::hardware(&targets, "h200", Some(emulated::FEW));
        let golden = golden("qwen35-text").for_ranks(&directory.path().join("golden"));
        golden.import_into(&targets, Compute::F16);
        let name = format!("{hardware}/{}/f32", golden.name);
        let vocabulary = load(&targets, &name, &BuildOptions::default()).model.vocabulary;
        std::fs::create_dir(directory.path().join("weights")).expect("it is writable");
        with_tokenizer(&golden, vocabulary, &directory.path().join("weights"));
        let processor = server::build(Some(&targets), &format!("cpu/{}/f32", golden.name));
        let mut random = Random(23);
        let growing = [14, 13].map(|length| Request {
            prompt: random.ids(length, vocabulary),
            tokens: 30,
            sampling: json!({"temperature": 0}),
            surplus: 0,
        });
        let (requests, growing) = (requests(vocabulary), growing.into());
        let (expected, grown) = (Vec::new(), Vec::new());
        let mut served = Served { directory, name, requests, expected, growing, grown };
        let right = served.serve(Command::new(processor), &PLAIN);
        (served.expected, served.grown) = (alone(&served.requests, &right), alone(&served.growing, &right));
        for ((format, fits), answer) in FORMATS.iter().zip(&served.expected) {
            assert!(fits(&answer.text), "{format}: {:?}", answer.text);
        }
        served
    }

    fn target(&self, draft: Option<DraftOption>) -> Target {
        let options = BuildOptions { draft, ..BuildOptions::default() };
        load(&self.directory.path().join("targets"), &self.name, &TWO.of(options))
    }

    fn serve(&self, server: Command, further: &[&str]) -> Serving {
        let weights = self.directory.path().join("weights");
        Serving::start_command(server, &weights, &[&["--threads", "1"], further].concat())
    }

    /// Those that are not constrained, one after the other.
    fn alone(&self, serving: &Serving) -> Vec<Answer> {
        alone(&self.requests[FORMATS.len()..], serving)
    }

    /// Checks the answers to the last requests.
    fn are_right(&self, answers: &[Answer], how: &str) {
        let first = self.expected.len() - answers.len();
        assert_eq!(texts(answers), texts(&self.expected[first..]), "{how}");
    }
}

fn alone(requests: &[Request], serving: &Serving) -> Vec<Answer> {
    requests.iter().map(|request| request.whole(&serving.address)).collect()
}

/// Found here first: partial sums that a short step left behind were added in the next longer one.
#[test]
fn two_ranks_answer_as_a_processor_however_sequences_are_kept() {
    let served = Served::new();
    let two = served.target(None);
    let (built, begin) = (emulated::build_up_to(&two, 8), Instant::now());
    let lone = served.serve(built.command(), &PLAIN);
    let found = served.alone(&lone);
    exchanges_are_counted(&lone.address, &two);
    drop(lone);
    println!("alone: {:.1} s", begin.elapsed().as_secs_f32());
    served.are_right(&found, "alone");

    let caching = ["--snapshots", "3", "--snapshot-interval", "64"];
    let cached = served.serve(built.command(), &[&PLAIN[..4], &caching].concat());
    served.are_right(&served.alone(&cached), "from a cache");
    let counted = stats(&cached.address);
    drop(cached);
    println!("from a cache: {:.1} s, {counted}", begin.elapsed().as_secs_f32());
    assert!(counted["tokens_cached"].as_u64() > Some(100), "{counted}");

    // They begin and end at different times, so that batches shrink and grow.
    let together = crowd(&served.serve(built.command(), &PLAIN).address, &served.requests, 4);
    println!("side by side: {:.1} s", begin.elapsed().as_secs_f32());
    served.are_right(&together, "side by side");

    swapped(&served, &built);
    println!("swapped: {:.1} s", begin.elapsed().as_secs_f32());
    offloaded(&served, &built);
    println!("with blocks on disk: {:.1} s", begin.elapsed().as_secs_f32());
}

/// Blocks and states of both ranks are copied out and back: two sequences that begin in a block each want
/// three, of four that there are.
fn swapped(served: &Served, built: &Server) {
    let few = ["--context", "48", "--kv-tokens", "64", "--prefix-cache", "off"];
    let swap = ["--swap-space", "0.01", "--swap-when", "always"];
    let swapping = served.serve(built.command(), &[&few[..], &swap].concat());
    let found = crowd(&swapping.address, &served.growing, 2);
    assert_eq!(texts(&found), texts(&served.grown), "swapped");
    let counted = stats(&swapping.address);
    let [out, back] = ["swapped_out", "swapped_in"].map(|it| counted[it].as_u64());
    println!("{out:?} swapped out, {back:?} back");
    assert!(out > Some(0) && back > Some(0) && counted["swap_failures"] == 0, "{counted}");
}

/// Each rank reads its part of old blocks from a file of its own.
fn offloaded(served: &Served, built: &Server) {
    let disk = tempfile::tempdir().expect("temporary directories can be made");
    let directory = disk.path().to_str().expect("a plain path");
    let few = ["--context", "256", "--blocks", "21", "--resident-blocks", "5", "--prefix-cache", "off"];
    let file = ["--high-speed-swap-space", "0.008", "--high-speed-swap-page", "8", "--prefill-tokens", "32"];
    let flags = [&few[..], &["--high-speed-swap", directory], &file].concat();
    let offloading = served.serve(built.command(), &flags);
    // The longest; shorter ones fit.
    let (longest, expected) = (&served.requests[FORMATS.len() + 5], &served.expected[FORMATS.len() + 5]);
    let found = Request { tokens: 8, ..longest.clone() }.whole(&offloading.address);
    assert_eq!(found.text, expected.text[..8], "with blocks on disk");
    let sent = metric(&offloading.address, "monomorph:kv_blocks_offloaded");
    println!("{sent} blocks sent");
    assert!(sent >= 4.0, "{sent} blocks were sent");
}

/// Most drafts of a few layers do not hold, so states go back.
#[test]
#[ignore = "minutes"]
fn two_ranks_that_draft_answer_as_a_processor() {
    let served = Served::new();
    let draft = DraftOption { method: Layers, drafts: 2, vocabulary: None, forced_acceptance: None };
    let built = emulated::build_up_to(&served.target(Some(draft)), 8);
    let drafting = served.serve(built.command(), &PLAIN);
    served.are_right(&served.alone(&drafting), "alone");
    served.are_right(&crowd(&drafting.address, &served.requests, 4), "side by side");
    let counted = stats(&drafting.address);
    assert!(counted["drafts_verified"].as_u64() > Some(60), "{counted}");
}
