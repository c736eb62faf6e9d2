//! Tiny random checkpoints with logits computed by transformers: first the interpreter, then each server
//! built from the imported config, in prefill and decode, against the goldens.

use monomorph_compiler::passes::shard::shard;
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Ranks};
use monomorph_compiler::{graph, spec, toolchain};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::goldens::{
    Golden, UNBUILT, blocks, goldens, slim_with_prompts, whole_blocks, wide_mistral,
};
use monomorph_tests::logits::{Logits, Spread, distance, read, rows_apart};
use monomorph_tests::makers::in_the_makers_form;
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::scaled::with_static_scales;
use monomorph_tests::{check_golden, fixtures, root, server, stacks};
use monomorph_weights::Checkpoint;
use std::collections::BTreeSet;
use std::path::Path;

/// Stored formats of the goldens, and the largest distance of logits, relative to the row's largest.
const BOUNDS: [(&str, f32); 2] = [("f32", 2e-4), ("bf16", 2e-2)];

fn target(targets: &Path, golden: &Golden, format: &str) -> spec::types::Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("cpu/{}/{format}", golden.name)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_interpreter_agrees_with_transformers_prefill_and_decode() {
    let [targets, makers] = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    for golden in goldens().into_iter().chain(in_the_makers_form(makers.path())) {
        golden.import_into(targets.path(), Compute::F32);
        for (format, _) in BOUNDS {
            let target = target(targets.path(), &golden, format);
            let graph = graph::build(&target.model, &target.quant);
            let checkpoint =
                Checkpoint::open(&golden.directory.join(format)).expect("a golden has a checkpoint");
            let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
            let expected = read(&golden.directory.join(format).join("logits.safetensors"));
            let whole: Logits = golden
                .prompts
                .iter()
                .map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All))
                .collect();
            let stepped: Logits = golden
                .prompts
                .iter()
                .map(|prompt| {
                    let mut cache = Cache::default();
                    prompt
                        .iter()
                        .flat_map(|id| interpreter.forward(&[*id], &mut cache, Which::Last))
                        .collect()
                })
                .collect();
            let vocabulary = target.model.vocabulary;
            let (whole, stepped) =
                (distance(&whole, &expected, vocabulary), distance(&stepped, &expected, vocabulary));
            println!("{} {format}: interpreter prefill {whole:.1e}, decode {stepped:.1e}", golden.name);
            // Both compute in f32 from the same exact weights, so they differ only by rounding.
            assert!(whole <= 3e-5 && stepped <= 3e-5, "{} {format}: {whole:e} {stepped:e}", golden.name);
        }
    }
}

#[test]
fn drafts_agree_with_the_reference_in_prompts_and_step_by_step() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut drafted = 0;
    for golden in goldens() {
        golden.import_into(targets.path(), Compute::F32);
        for (format, _) in BOUNDS {
            let target = target(targets.path(), &golden, format);
            let expected = golden.directory.join(format).join("mtp.safetensors");
            assert_eq!(target.quant.has_draft(), expected.is_file(), "{} {format}", golden.name);
            if !target.quant.has_draft() {
                continue;
            }
            let graph = graph::build(&target.model, &target.quant);
            let checkpoint =
                Checkpoint::open(&golden.directory.join(format)).expect("a golden has a checkpoint");
            let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
            let (expected, hidden, vocabulary) =
                (read(&expected), target.model.hidden, target.model.vocabulary);
            let whole = |prompt: &Vec<u32>| {
                let states =
                    interpreter.forward_with_hidden(prompt, &mut Cache::default(), Which::All).hidden;
                let pairs = prompt.len() - 1;
                let given = &states[..pairs * hidden];
                interpreter.draft(given, &prompt[1..], &mut Cache::default(), Which::All).logits
            };
            let stepped = |prompt: &Vec<u32>| -> Vec<f32> {
                let (mut cache, mut drafts) = (Cache::default(), Cache::default());
                let step = |pair: &[u32]| {
                    let state = interpreter.forward_with_hidden(&pair[..1], &mut cache, Which::Last).hidden;
                    interpreter.draft(&state, &pair[1..], &mut drafts, Which::Last).logits
                };
                prompt.windows(2).flat_map(step).collect()
            };
            let whole = distance(&golden.prompts.iter().map(whole).collect(), &expected, vocabulary);
            let stepped = distance(&golden.prompts.iter().map(stepped).collect(), &expected, vocabulary);
            println!("{} {format}: drafts of prompts {whole:.1e}, step by step {stepped:.1e}", golden.name);
            // As for the models themselves: both compute in f32 from the same exact weights.
            assert!(whole <= 3e-5 && stepped <= 3e-5, "{} {format}: {whole:e} {stepped:e}", golden.name);
            drafted += 1;
        }
    }
    assert_eq!(drafted, 6, "three goldens in two formats have draft heads");
}

