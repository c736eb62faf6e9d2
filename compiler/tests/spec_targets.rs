//! The project's own targets: every one loads and lists its checkpoint's tensors.

use monomorph_compiler::passes::assemble;
use monomorph_compiler::spec::types::{Compute, Provenance, ScaleForm, Target, TensorClass};
use monomorph_compiler::{emit, graph, spec};
use monomorph_formats::Format;
use std::path::{Path, PathBuf};

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")
}

fn load(name: &str) -> Target {
    spec::load(&[targets()], name).unwrap_or_else(|error| panic!("{name}:\n{error}"))
}

#[test]
fn every_target_loads_unless_its_hardware_is_too_small() {
    let names = spec::list(&[targets()]).unwrap_or_else(|error| panic!("{error}"));
    let (mut loaded, mut refused) = (0, 0);
    for name in &names {
        match spec::load(&[targets()], name) {
            Ok(target) => {
                loaded += 1;
                assert_eq!(target.name(), *name);
                assert_eq!(target.tuning.is_some(), target.hardware.cuda().is_some(), "{name}");
                let graph = graph::build(&target.model, &target.quant);
                // CPUs refuse formats without kernels; every shipped CUDA target has its kernels, unless its
                // model waits for some, or its products are in fp8 and the card has none.
                match assemble::plan(&target, &graph) {
                    Ok(_) => {}
                    Err(why) if target.model.name.starts_with("gemma-4-") => {
                        assert!(why.0.contains(" has no kernels for "), "{name}: {why}");
                    }
                    Err(why) if target.hardware.cuda().is_some_and(|cuda| !cuda.wgmma) => {
                        assert!(
                            why.0.contains("has no kernels for products in `fp8` on a card without `wgmma`"),
                            "{name}: {why}"
                        );
                    }
                    Err(why) => assert!(target.hardware.cuda().is_none(), "{name}: {why}"),
                }
            }
            Err(errors) => {
                refused += 1;
                let [error] = errors.list() else { panic!("{name}:\n{errors}") };
                assert!(error.message.contains("does not fit the memory"), "{name}:\n{errors}");
                assert!(!name.starts_with("h200/"), "{name}:\n{errors}");
            }
        }
    }
    assert!(loaded >= 30 && refused >= 5, "{loaded} loaded, {refused} refused of {names:?}");
}

/// Parameters of the tower of every model that ships with one, as counted from the releases' shapes.
const TOWERS: [(&str, usize); 9] = [
    ("gemma-4-26b-a4b/bf16", 572_794_416),
    ("gemma-4-31b/bf16", 575_743_536),
    ("mistral-small-4/nvfp4", 428_472_320),
    ("qwen3-vl-30b/nvfp4", 538_631_408),
    ("qwen3.5-0.8b/bf16", 100_592_896),
    ("qwen3.5-122b/nvfp4", 451_290_864),
    ("qwen3.5-27b/nvfp4", 460_730_096),
    ("qwen3.5-35b/nvfp4", 446_571_248),
    ("qwen3.6-35b/fp8", 446_571_248),
];

#[test]
fn every_tower_that_ships_has_the_parameters_that_were_counted_and_a_graph() {
    let all = spec::catalogue(&[targets()]).unwrap_or_else(|error| panic!("{error}")).models;
    let of = |name: &str| targets().join("models").join(name).join(spec::VISION_FILE);
    let with: Vec<&str> = all.iter().map(|it| it.name.as_str()).filter(|name| of(name).is_file()).collect();
    assert_eq!(with, TOWERS.map(|(name, _)| name.split_once('/').unwrap().0));
    for (name, parameters) in TOWERS {
        let target = load(&format!("h200/{name}"));
        let tower = target.tower.as_ref().expect("its file was read");
        let elements = |decl: spec::TensorDecl| decl.elements().unwrap() * decl.instances();
        let sum: usize = tower.tensors(target.model.hidden).into_iter().map(elements).sum();
        assert_eq!(sum, parameters, "{name}");
        let graph = graph::build_with_vision(&target.model, &target.quant, tower);
        let of_tower = graph.weights.iter().filter(|weight| weight.name.starts_with("vision."));
        assert_eq!(of_tower.count(), tower.tensors(target.model.hidden).len(), "{name}: each is used");
        // Nothing of it is read where images are not asked for.
        let text = graph::build(&target.model, &target.quant);
        assert!(text.weights.iter().all(|weight| !weight.name.starts_with("vision.")), "{name}");
    }
}

