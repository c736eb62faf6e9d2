//! Vision towers, and models that take images, against what transformers computed of the same weights
//! (tests/reference/make_vision_goldens.py).

use monomorph_compiler::emit;
use monomorph_compiler::graph::{self, Graph};
use monomorph_compiler::reference::{
    Cache, Features, Fed, Grid, ImageSpan, Interpreter, Logits, grid_positions,
};
use monomorph_compiler::spec::types::{BuildOptions, Compute, Ranks, Target, Vision};
use monomorph_compiler::{spec, toolchain};
use monomorph_tests::logits::distance;
use monomorph_tests::towers::imported::{self, import_into, in_f16};
use monomorph_tests::towers::stacks;
use monomorph_tests::{emulated, fixtures, root};
use monomorph_weights::Checkpoint;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest difference of a row from transformers', relative to the row's largest magnitude: both compute in
/// f32 from the same exact weights.
const BOUND: f32 = 2e-4;

/// A prompt with images, and what transformers makes of it.
#[derive(Clone)]
struct Case {
    tokens: Vec<u32>,
    grids: Vec<Grid>,
    /// Of every token, and what is added to the index of a later one; only where positions have three axes.
    positions: Option<(Vec<[u32; 3]>, i64)>,
    /// Rows by what made them, and their width.
    expected: BTreeMap<String, (Vec<f32>, usize)>,
}

#[derive(Clone)]
struct Golden {
    name: String,
    directory: PathBuf,
    target: Target,
    cases: Vec<Case>,
}

impl Golden {
    fn vision(&self) -> &Vision {
        self.target.tower.as_ref().expect("its config has a tower")
    }

    fn graph(&self) -> Graph {
        graph::build_with_vision(&self.target.model, &self.target.quant, self.vision())
    }

    /// An interpreter of its weights over `graph`.
    fn interpreter<'a>(&self, graph: &'a Graph) -> Interpreter<'a> {
        let checkpoint = Checkpoint::open(&self.directory.join("f32")).expect("a golden has a checkpoint");
        Interpreter::new(graph, &self.target.quant, &checkpoint).expect("its tensors fit")
    }
}

/// Its prompts as a stack takes them, fed a second time three tokens at a time, or as many as an image has
/// where it may not be cut, and the last one alone.
fn fed(golden: &Golden) -> Vec<stacks::Case> {
    let vision = golden.vision();
    let bidirectional = golden.target.model.mixers.keys().any(|mixer| vision.is_bidirectional(mixer));
    let one = |case: &Case| {
        let (pixels, values) = &case.expected["pixels"];
        let mut pixels = &pixels[..];
        let images = case.grids.iter().map(|grid| {
            let (of_image, rest) = pixels.split_at(grid.frames * grid.rows * grid.columns * values);
            pixels = rest;
            (*grid, of_image.to_vec())
        });
        let images = images.collect();
        let may_cut = cuts(case, vision, bidirectional);
        let (last, mut cuts, mut from) = (case.tokens.len(), Vec::new(), 0);
        while from < last {
            let ends = |at: &usize| *at >= from + 3 || (*at > from && at + 1 == last);
            from = may_cut.iter().copied().find(ends).unwrap_or(last);
            cuts.push(from);
        }
        let positions = case.positions.clone().map_or(Vec::new(), |(positions, _)| positions);
        stacks::Case { tokens: case.tokens.clone(), images, positions, cuts }
    };
    golden.cases.iter().map(one).collect()
}

fn load(targets: &Path, name: &str, vision: bool) -> Target {
    load_on(targets, "cpu", name, vision)
}

fn load_on(targets: &Path, hardware: &str, name: &str, vision: bool) -> Target {
    imported::load(targets, hardware, name, vision).unwrap_or_else(|error| panic!("{error}"))
}

