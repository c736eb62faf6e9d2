//! How large an image is for a tower: pure arithmetic, equal to that of the processors.

use crate::{Family, Grid, ImageError, Size, VisionSpec};
use std::cmp::Ordering;

/// What becomes of an image of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// What it is resized to.
    pub resized: Size,
    /// Patches, each a row of [`VisionSpec::patches`].
    pub patches: Grid,
    /// Rows of the tower's output, each in place of an image id's embedding.
    pub merged: Grid,
    /// Ids of the prompt that are the image: those of `merged`, and what ends its rows. Ids around an image
    /// that families have are not counted.
    pub tokens: u32,
}

/// How closely a request wants an image to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A glance.
    Low,
    /// As the server likes: also what requests that say nothing want.
    High,
    /// All that the checkpoint's processor takes.
    Original,
}

impl Detail {
    /// The limit for [`VisionSpec::plan`], of a server that takes so many tokens an image by default.
    pub fn most_tokens(self, server: u32) -> u32 {
        match self {
            Self::Low => server.min(256),
            Self::High => server,
            Self::Original => u32::MAX,
        }
    }
}

impl VisionSpec {
    /// What becomes of an image of a size (of 1 x 1 or more), of at most so many tokens if that is less than
    /// what the checkpoint's processor allows. At its own limit all numbers are the processor's. A limit
    /// below the fewest possible, 1 (2 of Pixtral, which ends its row), is taken as that.
    ///
    /// # Errors
    /// [`ImageError::TooElongated`], as the processor's rule has it.
    pub fn plan(&self, size: Size, most_tokens: u32) -> Result<ImagePlan, ImageError> {
        let (unit, most) = (self.unit(), most_tokens.max(1));
        let merged = match self.family {
            Family::Qwen { least_pixels, most_pixels, most_ratio, .. } => {
                if !size.within(most_ratio) {
                    return Err(ImageError::TooElongated { size, most: most_ratio });
                }
                let area = u64::from(unit).pow(2);
                match u64::from(most).saturating_mul(area) {
                    lower if lower < most_pixels => {
                        shortened(qwen(size, unit, least_pixels.min(lower), lower), most)
                    }
                    _ => qwen(size, unit, least_pixels, most_pixels),
                }
            }
            Family::Gemma { tokens, budgets, .. } => {
                let budget = if most >= tokens {
                    tokens
                } else {
                    budgets.iter().copied().filter(|budget| *budget <= most).max().unwrap_or(most)
                };
                gemma(size, unit, budget)
            }
            Family::Pixtral { longest, .. } => pixtral_within(size, unit, longest, most.max(2)),
        };
        let ends = if let Family::Pixtral { .. } = self.family { merged.rows } else { 0 };
        Ok(ImagePlan {
            resized: Size { width: merged.columns * unit, height: merged.rows * unit },
            patches: Grid { rows: merged.rows * self.merge, columns: merged.columns * self.merge },
            merged,
            tokens: merged.cells() + ends,
        })
    }
}

/// Tokens of both sides by Qwen's rule (transformers, `smart_resize`).
fn qwen(size: Size, unit: u32, least: u64, most: u64) -> Grid {
    let each = |rule: &dyn Fn(u32) -> u32| Grid { rows: rule(size.height), columns: rule(size.width) };
    let (factor, pixels) = (f64::from(unit), size.pixels() as f64);
    let rounded = each(&|side| half_to_even(side, unit));
    let area = u64::from(rounded.rows) * u64::from(rounded.columns) * u64::from(unit).pow(2);
    if area > most {
        let beta = (pixels / most as f64).sqrt();
        each(&|side| ((f64::from(side) / beta / factor).floor() as u32).max(1))
    } else if area < least {
        let beta = (least as f64 / pixels).sqrt();
        each(&|side| (f64::from(side) * beta / factor).ceil() as u32)
    } else {
        rounded
    }
}

/// Units of a side, to the nearest; half a unit makes an even number.
fn half_to_even(side: u32, unit: u32) -> u32 {
    let (whole, rest) = (side / unit, side % unit * 2);
    whole + u32::from(rest > unit || rest == unit && whole % 2 == 1)
}

/// A grid of so many tokens at most. The rule's bounds are of pixels before rounding: it keeps one token of
/// a side however long the other is, and rounds up to its lower bound.
fn shortened(grid: Grid, most: u32) -> Grid {
    if grid.cells() <= most {
        return grid;
    }
    let short = grid.rows.min(grid.columns).min(most);
    let long = most / short;
    match grid.rows.cmp(&grid.columns) {
        Ordering::Less => Grid { rows: short, columns: long },
        Ordering::Equal => Grid { rows: most.isqrt(), columns: most.isqrt() },
        Ordering::Greater => Grid { rows: long, columns: short },
    }
}

/// Tokens of both sides by Gemma's rule (transformers, `get_aspect_ratio_preserving_size`).
fn gemma(size: Size, unit: u32, tokens: u32) -> Grid {
    let area = f64::from(tokens) * f64::from(unit).powi(2);
    let factor = (area / size.pixels() as f64).sqrt();
    let whole = |side: u32| (factor * f64::from(side) / f64::from(unit)).floor() as u32;
    let (rows, columns) = (whole(size.height), whole(size.width));
    // Never both: together they would fill at least one token.
    if rows == 0 {
        Grid { rows: 1, columns: (size.width / size.height).min(tokens) }
    } else if columns == 0 {
        Grid { rows: (size.height / size.width).min(tokens), columns: 1 }
    } else {
        Grid { rows, columns }
    }
}

/// Tokens of both sides by Pixtral's rule, its longest side lowered until they and the ends of rows are few
/// enough.
fn pixtral_within(size: Size, unit: u32, longest: u32, most: u32) -> Grid {
    let mut grid = pixtral(size, unit, longest);
    let mut side = longest.div_ceil(unit);
    while grid.cells() + grid.rows > most && side > 1 {
        side -= 1;
        grid = pixtral(size, unit, side * unit);
    }
    grid
}

/// Tokens of both sides by Pixtral's rule (transformers, `get_resize_output_image_size`). Of a side that its
/// division leaves nothing of, one pixel stays; there it fails.
fn pixtral(size: Size, unit: u32, longest: u32) -> Grid {
    let ratio = (f64::from(size.height) / f64::from(longest)).max(f64::from(size.width) / f64::from(longest));
    let side = |side: u32| {
        let side = if ratio > 1.0 { (f64::from(side) / ratio).floor() as u32 } else { side };
        side.max(1).div_ceil(unit)
    };
    Grid { rows: side(size.height), columns: side(size.width) }
}
