//! The interpreter on goldens stored in every format, computing in f32 and in f16.

use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_compiler::{graph, spec};
use monomorph_formats::Format;
use monomorph_tests::goldens::{Golden, blocks, goldens, whole_blocks};
use monomorph_tests::logits::{Logits, Spread, read};
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::root;
use monomorph_weights::Checkpoint;
use std::path::Path;

fn target(targets: &Path, golden: &Golden, quant: &str) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    spec::load(&search, &format!("h200/{}/{quant}", golden.name)).unwrap_or_else(|error| panic!("{error}"))
}

fn interpret(target: &Target, golden: &Golden, weights: &Path) -> Logits {
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint);
    let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    golden
        .prompts
        .iter()
        .map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All))
        .collect()
}

/// How names of goldens with latents begin. Keys and values go through two products there, and f16 moves half
/// of their rows by up to 9e-3, where it moves half of the others' by 1e-3 to 5e-3; in one row other experts
/// are chosen.
const OF_LATENTS: &str = "mistral4";

#[test]
fn computing_in_f16_stays_near_the_goldens() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for golden in goldens() {
        golden.import_into(targets.path(), Compute::F16);
        let target = target(targets.path(), &golden, "bf16");
        let found = interpret(&target, &golden, &golden.directory.join("bf16"));
        let expected = read(&golden.directory.join("bf16/logits.safetensors"));
        let apart = Spread::of(&found, &expected, target.model.vocabulary);
        println!("{}: {apart}", golden.name);
        let near = if golden.name.starts_with(OF_LATENTS) {
            apart.is_within(2e-2, &target.model)
        } else {
            apart.all <= 2e-2
        };
        assert!(near && apart.all >= 1e-5, "{}: {apart}", golden.name);
    }
}

/// Largest distance of weights from the original ones, as a ratio of root mean squares: the rounding error of
/// the codes. A scale or nibble in the wrong place costs far more.
fn bound(storage: &Storage) -> f64 {
    match storage.matrices {
        Format::F32 => 0.0,
        Format::F16 => 5e-4,
        Format::Bf16 => 4e-3,
        Format::Q8_0 => 6e-3,
        // A code's error is uniform within at most 1/16 of its power of two: 1/16/sqrt(3) if every value is
        // just above a power of two.
        Format::Fp8E4m3 => 3.7e-2,
        Format::Nvfp4 | Format::Q4_1 | Format::Q4_0 | Format::Q4K | Format::Iq4Xs => 0.12,
        // Of its matrices in q2_k: a third of what 16 values span is a step, so 0.34 of normal ones, and
        // scales and minima have four bits.
        Format::Q3K => 0.5,
        other => panic!("no storage has {other}"),
    }
}

/// The largest such distance of any tensor.
fn weights_apart(found: &Path, original: &Path) -> f64 {
    let [found, original] = [found, original].map(|path| Checkpoint::open(path).expect("a checkpoint"));
    let values = |bytes: &[u8]| -> Vec<f64> {
        bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    };
    let apart = found.tensors().map(|tensor| {
        let original = original.expect(tensor.name, tensor.shape, Format::F32).expect("the same tensors");
        let [found, original] = [tensor, original].map(|it| values(&it.bytes.read().expect("readable")));
        let error: f64 = found.iter().zip(&original).map(|(a, b)| (a - b) * (a - b)).sum();
        (error / original.iter().map(|v| v * v).sum::<f64>()).sqrt()
    });
    apart.fold(0.0, f64::max)
}

#[test]
fn every_storage_means_what_its_codes_and_scales_say() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, mut seen) = (directory.path().join("targets"), 0);
    let on_cards = goldens().into_iter().chain([blocks(directory.path())]);
    let models = on_cards.map(|it| (it, &Storage::ALL[..]));
    for (golden, storages) in models.chain([(whole_blocks(directory.path()), &Storage::ON_CPUS[..])]) {
        golden.import_into(&targets, Compute::F32);
        let plain = target(&targets, &golden, "f32");
        let vocabulary = plain.model.vocabulary;
        for storage in storages.iter().filter(|storage| storage.fits(&plain)) {
            let out = directory.path().join(&golden.name).join(storage.name);
            let store = |compute, kv| requantise(&golden, &plain, storage, compute, kv, &targets, &out);
            let exact = target(&targets, &golden, &store(Compute::F32, Format::F32));
            let found = interpret(&exact, &golden, &out.join("stored"));
            let means = interpret(&plain, &golden, &out.join("means"));
            assert!(found == means, "{}: other values than the codes and scales stand for", exact.name());
            let apart = weights_apart(&out.join("means"), &golden.directory.join("f32"));
            let rounded = target(&targets, &golden, &store(Compute::F16, Format::Bf16));
            let rounded = interpret(&rounded, &golden, &out.join("stored"));
            let f16 = Spread::of(&rounded, &means, vocabulary);
            println!("{}/{}: weights {apart:.1e}, logits in f16: {f16}", golden.name, storage.name);
            assert!(apart <= bound(storage), "{}: {apart:e}", exact.name());
            assert!(f16.is_within(3e-2, &plain.model), "{} in f16: {f16}", exact.name());
            seen += 1;
        }
    }
    // Two of them have rows of whole blocks of 16 and 32, and the last has rows of 256.
    assert!(seen >= 13 * 5 + 2 * 4 + 2, "{seen}");
}