/// Every golden, imported into `targets`.
fn goldens(targets: &Path) -> Vec<Golden> {
    let entries = fs::read_dir(fixtures().join("towers")).expect("goldens are committed");
    let mut directories: Vec<PathBuf> =
        entries.map(|entry| entry.expect("entries are readable").path()).collect();
    directories.sort();
    assert_eq!(directories.len(), 4);
    let golden = |directory: PathBuf| {
        let name = directory.file_name().expect("it has a name").to_string_lossy().into_owned();
        import_into(targets, &directory, &name, Compute::F32);
        let cases = fs::read(directory.join("cases.json")).expect("a golden has cases");
        let cases: Vec<Value> = serde_json::from_slice(&cases).expect("cases are JSON");
        let expected = fs::read(directory.join("f32/expected.safetensors")).expect("they have answers");
        let expected = SafeTensors::deserialize(&expected).expect("these are tensors");
        let cases = cases.iter().enumerate().map(|(index, case)| read(case, index, &expected)).collect();
        Golden { target: load(targets, &name, true), name, directory, cases }
    };
    directories.into_iter().map(golden).collect()
}

fn read(case: &Value, index: usize, tensors: &SafeTensors) -> Case {
    let lists = |value: &Value| -> Vec<Vec<u32>> {
        serde_json::from_value(value.clone()).expect("lists of whole numbers")
    };
    let grid = |grid: Vec<u32>| {
        let [frames, rows, columns] = grid[..] else { panic!("three numbers a grid") };
        Grid { frames: frames as usize, rows: rows as usize, columns: columns as usize }
    };
    let prefix = format!("{index}.");
    let expected = tensors.names().into_iter().filter_map(|name| {
        let what = name.strip_prefix(&prefix)?;
        let tensor = tensors.tensor(name).expect("it is there");
        let width = *tensor.shape().last().expect("it has rows");
        let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Some((what.to_owned(), (values.collect(), width)))
    });
    Case {
        tokens: serde_json::from_value(case["tokens"].clone()).expect("ids"),
        grids: lists(&case["grids"]).into_iter().map(grid).collect(),
        positions: case.get("positions").map(|positions| {
            let position = |axes: Vec<u32>| axes.try_into().expect("three axes");
            let shift = case["shift"].as_i64().expect("a shift");
            (lists(positions).into_iter().map(position).collect(), shift)
        }),
        expected: expected.collect(),
    }
}

/// What the interpreter's values are called in the golden.
fn called(body: &str, layer: Option<usize>, value: &str) -> Option<String> {
    let layer = || layer.expect("it stands in a layer");
    match (body, value) {
        ("patches", "embedded" | "placed") => Some(value.to_owned()),
        ("patches", "vision_normed") => Some("placed".to_owned()),
        ("block", "residual_out") => Some(format!("block.{}", layer())),
        ("deepstack", "rows") => Some(format!("deepstack.{}", layer())),
        ("merger", "rows") => Some(value.to_owned()),
        _ => None,
    }
}

/// The tower's rows of a case, each part compared where `compare` says so.
fn see(golden: &Golden, interpreter: &Interpreter, case: &Case, compare: bool) -> Features {
    let mut seen = BTreeMap::new();
    let (pixels, _) = &case.expected["pixels"];
    let features = interpreter.see(golden.vision(), pixels, &case.grids, &mut |body, layer, value, rows| {
        if let Some(what) = called(body, layer, value) {
            seen.insert(what, rows.to_vec());
        }
    });
    let parts = case.expected.iter().filter(|(what, _)| !["pixels", "logits"].contains(&what.as_str()));
    for (what, (rows, width)) in parts.filter(|_| compare) {
        let found = seen.get(what).unwrap_or_else(|| panic!("{}: nothing computes {what}", golden.name));
        let apart = distance(&vec![found.clone()], &vec![rows.clone()], *width);
        println!("{} {:?} {what}: {apart:.1e}", golden.name, case.grids);
        assert!(apart <= BOUND, "{} {what}: {apart:e}", golden.name);
    }
    features
}

