//! Drafters of blocks (docs/adr/0062): the interpreter beside the reference, and servers beside the
//! interpreter and beside servers that do not draft.
//!
//! Planted: taps one layer late (the interpreter, and what servers draft); rows that draft one too early,
//! with tensors read from the model's file in place of the drafter's (each of the tests of servers).

use monomorph_compiler::reference::{Cache, Fed, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption, Target};
use monomorph_compiler::{graph, spec};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::drafters::{drafter, drafters};
use monomorph_tests::logits::{Logits, distance};
use monomorph_tests::repeating::{KEPT, repeat};
use monomorph_tests::server::{Serving, build, build_with, stats};
use monomorph_tests::speculated::{SHOWN, Speculated};
use safetensors::SafeTensors;
use serde_json::json;
use std::path::Path;

const DFLASH: DraftMethod = DraftMethod::Dflash { window: None };
/// Drafts of a whole block.
const BLOCK: DraftOption =
    DraftOption { method: DFLASH, drafts: 0, vocabulary: None, forced_acceptance: None };
/// Tokens of the longest sequence.
const CONTEXT: usize = 220;

fn drafting(target: &Target, option: &DraftOption) -> Target {
    spec::with_draft(target.clone(), option).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_interpreter_drafts_what_the_reference_does_in_prompts_and_token_by_token() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut blocks = 0;
    for it in drafters() {
        let target = drafting(&it.import_into(targets.path()), &BLOCK);
        let dflash = target.drafter().expect("it drafts so");
        let graph = graph::build_with_dflash(&target.model, &target.quant, dflash);
        let checkpoint = it.checkpoint();
        let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
        let bytes = std::fs::read(it.directory.join("blocks.safetensors")).expect("it is readable");
        let expected = SafeTensors::deserialize(&bytes).expect("it is sound");
        for (name, view) in expected.tensors() {
            let (at, drafts) = name.split_once('.').expect("context and drafts");
            let (at, drafts): (usize, usize) = (at.parse().unwrap(), drafts.parse().unwrap());
            let (last, fed) = it.contexts[at].split_last().expect("a context has tokens");
            // All at once, and in pieces of one, two and more.
            for pieces in [vec![fed.len()], vec![1; fed.len()], vec![1, fed.len() - 1]] {
                let (mut model, mut cache, mut rest) = (Cache::default(), Cache::default(), fed);
                for piece in pieces.into_iter().filter(|piece| *piece > 0) {
                    let (now, later) = rest.split_at(piece);
                    let outcome = interpreter.forward_with_hidden(now, &mut model, Which::Last);
                    interpreter.keep_context(&outcome.taps, &mut cache);
                    // What a block leaves behind is not there for the next.
                    interpreter.draft_block(*last, drafts, &cache);
                    rest = later;
                }
                let found: Logits = vec![interpreter.draft_block(*last, drafts, &cache)];
                let numbers = view.data().as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
                let apart = distance(&found, &vec![numbers], target.model.vocabulary);
                println!("{} {name}: {apart:.1e}", it.name);
                assert!(apart <= 3e-5, "{} {name}: {apart:e}", it.name);
            }
            blocks += 1;
        }
    }
    assert_eq!(blocks, 20, "of three drafters");
}

/// Requests of which every third begins as an earlier one does, so that a prefix is found.
fn requests(vocabulary: usize, random: &mut Random) -> Vec<Request> {
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    for number in 0..36 {
        let length = random.within(if number % 6 == 0 { 90..150 } else { 1..60 });
        let mut prompt = random.ids(length, vocabulary);
        if number % 3 == 2 {
            let earlier: &Vec<u32> = &prompts[number - 2];
            prompt = [&earlier[..], &prompt[..length.min(20)]].concat();
        }
        prompts.push(prompt);
    }
    let sampling = |number: usize| match number % 5 {
        0 | 1 => json!({"temperature": 0}),
        2 => json!({"temperature": 0, "frequency_penalty": 0.7, "presence_penalty": 0.4}),
        3 => json!({"temperature": 0.7, "seed": number}),
        _ => json!({"temperature": 0.3, "seed": number, "top_p": 0.9}),
    };
    let request = |(number, prompt): (usize, Vec<u32>)| {
        // Up to the end of what the context leaves beside drafts, of some.
        let room = CONTEXT - 1 - prompt.len();
        let tokens = if number % 9 == 0 { room.min(90) } else { room.min(1 + 2 * number) };
        Request { prompt, tokens, sampling: sampling(number), surplus: 0 }
    };
    prompts.into_iter().enumerate().map(request).collect()
}

