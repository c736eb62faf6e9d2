//! Images before a vision tower: from the bytes of a file to the rows of patches that the tower takes, and
//! what an image is in a prompt.
//!
//! Everything follows the processors of transformers: for a PNG the rows are those of the model's own, bit
//! for bit. A file is distrusted. What its header says is checked against [`FileLimits`] before anything is
//! decoded, and [`ImageFile::peak_bytes`] says beforehand how much memory decoding takes.
//!
//! | step | by | kind |
//! |---|---|---|
//! | format, size, limits | [`ImageFile::open`] | reads the header |
//! | size after resizing, grid, tokens | [`VisionSpec::plan`] | pure |
//! | samples: upright, RGB, on white | [`ImageFile::decode`] | computes |
//! | resized samples | [`resize`] | computes |
//! | rows | [`VisionSpec::patches`] | pure |
//! | ids of the prompt | [`VisionSpec::expand`] | pure |
//! | positions on three axes (Qwen) | [`Positions::new`] | pure |

mod error;
mod file;
mod header;
mod patches;
mod plan;
mod positions;
mod prompt;
mod resize;
mod samples;
mod size;
mod spec;

pub use error::ImageError;
pub use file::{FileLimits, ImageFile};
pub use header::MediaType;
pub use plan::{Detail, ImagePlan};
pub use positions::Positions;
pub use prompt::{Expanded, PlaceholderMismatch, Span};
pub use resize::resize;
pub use samples::Rgb;
pub use size::{Grid, Size};
pub use spec::{Family, Levels, VisionSpec};

impl VisionSpec {
    /// Decodes, resizes and cuts: the rows of [`VisionSpec::patches`].
    ///
    /// # Errors
    /// Those of [`ImageFile::decode`].
    pub fn prepare(&self, file: &ImageFile<'_>, plan: &ImagePlan) -> Result<Vec<f32>, ImageError> {
        Ok(self.patches(&resize(file.decode()?, plan.resized)))
    }
}