#[test]
fn every_part_of_a_tower_agrees_with_transformers() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for golden in goldens(targets.path()) {
        let graph = golden.graph();
        let interpreter = golden.interpreter(&graph);
        for case in &golden.cases {
            let features = see(&golden, &interpreter, case, true);
            assert_eq!(features.taps.len(), golden.vision().deepstack().len());
        }
    }
}

#[test]
fn the_frames_of_a_video_do_not_see_each_other() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let goldens = goldens(targets.path());
    let golden = goldens.iter().find(|golden| golden.name == "qwen35").expect("it is a golden");
    let graph = golden.graph();
    let interpreter = golden.interpreter(&graph);
    let (pixels, values) = &golden.cases[3].expected["pixels"];
    let frame = Grid { frames: 1, rows: 4, columns: 6 };
    let patches = frame.rows * frame.columns;
    let nothing = &mut |_: &str, _: Option<usize>, _: &str, _: &[f32]| {};
    let mut see = |rows: &[f32], grid| interpreter.see(golden.vision(), rows, &[grid], nothing).rows;
    let (first, second) = (&pixels[..patches * values], &pixels[patches * values..][..patches * values]);
    let video = see(&[first, second].concat(), Grid { frames: 2, ..frame });
    assert_eq!(video, [see(first, frame), see(second, frame)].concat());
}

#[test]
fn positions_are_those_of_transformers() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut compared = 0;
    for golden in goldens(targets.path()) {
        let vision = golden.vision();
        for case in &golden.cases {
            assert_eq!(case.positions.is_some(), vision.mrope().is_some(), "{}", golden.name);
            let Some((positions, shift)) = &case.positions else { continue };
            let (found, by) = grid_positions(&case.tokens, vision.tokens.image, &case.grids, vision.merge);
            assert_eq!((&found, by), (positions, *shift), "{} {:?}", golden.name, case.grids);
            compared += 1;
        }
    }
    assert_eq!(compared, 8);
}

/// Where a prompt may be cut: anywhere, but of models whose images see all of themselves not within one.
fn cuts(case: &Case, vision: &Vision, bidirectional: bool) -> Vec<usize> {
    let spans = ImageSpan::all(&case.tokens, vision.tokens.image, 0);
    let within = |at: &usize| spans.iter().any(|span| (span.at + 1..span.at + span.count).contains(at));
    (1..case.tokens.len()).filter(|at| !bidirectional || !within(at)).collect()
}

#[test]
fn prompts_with_images_agree_with_transformers_in_one_pass_and_in_pieces() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for golden in goldens(targets.path()) {
        let (graph, vision) = (golden.graph(), golden.vision());
        let interpreter = golden.interpreter(&graph);
        let bidirectional = golden.target.model.mixers.keys().any(|mixer| vision.is_bidirectional(mixer));
        assert_eq!(bidirectional, golden.name == "gemma4");
        for case in &golden.cases {
            let features = see(&golden, &interpreter, case, false);
            let spans = ImageSpan::all(&case.tokens, vision.tokens.image, 0);
            let positions = match vision.mrope() {
                Some(_) => grid_positions(&case.tokens, vision.tokens.image, &case.grids, vision.merge).0,
                None => Vec::new(),
            };
            // Tokens `from .. to`, with the rows that their placeholders count from the prompt's start.
            let feed = |from: usize, to: usize, cache: &mut Cache| -> Vec<f32> {
                let tokens = &case.tokens[from..to];
                let image = vision.tokens.image;
                let before = case.tokens[..from].iter().filter(|token| **token == image).count();
                let images = ImageSpan::all(tokens, image, before);
                let positions = positions.get(from..to).unwrap_or_default();
                let fed = Fed::with_images(tokens, positions, &images, &features);
                interpreter.forward_fed(&fed, cache, Logits::All).logits
            };
            let (expected, vocabulary) = &case.expected["logits"];
            let whole = feed(0, case.tokens.len(), &mut Cache::default());
            let apart = distance(&vec![whole], &vec![expected.clone()], *vocabulary);
            // Three tokens at a time, or as many as an image has where it may not be cut.
            let may_cut = cuts(case, vision, bidirectional);
            let (mut cache, mut from, mut pieces) = (Cache::default(), 0, Vec::new());
            while from < case.tokens.len() {
                let to = may_cut.iter().copied().find(|at| *at >= from + 3).unwrap_or(case.tokens.len());
                pieces.extend(feed(from, to, &mut cache));
                from = to;
            }
            let parted = distance(&vec![pieces], &vec![expected.clone()], *vocabulary);
            println!("{} {spans:?}: {apart:.1e}, in pieces {parted:.1e}", golden.name);
            assert!(apart <= BOUND && parted <= BOUND, "{}: {apart:e}, {parted:e}", golden.name);
        }
    }
}

