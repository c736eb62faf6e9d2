//! Reasoning before an answer: free text, except for the tags around it and a budget.

use crate::shared::Shared;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// Most tokens of spacing between the closing tag and the answer.
const GAP: usize = 4;

/// The tags around a model's reasoning, prepared for its vocabulary; built once per server.
#[derive(Debug)]
pub struct Tags {
    open: Vec<u32>,
    close: Vec<u32>,
    /// The bytes of `close`.
    closing: Vec<u8>,
    /// Masks by the number of bytes of the closing tag that the text so far ends with. Each excludes the ids
    /// that would complete the tag and continue with anything but spacing, and the ids that end an answer.
    inside: Vec<TokenMask>,
    /// The mask of all ids.
    any: TokenMask,
    /// The mask of ids that are only spacing.
    spacing: TokenMask,
    shared: Arc<Shared>,
}

impl Tags {
    /// From the ids of both tags; those of the closing tag should spell nothing but the tag.
    pub(crate) fn new(shared: Arc<Shared>, open: &[u32], close: &[u32]) -> Tags {
        let closing: Vec<u8> = close.iter().flat_map(|id| shared.bytes(*id)).copied().collect();
        let vocabulary = shared.vocabulary as u32;
        let is_spacing = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace);
        let inside = (0..closing.len()).map(|matched| {
            let harmless = |id: &u32| match scan(&closing, matched, shared.bytes(*id)) {
                Scan::Closed(rest) => rest.iter().all(u8::is_ascii_whitespace),
                Scan::Open(_) => !shared.ends.contains(id),
            };
            TokenMask::of(shared.vocabulary, (0..vocabulary).filter(harmless))
        });
        let inside = inside.collect();
        let spacing = (0..vocabulary).filter(|id| is_spacing(shared.bytes(*id)));
        Tags {
            open: open.to_vec(),
            close: close.to_vec(),
            inside,
            any: TokenMask::of(shared.vocabulary, 0..vocabulary),
            spacing: TokenMask::of(shared.vocabulary, spacing),
            closing,
            shared,
        }
    }
}

/// The progress of a tag after a token's bytes.
pub(crate) enum Scan<'a> {
    /// The tag is complete, and these bytes follow.
    Closed(&'a [u8]),
    /// This many bytes of the tag are matched.
    Open(usize),
}

/// Searches `bytes` for the rest of `tag`, and for the whole tag.
pub(crate) fn scan<'a>(tag: &[u8], matched: usize, bytes: &'a [u8]) -> Scan<'a> {
    let mut matched = matched;
    for (at, byte) in bytes.iter().enumerate() {
        while matched > 0 && tag[matched] != *byte {
            matched = border(tag, matched);
        }
        matched += usize::from(tag[matched] == *byte);
        if matched == tag.len() {
            return Scan::Closed(&bytes[at + 1..]);
        }
    }
    Scan::Open(matched)
}

/// The longest proper prefix of `tag` that its first `matched` bytes end with. Tags are short.
fn border(tag: &[u8], matched: usize) -> usize {
    (0..matched).rev().find(|length| tag[..matched].ends_with(&tag[..*length])).unwrap_or(0)
}

/// The state of an answer that may begin with reasoning.
#[derive(Clone, Debug)]
pub struct Thinking {
    tags: Arc<Tags>,
    /// Tokens left in the budget.
    left: usize,
    place: ThinkingState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkingState {
    /// Before anything but spacing.
    Start,
    /// After this many tokens of the opening tag.
    Opening(usize),
    /// Within the reasoning, after this many bytes of the closing tag.
    Inside(usize),
    /// After this many tokens of the closing tag, which is forced.
    Closing(usize),
    /// After the closing tag and this many tokens of spacing.
    Gap(usize),
    /// In the answer.
    Over,
}

/// The tokens that reasoning allows, relative to the grammar's.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// Only what the grammar allows.
    Nothing,
    /// These as well.
    Also(&'a TokenMask),
    /// This id as well.
    AlsoOne(u32),
    /// Only these, whatever the grammar allows.
    Only(&'a TokenMask),
    /// Only this id, whatever the grammar allows.
    OnlyOne(u32),
}

impl Thinking {
    /// At the beginning of an answer, or within its reasoning if the prompt `opened` it, with `budget` tokens
    /// for the reasoning.
    pub fn new(tags: &Arc<Tags>, opened: bool, budget: Option<usize>) -> Thinking {
        let left = budget.unwrap_or(usize::MAX);
        let place = match (opened, left, tags.close.is_empty()) {
            (_, _, true) => ThinkingState::Over,
            (true, 0, _) => ThinkingState::Closing(0),
            (true, ..) => ThinkingState::Inside(0),
            (false, ..) => ThinkingState::Start,
        };
        Thinking { tags: Arc::clone(tags), left, place }
    }

    /// The tokens that may come next.
    pub(crate) fn beside(&self) -> Beside<'_> {
        let tags = &self.tags;
        match self.place {
            ThinkingState::Start => tags.open.first().map_or(Beside::Nothing, |id| Beside::AlsoOne(*id)),
            ThinkingState::Opening(at) => Beside::OnlyOne(tags.open[at]),
            ThinkingState::Inside(matched) => Beside::Only(&tags.inside[matched]),
            ThinkingState::Closing(at) => Beside::OnlyOne(tags.close[at]),
            ThinkingState::Gap(GAP..) | ThinkingState::Over => Beside::Nothing,
            ThinkingState::Gap(_) => Beside::Also(&tags.spacing),
        }
    }

    /// As [`Self::beside`], without a grammar: an answer may end within its reasoning, and anything may come
    /// before and after it.
    pub(crate) fn alone(&self) -> Beside<'_> {
        match self.beside() {
            Beside::OnlyOne(id) => Beside::OnlyOne(id),
            _ => Beside::Also(&self.tags.any),
        }
    }

