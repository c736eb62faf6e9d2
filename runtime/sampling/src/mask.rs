//! Masks of the ids that may be sampled.

use std::sync::Arc;

/// Bits per word.
const BITS: usize = u32::BITS as usize;

/// The ids that may be sampled: one bit per id, the lowest of a word first. Cloning it is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Arc<[u32]>,
}

impl TokenMask {
    /// Number of words of a mask over `vocabulary` ids.
    pub const fn words_for(vocabulary: usize) -> usize {
        vocabulary.div_ceil(BITS)
    }

    /// The mask with these words. Bits beyond the vocabulary are ignored.
    pub fn new(words: impl Into<Arc<[u32]>>) -> TokenMask {
        TokenMask { words: words.into() }
    }

    /// The mask of these ids; those not below `vocabulary` are ignored.
    pub fn of(vocabulary: usize, ids: impl IntoIterator<Item = u32>) -> TokenMask {
        let mut words = vec![0; TokenMask::words_for(vocabulary)];
        for id in ids {
            if let Some(word) = words.get_mut(id as usize / BITS) {
                *word |= 1 << (id as usize % BITS);
            }
        }
        TokenMask::new(words)
    }

    /// The mask's words, the lowest ids first.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether an id may be sampled; ids beyond the words may not.
    pub fn allows(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / BITS).copied().unwrap_or(0);
        word >> (id as usize % BITS) & 1 == 1
    }

    /// Number of ids it allows.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Sets all other logits to minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(BITS).zip(words) {
            // Most words of most masks have all bits set or none.
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenMask({} ids)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_allows_its_ids_and_no_others() {
        for vocabulary in [1, 31, 32, 33, 64, 100] {
            let ids: Vec<u32> = (0..vocabulary as u32).filter(|id| id % 3 == 0 || id % 7 == 5).collect();
            let mask = TokenMask::of(vocabulary, ids.iter().copied());
            assert_eq!((mask.words().len(), mask.count()), (vocabulary.div_ceil(32), ids.len()));
            let mut logits = vec![1.5; vocabulary];
            mask.apply(&mut logits);
            for id in 0..vocabulary as u32 + 70 {
                assert_eq!(mask.allows(id), ids.contains(&id), "{id} of {vocabulary}");
            }
            for (id, logit) in logits.into_iter().enumerate() {
                let allowed = ids.contains(&(id as u32));
                assert_eq!(logit, if allowed { 1.5 } else { f32::NEG_INFINITY }, "{id} of {vocabulary}");
            }
        }
        let short = TokenMask::of(3, [1]);
        let mut logits = vec![0.0; 70];
        short.apply(&mut logits);
        assert_eq!(logits.iter().filter(|logit| **logit == 0.0).count(), 1, "ids beyond its words are out");
    }
}
