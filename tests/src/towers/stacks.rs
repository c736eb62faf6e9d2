//! Stacks that take images, compiled without a server: cases go in and what a stack makes of them comes out,
//! as words of 32 bits in files.

use crate::goldens::Random;
use crate::{emulated, stacks};
use monomorph_compiler::graph::instance;
use monomorph_compiler::reference::Grid;
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::toolchain;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `main.rs` of such a stack.
const MAIN: &str = include_str!("see_main.rs");

/// A prompt with images.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its ids, those that stand for images among them.
    pub tokens: Vec<u32>,
    /// Its images: patches, and their rows of pixels.
    pub images: Vec<(Grid, Vec<f32>)>,
    /// Time, height and width of each token; empty where they are its index.
    pub positions: Vec<[u32; 3]>,
    /// Where each piece ends in which it is fed a second time.
    pub cuts: Vec<usize>,
}

/// What a stack makes of a case.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Of each image: the rows of its tokens, `[tokens, hidden]`, and those of each tap. None of several
    /// ranks.
    pub rows: Vec<Vec<Vec<f32>>>,
    /// `[tokens, vocabulary]`, fed at once.
    pub whole: Vec<f32>,
    /// The same, fed in pieces.
    pub pieces: Vec<f32>,
}

impl Answer {
    /// Rows of all images one after another: the tower's own, then those of each tap.
    pub fn part(&self, part: usize) -> Vec<f32> {
        self.rows.iter().flat_map(|image| image[part].iter().copied()).collect()
    }
}

/// Writes random f32 weights of a target with a tower into a directory, scaled so that every product keeps
/// the size of its input.
///
/// # Panics
/// If the target cannot be planned, or the directory is not writable.
pub fn random_weights(target: &Target, directory: &Path) {
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let (mut random, mut tensors) = (Random(11), BTreeMap::new());
    for field in &plan.fields {
        let layers = field.owner.map_or(&[0][..], |body| &plan.bodies[body.0].layers);
        for part in &field.parts {
            let (name, shape) = (&part.file.name, &part.file_shape);
            let experts = part.experts.filter(|_| name.contains("{expert}")).unwrap_or(1);
            for (layer, expert) in layers.iter().flat_map(|layer| (0..experts).map(move |it| (layer, it))) {
                let name = instance(name, Some(*layer)).replace("{expert}", &expert.to_string());
                let columns: usize = shape[1..].iter().product();
                let value = |random: &mut Random| match (shape.len(), name.ends_with("bias")) {
                    (1, false) => 1.0 + 0.1 * random.next(),
                    (1, true) => 0.1 * random.next(),
                    _ => random.next() / (columns as f32).sqrt(),
                };
                let values = (0..shape.iter().product()).flat_map(|_| value(&mut random).to_le_bytes());
                tensors.entry(name.clone()).or_insert_with(|| (shape.clone(), values.collect::<Vec<u8>>()));
            }
        }
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    let file = safetensors::tensor::serialize(views, None).expect("the tensors are sound");
    std::fs::write(directory.join("model.safetensors"), file).expect("it is writable");
}

/// Compiles stacks of these targets as [`stacks::build`] does.
///
/// # Panics
/// If any step fails.
pub fn build(name: &str, targets: &[Target]) -> Vec<PathBuf> {
    stacks::build_with(name, targets, MAIN)
}

/// The statement of [`MAIN`] that reads a row of an image from its device.
const READ_ROWS: &str = "(0..count).for_each(|token| out.extend(model.image_row(slot, token, part).iter()));";

/// Compiles such a stack for an emulated card. One of several ranks tells no rows of images, which each rank
/// has on its device: they show in its logits alone.
///
/// # Panics
/// If any step fails.
pub fn build_emulated(target: &Target) -> emulated::Server {
    assert!(MAIN.contains(READ_ROWS), "rows are read otherwise");
    let main = if target.ranks > 1 { &MAIN.replace(READ_ROWS, "_ = (slot, part);") } else { MAIN };
    emulated::build_stack(target, &format!("{main}\nmod arguments;\n"))
}

/// Runs cases through a stack, whose command still lacks its arguments, with files in `directory`.
///
/// # Panics
/// If it fails, or answers more or less than was asked for.
pub fn answers(
    mut stack: Command,
    target: &Target,
    weights: &Path,
    cases: &[Case],
    directory: &Path,
) -> Vec<Answer> {
    let vision = target.tower.as_ref().expect("a target that takes images");
    let mut words = vec![cases.len() as u32];
    let list = |words: &mut Vec<u32>, values: &mut dyn ExactSizeIterator<Item = u32>| {
        words.push(values.len() as u32);
        words.extend(values);
    };
    for case in cases {
        list(&mut words, &mut case.tokens.iter().copied());
        words.push(case.images.len() as u32);
        for (grid, pixels) in &case.images {
            words.extend([grid.frames, grid.rows, grid.columns].map(|it| it as u32));
            list(&mut words, &mut pixels.iter().map(|pixel| pixel.to_bits()));
        }
        list(&mut words, &mut case.positions.as_flattened().iter().copied());
        list(&mut words, &mut case.cuts.iter().map(|cut| *cut as u32));
    }
    let [from, to] = ["cases", "answers"].map(|name| directory.join(name));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&from, bytes).expect("a temporary directory is writable");
    let ran = stack.args([weights, &from, &to]).output().expect("the stack starts");
    assert!(ran.status.success(), "{}: {}", target.name(), String::from_utf8_lossy(&ran.stderr));
    let bytes = std::fs::read(&to).expect("it wrote its answers");
    let mut values = bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let mut take = |count: usize| -> Vec<f32> { values.by_ref().take(count).collect() };
    let of_case = |case: &Case| {
        let parts = if target.ranks > 1 { 0 } else { 1 + vision.deepstack().len() };
        let of_image = |(grid, _): &(Grid, Vec<f32>)| {
            (0..parts).map(|_| take(grid.tokens(vision.merge) * target.model.hidden)).collect()
        };
        let rows = case.images.iter().map(of_image).collect();
        let logits = case.tokens.len() * target.model.vocabulary;
        Answer { rows, whole: take(logits), pieces: take(logits) }
    };
    let answers = cases.iter().map(of_case).collect();
    assert_eq!(values.next(), None, "it answers what was asked for");
    answers
}
