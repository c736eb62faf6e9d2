//! The vocabulary, as constraints need it.

use monomorph_sampling::TokenMask;
use toktrie::TokEnv;

/// A model's tokens: their bytes, the trie of their texts, those that end an answer.
pub(crate) struct Shared {
    pub(crate) vocabulary: usize,
    /// Ids that end an answer; the first is the one that llguidance knows.
    pub(crate) ends: Vec<u32>,
    /// The bytes of all tokens, back to back, and the end of each.
    pub(crate) bytes: Vec<u8>,
    pub(crate) until: Vec<usize>,
    /// Tokens that are not text.
    pub(crate) special: TokenMask,
    /// Tokens with the same bytes as another, each paired with the one that is in the trie.
    pub(crate) doubles: Vec<(u32, u32)>,
    pub(crate) trie: TokEnv,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Shared {
    /// The bytes of a token; empty if there is no such token.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(until) = self.until.get(id) else { return &[] };
        &self.bytes[if id == 0 { 0 } else { self.until[id - 1] }..*until]
    }

    /// The text of a token; empty if it is not text.
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        if self.special.allows(id) { &[] } else { self.bytes(id) }
    }

    /// A tokenisation of a text.
    pub(crate) fn tokens(&self, text: &[u8]) -> Vec<u32> {
        self.trie.tok_trie().greedy_tokenize(text)
    }

    /// The token in the trie with the same bytes.
    pub(crate) fn in_trie(&self, id: u32) -> u32 {
        self.doubles.binary_search_by_key(&id, |(double, _)| *double).map_or(id, |at| self.doubles[at].1)
    }

    /// The mask of all tokens.
    pub(crate) fn any(&self) -> TokenMask {
        TokenMask::of(self.vocabulary, 0..self.vocabulary as u32)
    }

    /// The mask of all tokens but these; `None` if there are none of these.
    pub(crate) fn all_but(&self, ids: &[u32]) -> Option<TokenMask> {
        if ids.is_empty() {
            return None;
        }
        let mut words = self.any().words().to_vec();
        ids.iter().for_each(|id| set(&mut words, *id, false));
        Some(TokenMask::new(words))
    }

    /// The mask of what llguidance allows.
    pub(crate) fn mask(&self, allowed: &[u32]) -> Vec<u32> {
        let mut words = vec![0; TokenMask::words_for(self.vocabulary)];
        let known = words.len().min(allowed.len());
        words[..known].copy_from_slice(&allowed[..known]);
        for (double, other) in &self.doubles {
            let allowed = get(&words, *other);
            set(&mut words, *double, allowed);
        }
        // All end ids are equivalent.
        let ends = self.ends.first().is_some_and(|end| get(&words, *end));
        self.ends.iter().for_each(|end| set(&mut words, *end, ends));
        if let Some(last) = words.last_mut()
            && !self.vocabulary.is_multiple_of(32)
        {
            *last &= (1 << (self.vocabulary % 32)) - 1;
        }
        words
    }
}

/// The bit of an id in a mask's words.
fn get(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// Sets the bit of an id in a mask's words.
pub(crate) fn set(words: &mut [u32], id: u32, to: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word = *word & !(1 << (id % 32)) | u32::from(to) << (id % 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

    /// The end, `a`, `b`, `a` again, `ab`, another end, and nothing up to so many ids.
    fn made(vocabulary: usize) -> Shared {
        let spelled: [&[u8]; 6] = [b"<end>", b"a", b"b", b"a", b"ab", b"<over>"];
        let mut words: Vec<Vec<u8>> = spelled.map(<[u8]>::to_vec).into();
        words.resize(vocabulary, Vec::new());
        let ends = [0, 5].map(|at: usize| words[at].len());
        let bytes: Vec<u8> = words.concat();
        let until = words.iter().scan(0, |until, word| {
            *until += word.len();
            Some(*until)
        });
        let until = until.collect();
        words[3].clear();
        for (at, length) in [0, 5].into_iter().zip(ends) {
            words[at].insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            assert_eq!(words[at].len(), length + 1);
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, 0), &words);
        Shared {
            vocabulary,
            ends: vec![0, 5],
            bytes,
            until,
            special: TokenMask::of(vocabulary, [0, 5]),
            doubles: vec![(3, 1)],
            trie: Arc::new(ApproximateTokEnv::new(trie)),
        }
    }

    #[test]
    fn tokens_have_their_bytes_and_those_that_are_text_their_text() {
        let shared = made(40);
        let bytes: [&[u8]; 8] = [b"<end>", b"a", b"b", b"a", b"ab", b"<over>", b"", b""];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 40].map(|id| shared.bytes(id)), bytes);
        assert_eq!([0, 1, 4, 5, 99].map(|id| shared.text(id)), [&b""[..], b"a", b"ab", b"", b""]);
        assert_eq!(shared.tokens(b"abba"), [4, 2, 1]);
        assert_eq!([0, 1, 2, 3, 4].map(|id| shared.in_trie(id)), [0, 1, 2, 1, 4]);
        assert!(format!("{shared:?}").contains("40"));
    }

    #[test]
    fn masks_are_of_the_vocabulary() {
        for vocabulary in [32, 40, 64] {
            let shared = made(vocabulary);
            assert_eq!(shared.any().count(), vocabulary);
            assert_eq!(shared.all_but(&[]), None);
            let some = shared.all_but(&[1, 31]).expect("two are excluded");
            assert_eq!((some.count(), some.allows(1), some.allows(31)), (vocabulary - 2, false, false));
            let count = |words: Vec<u32>| TokenMask::new(words).count();
            // Whatever is said of ids that there are not; what is not said is not allowed.
            assert_eq!(count(shared.mask(&[u32::MAX; 3])), vocabulary);
            assert_eq!(count(shared.mask(&[u32::MAX])), 32);
            assert_eq!(count(shared.mask(&[])), 0);
        }
    }

    #[test]
    fn ends_are_alike_and_so_are_tokens_of_the_same_bytes() {
        let allowed = |bits: &[u32]| {
            let word = bits.iter().map(|bit| 1 << bit).sum::<u32>();
            let mask = TokenMask::new(made(40).mask(&[word, 0]));
            (0..40).filter(|id| mask.allows(*id)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&[1]), [1, 3]);
        assert!(allowed(&[3]).is_empty(), "the library does not know it");
        assert_eq!(allowed(&[0, 2]), [0, 2, 5]);
        assert_eq!(allowed(&[5, 2]), [2], "it knows the first end only");
    }

    #[test]
    fn bits_are_set_and_cleared_one_at_a_time() {
        let mut words = [0, u32::MAX];
        set(&mut words, 3, true);
        set(&mut words, 31, true);
        set(&mut words, 32, false);
        set(&mut words, 37, false);
        set(&mut words, 38, true);
        set(&mut words, 64, true);
        assert_eq!(words, [1 << 3 | 1 << 31, !(1 | 1 << 5)]);
        assert_eq!(
            [2, 3, 32, 33, 37, 64].map(|id| get(&words, id)),
            [false, true, false, true, false, false]
        );
    }
}
