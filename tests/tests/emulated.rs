//! CUDA servers on an emulated card (tests/emulated): goldens of transformers, and wider random models
//! against the interpreter, fed in every way that steps allow. No card is needed.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::feedings::{Case, EXACT, case, run};
use monomorph_tests::goldens::{
    Golden, golden, on_cards, slim_with_a_crowd, wide, wide_gemma4, wide_mamba2, wide_mistral, wide_nemotron,
};
use monomorph_tests::logits::{Spread, read};
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::scaled::with_static_scales;
use monomorph_tests::{root, rounding};
use std::path::Path;
use std::time::Instant;

/// Largest distance between rows with operands rounded to f16, and with requantised weights.
const F16: f32 = 2e-2;
const REQUANTISED: f32 = 3e-2;
/// The same of Gemma 4, whose scores are not divided: queries rounded to bf16 move them further. PyTorch in
/// bf16 is 4.6e-2 away (`torch_bf16` in the golden's golden.json).
const UNDIVIDED: f32 = 3e-2;
/// The same where keys and values have codes, some of which another order of summation makes the next ones.
const NEXT_CODES: f32 = 2e-3;

fn target(targets: &Path, hardware: &str, golden: &Golden, quant: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    let name = format!("{hardware}/{}/{quant}", golden.name);
    spec::load(&search, &name).unwrap_or_else(|error| panic!("{error}"))
}

/// A golden as stored.
fn stored(targets: &Path, hardware: &str, golden: &Golden, quant: &str) -> Option<Case> {
    stored_within(targets, hardware, golden, quant, if quant == "f32" { EXACT } else { F16 })
}

/// A golden as stored, which no row may be further from than `bound`, but for rows that rounding moves far.
fn stored_within(targets: &Path, hardware: &str, golden: &Golden, quant: &str, bound: f32) -> Option<Case> {
    golden.import_into(targets, Compute::F16);
    let weights = golden.directory.join(quant);
    let expected = read(&weights.join("logits.safetensors"));
    let case = case(target(targets, hardware, golden, quant), golden, &weights, Some(expected), bound)?;
    let rows = rounding::bounds(&case.target, &weights, &case.prompts, &case.expected, bound);
    let wider = rows.iter().flatten().filter(|it| **it > bound);
    println!(
        "{}: {} rows may be further away than {bound:.0e}, the furthest {:.1e}",
        case.target.name(),
        wider.clone().count(),
        wider.fold(bound, |a, b| a.max(*b))
    );
    Some(Case { rows: Some(rows), ..case })
}

/// A golden's f32 weights in another storage.
fn restored(targets: &Path, hardware: &str, golden: &Golden, storage: &str, out: &Path) -> Option<Case> {
    restored_in(Compute::F16, targets, hardware, golden, storage, out)
}

/// The same with products in `compute`.
fn restored_in(
    compute: Compute,
    targets: &Path,
    hardware: &str,
    golden: &Golden,
    storage: &str,
    out: &Path,
) -> Option<Case> {
    golden.import_into(targets, Compute::F16);
    let plain = target(targets, hardware, golden, "f32");
    let storage = Storage::called(storage);
    let out = out.join(&golden.name).join(storage.name).join(compute.name());
    let quant = requantise(golden, &plain, storage, compute, Format::Bf16, targets, &out);
    case(target(targets, hardware, golden, &quant), golden, &out.join("stored"), None, REQUANTISED)
}

/// A case of a target that the compiler must not refuse.
fn planned(case: Option<Case>) -> Case {
    case.expect("it is planned")
}