/// The emitted text of a build.
fn emitted(target: &Target) -> Vec<(PathBuf, String)> {
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    emit::emit(&plan, &[]).into_iter().map(|file| (file.path, file.text)).collect()
}

#[test]
fn a_tower_changes_nothing_of_a_build_without_images() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for golden in goldens(targets.path()) {
        let with = emitted(&load(targets.path(), &golden.name, false));
        let file = targets.path().join("models").join(&golden.name).join("VISION.toml");
        fs::remove_file(file).expect("it was written");
        assert!(with == emitted(&load(targets.path(), &golden.name, false)), "{}", golden.name);
    }
}

#[test]
fn builds_that_cannot_take_images_are_refused_by_what_they_lack() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let goldens = goldens(targets.path());
    let golden = goldens.iter().find(|golden| golden.name == "qwen35").expect("it is a golden");
    assert!(golden.target.build().ends_with("+vision"));
    assert!(golden.target.specs.iter().any(|spec| spec.name == "models/qwen35/VISION.toml"));
    let search = [targets.path().to_owned(), root().join("targets")];
    let options = BuildOptions { vision: true, ..BuildOptions::default() };
    let refused = spec::load_with(&search, "cpu/smollm2-135m/bf16", &options).err();
    let refused = refused.expect("it has no tower");
    let message = "models/smollm2-135m has no VISION.toml, and `--vision on` was given";
    assert_eq!(refused.list()[0].message, message);
}

/// The root of the mean square of differences.
fn spread(a: &[f32], b: &[f32]) -> f32 {
    let squares: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (squares / a.len() as f32).sqrt()
}

/// Towers of all families and the models behind them, from the same exact weights.
///
/// It caught biases of queries that were read as those of keys and values too, which are one tensor.
#[test]
fn cpu_stacks_see_what_transformers_and_the_interpreter_do() {
    let [targets, out] = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let goldens = goldens(targets.path());
    let rounding = tower_in_f16(targets.path(), &goldens);
    let built = goldens.iter().chain([&rounding]).map(|golden| golden.target.clone());
    let binaries = stacks::build("towers", &built.collect::<Vec<_>>());
    for (golden, binary) in goldens.iter().zip(&binaries) {
        let (graph, target) = (golden.graph(), &golden.target);
        let interpreter = golden.interpreter(&graph);
        let weights = golden.directory.join("f32");
        let answers = stacks::answers(Command::new(binary), target, &weights, &fed(golden), out.path());
        for (case, answer) in golden.cases.iter().zip(answers) {
            agrees(golden, &interpreter, case, &answer, BOUND);
            assert!(answer.whole == answer.pieces, "{}: a prompt and its pieces differ", golden.name);
        }
    }
    rounds_alike(&rounding, binaries.last().expect("it was built last"), out.path());
}

/// Servers of CUDA devices on the emulated card, from the same exact weights: products in f32 as those of
/// CPUs. The images of a prompt share a pass.
///
/// Planted: the rows of the first image of a pass kept for the second.
#[test]
fn emulated_stacks_see_what_transformers_and_the_interpreter_do() {
    see_on_cards(&ON_CARDS);
}