    /// The number of next tokens that are unconstrained, without a grammar.
    pub(crate) fn free_for(&self) -> usize {
        match self.place {
            ThinkingState::Start | ThinkingState::Inside(_) => self.left,
            ThinkingState::Opening(_) | ThinkingState::Closing(_) => 0,
            ThinkingState::Gap(_) | ThinkingState::Over => usize::MAX,
        }
    }

    /// Takes the next token; `answers` says whether the answer may begin with it. Returns whether the token
    /// belongs to the answer.
    pub(crate) fn take(&mut self, id: u32, mut answers: impl FnMut() -> bool) -> bool {
        let tags = Arc::clone(&self.tags);
        self.place = match self.place {
            ThinkingState::Over => return true,
            ThinkingState::Start if tags.open.first() == Some(&id) => self.opening(1),
            ThinkingState::Start if tags.spacing.allows(id) && !answers() => ThinkingState::Start,
            ThinkingState::Start => ThinkingState::Over,
            ThinkingState::Opening(at) => self.opening(at + 1),
            ThinkingState::Closing(at) if at + 1 == tags.close.len() => ThinkingState::Gap(0),
            ThinkingState::Closing(at) => ThinkingState::Closing(at + 1),
            ThinkingState::Inside(matched) => {
                self.left = self.left.saturating_sub(1);
                match scan(&tags.closing, matched, tags.shared.bytes(id)) {
                    Scan::Closed(_) => ThinkingState::Gap(0),
                    Scan::Open(_) if self.left == 0 => ThinkingState::Closing(0),
                    Scan::Open(matched) => ThinkingState::Inside(matched),
                }
            }
            ThinkingState::Gap(count) if tags.spacing.allows(id) && !answers() => {
                ThinkingState::Gap(count + 1)
            }
            ThinkingState::Gap(_) => ThinkingState::Over,
        };
        self.place == ThinkingState::Over
    }

    fn opening(&self, behind: usize) -> ThinkingState {
        match (behind == self.tags.open.len(), self.left) {
            (false, _) => ThinkingState::Opening(behind),
            (true, 0) => ThinkingState::Closing(0),
            (true, _) => ThinkingState::Inside(0),
        }
    }

    /// Whether the next token belongs to the reasoning.
    pub(crate) fn is_within(&self) -> bool {
        matches!(self.place, ThinkingState::Inside(_) | ThinkingState::Closing(_))
    }

    /// Ends the reasoning without its tag.
    pub(crate) fn end(&mut self) {
        self.place = ThinkingState::Over;
    }

    /// Whether the reasoning is over.
    pub(crate) fn is_over(&self) -> bool {
        self.place == ThinkingState::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_wherever_it_begins() {
        for (tag, matched, text, rest, open) in [
            ("aab", 0, "aab", Some(""), 0),
            ("aab", 0, "aaab", Some(""), 0),
            ("aab", 0, "xaab y", Some(" y"), 0),
            ("aab", 0, "aabaab", Some("aab"), 0),
            ("aab", 0, "", None, 0),
            ("aab", 0, "xaa", None, 2),
            ("aab", 0, "aax", None, 0),
            ("aab", 2, "b", Some(""), 0),
            ("aab", 2, "ab!", Some("!"), 0),
            ("aab", 2, "a", None, 2),
            ("aab", 2, "xa", None, 1),
            ("aab", 1, "", None, 1),
            ("ababc", 4, "abc", Some(""), 0),
            ("ababc", 4, "bc", None, 0),
            ("aabaaa", 5, "b", None, 3),
            ("a", 0, "a", Some(""), 0),
        ] {
            match scan(tag.as_bytes(), matched, text.as_bytes()) {
                Scan::Closed(found) => {
                    assert_eq!(Some(found), rest.map(str::as_bytes), "{tag} {matched} {text}")
                }
                Scan::Open(found) => assert_eq!((None, found), (rest, open), "{tag} {matched} {text}"),
            }
        }
    }
}