/// Weights made up by the card give answers: greedy, and sampled with every filter.
fn answers(target: &Target, server: &Server) {
    let filters = "--temperature 0.9 --top-p 0.95 --top-k 40 --min-p 0.01 --repetition-penalty 1.1 --seed 7";
    for sampling in ["--temperature 0", filters] {
        let begin = Instant::now();
        let mut command = server.command();
        command.args([
            "generate",
            "--weights",
            "dummy",
            "--raw",
            "--prompt",
            "To begin with",
            "--max-tokens",
            "6",
        ]);
        let output = command.args(sampling.split(' ')).output().expect("the server starts");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {sampling}: {}\n{words}", target.name(), output.status);
        println!("{} answers, {sampling} ({:.1} s)", target.name(), begin.elapsed().as_secs_f32());
    }
}

/// The memory that must stay free does: a server that would take it does not load.
fn guards(server: &Server) {
    // More than any machine has, so that both the plan of host memory and the allocation refuse it.
    let generate = ["generate", "--raw", "--prompt", "To begin with", "--max-tokens", "2"];
    let bench = "bench --prompt-tokens 8 --generate 2 --depth 4 --repeat 1 --streams 0"
        .split(' ')
        .collect::<Vec<_>>();
    for verb in [&generate[..], &bench] {
        let run = |guard: &str| {
            let mut command = server.command();
            command.args(verb).args(["--weights", "dummy", "--memory-guard", guard]);
            let output = command.output().expect("the server starts");
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (code, words) = run("99999999999");
        assert_eq!(code, Some(1), "{verb:?}: {words}");
        assert!(words.contains("to stay free (--memory-guard)"), "{verb:?}: {words}");
        let (code, words) = run("1");
        assert_eq!(code, Some(0), "{verb:?}: {words}");
    }
}

// What takes minutes more, other cards and storages of the same, is ignored: `cargo xtask test --slow`.

/// Both kinds of card; exact products, bf16, fp8 and nvfp4; narrow and wide heads; prompts and batches.
#[test]
fn servers_agree_with_the_interpreter_and_with_transformers() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let [h200, gb10] = ["h200", "gb10"].map(|name| emulated::hardware(&targets, name, Some(emulated::FEW)));
    let (wide, mut wrong) = (wide(directory.path()), Vec::new());

    let case = planned(restored(&targets, &h200, &wide, "fp8-block128", &out));
    let server = run(&case, &mut wrong, &["prompts together", "34 and fewer"]);
    answers(&case.target, &server);
    guards(&server);
    let case = planned(restored(&targets, &gb10, &wide, "nvfp4-modelopt", &out));
    run(&case, &mut wrong, &["prompts together", "34 and fewer"]);
    let case = planned(stored(&targets, &h200, &golden("llama-aligned"), "f32"));
    run(&case, &mut wrong, &["prompts", "steps behind prompts", "9 and fewer"]);
    let case = planned(stored(&targets, &h200, &golden("qwen35-moe-wide"), "bf16"));
    run(&case, &mut wrong, &["prompts", "9 and fewer"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The other kind of card, Mamba-2 in f16, latents of experts; norms of whole rows, and experts chosen by
/// scores: streamed, and sorted.
#[test]
#[ignore = "minutes"]
fn servers_of_other_cards_and_storages_agree_too() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let [h200, gb10] = ["h200", "gb10"].map(|name| emulated::hardware(&targets, name, Some(emulated::FEW)));
    let [mamba2, latent] = [wide_mamba2(directory.path()), wide_nemotron(directory.path(), true)];
    let mut wrong = Vec::new();
    for case in [
        stored(&targets, &h200, &golden("minimax-m2"), "bf16"),
        stored(&targets, &gb10, &golden("nemotron-h-few"), "bf16"),
        stored_within(&targets, &gb10, &golden("gemma4-few"), "bf16", UNDIVIDED),
        restored(&targets, &h200, &mamba2, "bf16", &out),
        restored(&targets, &h200, &latent, "bf16", &out),
    ] {
        run(&planned(case), &mut wrong, &["prompts together", "9 and fewer"]);
    }
    latents(&targets, &gb10, &["prompts together", "9 and fewer"], &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Nemotron-H: experts and dense blocks without gates, experts of a width of their own, heads that are not
/// rotated. Experts are streamed for few rows.
#[test]
fn layers_of_one_block_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let h200 = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let (wide, mut wrong) = (wide_nemotron(directory.path(), false), Vec::new());
    let case = planned(restored(&targets, &h200, &wide, "nvfp4-modelopt", &out));
    run(&case, &mut wrong, &["prompts together", "9 and fewer"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Products of codes by codes, of long prompts alone and together; and steps behind short ones, whose
/// products are in f16. A code of an activation near the middle of two becomes the other in another
/// order of summation, and with a few layers that moves rows as far as rounding to codes does: that
/// distance is the bound.
#[test]
fn products_in_fp8_agree_with_the_interpreter() {
    products_in_fp8("fp8-block128");
}

#[test]
#[ignore = "minutes"]
fn products_in_fp8_of_scaled_tensors_agree_with_the_interpreter() {
    products_in_fp8("fp8-tensor");
}

fn products_in_fp8(storage: &str) {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let h200 = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let mut wide = wide(directory.path());
    wide.prompts.retain(|prompt| prompt.len() > 128);
    let mut wrong = Vec::new();
    let halves = planned(restored(&targets, &h200, &wide, storage, &out));
    let case = planned(restored_in(Compute::Fp8, &targets, &h200, &wide, storage, &out));
    let moved = Spread::of(&halves.expected, &case.expected, case.target.model.vocabulary);
    println!("{}: rounding to codes moves {moved}", case.target.name());
    let bound = 1.5 * moved.half.max(moved.most / 2.0);
    let weights = case.weights.clone();
    let rows = rounding::bounds(&case.target, &weights, &case.prompts, &case.expected, bound);
    let case = Case { rows: Some(rows), bound, ..case };
    run(&case, &mut wrong, &["prompts", "prompts together", "steps behind prompts"]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Gemma 4: windows, two shapes of heads, keys as values, norms behind blocks, a router by itself. The wide
/// one's heads have the widths of its releases.
#[test]
fn windows_and_heads_of_two_shapes_agree_with_the_interpreter_and_with_transformers() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let h200 = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let (wide, mut wrong) = (wide_gemma4(directory.path()), Vec::new());
    for case in [
        stored(&targets, &h200, &golden("gemma4-dense"), "f32"),
        restored(&targets, &h200, &wide, "bf16", &out),
    ] {
        run(&planned(case), &mut wrong, &["prompts together", "9 and fewer"]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A server with narrow keys and values: those of a golden, of a crowd, of a wide model, of one with windows,
/// and of one with latents.
#[derive(Clone, Copy)]
enum Kept {
    Golden(&'static str),
    Crowd,
    Wide,
    WideWindows,
    WideLatents,
}

/// Narrow keys and values: a checkpoint's static scales of fp8 and exact layers beside it, in exact
/// arithmetic; and scales of groups.
#[test]
fn servers_attend_to_what_the_interpreter_reads_back() {
    attends_to_what_it_keeps(&[
        (Kept::Golden("qwen3-deep"), "h200", "fp8", 1, NEXT_CODES),
        (Kept::Wide, "gb10", "nvfp4", 0, REQUANTISED),
    ]);
}

/// Keys and values of prompts are widened, as long as there is room for them: of three prompts alone, of two
/// of them together, whose area ends within the third.
#[test]
fn prompts_attend_to_what_is_widened_and_to_what_there_was_no_room_for() {
    attends_to_what_it_keeps(&[(Kept::Crowd, "h200", "turbo4", 0, REQUANTISED)]);
}

/// Windows, wide heads, warpgroups; latents by warpgroups and by other cards.
#[test]
#[ignore = "minutes"]
fn other_servers_attend_to_what_the_interpreter_reads_back() {
    attends_to_what_it_keeps(&[
        (Kept::Golden("gemma4-dense"), "h200", "fp8", 0, NEXT_CODES),
        (Kept::Wide, "h200", "fp8", 0, F16),
        (Kept::WideWindows, "h200", "turbo8/turbo4", 0, REQUANTISED),
        (Kept::WideLatents, "h200", "fp8", 0, REQUANTISED),
        (Kept::WideLatents, "gb10", "fp8", 0, REQUANTISED),
        (Kept::WideLatents, "h200", "nvfp4", 0, REQUANTISED),
        (Kept::WideLatents, "gb10", "turbo4", 0, REQUANTISED),
    ]);
}

/// Model, card, format, exact layers at each end, and the largest distance between rows.
fn attends_to_what_it_keeps(cases: &[(Kept, &str, &str, usize, f32)]) {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let mut wrong = Vec::new();
    for (model, card, kv, boundary, bound) in cases.iter().copied() {
        let hardware = emulated::hardware(&targets, card, Some(emulated::FEW));
        let golden = match model {
            Kept::Golden(name) => golden(name),
            Kept::Crowd => slim_with_a_crowd(directory.path()),
            Kept::Wide => wide(directory.path()),
            Kept::WideWindows => wide_gemma4(directory.path()),
            Kept::WideLatents => wide_mistral(directory.path()),
        };
        let plain = match model {
            Kept::Golden(_) => stored(&targets, &hardware, &golden, "f32"),
            Kept::Crowd | Kept::Wide | Kept::WideWindows | Kept::WideLatents => {
                restored(&targets, &hardware, &golden, "bf16", &out)
            }
        };
        let Case { target, mut weights, expected: unrounded, .. } = planned(plain);
        let kv = KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}"));
        let mut target = spec::with_kv(target, kv).unwrap_or_else(|error| panic!("{error}"));
        target.quant.kv_boundary = boundary;
        if kv == KvFormats::both(Cached::Fp8) && !matches!(model, Kept::WideLatents) {
            let scaled = directory.path().join(format!("{}-{}-scaled", golden.name, target.hardware.name));
            std::fs::create_dir(&scaled).expect("it is writable");
            target.quant.kv_scales = Some(with_static_scales(&target, &weights, &scaled));
            weights = scaled;
        }
        let case = planned(case(target, &golden, &weights, None, bound));
        if matches!(model, Kept::Crowd) {
            let (room, tokens) = (case.target.model.context / 16, case.prompts.iter().map(Vec::len));
            let blocks: Vec<usize> = tokens.map(|tokens| tokens.div_ceil(16)).collect();
            assert!(blocks[0] + blocks[1] <= room && blocks.iter().sum::<usize>() > room, "{blocks:?}");
        }
        assert!(case.sees(&unrounded), "{}: keys and values as they are would pass", case.target.name());
        let alone = matches!(model, Kept::Crowd).then_some("prompts");
        let feedings: Vec<&str> = alone.into_iter().chain(["prompts together", "9 and fewer"]).collect();
        run(&case, &mut wrong, &feedings);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Attention over latents by kernels of warpgroups, in every row. Those of other cards take two minutes for
/// steps after several tiles of the context.
#[test]
fn attention_over_latents_agrees_with_the_interpreter() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let hardware = emulated::hardware(targets.path(), "h200", Some(emulated::FEW));
    let (feedings, mut wrong) = (["prompts together", "9 and fewer", "steps behind prompts"], Vec::new());
    latents(targets.path(), &hardware, &feedings, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn latents(targets: &Path, hardware: &str, feedings: &[&str], wrong: &mut Vec<String>) {
    let made_up = tempfile::tempdir().expect("temporary directories can be made");
    let mistral = wide_mistral(made_up.path());
    let case = planned(restored(targets, hardware, &mistral, "bf16", &made_up.path().join("stored")));
    let rows = case.prompts.iter().map(|prompt| vec![case.bound; prompt.len()]).collect();
    run(&Case { rows: Some(rows), ..case }, wrong, feedings);
}

/// Kernels alone, against references in f64: a part of the delta-net's and Mamba-2's work splits, those of
/// draft passes, those of whole rows, products in fp8 and of eight rows, and keys and values that are
/// widened. Attention's others take a minute to compile here and run on a card.
#[test]
fn kernels_agree_with_their_definitions() {
    let programs = [
        "delta_net/delta",
        "mamba2/mamba2",
        "draft/draft",
        "rows/rows",
        "products/gemm_fp8",
        "products/stream_pairs",
        "experts/experts_fp8",
        "attention/attention_widen",
    ];
    agree_with_their_definitions(programs.map(|name| (name, 0)));
}

/// Those of vision towers, and of the rows that a text model takes of them.
#[test]
fn kernels_of_towers_agree_with_their_definitions() {
    agree_with_their_definitions([("vision/vision", 0), ("vision/vision", 1), ("vision/spans", 0)]);
}

/// The other work splits of recurrent state, with rejected drafts and in chunks.
#[test]
#[ignore = "minutes"]
fn kernels_of_every_work_split_agree_with_their_definitions() {
    let recurrent = ["delta_net/delta", "mamba2/mamba2"];
    agree_with_their_definitions(recurrent.into_iter().flat_map(|name| [(name, 1), (name, 2)]));
}

/// Attention over latents that are kept as codes, with and without warpgroups.
#[test]
#[ignore = "minutes"]
fn kernels_of_coded_latents_agree_with_their_definitions() {
    agree_with_their_definitions([2, 3, 4, 5].map(|part| ("latent/latent", part)));
}

fn agree_with_their_definitions(programs: impl IntoIterator<Item = (&'static str, usize)>) {
    for (name, part) in programs {
        let begin = Instant::now();
        let program = emulated::program(name, &["MONOMORPH_HOST".to_owned(), format!("PART={part}")]);
        let output = std::process::Command::new(&program).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stdout);
        println!("{words}{name} {part}: {:.1} s", begin.elapsed().as_secs_f32());
        assert!(
            output.status.success(),
            "{name} {part}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Every golden in every format, on both kinds of card, fed in every way; too slow for every run.
#[test]
#[ignore = "hours"]
fn every_golden_in_every_format() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let mut wrong = Vec::new();
    let nemotron = [false, true].map(|latent| wide_nemotron(directory.path(), latent));
    let made_up = [wide, wide_gemma4, wide_mamba2, wide_mistral].map(|it| it(directory.path()));
    let wide: Vec<Golden> = made_up.into_iter().chain(nemotron).collect();
    let mut check = |case: Option<Case>| {
        if let Some(case) = case {
            run(&case, &mut wrong, &[]);
        }
    };
    let is_wide = |golden: &Golden| wide.iter().any(|it| it.name == golden.name);
    for hardware in ["h200", "gb10"].map(|name| emulated::hardware(&targets, name, Some(emulated::FEW))) {
        for golden in on_cards().iter().chain(&wide) {
            let is_wanted = |quant: &str| {
                let name = format!("{hardware}/{}/{quant}", golden.name);
                wanted.is_empty() || wanted.split(',').any(|it| name.contains(it))
            };
            golden.import_into(&targets, Compute::F16);
            let plain = target(&targets, &hardware, golden, "f32");
            if !is_wide(golden) {
                for quant in ["bf16", "f32"].into_iter().filter(|quant| is_wanted(quant)) {
                    check(stored(&targets, &hardware, golden, quant));
                }
            }
            let storages = ["bf16", "fp8-tensor", "fp8-block128", "nvfp4-modelopt"];
            for storage in storages.into_iter().filter(|it| is_wanted(&format!("{it}-f16"))) {
                let fits = Storage::ALL.iter().any(|it| it.name == storage && it.fits(&plain));
                if fits && (storage != "bf16" || is_wide(golden)) {
                    check(restored(&targets, &hardware, golden, storage, &out));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