#[test]
#[ignore = "minutes"]
fn other_emulated_stacks_see_what_transformers_and_the_interpreter_do() {
    see_on_cards(&ON_OTHERS);
}

fn see_on_cards(cases: &[(&str, &str, Compute)]) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let goldens = goldens(targets.path());
    for (name, card, compute) in cases.iter().copied() {
        let hardware = emulated::hardware(targets.path(), card, Some(emulated::FEW));
        let golden = goldens.iter().find(|golden| golden.name == name).expect("it is a golden").clone();
        let bound = if compute == Compute::F16 { in_f16(name) } else { BOUND };
        let name = format!("{name}-in-{}", compute.name());
        import_into(targets.path(), &golden.directory, &name, compute);
        let target = load_on(targets.path(), &hardware, &name, true);
        on_a_card(&Golden { target, name, ..golden }, bound);
    }
}

/// Builds a golden's stack for its emulated card, and compares what it makes of the cases.
fn on_a_card(golden: &Golden, bound: f32) {
    let out = tempfile::tempdir().expect("temporary directories can be made");
    let stack = stacks::build_emulated(&golden.target);
    let (graph, target) = (golden.graph(), &golden.target);
    let interpreter = golden.interpreter(&graph);
    let weights = golden.directory.join("f32");
    let (many, expected) = many_patches(golden, &interpreter);
    let cases: Vec<stacks::Case> = fed(golden).into_iter().chain([many]).collect();
    let mut answers = stacks::answers(stack.command(), target, &weights, &cases, out.path());
    let many = answers.pop().expect("an answer to every case");
    if target.ranks == 1 {
        let apart = distance(&vec![many.part(0)], &vec![expected], target.model.hidden);
        println!("{} many patches: {apart:.1e}", golden.name);
        assert!(apart <= bound.min(ROWS_IN_F16), "{} many patches: {apart:e}", golden.name);
    }
    for (case, answer) in golden.cases.iter().zip(answers) {
        agrees(golden, &interpreter, case, &answer, bound);
        let expected = vec![answer.whole.clone()];
        let parted = distance(&vec![answer.pieces.clone()], &expected, target.model.vocabulary);
        println!("{} {:?} in pieces: {parted:.1e} from the whole", golden.name, case.grids);
        assert!(parted <= bound, "{}: a prompt and its pieces differ by {parted:e}", golden.name);
    }
}

/// More patches than the first of a tower's programs takes, of several frames, and the rows of their tokens.
fn many_patches(golden: &Golden, interpreter: &Interpreter) -> (stacks::Case, Vec<f32>) {
    let grid = Grid { frames: 8, rows: 12, columns: 12 };
    let (patches, values) = (8 * 12 * 12, golden.vision().values());
    let pixels: Vec<f32> = (0..patches * values).map(|at| (at * 7919 % 997) as f32 / 498.5 - 1.0).collect();
    let rows = interpreter.see(golden.vision(), &pixels, &[grid], &mut |_, _, _, _| {}).rows;
    let (tokens, images) = (vec![1, 2, 3], vec![(grid, pixels)]);
    (stacks::Case { tokens, images, positions: Vec::new(), cuts: vec![3] }, rows)
}

/// The same of Pixtral, before a text model of the widths that the CUDA backend has kernels for.
#[test]
fn an_emulated_stack_sees_with_a_pixtral_as_the_interpreter_does() {
    let made = tempfile::tempdir().expect("temporary directories can be made");
    let change = |config: &mut Value| {
        for (key, value) in WIDE_MISTRAL {
            config["text_config"][key] = value.into();
        }
        config["text_config"]["rope_parameters"]["partial_rotary_factor"] = 0.8.into();
    };
    let golden = made_up(made.path(), "pixtral", change, Compute::F16, 1);
    on_a_card(&golden, in_f16(&golden.name));
}