fn serve(server: &Path, weights: &Path, drafter: Option<&Path>, more: &[&str]) -> Serving {
    let drafter = drafter.map(|path| path.to_str().expect("it is text"));
    let of_drafter = drafter.iter().flat_map(|path| ["--drafter", path]);
    let args: Vec<&str> =
        ["--threads", "2"].into_iter().chain(of_drafter).chain(more.iter().copied()).collect();
    Serving::start(server, weights, &args)
}

/// Memory for all sequences.
const ROOM: [&str; 4] = ["--context", "220", "--kv-tokens", "8192"];
/// Memory for so few that some are pre-empted, and computed again or copied out.
const TIGHT: [&str; 4] = ["--context", "220", "--kv-tokens", "320"];
const SWAPS: [&str; 8] =
    ["--context", "220", "--kv-tokens", "320", "--swap-space", "0.01", "--swap-when", "always"];

/// At least a part `held` of what is drafted for sequences that repeat themselves holds.
fn changes_no_answer(name: &str, held: f64, options: &[(DraftOption, &[&str])]) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let it = drafter(name);
    let target = it.import_into(targets.path());
    let vocabulary = target.model.vocabulary;
    let requests = requests(vocabulary, &mut Random(17));
    let plain = build(Some(targets.path()), &target.name());
    let (random, repeats, copies) = (dir(), dir(), dir());
    for weights in [&random, &repeats] {
        with_tokenizer(&it.golden, vocabulary, weights.path());
    }
    repeat(repeats.path(), KEPT);
    it.copying(copies.path());
    let cases = [(random.path(), &*it.directory), (repeats.path(), copies.path())];
    let expected = cases.map(|(weights, _)| -> Vec<Answer> {
        let serving = serve(&plain, weights, None, &ROOM);
        requests.iter().map(|request| request.whole(&serving.address)).collect()
    });
    for (option, room) in options {
        let options = BuildOptions { draft: Some(*option), ..BuildOptions::default() };
        let server = build_with(Some(targets.path()), &target.name(), &options);
        for ((weights, drafter), expected) in cases.into_iter().zip(&expected) {
            let serving = serve(&server, weights, Some(drafter), room);
            let found = crowd(&serving.address, &requests, 12);
            let stats = stats(&serving.address);
            let count = |key: &str| stats[key].as_f64().expect("it is counted");
            for (number, (found, alone)) in found.iter().zip(expected).enumerate() {
                let Request { prompt, sampling, .. } = &requests[number];
                let what = format!("{name}, request {number} ({} tokens, {sampling:?})", prompt.len());
                assert!(found == alone, "{what}:\n  {alone:?}\n  {found:?}");
            }
            let (verified, accepted) = (count("drafts_verified"), count("drafts_accepted"));
            let (preempted, swapped) = (count("preemptions"), count("swapped_in"));
            println!("{name}: {accepted} of {verified} held, {preempted} pre-empted, {swapped} came back");
            let rate = accepted / verified;
            let within = if drafter == copies.path() { held..0.99 } else { 0.0..0.3 };
            assert!(verified > 600.0 && within.contains(&rate), "{name}: {accepted} of {verified}");
            assert!(*room == ROOM || preempted > 0.0, "{name}: nobody was pre-empted");
            assert!(*room != SWAPS || swapped > 0.0, "{name}: nobody was copied out");
            assert!(count("tokens_cached") > 100.0, "{name}: no prefix was found");
        }
    }
}

#[test]
fn blocks_change_no_answer_of_a_hybrid() {
    let window = DraftMethod::Dflash { window: Some(3) };
    let few = DraftOption { method: window, drafts: 2, vocabulary: Some(30), ..BLOCK };
    changes_no_answer("dflash-quarters", 0.1, &[(BLOCK, &TIGHT), (few, &SWAPS)]);
}

