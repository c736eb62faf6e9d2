//! Images of made-up pixels, to measure a tower with: what is seen does not change the work.

use super::{grid, positions, processor};
use monomorph_cache::ImageDigest;
use monomorph_engine::{PromptImage, PromptImages};
use monomorph_model::{Patches, VisionFamily, VisionSpec};
use monomorph_vision::{ImagePlan, Size};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Pixels of an image, as a flag has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageSize(Size);

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageSize, String> {
        let side = |side: &str| side.parse().ok().filter(|side| *side > 0);
        let sides = text.split_once('x').and_then(|(width, height)| Some((side(width)?, side(height)?)));
        let (width, height) = sides.ok_or("write WIDTHxHEIGHT in pixels, like 1024x768")?;
        Ok(ImageSize(Size { width, height }))
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.0.width, self.0.height)
    }
}

/// An image of some size, resized as a server of the model does.
#[derive(Debug)]
pub(crate) struct MadeUpImage {
    of: VisionSpec,
    plan: ImagePlan,
    pixels: Arc<[f32]>,
}

impl MadeUpImage {
    /// One of at most as many tokens as a pass of the tower makes.
    ///
    /// # Errors
    /// When the model's processor refuses the size.
    pub(crate) fn new(of: &VisionSpec, size: ImageSize) -> Result<MadeUpImage, String> {
        let processor = processor(of);
        let most = u32::try_from(of.most_tokens()).unwrap_or(u32::MAX);
        let plan = processor.plan(size.0, most).map_err(|error| format!("--images {size}: {error}"))?;
        let numbers = plan.patches.cells() as usize * of.values;
        let pixels = (0..numbers).map(|at| (at % 511) as f32 / 255.0 - 1.0).collect();
        Ok(MadeUpImage { of: *of, plan, pixels })
    }

    /// As the tower takes it.
    pub(crate) fn patches(&self) -> Patches<'_> {
        Patches { pixels: &self.pixels, grid: grid(&self.plan) }
    }

    /// Tokens of the prompt that are the image, without those around it.
    pub(crate) fn tokens(&self) -> usize {
        self.plan.tokens as usize
    }

    /// Tokens of so many such images with what stands around them.
    pub(crate) fn tokens_of(&self, count: usize) -> usize {
        // What begins and ends an image: at most one token each.
        count * (self.tokens() + 2)
    }

    /// Images that a server takes for different ones, behind these tokens and before the last of them. The
    /// first is known by the number `first`, the others by those that follow.
    ///
    /// # Errors
    /// When a prompt so long has no positions.
    pub(crate) fn prompt(
        &self,
        mut text: Vec<u32>,
        count: usize,
        first: u64,
    ) -> Result<(Vec<u32>, PromptImages), String> {
        let ids = self.of.tokens;
        // Tokens of text that are no image's.
        text.iter_mut().filter(|id| **id == ids.image).for_each(|id| *id = id.saturating_sub(1));
        let last = text.pop();
        // The templates of Qwen write what stands around an image; of the others that belongs to it.
        let around = if self.of.family == VisionFamily::Qwen { [ids.start, ids.end] } else { [None; 2] };
        for _ in 0..count {
            text.extend(around[0].into_iter().chain([ids.image]).chain(around[1]));
        }
        text.extend(last);
        let plans = vec![self.plan; count];
        let expanded = processor(&self.of).expand(&text, &plans).map_err(|error| error.to_string())?;
        let (positions, shift) =
            positions(&self.of, &expanded, &plans).ok_or("a prompt with positions beyond all numbers")?;
        let images = (first..).zip(&expanded.spans).map(|(number, span)| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            PromptImage {
                digest: ImageDigest(digest),
                start: span.start,
                tokens: span.tokens,
                grid: grid(&self.plan),
                pixels: Arc::clone(&self.pixels),
            }
        });
        let images = PromptImages { images: images.collect(), positions, shift, room: None };
        Ok((expanded.ids, images))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::ImageTokens;

    const QWEN: VisionSpec = VisionSpec {
        family: VisionFamily::Qwen,
        patch: 16,
        frames: 2,
        merge: 2,
        values: 1536,
        taps: 0,
        grid_positions: true,
        whole_spans: false,
        tokens: ImageTokens { image: 9, start: Some(7), end: Some(8), row_end: Some(6) },
        most_patches: 8192,
        pass_images: 8,
        layers: 2,
        step_patches: 64,
        slots: 8,
    };

    #[test]
    fn sizes_are_two_sides_of_some_pixels() {
        let size = ImageSize(Size { width: 3840, height: 2160 });
        assert_eq!("3840x2160".parse(), Ok(size));
        assert_eq!(size.to_string(), "3840x2160");
        for wrong in ["", "448", "448x", "0x448", "448x0", "448x448x3", "-1x4", "4 x4"] {
            assert!(wrong.parse::<ImageSize>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn made_up_images_stand_in_a_prompt_as_those_of_requests() {
        for (family, grid_positions) in
            [(VisionFamily::Qwen, true), (VisionFamily::Gemma, false), (VisionFamily::Pixtral, false)]
        {
            let of = VisionSpec { family, grid_positions, ..QWEN };
            let image = MadeUpImage::new(&of, "448x320".parse().expect("a size")).expect("of that size");
            let rows = image.patches().grid.patches() / 4;
            assert_eq!(image.patches().pixels.len(), 4 * rows * of.values);
            // An id of images among the text is no placeholder.
            let (prompt, images) = image.prompt(vec![1, 9, 2], 3, 5).expect("a prompt");
            assert_eq!(prompt.iter().filter(|id| **id == 9).count(), 3 * rows, "{family:?}");
            assert!(prompt.len() <= 3 + image.tokens_of(3), "{family:?}");
            assert_eq!((&prompt[..2], prompt.last()), (&[1, 8][..], Some(&2)));
            assert_eq!(images.positions.len(), if grid_positions { prompt.len() } else { 0 });
            for (one, number) in images.images.iter().zip(5..) {
                assert!(prompt[one.start..one.start + one.tokens].iter().all(|id| [9, 8, 6].contains(id)));
                assert_eq!((one.tokens, one.digest.0[0]), (image.tokens(), number));
            }
        }
    }

    #[test]
    fn what_a_pass_cannot_take_is_resized() {
        let image = MadeUpImage::new(&QWEN, "3840x2160".parse().expect("a size")).expect("it is resized");
        let patches = image.patches().grid.patches();
        // 60 by 33 tokens.
        assert_eq!(patches, 4 * 60 * 33);
        assert!(MadeUpImage::new(&QWEN, "9000x4".parse().expect("a size")).is_err());
    }
}