/// Two ranks, each with the whole tower and its share of the text model: attention over three axes,
/// delta-nets and dense blocks.
#[test]
fn two_emulated_ranks_see_as_the_interpreter_does() {
    let made = tempfile::tempdir().expect("temporary directories can be made");
    let change = |config: &mut Value| {
        for (part, key, value) in [
            ("text_config", "vocab_size", 96),
            ("text_config", "hidden_size", 36),
            ("vision_config", "out_hidden_size", 36),
        ] {
            config[part][key] = value.into();
        }
    };
    let golden = made_up(made.path(), "qwen35", change, Compute::F32, 2);
    on_a_card(&golden, BOUND);
}

/// A golden's tower before a text model whose config is changed, for an emulated card and so many ranks:
/// random weights in `made`, and the interpreter for an oracle.
fn made_up(
    made: &Path,
    name: &str,
    change: impl FnOnce(&mut Value),
    compute: Compute,
    ranks: usize,
) -> Golden {
    let targets = made.join("targets");
    let goldens = goldens(&targets);
    let golden = goldens.into_iter().find(|golden| golden.name == name).expect("it is a golden");
    let config = fs::read(golden.directory.join("config.json")).expect("a golden has a config");
    let mut config: Value = serde_json::from_slice(&config).expect("configs are JSON");
    change(&mut config);
    let (name, directory) = (format!("made-up-{name}"), made.join("checkpoint"));
    fs::create_dir_all(directory.join("f32")).expect("it is writable");
    fs::write(directory.join("config.json"), config.to_string()).expect("it is writable");
    import_into(&targets, &directory, &name, compute);
    let file = targets.join("models").join(&name).join("VISION.toml");
    let text = fs::read_to_string(&file).expect("it was just written");
    fs::write(&file, text.replace("stored = \"bf16\"", "stored = \"f32\"")).expect("it is writable");
    let hardware = emulated::hardware(&targets, "h200", Some(emulated::FEW));
    let options = BuildOptions { vision: true, ..BuildOptions::default() };
    let options = Ranks::tensor_parallel(ranks).of(options);
    let target = imported::load_with(&targets, &hardware, &name, &options);
    let target = target.unwrap_or_else(|error| panic!("{error}"));
    stacks::random_weights(&target, &directory.join("f32"));
    let mut golden = Golden { target, name, directory, cases: golden.cases };
    let graph = golden.graph();
    let interpreter = golden.interpreter(&graph);
    let expected = |case: &Case| {
        let features = see(&golden, &interpreter, case, false);
        let images = ImageSpan::all(&case.tokens, golden.vision().tokens.image, 0);
        let positions = case.positions.as_ref().map_or(&[][..], |(positions, _)| positions);
        let fed = Fed::with_images(&case.tokens, positions, &images, &features);
        interpreter.forward_fed(&fed, &mut Cache::default(), Logits::All).logits
    };
    let logits: Vec<Vec<f32>> = golden.cases.iter().map(expected).collect();
    for (case, logits) in golden.cases.iter_mut().zip(logits) {
        case.expected.insert("logits".to_owned(), (logits, golden.target.model.vocabulary));
    }
    golden
}

/// What makes a golden's Mistral wide enough for latents of CUDA devices; every expert is chosen, so that
/// rounding moves no row far.
const WIDE_MISTRAL: [(&str, u32); 12] = [
    ("hidden_size", 128),
    ("num_hidden_layers", 2),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 4),
    ("head_dim", 80),
    ("q_lora_rank", 48),
    ("kv_lora_rank", 256),
    ("qk_nope_head_dim", 16),
    ("qk_rope_head_dim", 64),
    ("v_head_dim", 40),
    ("moe_intermediate_size", 96),
    ("n_routed_experts", 4),
];

