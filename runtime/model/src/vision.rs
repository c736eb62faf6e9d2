//! Images: what a build with a vision tower fixed, and what the tower is given.

use std::ops::Range;

/// A vision tower, and what images are in a prompt of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionSpec {
    /// The kind of tower: its preprocessing, and its placeholders.
    pub family: VisionFamily,
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Times that a row of pixels has its patch.
    pub frames: usize,
    /// Patches of a side of a merge block, which becomes one token.
    pub merge: usize,
    /// Numbers in a row of pixels.
    pub values: usize,
    /// DeepStack rows that a token of an image has besides its own.
    pub taps: usize,
    /// Whether positions have three axes.
    pub grid_positions: bool,
    /// Whether the tokens of an image attend to all of it in some layers, so that no step may end within one.
    pub whole_spans: bool,
    /// Ids that stand for images.
    pub tokens: ImageTokens,
    /// Most patches of a pass.
    pub most_patches: usize,
    /// Most images of a pass.
    pub pass_images: usize,
    /// Layers of the tower.
    pub layers: usize,
    /// Patches of a pass that is one step. One over more is cut between layers.
    pub step_patches: usize,
    /// Places for the rows of images: [`FeatureSlot`]s lie below it.
    pub slots: usize,
}

impl VisionSpec {
    /// Most rows of a [`FeatureSlot`].
    pub const fn most_tokens(&self) -> usize {
        self.most_patches / (self.merge * self.merge)
    }

    /// Whether these are layers of the tower, one at least.
    pub const fn has(&self, layers: &Range<usize>) -> bool {
        layers.start < layers.end && layers.end <= self.layers
    }

    /// Whether one pass takes so many images, of so many patches in all. That of several is one step: who
    /// waits for one of them must not wait for more layers of another.
    pub const fn takes(&self, images: usize, patches: usize) -> bool {
        let shared = images == 1 || (images <= self.pass_images && self.parts(patches) == 1);
        images > 0 && shared && patches > 0 && patches <= self.most_patches
    }

    /// Steps of a pass over so many patches. Attention grows with their square, and no layer is cut.
    pub const fn parts(&self, patches: usize) -> usize {
        let parts = (patches * patches).div_ceil(self.step_patches * self.step_patches);
        if parts > self.layers { self.layers } else { parts }
    }

    /// The layers of the step of a pass over so many patches that goes on at layer `from`.
    ///
    /// # Panics
    /// When the tower has no such layer.
    pub const fn part(&self, patches: usize, from: usize) -> Range<usize> {
        assert!(from < self.layers, "a tower has no such layer");
        let parts = self.parts(patches);
        // The part that layer `from` lies in ends where the next one begins.
        let part = ((from + 1) * parts - 1) / self.layers;
        from..(part + 1) * self.layers / parts
    }

    /// The layers of each step of a pass over so many patches.
    pub fn steps(self, patches: usize) -> impl Iterator<Item = Range<usize>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let layers = (from < self.layers).then(|| self.part(patches, from))?;
            from = layers.end;
            Some(layers)
        })
    }
}

/// A kind of tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionFamily {
    /// Of Qwen3-VL, Qwen3.5 and Qwen3.6.
    Qwen,
    /// Of Gemma 4.
    Gemma,
    /// Of Mistral's models.
    Pixtral,
}

/// Ids of tokens that stand for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    /// Stands where a row of the tower goes.
    pub image: u32,
    /// Stands before an image.
    pub start: Option<u32>,
    /// Stands behind an image; of Pixtral in place of its last `row_end`.
    pub end: Option<u32>,
    /// Stands behind every row of an image.
    pub row_end: Option<u32>,
}

/// Patches of an image, or of a video of some frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Frames, each as many patches again; 1 for an image.
    pub frames: usize,
    /// Patches from top to bottom, whole merge blocks.
    pub rows: usize,
    /// Patches from left to right, whole merge blocks.
    pub columns: usize,
}

impl Grid {
    /// Patches of all frames.
    pub const fn patches(&self) -> usize {
        self.frames * self.rows * self.columns
    }
}

/// An image as its tower takes it.
#[derive(Clone, Copy, Debug)]
pub struct Patches<'a> {
    /// `[patches, values]`, in merge order: the merge blocks of a frame from left to right and top to bottom,
    /// and so the patches in each.
    pub pixels: &'a [f32],
    /// How many they are each way.
    pub grid: Grid,
}

/// An image of a pass, and where its rows go.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The image.
    pub patches: Patches<'a>,
    /// Takes the rows of its tokens, over what it held.
    pub slot: FeatureSlot,
}

/// A place on the device for the rows of one image, below [`VisionSpec::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeatureSlot(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_cut_by_the_square_of_its_patches_and_between_layers() {
        let spec = |layers| VisionSpec {
            family: VisionFamily::Qwen,
            patch: 16,
            frames: 2,
            merge: 2,
            values: 1536,
            taps: 0,
            grid_positions: true,
            whole_spans: false,
            tokens: ImageTokens { image: 0, start: None, end: None, row_end: None },
            most_patches: 32_768,
            pass_images: 3,
            layers,
            step_patches: 4096,
            slots: 8,
        };
        let parts = |patches| spec(27).parts(patches);
        assert_eq!([4, 4096, 4100, 7920, 8192, 32_400].map(parts), [1, 1, 2, 4, 4, 27]);
        for (layers, patches) in [(1, 32_768), (2, 8192), (27, 4), (27, 4100), (27, 7920), (27, 32_768)] {
            let spec = spec(layers);
            let (mut from, mut steps) = (0, 0);
            for part in spec.steps(patches) {
                assert!(part.start == from && !part.is_empty(), "{layers} layers over {patches} patches");
                (from, steps) = (part.end, steps + 1);
            }
            assert_eq!((from, steps), (layers, spec.parts(patches)), "{layers} over {patches}");
        }
        let takes = |(images, patches)| spec(27).takes(images, patches);
        assert_eq!([(1, 32_768), (2, 8), (3, 4096)].map(takes), [true; 3]);
        assert_eq!([(0, 4), (1, 0), (1, 32_772), (2, 4100), (4, 16)].map(takes), [false; 5]);
    }
}
