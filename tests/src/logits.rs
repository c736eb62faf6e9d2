//! Logits as `server logits` writes them and goldens hold them, and how far two are apart.

use safetensors::SafeTensors;
use std::path::Path;

/// One matrix `[tokens, vocabulary]` a prompt.
pub type Logits = Vec<Vec<f32>>;

/// Reads f32 tensors `0`, `1`, … from a safetensors file.
///
/// # Panics
/// If the file is not one.
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

/// By row, the largest difference, relative to the largest magnitude of the expected row.
///
/// # Panics
/// If the shapes differ, or a logit is not a number.
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