/// Goldens of families that the CUDA backend has all kernels for: a card, and in what products are. Experts
/// in f32 have no kernels.
const ON_CARDS: [(&str, &str, Compute); 3] =
    [("qwen35", "h200", Compute::F32), ("qwen3-vl", "h200", Compute::F16), ("gemma4", "h200", Compute::F32)];
const ON_OTHERS: [(&str, &str, Compute); 2] =
    [("qwen35", "gb10", Compute::F16), ("gemma4", "h200", Compute::F16)];

/// Largest difference of an image's rows where products round to f16, of all of them.
const ROWS_IN_F16: f32 = 1e-2;

/// Compares the rows of a stack's images and its logits with the interpreter's and with those of
/// transformers.
fn agrees(golden: &Golden, interpreter: &Interpreter, case: &Case, answer: &stacks::Answer, bound: f32) {
    let features = see(golden, interpreter, case, false);
    let (hidden, vocabulary) = (golden.target.model.hidden, golden.target.model.vocabulary);
    let parts = std::iter::once(&features.rows).chain(&features.taps).enumerate();
    for (part, expected) in parts.filter(|_| golden.target.ranks == 1) {
        let apart = distance(&vec![answer.part(part)], &vec![expected.clone()], hidden);
        println!("{} {:?} rows {part}: {apart:.1e}", golden.name, case.grids);
        assert!(apart <= bound.min(ROWS_IN_F16), "{} rows {part}: {apart:e}", golden.name);
    }
    let expected = vec![case.expected["logits"].0.clone()];
    let apart = distance(&vec![answer.whole.clone()], &expected, vocabulary);
    println!("{} {:?} logits: {apart:.1e} away", golden.name, case.grids);
    assert!(apart <= bound, "{}: {apart:e}", golden.name);
}

/// A golden whose tower has one layer, behind which differences are not rounded many times more, and products
/// that round to f16, which transformers does not.
fn tower_in_f16(targets: &Path, goldens: &[Golden]) -> Golden {
    let golden = goldens.iter().find(|golden| golden.name == "qwen35").expect("it is a golden");
    let name = format!("{}-in-f16", golden.name);
    import_into(targets, &golden.directory, &name, Compute::F32);
    let file = targets.join("models").join(&name).join("VISION.toml");
    let text = fs::read_to_string(&file).expect("it was just written");
    let rounded = text.replace("compute = \"f32\"", "compute = \"f16\"").replace("depth = 3", "depth = 1");
    assert_eq!(rounded.len(), text.len());
    fs::write(&file, rounded).expect("a temporary directory is writable");
    Golden { target: load(targets, &name, true), name, ..golden.clone() }
}

/// Compares a stack with the interpreter that rounds as it does, and with one that rounds nothing.
fn rounds_alike(golden: &Golden, binary: &Path, out: &Path) {
    let target = &golden.target;
    let exact = Vision { compute: Compute::F32, ..golden.vision().clone() };
    assert_eq!((golden.vision().compute, golden.vision().depth), (Compute::F16, 1));
    let graphs = [golden.graph(), graph::build_with_vision(&target.model, &target.quant, &exact)];
    let interpreters = graphs.each_ref().map(|graph| golden.interpreter(graph));
    let weights = golden.directory.join("f32");
    let answers = stacks::answers(Command::new(binary), target, &weights, &fed(golden), out);
    for (case, answer) in golden.cases.iter().zip(answers) {
        let [rounded, exact] =
            interpreters.each_ref().map(|interpreter| see(golden, interpreter, case, false).rows);
        let [apart, by] = [spread(&answer.part(0), &rounded), spread(&rounded, &exact)];
        println!("{} is {apart:.1e} away, which rounding moves by {by:.1e}", golden.name);
        // A stack that rounds nothing is as far away. One that does is not there, either: a number on the
        // edge of a step falls to the other side.
        assert!(ROUNDED * apart <= by, "{}: {apart:e} and {by:e}", golden.name);
    }
}

/// How much nearer the rounding interpreter is at least.
const ROUNDED: f32 = 1.5;
