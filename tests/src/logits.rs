//! Logits as `server logits` writes them and as goldens store them, and distances between them.

use monomorph_compiler::spec::types::{Ffn, Model};
use safetensors::SafeTensors;
use std::fmt;
use std::path::Path;

/// One matrix `[tokens, vocabulary]` per prompt.
pub type Logits = Vec<Vec<f32>>;

/// Reads f32 tensors `0`, `1`, … from a safetensors file.
///
/// # Panics
/// If the file is not a safetensors file.
pub fn read(path: &Path) -> Logits {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (0..file.len())
        .map(|i| {
            let tensor =
                file.tensor(&i.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
            tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        })
        .collect()
}

/// The largest difference in any row, relative to the largest magnitude of the expected row.
///
/// # Panics
/// If the shapes differ.
pub fn distance(found: &Logits, expected: &Logits, vocabulary: usize) -> f32 {
    rows_apart(found, expected, vocabulary).into_iter().fold(0.0, f32::max)
}

/// The largest difference of each row, relative to the largest magnitude of the expected row.
///
/// # Panics
/// If the shapes differ, or a logit is NaN.
pub fn rows_apart(found: &Logits, expected: &Logits, vocabulary: usize) -> Vec<f32> {
    assert_eq!(found.len(), expected.len(), "prompts");
    let mut rows = Vec::new();
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "logits of a prompt");
        for (found, expected) in found.chunks_exact(vocabulary).zip(expected.chunks_exact(vocabulary)) {
            let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let apart = found.iter().zip(expected).fold(0.0f32, |m, (a, b)| {
                let apart = (a - b).abs();
                assert!(apart.is_finite(), "a logit is not a number");
                m.max(apart)
            });
            rows.push(apart / largest);
        }
    }
    rows
}

/// Distribution of the distances of rows.
pub struct Spread {
    /// The median.
    pub half: f32,
    /// The 90th percentile.
    pub most: f32,
    /// The maximum.
    pub all: f32,
}

impl Spread {
    /// # Panics
    /// As [`rows_apart`], or if there are no rows.
    pub fn of(found: &Logits, expected: &Logits, vocabulary: usize) -> Self {
        let mut apart = rows_apart(found, expected, vocabulary);
        apart.sort_by(f32::total_cmp);
        let part = |nth: usize, of: usize| apart[(apart.len() * nth / of).min(apart.len() - 1)];
        Self { half: part(1, 2), most: part(9, 10), all: part(1, 1) }
    }

    /// Whether the median is within the bound and the 90th percentile within twice the bound. The maximum
    /// must be within the bound too, unless rounding may change a row entirely: through the choice of
    /// experts, or through recurrent state (docs/accuracy.md, "Right, on the emulated card").
    pub fn is_within(&self, bound: f32, model: &Model) -> bool {
        let mut ffns = [&model.ffn].into_iter().chain(model.other_ffns.values());
        let recurrent = model.mixers.values().any(|mixer| mixer.kv().is_none());
        let leaps = recurrent || ffns.any(|ffn| matches!(ffn, Ffn::Experts(_)));
        self.half <= bound && self.most <= 2.0 * bound && (leaps || self.all <= bound)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { half, most, all } = self;
        write!(f, "half of the rows within {half:.1e}, nine of ten {most:.1e}, all {all:.1e}")
    }
}
