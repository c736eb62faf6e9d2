//! Text from tokens, one token at a time.

use crate::vocabulary::{Kind, Vocabulary};
use std::sync::Arc;

/// Turns the tokens of one generation into text that is valid at every point: bytes of an incomplete
/// character are held back until it is complete. All pieces together are the lossy UTF-8 decoding of all
/// bytes together. Special tokens and ids without a token are left out.
#[derive(Clone, Debug)]
pub struct Detokeniser {
    vocabulary: Arc<Vocabulary>,
    /// Bytes that may begin a character: at most three between calls.
    held: Vec<u8>,
    piece: String,
}

impl Detokeniser {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Detokeniser {
        Detokeniser { vocabulary, held: Vec::new(), piece: String::new() }
    }

    /// The text that `id` completes; often empty within a character.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        if self.vocabulary.kind(id) == Kind::Normal
            && let Some(bytes) = self.vocabulary.bytes(id)
        {
            self.held.extend(bytes);
            self.emit();
        }
        &self.piece
    }

    /// Bytes held back of an incomplete character.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Ends the text: bytes held back are a truncated character and become U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        if !self.held.is_empty() {
            self.held.clear();
            self.piece.push(char::REPLACEMENT_CHARACTER);
        }
        &self.piece
    }

    /// Moves all decided bytes from `held` to `piece`.
    fn emit(&mut self) {
        let mut done = 0;
        while done < self.held.len() {
            match std::str::from_utf8(&self.held[done..]) {
                Ok(text) => {
                    self.piece.push_str(text);
                    done = self.held.len();
                }
                Err(error) => {
                    let (valid, _) = self.held[done..].split_at(error.valid_up_to());
                    self.piece.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    // No length: the bytes end inside a character that may still be completed.
                    let Some(wrong) = error.error_len() else { break };
                    self.piece.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.held.drain(..done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vocabulary(tokens: &[Vec<u8>]) -> Arc<Vocabulary> {
        let mut vocabulary = Vocabulary::default();
        for token in tokens {
            vocabulary.push(token, Kind::Normal);
        }
        Arc::new(vocabulary)
    }

    proptest! {
        /// For any bytes and any split, the pieces together are the lossy decoding of the whole.
        #[test]
        fn pieces_are_the_whole(
            tokens in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..6),
                    "\\PC{1,3}".prop_map(String::into_bytes),
                    (any::<char>(), 0usize..4).prop_map(|(character, cut)| {
                        let bytes = character.to_string().into_bytes();
                        bytes[..cut.min(bytes.len())].to_vec()
                    }),
                ],
                0..30,
            ),
        ) {
            let mut detokeniser = Detokeniser::new(vocabulary(&tokens));
            let mut text = String::new();
            for id in 0..tokens.len() {
                text += detokeniser.push(id as u32);
                prop_assert!(detokeniser.held.len() <= 3);
            }
            text += detokeniser.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&tokens.concat()).into_owned());
        }

        /// Valid text is never damaged, however it is split.
        #[test]
        fn characters_stay_whole(text in "\\PC{0,40}", cuts in proptest::collection::vec(1usize..4, 200)) {
            let mut rest = text.as_bytes();
            let mut tokens = Vec::new();
            for cut in cuts {
                let (token, next) = rest.split_at(cut.min(rest.len()));
                tokens.push(token.to_vec());
                rest = next;
            }
            let mut detokeniser = Detokeniser::new(vocabulary(&tokens));
            let pieces: String = (0..tokens.len()).map(|id| detokeniser.push(id as u32).to_owned()).collect();
            prop_assert_eq!(pieces, &text[..text.len() - rest.len()]);
        }
    }

    #[test]
    fn half_a_character_waits_and_is_replaced_at_the_end() {
        let mut detokeniser = Detokeniser::new(vocabulary(&[b"a\xF0\x9F".to_vec(), b"\x98\x80b".to_vec()]));
        assert_eq!(detokeniser.push(0), "a");
        assert_eq!(detokeniser.push(1), "\u{1F600}b");
        assert_eq!(detokeniser.push(0), "a");
        assert_eq!(detokeniser.push(7), "");
        assert_eq!(detokeniser.finish(), "\u{FFFD}");
        assert_eq!(detokeniser.finish(), "");
    }
}