#[test]
#[ignore = "minutes"]
fn blocks_change_no_answer_of_other_models() {
    changes_no_answer("dflash-deep", 0.01, &[(BLOCK, &SWAPS)]);
    changes_no_answer("dflash-tied", 0.005, &[(BLOCK, &ROOM)]);
}

/// A drafter attends to all of a long context, old blocks of which are on disk: answers are the same, and as
/// many drafts hold.
#[test]
fn old_blocks_on_disk_are_attended_to_by_drafters() {
    let (targets, long, weights, copies) = (dir(), dir(), dir(), dir());
    let mut it = drafter("dflash-quarters");
    it.golden = it.golden.in_a_long_context(2048, long.path());
    let target = it.import_into(targets.path());
    let vocabulary = target.model.vocabulary;
    with_tokenizer(&it.golden, vocabulary, weights.path());
    repeat(weights.path(), KEPT);
    it.copying(copies.path());
    let options = BuildOptions { draft: Some(BLOCK), ..BuildOptions::default() };
    let server = build_with(Some(targets.path()), &target.name(), &options);
    let ids = Random(7).ids(1400, vocabulary);
    let directory = dir();
    let path = directory.path().to_str().expect("it is UTF-8");
    let whole = ["--context", "1600"];
    let streamed =
        ["--context", "1600", "--blocks", "48", "--resident-blocks", "24", "--high-speed-swap", path];
    let [expected, found] = [&whole[..], &streamed].map(|room| {
        let serving = serve(&server, weights.path(), Some(copies.path()), room);
        let answers = [600, 1399, 1400].map(|length| {
            let request = Request {
                prompt: ids[..length].to_vec(),
                tokens: 60,
                sampling: json!({"temperature": 0}),
                surplus: 0,
            };
            request.whole(&serving.address)
        });
        let stats = stats(&serving.address);
        (
            answers,
            ["drafts_verified", "drafts_accepted"].map(|key| stats[key].as_u64().expect("it is counted")),
        )
    });
    assert!(expected == found, "{:?} {:?}", expected.1, found.1);
    assert!(found.1[1] > 20, "{:?}", found.1);
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directories can be made")
}

#[test]
fn drafts_are_those_of_the_interpreter_behind_prefixes_too() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let it = drafter("dflash-quarters");
    let target = it.import_into(targets.path());
    // Answers contain drafts that are accepted whatever was sampled.
    let shown = DraftOption { method: DFLASH, drafts: 4, ..SHOWN };
    let options = BuildOptions { draft: Some(shown), ..BuildOptions::default() };
    let server = build_with(Some(targets.path()), &target.name(), &options);
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&it.golden, target.model.vocabulary, weights.path());
    let target = drafting(&target, &shown);
    let dflash = target.drafter().expect("it drafts so");
    let graph = graph::build_with_dflash(&target.model, &target.quant, dflash);
    let checkpoint = it.checkpoint();
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let serving = serve(&server, weights.path(), Some(&it.directory), &ROOM);
    let mut random = Random(5);
    let mut request = |length: usize| Request {
        prompt: random.ids(length, target.model.vocabulary),
        tokens: 40,
        sampling: json!({"temperature": 0}),
        surplus: 0,
    };
    let first: Vec<Request> = (0..9).map(|at| request(if at % 3 == 0 { 1 + at } else { 110 + at })).collect();
    // The same again, when their prefixes are cached.
    for again in [false, true] {
        let answers = crowd(&serving.address, &first, 4);
        for (number, (request, found)) in first.iter().zip(&answers).enumerate() {
            let found: Vec<u32> = found.text.bytes().map(|token| u32::from(token - b'!')).collect();
            let speculated =
                Speculated::new(&interpreter, shown, &target.model, &Fed::text(&request.prompt), 0);
            let best = speculated.alike_in_any_slot(&found);
            assert_eq!(best, request.tokens, "request {number}, again: {again}: {found:?}");
        }
    }
    let stats = stats(&serving.address);
    assert!(stats["tokens_cached"].as_f64().expect("it is counted") > 300.0, "{stats}");
}
