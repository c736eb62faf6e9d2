//! `bench --images`: passes of the vision tower, and answers about images beside answers about as much text.

use crate::images::{ImageSize, MadeUpImage};
use monomorph_engine::{EngineHandle, Event, PromptImages, Request};
use monomorph_model::{FeatureSlot, Model, Shown};
use std::time::Instant;

/// Images of the prompts that are measured.
const COUNTS: [usize; 2] = [1, 8];

/// Images of one size, and what was measured of them.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) size: ImageSize,
    pub(crate) image: MadeUpImage,
    /// By the number of images: milliseconds of the tower's passes over them.
    pub(crate) passes: [Vec<f64>; COUNTS.len()],
    /// By the number of images.
    pub(crate) answers: Vec<Answers>,
}

/// Answers to prompts with so many images, and to texts of as many tokens.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) count: usize,
    /// Of the prompt, the images' included.
    pub(crate) tokens: usize,
    pub(crate) images: Times,
    pub(crate) text: Times,
}

/// Milliseconds of some answers.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Until the first token.
    pub(crate) first: Vec<f64>,
    /// A token, of those behind it.
    pub(crate) each: Vec<f64>,
}

/// Images of these sizes.
///
/// # Errors
/// When the model takes no images, or none of such a size.
pub(crate) fn made_up<M: Model>(sizes: &[ImageSize]) -> Result<Vec<Seen>, String> {
    let Some(of) = (const { M::VISION }) else {
        return match sizes {
            [] => Ok(Vec::new()),
            _ => Err("--images: this server was built without a vision tower".to_owned()),
        };
    };
    let seen = |size: &ImageSize| {
        let image = MadeUpImage::new(&of, *size)?;
        Ok(Seen { size: *size, image, passes: [const { Vec::new() }; COUNTS.len()], answers: Vec::new() })
    };
    sizes.iter().map(seen).collect()
}

impl Seen {
    /// Tokens of the longest prompt, behind and before so many of text.
    pub(crate) fn longest_prompt(&self, text: usize) -> usize {
        text + COUNTS.into_iter().max().map_or(0, |count| self.image.tokens_of(count))
    }

    /// Measures passes of the tower alone, one warm-up aside: as many images at a time as share one.
    pub(crate) fn pass<M: Model>(&mut self, model: &mut M, repeat: usize) {
        let Some(of) = (const { M::VISION }) else { return };
        let patches = self.image.patches();
        let shown = |slot: usize| Shown { patches, slot: FeatureSlot(slot as u32) };
        let all: Vec<Shown> = (0..of.slots).map(shown).collect();
        let each = patches.grid.patches();
        let shared = (1..=all.len()).rev().find(|count| of.takes(*count, count * each)).unwrap_or(1);
        for (count, passes) in COUNTS.into_iter().zip(&mut self.passes) {
            for round in 0..=repeat {
                let began = Instant::now();
                let mut left = count;
                while left > 0 {
                    let images = &all[..left.min(shared)];
                    for layers in of.steps(images.len() * each) {
                        let ticket = model.see(images, layers);
                        model.collect(ticket);
                    }
                    left -= images.len();
                }
                if round > 0 {
                    passes.push(1e3 * began.elapsed().as_secs_f64());
                }
            }
        }
    }

    /// Measures answers of `generate` tokens through an engine, one warm-up aside. `text` makes up so many
    /// ids; `shown` counts the images that the engine was shown, so that none is known already.
    ///
    /// # Errors
    /// When the engine refuses a prompt, or does not answer it.
    pub(crate) fn answer(
        &mut self,
        engine: &EngineHandle,
        mut text: impl FnMut(usize) -> Vec<u32>,
        shown: &mut u64,
        [depth, generate, repeat]: [usize; 3],
    ) -> Result<(), String> {
        for count in COUNTS {
            let mut answers = Answers { count, tokens: 0, images: Times::default(), text: Times::default() };
            for round in 0..=repeat {
                let (prompt, images) = self.image.prompt(text(depth), count, *shown)?;
                *shown += count as u64;
                answers.tokens = prompt.len();
                let without = (text(prompt.len()), PromptImages::default());
                for (times, (prompt, images)) in
                    [(&mut answers.images, (prompt, images)), (&mut answers.text, without)]
                {
                    let [first, each] = times_of(engine, prompt, images, generate)?;
                    if round > 0 {
                        times.first.push(first);
                        times.each.push(each);
                    }
                }
            }
            self.answers.push(answers);
        }
        Ok(())
    }
}

/// Milliseconds until the first token of an answer, and of each that follows.
fn times_of(
    engine: &EngineHandle,
    prompt: Vec<u32>,
    images: PromptImages,
    generate: usize,
) -> Result<[f64; 2], String> {
    let request = Request { ignore_eos: true, images, ..Request::new(prompt, generate) };
    let began = Instant::now();
    let mut generation = engine.submit(request).map_err(|error| error.to_string())?;
    let (mut first, mut tokens) = (0.0, 0);
    loop {
        match generation.blocking_recv() {
            Some(Event::Prompt(_)) => {}
            Some(Event::Token(_)) => {
                tokens += 1;
                if tokens == 1 {
                    first = 1e3 * began.elapsed().as_secs_f64();
                }
            }
            Some(Event::Finished(_)) if tokens == generate => break,
            Some(Event::Finished(finished)) => {
                return Err(format!("{tokens} of {generate} tokens: {:?}", finished.reason));
            }
            Some(Event::Failed(error)) => return Err(error.to_string()),
            None => return Err("an answer ended without a reason".to_owned()),
        }
    }
    let all = 1e3 * began.elapsed().as_secs_f64();
    Ok([first, (all - first) / (generate - 1).max(1) as f64])
}
