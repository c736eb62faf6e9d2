//! Servers that draft and take images, of the goldens with a tower: they answer as the reference interpreter,
//! which does not draft, token for token; and what a stack drafts is what the interpreter drafts.

use monomorph_compiler::reference::{Fed, Interpreter};
use monomorph_compiler::spec::types::DraftMethod::{Layers, Mtp, Ngram};
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption, Target};
use monomorph_compiler::{graph, spec};
use monomorph_tests::emulated;
use monomorph_tests::repeating::{KEPT, repeat};
use monomorph_tests::server::{Serving, build_unoptimised, post, stats};
use monomorph_tests::speculated::{SHOWN, SKIPPED, Speculated};
use monomorph_tests::towers::questions::{FLAGS, Part, Prompt, QUESTIONS, Seen};
use monomorph_tests::towers::{checkpoint, draft_head, imported, questions};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Tokens of an answer.
const ANSWER: usize = 28;

/// A golden as it was imported, and where its weights stand.
struct Case {
    name: &'static str,
    targets: TempDir,
    weights: PathBuf,
    /// The golden with a draft head.
    _made: TempDir,
}

impl Case {
    /// A golden; with a draft head of random weights, if it is to have one.
    fn new(name: &'static str, head: bool) -> Case {
        let [targets, made] =
            [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
        let mut directory = imported::directory(name);
        if head {
            draft_head::write(name, made.path());
            directory = made.path().to_owned();
        }
        imported::import_into(targets.path(), &directory, name, Compute::F32);
        Case { name, targets, weights: directory.join("f32/model.safetensors"), _made: made }
    }

    fn target(&self, hardware: &str) -> Target {
        imported::load(self.targets.path(), hardware, self.name, true)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn server(&self, draft: DraftOption) -> Command {
        let options = BuildOptions { draft: Some(draft), vision: true, ..BuildOptions::default() };
        Command::new(build_unoptimised(self.targets.path(), &format!("cpu/{}/f32", self.name), &options))
    }

    /// The server of an emulated card, for so many sequences at a time.
    fn on_card(&self, draft: DraftOption, sequences: usize) -> emulated::Server {
        let hardware = emulated::hardware(self.targets.path(), "h200", Some(emulated::FEW));
        let target = spec::with_draft(self.target(&hardware), &draft).expect("it has what drafts");
        emulated::build_up_to(&target, sequences)
    }

    /// Weights beside what a server needs besides; such that the model mostly repeats itself, if it is to.
    fn checkpoint(&self, repeats: bool) -> TempDir {
        let directory = tempfile::tempdir().expect("temporary directories can be made");
        checkpoint::write(self.name, &self.target("cpu"), directory.path());
        std::fs::copy(&self.weights, directory.path().join("model.safetensors")).expect("it is writable");
        if repeats {
            repeat(directory.path(), KEPT);
        }
        directory
    }

    /// Runs a check beside the interpreter over the weights of a directory.
    fn beside(&self, directory: &Path, check: impl FnOnce(&Target, &Interpreter)) {
        let target = self.target("cpu");
        let tower = target.tower.as_ref().expect("it has a tower");
        let graph = graph::build_with_vision(&target.model, &target.quant, tower);
        let checkpoint = Checkpoint::open(directory).expect("it was just written");
        let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
        check(&target, &interpreter);
    }
}

fn option(method: DraftMethod, drafts: usize) -> DraftOption {
    DraftOption { method, drafts, vocabulary: None, forced_acceptance: None }
}

fn serve(server: Command, weights: &Path, more: &[&str]) -> Serving {
    Serving::start_command(server, weights, &[&["--threads", "2"], &FLAGS[..], more].concat())
}

/// The ids of an answer.
fn served(serving: &Serving, parts: &[Part]) -> Vec<u32> {
    let mut body = questions::body(parts);
    body["max_tokens"] = json!(ANSWER);
    let (status, text) =
        post(&serving.address, "/v1/chat/completions", &body.to_string()).expect("the server answers");
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(answer["choices"][0]["token_ids"].clone()).expect("ids")
}

/// Asks a server about files, twice, and compares its answers with the interpreter's; drafts verified and
/// held.
fn answers(case: &Case, serving: &Serving, weights: &Path) -> [f64; 2] {
    case.beside(weights, |target, interpreter| {
        let tower = target.tower.as_ref().expect("it has a tower");
        for parts in QUESTIONS {
            let prompt = Prompt::of(tower, parts);
            let expected = questions::answered(interpreter, tower, &prompt, ANSWER);
            for turn in 0..2 {
                assert_eq!(served(serving, parts), expected, "{} {parts:?}, turn {turn}", case.name);
            }
        }
    });
    let stats = stats(&serving.address);
    ["drafts_verified", "drafts_accepted"].map(|key| stats[key].as_f64().expect("it is counted"))
}

/// Any repeated token is looked up: tiny models of random weights repeat few.
const EAGER: [&str; 4] = ["--prompt-lookup-min", "1", "--prompt-lookup-max", "2"];

#[test]
fn what_is_looked_up_changes_no_answer_about_an_image() {
    for name in ["qwen35", "qwen3-vl", "gemma4", "pixtral"] {
        let case = Case::new(name, false);
        let server = case.server(option(Ngram, 3));
        let weights = case.checkpoint(false);
        // Prompts in pieces that end within images where they may.
        let serving = serve(server, weights.path(), &[&EAGER[..], &["--prefill-tokens", "12"]].concat());
        let [verified, held] = answers(&case, &serving, weights.path());
        println!("{name}: {held} of {verified} drafts held");
        assert!(verified > 50.0 && held > 9.0, "{name}: {held} of {verified}");
    }
}

/// Asks servers of a model that drafts itself, of random weights and of such that repeat, with prompts in
/// pieces.
fn itself(case: &Case, method: DraftMethod, pieces: &[&str], server: impl Fn() -> Command) {
    for repeats in [false, true] {
        let weights = case.checkpoint(repeats);
        for pieces in pieces {
            let serving = serve(server(), weights.path(), &["--prefill-tokens", pieces]);
            let [verified, held] = answers(case, &serving, weights.path());
            println!("{method:?}, pieces {pieces}, repeats: {repeats}: {held} of {verified} drafts held");
            assert!(verified > 0.0, "nothing was drafted");
        }
    }
}

#[test]
fn what_a_model_drafts_itself_changes_no_answer_about_an_image() {
    for (method, drafts) in [(Mtp, 2), (Layers, 3)] {
        let case = Case::new("qwen35", method == Mtp);
        let server = case.server(option(method, drafts)).get_program().to_owned();
        itself(&case, method, &["0", "16", "7"], || Command::new(&server));
    }
}

/// A server of a CUDA device on the emulated card: rows of drafts turn by the shift of their sequence.
#[test]
#[ignore = "minutes"]
fn what_is_looked_up_changes_no_answer_about_an_image_of_an_emulated_card() {
    let case = Case::new("qwen35", false);
    let server = case.on_card(option(Ngram, 3), 1).command();
    let weights = case.checkpoint(false);
    let serving = serve(server, weights.path(), &EAGER);
    let [verified, held] = answers(&case, &serving, weights.path());
    println!("{held} of {verified} drafts held");
    assert!(verified > 50.0 && held > 9.0, "{held} of {verified}");
}

#[test]
#[ignore = "minutes"]
fn what_a_model_drafts_itself_changes_no_answer_about_an_image_of_an_emulated_card() {
    for (method, drafts) in [(Mtp, 2), (Layers, 3)] {
        let case = Case::new("qwen35", method == Mtp);
        let server = case.on_card(option(method, drafts), 1);
        itself(&case, method, &["7"], || server.command());
    }
}

/// What clients are answered that ask every second question, or all of them where there is one.
fn asked(serving: &Serving, clients: usize) -> Vec<Vec<u32>> {
    let ask = |client: usize| {
        move || {
            let questions = QUESTIONS.iter().enumerate().skip(client).step_by(clients);
            questions.map(|(at, parts)| (at, served(serving, parts))).collect::<Vec<_>>()
        }
    };
    let mut found: Vec<(usize, Vec<u32>)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|client| scope.spawn(ask(client))).collect();
        running.into_iter().flat_map(|client| client.join().expect("it is answered")).collect()
    });
    found.sort_unstable();
    found.into_iter().map(|(_, answer)| answer).collect()
}

