//! The processors of published checkpoints, for tests.
#![allow(dead_code, reason = "each test binary uses some")]

use monomorph_vision::{Family, Levels, VisionSpec};

pub const fn qwen(least_pixels: u64, most_pixels: u64) -> VisionSpec {
    VisionSpec {
        patch: 16,
        merge: 2,
        levels: Levels::Normalised { mean: [0.5; 3], deviation: [0.5; 3] },
        family: Family::Qwen { least_pixels, most_pixels, most_ratio: 200, frames: 2, image: 248056 },
    }
}

pub const fn gemma(tokens: u32) -> VisionSpec {
    VisionSpec {
        patch: 16,
        merge: 3,
        levels: Levels::Signed,
        family: Family::Gemma {
            tokens,
            budgets: &[70, 140, 280, 560, 1120],
            begin: 255999,
            image: 258880,
            end: 258882,
        },
    }
}

#[allow(clippy::excessive_precision, reason = "as published")]
pub const fn pixtral(longest: u32) -> VisionSpec {
    VisionSpec {
        patch: 14,
        merge: 2,
        levels: Levels::Normalised {
            mean: [0.48145466, 0.4578275, 0.40821073],
            deviation: [0.26862954, 0.26130258, 0.27577711],
        },
        family: Family::Pixtral { longest, image: 10, row_end: 12, end: 13 },
    }
}

// Constants, as a build states them.
pub const QWEN: VisionSpec = qwen(65_536, 16_777_216);
pub const GEMMA: VisionSpec = gemma(280);
pub const PIXTRAL: VisionSpec = pixtral(1540);
