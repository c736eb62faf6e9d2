//! Pixels of an image, and rows and columns of what it is cut into.

use std::fmt;

/// Pixels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Columns of pixels.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
}

/// Rows and columns of patches, or of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// From top to bottom.
    pub rows: u32,
    /// From left to right.
    pub columns: u32,
}

impl Size {
    /// All pixels.
    pub const fn pixels(self) -> u64 {
        self.width as u64 * self.height as u64
    }

    /// Whether the long side is at most so many times the short one.
    pub(crate) fn within(self, ratio: u32) -> bool {
        let (short, long) = (self.width.min(self.height), self.width.max(self.height));
        u64::from(long) <= u64::from(short) * u64::from(ratio)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}

impl Grid {
    /// How many it holds.
    pub const fn cells(self) -> u32 {
        self.rows * self.columns
    }
}
