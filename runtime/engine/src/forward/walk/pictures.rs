//! Prompts with images of a walk: how the walk writes them down, what the engine is given, and what a model's
//! memory should hold.

use super::{Random, walks, walks_offload};
use crate::scripted::images::{of_row, shifted};
use crate::scripted::{
    Drafting, GEMMA, PIXTRAL, Pipelined, QWEN, Recurrent, Seeing, Skipping, Tight, Verifying, Windowed,
};
use crate::{PromptImage, PromptImages};
use monomorph_cache::ImageDigest;
use monomorph_model::{Grid, VisionSpec};

/// Rows and columns of each image; some have equally many tokens. Some share a pass, and the last is cut.
const GRIDS: [(usize, usize); 7] = [(1, 1), (2, 3), (2, 3), (3, 2), (1, 2), (2, 1), (2, 4)];
/// What a walk writes for a token of an image: this, a number for each image, and its place.
const MARK: u32 = 1 << 20;
const PLACES: u32 = 64;

/// A prompt as the walk writes it: ids, and tokens of images.
pub type Written = Vec<u32>;

/// The place of a token in its image, and the image.
fn of_image(token: u32) -> Option<(usize, u32)> {
    token.checked_sub(MARK).map(|it| ((it / PLACES) as usize, it % PLACES))
}

/// Tokens of an image in a prompt, those that end its rows included.
fn tokens_of(image: usize, vision: &VisionSpec) -> u32 {
    let (rows, columns) = GRIDS[image];
    (rows * (columns + usize::from(vision.tokens.row_end.is_some()))) as u32
}

/// Puts images into a prompt, no two next to each other, and leaves no part of one: at most `most` tokens.
pub fn with_images(random: &mut Random, prompt: &[u32], most: usize, vision: &VisionSpec) -> Written {
    let mut written = Vec::new();
    let mut at = 0;
    while at < prompt.len() {
        match of_image(prompt[at]) {
            None => {
                written.push(prompt[at]);
                at += 1;
                if random.below(14) == 0 {
                    let image = random.below(GRIDS.len() as u64) as usize;
                    written.extend((0..tokens_of(image, vision)).map(|it| write(image, it)));
                }
            }
            Some((image, _)) => {
                let whole = (0..tokens_of(image, vision)).map(|it| write(image, it));
                let there =
                    prompt[at..].iter().copied().zip(whole.clone()).take_while(|(a, b)| a == b).count();
                if there == whole.len() {
                    written.extend(whole);
                }
                at += there.max(1);
            }
        }
    }
    // What is too long loses its end, and an image that this would cut.
    while written.len() > most || written.last().is_some_and(|token| !ends(*token, vision)) {
        written.pop();
    }
    if written.is_empty() { vec![1] } else { written }
}

fn write(image: usize, place: u32) -> u32 {
    MARK + image as u32 * PLACES + place
}

fn ends(token: u32, vision: &VisionSpec) -> bool {
    of_image(token).is_none_or(|(image, place)| place + 1 == tokens_of(image, vision))
}

/// What the engine is given of a prompt, and what a model's memory should hold of it.
#[derive(Clone, Debug)]
pub struct Given {
    pub ids: Vec<u32>,
    pub images: PromptImages,
    pub cells: Vec<u32>,
}

/// Of a prompt with images. The number that an image is known by is its only pixel, repeated.
pub fn given(written: &[u32], vision: Option<&VisionSpec>) -> Given {
    let mut given = Given { ids: written.to_vec(), images: PromptImages::default(), cells: written.to_vec() };
    let Some(vision) = vision.filter(|_| written.iter().any(|token| of_image(*token).is_some())) else {
        return given;
    };
    let (mut next, mut row) = (0, 0);
    let mut axes = Vec::new();
    for (index, token) in written.iter().enumerate() {
        let Some((image, place)) = of_image(*token) else {
            axes.push([next; 3]);
            let shift = i64::from(next) - index as i64;
            given.cells[index] = shifted(*token, if vision.grid_positions { shift as i32 } else { 0 });
            next += 1;
            continue;
        };
        let (rows, columns) = GRIDS[image];
        let pixels = vec![image as f32; rows * columns];
        if place == 0 {
            row = 0;
            given.images.images.push(PromptImage {
                // They differ in their last byte only.
                digest: ImageDigest(
                    [[3; 31].as_slice(), &[image as u8]].concat().try_into().expect("32 bytes"),
                ),
                start: index,
                tokens: tokens_of(image, vision) as usize,
                grid: Grid { frames: 1, rows, columns },
                pixels: pixels.as_slice().into(),
            });
        }
        let width = columns as u32 + u32::from(vision.tokens.row_end.is_some());
        let position = match vision.grid_positions {
            true => [next, next + place / width, next + place % width],
            false => [index as u32; 3],
        };
        axes.push(position);
        if let Some(end) = vision.tokens.row_end.filter(|_| place % width == columns as u32) {
            (given.ids[index], given.cells[index]) = (end, end);
        } else {
            given.ids[index] = vision.tokens.image;
            given.cells[index] = of_row(vision.tokens.image, index, &pixels, row, position);
            row += 1;
        }
        if ends(*token, vision) {
            next += rows.max(columns) as u32;
        }
    }
    if vision.grid_positions {
        given.images.shift = (i64::from(next) - written.len() as i64) as i32;
        given.images.positions = axes;
    }
    given
}

#[test]
fn every_answer_to_images_is_its_lone_one() {
    walks::<Seeing<Tight, QWEN>>();
}

#[test]
fn every_answer_to_images_is_its_lone_one_with_three_steps_in_flight() {
    walks::<Pipelined<Seeing<Tight, QWEN>, 3>>();
}

#[test]
fn every_answer_to_images_with_ends_of_rows_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Seeing<Tight, PIXTRAL>, 2>>();
}

#[test]
fn every_answer_to_images_that_are_fed_whole_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Windowed<Seeing<Tight, GEMMA>, 9>, 2>>();
}

#[test]
fn every_answer_to_images_of_a_model_with_state_is_its_lone_one_with_two_steps_in_flight() {
    walks::<Pipelined<Recurrent<Seeing<Tight, QWEN>>, 2>>();
}

#[test]
fn every_answer_to_images_is_its_lone_plain_one_with_two_drafts_looked_up() {
    walks::<Verifying<Seeing<Tight, QWEN>, 2>>();
}

#[test]
fn every_answer_to_images_is_its_lone_plain_one_with_two_drafts() {
    walks::<Drafting<Seeing<Tight, QWEN>, 2>>();
}

#[test]
fn every_answer_to_images_of_a_model_with_state_is_its_lone_plain_one_with_three_drafts() {
    walks::<Drafting<Recurrent<Seeing<Tight, QWEN>>, 3>>();
}

#[test]
fn every_answer_to_images_of_a_model_with_state_is_its_lone_plain_one_with_two_drafts_of_the_model_itself() {
    walks::<Skipping<Recurrent<Seeing<Tight, QWEN>>, 2>>();
}

#[test]
fn every_answer_to_images_that_are_fed_whole_is_its_lone_plain_one_with_one_draft_looked_up() {
    walks::<Verifying<Windowed<Seeing<Tight, GEMMA>, 9>, 1>>();
}

#[test]
fn every_answer_to_images_with_ends_of_rows_is_its_lone_plain_one_with_one_draft_looked_up() {
    walks::<Verifying<Seeing<Tight, PIXTRAL>, 1>>();
}

#[test]
fn every_answer_to_images_is_its_lone_one_with_blocks_on_disk() {
    walks_offload::<Pipelined<Seeing<Tight, QWEN>, 2>>();
}