/// The logits of all prompts, each prefilled, and each fed token by token; and those of drafts after each
/// token, where there is a draft head.
fn logits_of(interpreter: &Interpreter, golden: &Golden, hidden: usize, drafts: bool) -> [Logits; 3] {
    let prefilled = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
    let stepped = |prompt: &Vec<u32>| {
        let mut cache = Cache::default();
        let step = |id: &u32| interpreter.forward(&[*id], &mut cache, Which::Last);
        prompt.iter().flat_map(step).collect()
    };
    let drafted = |prompt: &Vec<u32>| {
        let states = interpreter.forward_with_hidden(prompt, &mut Cache::default(), Which::All).hidden;
        let given = &states[..(prompt.len() - 1) * hidden];
        interpreter.draft(given, &prompt[1..], &mut Cache::default(), Which::All).logits
    };
    let prompts = || golden.prompts.iter();
    let drafts = prompts().filter(|_| drafts).map(drafted).collect();
    [prompts().map(prefilled).collect(), prompts().map(stepped).collect(), drafts]
}

/// The interpreter runs all ranks of a cut graph, op by op, and asserts after every body that they hold the
/// same bits. Each golden is cut where its sizes can be, and again with sizes that can;
/// `tests/fixtures/ranks.txt` has what is refused, by name. Of each way the least and the most ranks are run.
#[test]
fn several_ranks_compute_what_one_does_in_prefill_decode_and_drafts() {
    let [targets, scaled] = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let mut table = String::new();
    for golden in goldens() {
        let larger = golden.for_ranks(scaled.path());
        for golden in [&golden, &larger] {
            golden.import_into(targets.path(), Compute::F32);
            let target = target(targets.path(), golden, "f32");
            let checkpoint = Checkpoint::open(&golden.directory.join("f32")).expect("there is a checkpoint");
            let whole = graph::build(&target.model, &target.quant);
            let logits = |graph: &graph::Graph| {
                let interpreter = Interpreter::new(graph, &target.quant, &checkpoint).expect("it fits");
                logits_of(&interpreter, golden, target.model.hidden, target.quant.has_draft())
            };
            let one = logits(&whole);
            let experts = whole.weights.iter().any(|weight| weight.experts.is_some());
            let of = [2, 3, 4, 8].map(|count| [Ranks::tensor_parallel(count), Ranks::expert_parallel(count)]);
            let mut cut = [(); 2].map(|()| Vec::new());
            for ranks in of.into_iter().flatten().filter(|ranks| experts || !ranks.whole_experts) {
                let experts = if ranks.whole_experts { " with whole experts" } else { "" };
                let what = format!("{}, {} ranks{experts}", golden.name, ranks.count);
                match shard(&whole, ranks) {
                    Ok(graph) => cut[usize::from(ranks.whole_experts)].push((what, graph)),
                    Err(why) => table += &format!("{what}: {why}\n"),
                }
            }
            for way in cut {
                let last = way.len().saturating_sub(1);
                let ends = way.into_iter().enumerate().filter(|(at, _)| *at == 0 || *at == last);
                for (_, (what, graph)) in ends {
                    for (several, one) in logits(&graph).iter().zip(&one) {
                        let apart = distance(several, one, target.model.vocabulary);
                        println!("{what}: {apart:.1e}");
                        // Sums are rounded in other places, and everything else is the same.
                        assert!(apart <= 3e-5, "{what}: {apart:e}");
                    }
                }
            }
        }
    }
    check_golden(&fixtures().join("ranks.txt"), &table);
}

/// What a kernel left out would show in a server's answers alone.
#[test]
fn what_cards_have_no_kernels_for_is_refused_by_name_and_nothing_else_is() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let search = [targets.path().to_owned(), root().join("targets")];
    for golden in goldens() {
        golden.import_into(targets.path(), Compute::F32);
        for hardware in ["cpu", "h200", "gb10"] {
            let name = format!("{hardware}/{}/f32", golden.name);
            let target = spec::load(&search, &name).unwrap_or_else(|error| panic!("{error}"));
            let refusal = toolchain::plan(&target).err().map(|error| error.to_string());
            let refused = refusal.is_some_and(|why| why.contains("the CUDA backend has no kernels for"));
            let unbuilt = hardware != "cpu" && UNBUILT.contains(&golden.name.as_str());
            assert_eq!(refused, unbuilt, "{name}");
        }
    }
}

