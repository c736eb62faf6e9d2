//! Qwen's positions on three axes (transformers, `get_rope_index` of `qwen3_5`).

use crate::{Grid, Span};

/// The positions of a prompt's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Of each token: time, height, width. Text has three alike.
    pub axes: Vec<[u32; 3]>,
    /// A generated token of index n (the first has the number of the prompt's tokens) is at n plus this.
    pub delta: i64,
}

impl Positions {
    /// Of a prompt of so many tokens with images, each a span and its grid of tokens. Behind an image
    /// positions go on at as much as its longer side.
    ///
    /// # Panics
    /// When spans are not ascending, overlap, end behind the prompt, or are not as long as their grid.
    pub fn new(tokens: usize, images: &[(Span, Grid)]) -> Self {
        let mut axes = Vec::with_capacity(tokens);
        let mut next = 0;
        let text = |until: usize, axes: &mut Vec<[u32; 3]>, next: &mut u32| {
            assert!(
                until >= axes.len() && until <= tokens,
                "images stand behind each other within the prompt"
            );
            while axes.len() < until {
                axes.push([*next; 3]);
                *next += 1;
            }
        };
        for (span, grid) in images {
            text(span.start, &mut axes, &mut next);
            assert_eq!(span.tokens, grid.cells() as usize, "an image's tokens are those of its grid");
            for row in 0..grid.rows {
                axes.extend((0..grid.columns).map(|column| [next, next + row, next + column]));
            }
            next += grid.rows.max(grid.columns);
        }
        text(tokens, &mut axes, &mut next);
        Self { axes, delta: i64::from(next) - tokens as i64 }
    }
}