/// Asks a server that accepts drafts whatever was sampled, and looks for the interpreter's drafts in its
/// answers. Weights are random, so that a wrong position, row or shift says something else.
fn shows(case: &Case, shown: DraftOption, clients: usize, server: impl Fn() -> Command) {
    let weights = case.checkpoint(false);
    // Prompts whole, and in pieces within images; a prefix that was found has the keys of earlier drafts.
    for pieces in ["0", "5"] {
        let more = ["--prefill-tokens", pieces, "--prefix-cache", "off"];
        let serving = serve(server(), weights.path(), &more);
        let answers = asked(&serving, clients);
        case.beside(weights.path(), |target, interpreter| {
            let tower = target.tower.as_ref().expect("it has a tower");
            for (parts, found) in QUESTIONS.iter().zip(&answers) {
                let prompt = Prompt::of(tower, parts);
                let Seen { features, spans, positions, shift } = prompt.seen(interpreter, tower);
                let fed = Fed::with_images(&prompt.ids, &positions, &spans, &features);
                let speculated = Speculated::new(interpreter, shown, &target.model, &fed, shift);
                let alike = speculated.alike_in_any_slot(found);
                assert_eq!(alike, ANSWER, "{:?} {parts:?} in pieces of {pieces}: {found:?}", shown.method);
            }
        });
    }
}

#[test]
fn drafts_behind_images_are_those_of_the_interpreter() {
    for shown in [SHOWN, SKIPPED] {
        let case = Case::new("qwen35", shown.method == Mtp);
        let server = case.server(shown).get_program().to_owned();
        shows(&case, shown, 1, || Command::new(&server));
    }
}

/// On the emulated card, where two sequences at a time have rows and places of their own: passes of a draft
/// head take rows of images, and turn by the shifts of their places.
#[test]
fn drafts_behind_images_are_those_of_the_interpreter_on_an_emulated_card() {
    for shown in [SHOWN, SKIPPED] {
        let case = Case::new("qwen35", shown.method == Mtp);
        let server = case.on_card(shown, 2);
        shows(&case, shown, 2, || server.command());
    }
}