/// The phases of a target's layers and ends, each as the names of its ops.
fn phases(target: &spec::types::Target) -> impl Iterator<Item = Vec<&'static str>> {
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let phases: Vec<_> =
        plan.bodies.iter().flat_map(|body| &body.phases).map(|phase| phase.ops.clone()).collect();
    phases.into_iter()
}

/// Of all goldens, or of those whose names hold one of `MONOMORPH_GOLDENS`.
#[test]
fn cpu_stacks_agree_with_transformers_prefill_and_decode() {
    let [targets, out, makers] =
        [(); 3].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let is_wanted =
        |golden: &Golden| wanted.is_empty() || wanted.split(',').any(|it| golden.name.contains(it));
    let (mut cases, mut seen) = (Vec::new(), BTreeSet::new());
    let all = goldens().into_iter().chain(in_the_makers_form(makers.path()));
    for golden in all.filter(is_wanted) {
        golden.import_into(targets.path(), Compute::F32);
        for (format, bound) in BOUNDS {
            let target = target(targets.path(), &golden, format);
            // Twelve seconds of a processor each: in bf16, which the interpreter reads of every golden, only
            // those with a phase that none before has.
            if format == "f32" || phases(&target).filter(|phase| seen.insert(phase.clone())).count() > 0 {
                cases.push((target, (golden.clone(), format, bound)));
            }
        }
    }
    let (built, cases): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let binaries = stacks::build("goldens", &built);
    for ((binary, target), (golden, format, bound)) in binaries.iter().zip(&built).zip(cases) {
        let weights = golden.directory.join(format);
        let expected = read(&weights.join("logits.safetensors"));
        for mode in [&[][..], &["--decode"]] {
            let found = logits(binary, &weights, &golden, out.path(), mode);
            let apart = distance(&found, &expected, target.model.vocabulary);
            println!("{} {format} {mode:?}: {apart:.1e}", golden.name);
            assert!(apart <= bound, "{} {format} {mode:?}: {apart:e} > {bound:e}", golden.name);
        }
    }
}

/// The logits of a golden's prompts by a server, which leaves them in `directory`; `mode`: further flags.
fn logits(binary: &Path, weights: &Path, golden: &Golden, directory: &Path, mode: &[&str]) -> Logits {
    let found = directory.join("logits.safetensors");
    let tokens = golden.directory.join("tokens.json");
    let [weights, tokens, to] =
        [weights, &tokens, &found].map(|path| path.to_str().expect("paths are UTF-8"));
    let mut arguments = vec!["--weights", weights, "--tokens", tokens, "--out", to];
    arguments.extend(mode);
    server::verb(binary, &arguments);
    read(&found)
}

/// Models, how they keep keys and values, and layers at each end that keep them exactly: heads that share
/// keys, layers that differ, gates and recurrent layers beside attention, windows, latents. Checkpoints of
/// fp8 have static scales, but of latents.
const KEPT: [(&str, &str, usize); 7] = [
    ("llama-aligned", "turbo8/turbo4", 0),
    ("qwen3-deep", "fp8", 1),
    ("qwen35-text", "turbo3", 0),
    ("qwen3-next", "nvfp4", 0),
    ("gemma4-dense", "fp8", 0),
    ("mistral4-eights", "fp8", 0),
    ("wide-mistral", "turbo4", 0),
];

#[test]
fn cpu_stacks_attend_to_what_the_interpreter_reads_back_of_keys_and_values() {
    let [targets, out] = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let mut all = goldens();
    all.push(wide_mistral(out.path()));
    let (mut built, mut cases) = (Vec::new(), Vec::new());
    for (name, kv, boundary) in KEPT {
        let golden = all.iter().find(|golden| golden.name == name).expect("it is a golden");
        golden.import_into(targets.path(), Compute::F32);
        let plain = target(targets.path(), golden, "f32");
        let kv = KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}"));
        let mut target = spec::with_kv(plain.clone(), kv).unwrap_or_else(|error| panic!("{error}"));
        target.quant.kv_boundary = boundary;
        let mut weights = golden.directory.join("f32");
        if kv == KvFormats::both(Cached::Fp8) && !name.starts_with("mistral4") {
            let scaled = out.path().join(name);
            std::fs::create_dir(&scaled).expect("a temporary directory is writable");
            target.quant.kv_scales = Some(with_static_scales(&target, &weights, &scaled));
            weights = scaled;
        }
        built.push(target);
        cases.push((golden, plain, weights));
    }
    let binaries = stacks::build("kept", &built);
    for ((binary, target), (golden, plain, weights)) in binaries.iter().zip(&built).zip(cases) {
        let checkpoint = Checkpoint::open(&weights).expect("a golden has a checkpoint");
        let of = |target: &spec::types::Target| -> Logits {
            let graph = graph::build(&target.model, &target.quant);
            let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
            let prompts = golden.prompts.iter();
            prompts.map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All)).collect()
        };
        let (expected, exact) = (of(target), of(&plain));
        let found =
            [&[][..], &["--decode"]].map(|mode: &[&str]| logits(binary, &weights, golden, out.path(), mode));
        let what = target.build();
        let vocabulary = target.model.vocabulary;
        // Sums in another order change a code now and then. That may choose another expert, and moves the
        // rows after it, though by less than the format itself.
        let apart = Spread::of(&found[0], &expected, vocabulary);
        let moved = Spread::of(&expected, &exact, vocabulary);
        println!("{what}: from the interpreter {apart}; the format moves {moved}");
        let a_code_changed = apart.half <= 2e-3 && apart.all < moved.half;
        assert!(apart.is_within(2e-3, &target.model) || a_code_changed, "{what}: {apart}");
        // A format that was not applied would be as far away as it moves results.
        assert!(moved.half >= 4.0 * apart.half.max(1e-3), "{what}: {moved}");
        assert!(found[0] == found[1], "{what}: a prompt and single tokens differ");
    }
}