#[test]
fn cuda_hardware_says_what_kernels_may_claim() {
    for (name, capability, wgmma) in
        [("h200", (9, 0), true), ("h100", (9, 0), true), ("gb10", (12, 1), false)]
    {
        // Exact arithmetic is never tuned.
        let target = load(&format!("{name}/smollm2-135m/q4_1"));
        let cuda = target.hardware.cuda().expect("it is a CUDA device");
        assert!(target.hardware.cpu().is_none());
        assert_eq!((cuda.capability, cuda.wgmma), (capability, wgmma));
        let tuning = target.tuning.as_ref().expect("CUDA hardware has defaults");
        assert_eq!(tuning.provenance, Provenance::Defaults);
        let knobs = tuning.of("ffn_down", Some(1));
        // A ring must fit one block's shared memory, and the rings of all resident blocks one
        // multiprocessor's.
        let ring = knobs.ring_stages * knobs.stage_bytes;
        assert!(ring <= cuda.shared_per_block, "{name}");
        assert!(ring * knobs.blocks_per_multiprocessor <= cuda.shared_per_multiprocessor, "{name}");
    }
}

#[test]
fn every_tuning_file_is_of_a_target_and_of_its_phases() {
    let mut open = vec![targets().join("tuning")];
    // There may be none: the hardware's defaults apply to every target.
    open.retain(|directory| directory.is_dir());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.strip_prefix(targets().join("tuning")).unwrap().with_extension("");
        let target = load(name.to_str().unwrap());
        let tuning = target.tuning.as_ref().expect("it is CUDA hardware's");
        assert!(matches!(&tuning.provenance, Provenance::Measured { card, .. } if !card.is_empty()));
        let graph = graph::build(&target.model, &target.quant);
        assemble::plan(&target, &graph).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Names, shapes and formats of the companions of one weight.
fn companions(target: &Target, weight: &str) -> Vec<(String, Vec<usize>, Format)> {
    let graph = graph::build(&target.model, &target.quant);
    let weight = graph.weights.iter().find(|it| it.name == weight).expect("a weight of the model");
    let scales = weight.scales.iter().flat_map(|scales| &scales.companions);
    scales.map(|it| (graph::instance(&it.name, Some(7)), it.shape.clone(), it.format)).collect()
}

#[test]
fn scales_stand_beside_their_weights() {
    let target = load("h200/llama-3.1-8b/fp8");
    let name = |suffix: &str| format!("model.layers.7.self_attn.k_proj.{suffix}");
    assert_eq!(
        companions(&target, "layers.{layer}.attention.k"),
        [(name("weight_scale"), vec![], Format::F32)]
    );
    assert_eq!(companions(&target, "head"), []);
    assert_eq!(target.quant.scales.classes[&TensorClass::Attention].form, ScaleForm::Tensor);
    assert_eq!(target.quant.compute.classes[&TensorClass::Ffn], Compute::F16);

    let target = load("h200/qwen3-8b/fp8");
    assert_eq!(
        companions(&target, "layers.{layer}.attention.k"),
        [(name("weight_scale_inv"), vec![8, 32], Format::Bf16)]
    );

    let target = load("h200/qwen3-8b/nvfp4");
    assert_eq!(
        companions(&target, "layers.{layer}.attention.k"),
        [
            (name("weight_scale"), vec![1024, 256], Format::Fp8E4m3),
            (name("weight_scale_2"), vec![], Format::F32)
        ]
    );
    // 4.5 bits per element for 6.95e9 elements, and embedding and head in bf16.
    let bytes = spec::weight_bytes(&target.model, &target.quant, false) as f64;
    assert!((bytes / 6.397e9 - 1.0).abs() < 1e-3, "{bytes}");
}

#[test]
fn a_server_expects_the_scales_among_its_tensors_and_leaves_the_rest() {
    let target = load("h200/llama-3.1-8b/fp8");
    let graph = graph::build(&target.model, &target.quant);
    let plan = assemble::plan(&target, &graph).unwrap_or_else(|error| panic!("{error}"));
    let files = emit::emit(&plan, &[]);
    let text = &files.iter().find(|file| file.path.ends_with("spec.rs")).expect("every crate has one").text;
    let (tensors, unused) = text.split_once("unused: &[").expect("tensors, then what is not read");
    // 9 tensors per layer, 3 outside the layers, and a scale for each of 7 matrices per layer.
    assert_eq!(tensors.matches("TensorSpec {").count(), 9 + 3 + 7);
    for (name, place) in [("mlp.down_proj.weight_scale", tensors), ("mlp.down_proj.input_scale", unused)] {
        assert!(place.contains(&format!("\"model.layers.{{layer}}.{name}\"")), "{name}");
    }
}

#[test]
fn targets_have_their_published_sizes() {
    // Parameters of the language model as published, or counted independently from the shapes where only
    // rounded numbers are published; bytes counted from the formats of the released files, without drafts and
    // towers.
    for (name, parameters, bytes) in [
        ("qwen3-next-80b/nvfp4", 79_674_391_296_usize, 47_420_930_304.0),
        ("qwen3.5-122b/nvfp4", 122_111_526_912, 75_517_022_976.0),
        ("qwen3.5-0.8b/bf16", 752_393_024, 1_504_786_048.0),
        ("qwen3.5-27b/bf16", 26_895_998_464, 53_791_996_928.0),
        ("qwen3.5-27b/nvfp4", 26_895_998_464, 18_821_988_736.0),
        ("qwen3.5-35b/bf16", 34_660_610_688, 69_321_221_376.0),
        ("qwen3.5-35b/nvfp4", 34_660_610_688, 22_443_444_096.0),
        ("qwen3.6-35b/fp8", 34_660_610_688, 35_707_978_496.0),
        ("qwen3.6-35b/fp8a8", 34_660_610_688, 35_707_978_496.0),
        ("qwen3.6-35b/nvfp4", 34_660_610_688, 20_825_032_820.0),
        ("qwen3-30b-a3b/bf16", 30_532_122_624, 61_064_245_248.0),
        ("qwen3-vl-30b/nvfp4", 30_532_122_624, 18_087_383_808.0),
        ("minimax-m2.7/nvfp4", 228_689_764_864, 134_401_534_976.0),
        // 61.4 GB as trained and 32.63 GB quantised, with a tower of 1.15 GB in the latter.
        ("gemma-4-31b/bf16", 30_697_345_340, 61_394_690_680.0),
        ("gemma-4-31b/nvfp4", 30_697_345_340, 31_481_766_520.0),
        // 18.78 GB with a tower of 1.15 GB, and 15.27 GB without.
        ("gemma-4-26b-a4b/bf16", 25_233_141_790, 50_466_283_580.0),
        ("gemma-4-26b-a4b/nvfp4", 25_233_141_790, 17_636_679_740.0),
        ("gemma-4-26b-a4b/nvfp4a16", 25_233_141_790, 15_271_352_380.0),
        // 119.40 G and 70.80 GB with a tower of 0.43 G in bf16.
        ("mistral-small-4/nvfp4", 118_972_826_624, 69_944_959_408.0),
        ("nemotron-3-nano/nvfp4", 31_577_940_288, 19_339_751_872.0),
        // 80.30 GB with draft layers of 2,942,325,248 parameters in bf16.
        ("nemotron-3-super/nvfp4", 120_668_707_840, 74_415_349_504.0),
    ] {
        let fits_both = bytes < 120e9;
        for hardware in ["h200", "gb10"].into_iter().filter(|it| *it == "h200" || fits_both) {
            let target = load(&format!("{hardware}/{name}"));
            let tensors = spec::tensors(&target.model);
            let counted: usize = tensors.iter().map(|it| it.elements().unwrap() * it.instances()).sum();
            assert_eq!(counted, parameters, "{name}");
            let found = spec::weight_bytes(&target.model, &target.quant, false) as f64;
            assert!((found / bytes - 1.0).abs() < 1e-4, "{name}: {found}");
        }
    }
}

/// The server knows every tool and reasoning format that a MODEL.toml may name.
#[test]
fn formats_have_the_names_that_the_server_knows() {
    use monomorph_compiler::spec::types::{REASONING_FORMATS, TOOL_FORMATS};
    assert_eq!(TOOL_FORMATS, monomorph_text::ToolFormat::NAMES.map(|(name, _)| name));
    assert_eq!(REASONING_FORMATS, monomorph_text::ReasoningFormat::NAMES.map(|(name, _)| name));
}
