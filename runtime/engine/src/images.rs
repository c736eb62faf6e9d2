//! The images of a request's prompt.

use monomorph_cache::ImageDigest;
use monomorph_model::{Grid, VisionSpec};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// The images of a prompt, and by what positions its tokens are turned because of them.
#[derive(Clone, Debug, Default)]
pub struct PromptImages {
    /// In the order in which they stand in the prompt.
    pub images: Vec<PromptImage>,
    /// Time, height and width of each token of the prompt, of a model whose positions have
    /// [three axes](VisionSpec::grid_positions); otherwise empty, as of a prompt without images.
    pub positions: Vec<[u32; 3]>,
    /// What is added to the index of a token behind the prompt to have its position; 0 where there are no
    /// `positions`.
    pub shift: i32,
    /// By what the client's server counts the memory of these images: dropped when no sequence needs them any
    /// more.
    pub room: Option<Arc<OwnedSemaphorePermit>>,
}

/// An image, as its tower takes it.
#[derive(Clone, Debug)]
pub struct PromptImage {
    /// SHA-256 of the file and of all that decides what was made of it: equal digests have equal pixels, and
    /// equally many tokens.
    pub digest: ImageDigest,
    /// The index of its first token in the prompt.
    pub start: usize,
    /// Its tokens: those that take rows of the tower, and what ends its rows.
    pub tokens: usize,
    /// Patches each way.
    pub grid: Grid,
    /// As in [`Patches`](monomorph_model::Patches).
    pub pixels: Arc<[f32]>,
}

impl PromptImages {
    /// Checks images against the prompt that they stand in and the model's tower. Most tokens that an image
    /// may have, where it has to be fed whole, are `most`.
    ///
    /// # Errors
    /// Says which image is wrong, and what would be right.
    pub(crate) fn check(
        &self,
        prompt: &[u32],
        vision: Option<&VisionSpec>,
        most: usize,
    ) -> Result<(), String> {
        let PromptImages { images, positions, shift, .. } = self;
        let Some(vision) = vision.filter(|_| !images.is_empty()) else {
            return match (images.len(), positions.len(), shift) {
                (0, 0, 0) => Ok(()),
                (0, ..) => Err("positions are given of a prompt without images".to_owned()),
                _ => Err("this model takes no images".to_owned()),
            };
        };
        let mut behind = 0;
        for (at, image) in (1..).zip(images) {
            let PromptImage { start, tokens, grid, ref pixels, .. } = *image;
            let end = start.checked_add(tokens).filter(|end| start >= behind && *end <= prompt.len());
            let Some(end) = end.filter(|_| tokens > 0) else {
                return Err(format!(
                    "image {at} has {tokens} tokens from {start} on, behind {behind} of a prompt of {}",
                    prompt.len()
                ));
            };
            behind = end;
            let (patches, merge) = (grid.patches(), vision.merge);
            if patches == 0 || grid.rows % merge != 0 || grid.columns % merge != 0 {
                return Err(format!("image {at} has {grid:?}, and patches are merged {merge} by {merge}"));
            }
            if patches > vision.most_patches {
                let most = vision.most_patches;
                return Err(format!("image {at} has {patches} patches, and the model takes {most} at most"));
            }
            let (rows, due) = (pixels.len(), patches * vision.values);
            if rows != due {
                return Err(format!(
                    "image {at} has {rows} numbers for {patches} patches, and {due} are due"
                ));
            }
            let rows = prompt[start..end].iter().filter(|id| **id == vision.tokens.image).count();
            let due = patches / (merge * merge);
            if rows != due {
                return Err(format!("image {at} stands for {rows} rows of its tower, which makes {due}"));
            }
            if vision.whole_spans && tokens > most {
                return Err(format!(
                    "image {at} has {tokens} tokens, and a step of this server takes images of {most} at most"
                ));
            }
        }
        let due = if vision.grid_positions { prompt.len() } else { 0 };
        let lowest = prompt.len() as i64 + i64::from(*shift);
        if positions.len() != due || lowest < 0 || (due == 0 && *shift != 0) {
            return Err(format!(
                "{} positions and a shift of {shift} are given of {} tokens, and {due} are due",
                positions.len(),
                prompt.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::{ImageTokens, VisionFamily};

    pub(crate) const VISION: VisionSpec = VisionSpec {
        family: VisionFamily::Qwen,
        patch: 1,
        frames: 1,
        merge: 2,
        values: 3,
        taps: 0,
        grid_positions: true,
        whole_spans: false,
        tokens: ImageTokens { image: 9, start: None, end: None, row_end: Some(8) },
        most_patches: 24,
        pass_images: 1,
        layers: 2,
        step_patches: 64,
        slots: 2,
    };

    fn image(start: usize, tokens: usize, rows: usize, columns: usize) -> PromptImage {
        let grid = Grid { frames: 1, rows, columns };
        let pixels = vec![0.0; 3 * rows * columns].into();
        PromptImage { digest: ImageDigest([0; 32]), start, tokens, grid, pixels }
    }

    #[test]
    fn images_are_checked_against_prompt_and_tower() {
        let prompt = [1, 9, 9, 8, 2, 9, 3, 9, 9, 9, 9, 9, 9, 9];
        let whole = VisionSpec { whole_spans: true, grid_positions: false, ..VISION };
        let right = |images: Vec<PromptImage>| PromptImages {
            images,
            positions: vec![[0; 3]; prompt.len()],
            shift: -3,
            room: None,
        };
        let check = |images: &PromptImages| images.check(&prompt, Some(&VISION), 2);
        assert_eq!(check(&right(vec![image(1, 3, 2, 4), image(5, 1, 2, 2)])), Ok(()));
        assert_eq!(check(&PromptImages::default()), Ok(()));
        let wrong = |images: PromptImages, vision: Option<&VisionSpec>, what: &str| {
            let error = images.check(&prompt, vision, 2).expect_err(what);
            assert!(error.contains(what), "{error}");
        };
        let of = |one: PromptImage| right(vec![one]);
        wrong(of(image(1, 2, 2, 4)), None, "this model takes no images");
        wrong(right(Vec::new()), Some(&VISION), "without images");
        wrong(of(image(13, 2, 2, 4)), Some(&VISION), "from 13 on");
        wrong(of(image(1, 0, 2, 4)), Some(&VISION), "0 tokens");
        wrong(right(vec![image(1, 2, 2, 4), image(2, 1, 2, 2)]), Some(&VISION), "image 2");
        wrong(of(image(1, 2, 2, 3)), Some(&VISION), "merged 2 by 2");
        wrong(of(image(1, 2, 0, 2)), Some(&VISION), "merged 2 by 2");
        wrong(of(image(7, 7, 2, 14)), Some(&VISION), "24 at most");
        wrong(of(image(1, 1, 2, 4)), Some(&VISION), "1 rows of its tower, which makes 2");
        let short = PromptImage { pixels: vec![0.0; 5].into(), ..image(1, 2, 2, 4) };
        wrong(of(short), Some(&VISION), "5 numbers");
        let positions = |positions, shift| PromptImages { positions, shift, ..of(image(1, 2, 2, 4)) };
        wrong(positions(vec![[0; 3]; 13], 0), Some(&VISION), "13 positions");
        wrong(positions(vec![[0; 3]; 14], -15), Some(&VISION), "a shift of -15");
        wrong(positions(Vec::new(), -1), Some(&whole), "a shift of -1");
        let large = PromptImages { images: vec![image(1, 3, 2, 4)], ..PromptImages::default() };
        wrong(large, Some(&whole), "images of 2 at most");
    }
}