/// A model stored in codes, and how its products round activations.
struct Coded {
    storage: &'static str,
    golden: fn(&Path) -> Golden,
    compute: Compute,
}

/// A hybrid with a mixture, and a dense model, with scales beside the codes: both round to f16, and what is
/// stored in bf16 too. Then blocks with scales in them.
const CODED: [Coded; 6] = [
    Coded { storage: "nvfp4-compressed-tensors", golden: slim_with_prompts, compute: Compute::F16 },
    Coded { storage: "fp8-block128", golden: blocks, compute: Compute::F16 },
    Coded { storage: "q4_0-q5", golden: whole_blocks, compute: Compute::Int8Block32 },
    Coded { storage: "q4_k-q6_k", golden: whole_blocks, compute: Compute::Int8Block32 },
    Coded { storage: "q2_k-q3_k", golden: whole_blocks, compute: Compute::Int8Block32 },
    Coded { storage: "iq4", golden: whole_blocks, compute: Compute::Int8Block32 },
];

#[test]
fn cpu_stacks_compute_of_codes_what_the_interpreter_does() {
    let [targets, out] = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let (mut built, mut cases) = (Vec::new(), Vec::new());
    for Coded { storage, golden, compute } in CODED {
        let golden = golden(out.path());
        golden.import_into(targets.path(), Compute::F32);
        let plain = target(targets.path(), &golden, "f32");
        let to = out.path().join(storage);
        let of = |compute| {
            let storage = Storage::called(storage);
            let quant = requantise(&golden, &plain, storage, compute, Format::F32, targets.path(), &to);
            target(targets.path(), &golden, &quant)
        };
        let (exact, rounded) = (of(Compute::F32), of(compute));
        built.push(rounded);
        cases.push((golden, exact, to.join("stored")));
    }
    let binaries = stacks::build("codes", &built);
    for ((binary, target), (golden, exact, weights)) in binaries.iter().zip(&built).zip(cases) {
        let checkpoint = Checkpoint::open(&weights).expect("it was just written");
        let [expected, exact] = [target, &exact].map(|target| -> Logits {
            let graph = graph::build(&target.model, &target.quant);
            let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
            let prompts = golden.prompts.iter();
            prompts.map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All)).collect()
        });
        let found =
            [&[][..], &["--decode"]].map(|mode: &[&str]| logits(binary, &weights, &golden, out.path(), mode));
        let (what, vocabulary) = (target.build(), target.model.vocabulary);
        let apart = rows_apart(&found[0], &expected, vocabulary);
        let moved = rows_apart(&expected, &exact, vocabulary);
        let least = |rows: &[f32]| rows.iter().copied().fold(f32::INFINITY, f32::min);
        let most = |rows: &[f32]| rows.iter().copied().fold(0.0, f32::max);
        println!(
            "{what}: {:.1e} to {:.1e} from the interpreter, which rounding moves by {:.1e} to {:.1e}",
            least(&apart),
            most(&apart),
            least(&moved),
            most(&moved)
        );
        // Sums in another order round another way now and then, and every later row differs from then on, by
        // as much as rounding moves. Rows before the first of these are equal.
        assert!(least(&apart) <= 1e-5 && least(&moved) >= 1e-4, "{what}: {apart:?}");
        assert!(most(&apart) <= most(&moved), "{what}: {apart:?}");
        assert!(found[0] == found[1], "{what}: a prompt and single tokens differ");
    }
}
