//! What a checkpoint's processor does, as constants.

/// A processor's parameters. A build states them as a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisionSpec {
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of a side of the square that becomes one row of the tower's output.
    pub merge: u32,
    /// What is made of samples.
    pub levels: Levels,
    /// The rule of sizes, the order of a row, and the ids of the prompt.
    pub family: Family,
}

/// From samples of 0 to 255 to what a tower takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Levels {
    /// -1 to 1. Gemma's processor gives 0 to 1, of which its tower makes these first.
    Signed,
    /// 0 to 1, less a mean, over a deviation: red, green, blue.
    Normalised {
        /// What is subtracted.
        mean: [f32; 3],
        /// What the rest is divided by.
        deviation: [f32; 3],
    },
}

/// What differs between families of models beyond numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// Qwen: sides are rounded to whole tokens, half of one to an even number, and scaled where the area is
    /// out of bounds. A row of pixels is `[RGB, frames, patch, patch]`.
    Qwen {
        /// Fewest pixels after resizing.
        least_pixels: u64,
        /// Most pixels after resizing.
        most_pixels: u64,
        /// Long side over short side; above it images are refused.
        most_ratio: u32,
        /// How often a row has its image. Checkpoints take two equal frames; a tower whose weights were
        /// added up over frames takes one.
        frames: u32,
        /// The id of an image's token. The template writes one, between ids that stay.
        image: u32,
    },
    /// Gemma: an image is enlarged or reduced to fill a number of tokens. A row of pixels is
    /// `[patch, patch, RGB]`.
    Gemma {
        /// Tokens that the processor fills.
        tokens: u32,
        /// All numbers of tokens that the tower was trained for, ascending. A lower limit chooses from them.
        budgets: &'static [u32],
        /// Begins an image.
        begin: u32,
        /// The id of an image's token, and what the template writes.
        image: u32,
        /// Ends an image.
        end: u32,
    },
    /// Pixtral: the long side is bounded, both are rounded up to whole tokens. A row of pixels is
    /// `[RGB, patch, patch]`.
    Pixtral {
        /// Most pixels of the long side before rounding.
        longest: u32,
        /// The id of an image's token, and what the template writes.
        image: u32,
        /// Ends a row of tokens.
        row_end: u32,
        /// Ends the last row.
        end: u32,
    },
}

impl VisionSpec {
    /// Pixels of a token's side.
    pub const fn unit(&self) -> u32 {
        self.patch * self.merge
    }

    /// Elements of one row of [`VisionSpec::patches`].
    pub const fn row_elements(&self) -> usize {
        let frames = if let Family::Qwen { frames, .. } = self.family { frames } else { 1 };
        (3 * frames * self.patch * self.patch) as usize
    }

    /// The id whose rows of the embedding are the tower's.
    pub const fn image_id(&self) -> u32 {
        match self.family {
            Family::Qwen { image, .. } | Family::Gemma { image, .. } | Family::Pixtral { image, .. } => image,
        }
    }
}
