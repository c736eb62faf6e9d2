//! Images: what a build with a vision tower fixed, and what the tower is given.

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
    /// Most patches of a pass, which are those of one image, or of one video.
    pub most_patches: usize,
    /// Places for the rows of images: [`FeatureSlot`]s lie below it.
    pub slots: usize,
}

impl VisionSpec {
    /// Most rows of a [`FeatureSlot`].
    pub const fn most_tokens(&self) -> usize {
        self.most_patches / (self.merge * self.merge)
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

/// A place on the device for the rows of one image, below [`VisionSpec::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeatureSlot(pub u32);
