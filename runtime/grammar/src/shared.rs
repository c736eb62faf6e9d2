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
