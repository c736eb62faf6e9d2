//! Reasoning before an answer: free, but for the tags around it and a budget.

use crate::grammars::Shared;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// Tokens of spacing between the closing tag and the answer, at most.
const GAP: usize = 4;

/// The tags around a model's reasoning, and what its tokens have to do with them; made once a server.
#[derive(Debug)]
pub struct Tags {
    open: Vec<u32>,
    close: Vec<u32>,
    /// The bytes of `close`.
    closing: Vec<u8>,
    /// By how many bytes of the closing tag the text so far ends with: the ids that would complete it and go
    /// on with something else than spacing; and those of the ids that end an answer.
    inside: Vec<TokenMask>,
    /// All ids.
    any: TokenMask,
    /// Ids of nothing but spacing.
    spacing: TokenMask,
    shared: Arc<Shared>,
}

impl Tags {
    /// Of the ids of a tag each; the closing one's should spell nothing but the tag.
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

/// What a token's bytes do to a closing tag of which so many bytes were matched.
pub(crate) enum Scan<'a> {
    /// It is complete, and these bytes follow.
    Closed(&'a [u8]),
    /// So many bytes are matched.
    Open(usize),
}

/// Looks for the rest of `tag` and for all of it.
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

/// The longest proper beginning of `tag` that the first `matched` bytes end with. Tags are short.
fn border(tag: &[u8], matched: usize) -> usize {
    (0..matched).rev().find(|length| tag[..matched].ends_with(&tag[..*length])).unwrap_or(0)
}

/// Where an answer that may begin with reasoning stands.
#[derive(Clone, Debug)]
pub struct Thinking {
    tags: Arc<Tags>,
    /// Tokens left before it has to end.
    left: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before anything but spacing.
    Start,
    /// Behind so many tokens of the opening tag.
    Opening(usize),
    /// Within, behind so many bytes of the closing tag.
    Inside(usize),
    /// Behind so many tokens of the closing tag, which has to come.
    Closing(usize),
    /// Behind it, and so many tokens of spacing.
    Gap(usize),
    /// In the answer.
    Over,
}

/// What may come, beside what the grammar says.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// Nothing: the grammar says all.
    Nothing,
    /// These too.
    Also(&'a TokenMask),
    /// This id too.
    AlsoOne(u32),
    /// These, whatever the grammar says.
    Only(&'a TokenMask),
    /// This id, whatever the grammar says.
    OnlyOne(u32),
}

impl Thinking {
    /// At the beginning of an answer, within reasoning if the prompt `opened` it, that may reason for
    /// `budget` tokens.
    pub fn new(tags: &Arc<Tags>, opened: bool, budget: Option<usize>) -> Thinking {
        let left = budget.unwrap_or(usize::MAX);
        let place = match (opened, left, tags.close.is_empty()) {
            (_, _, true) => Place::Over,
            (true, 0, _) => Place::Closing(0),
            (true, ..) => Place::Inside(0),
            (false, ..) => Place::Start,
        };
        Thinking { tags: Arc::clone(tags), left, place }
    }

    /// What may come next.
    pub(crate) fn beside(&self) -> Beside<'_> {
        let tags = &self.tags;
        match self.place {
            Place::Start => tags.open.first().map_or(Beside::Nothing, |id| Beside::AlsoOne(*id)),
            Place::Opening(at) => Beside::OnlyOne(tags.open[at]),
            Place::Inside(matched) => Beside::Only(&tags.inside[matched]),
            Place::Closing(at) => Beside::OnlyOne(tags.close[at]),
            Place::Gap(GAP..) | Place::Over => Beside::Nothing,
            Place::Gap(_) => Beside::Also(&tags.spacing),
        }
    }

    /// As [`Self::beside`] where no grammar follows: within reasoning an answer may end, and before and
    /// behind it anything may come.
    pub(crate) fn alone(&self) -> Beside<'_> {
        match self.beside() {
            Beside::OnlyOne(id) => Beside::OnlyOne(id),
            _ => Beside::Also(&self.tags.any),
        }
    }

    /// How many tokens may be any before one that may not, where no grammar follows.
    pub(crate) fn free_for(&self) -> usize {
        match self.place {
            Place::Start | Place::Inside(_) => self.left,
            Place::Opening(_) | Place::Closing(_) => 0,
            Place::Gap(_) | Place::Over => usize::MAX,
        }
    }

    /// Takes the next token, of which `answers` says whether it is one that the answer may begin with;
    /// whether it is.
    pub(crate) fn take(&mut self, id: u32, mut answers: impl FnMut() -> bool) -> bool {
        let tags = Arc::clone(&self.tags);
        self.place = match self.place {
            Place::Over => return true,
            Place::Start if tags.open.first() == Some(&id) => self.opening(1),
            Place::Start if tags.spacing.allows(id) && !answers() => Place::Start,
            Place::Start => Place::Over,
            Place::Opening(at) => self.opening(at + 1),
            Place::Closing(at) if at + 1 == tags.close.len() => Place::Gap(0),
            Place::Closing(at) => Place::Closing(at + 1),
            Place::Inside(matched) => {
                self.left = self.left.saturating_sub(1);
                match scan(&tags.closing, matched, tags.shared.bytes(id)) {
                    Scan::Closed(_) => Place::Gap(0),
                    Scan::Open(_) if self.left == 0 => Place::Closing(0),
                    Scan::Open(matched) => Place::Inside(matched),
                }
            }
            Place::Gap(count) if tags.spacing.allows(id) && !answers() => Place::Gap(count + 1),
            Place::Gap(_) => Place::Over,
        };
        self.place == Place::Over
    }

    fn opening(&self, behind: usize) -> Place {
        match (behind == self.tags.open.len(), self.left) {
            (false, _) => Place::Opening(behind),
            (true, 0) => Place::Closing(0),
            (true, _) => Place::Inside(0),
        }
    }

    /// Whether what comes next belongs to it.
    pub(crate) fn is_within(&self) -> bool {
        matches!(self.place, Place::Inside(_) | Place::Closing(_))
    }

    /// It is over without its tag.
    pub(crate) fn end(&mut self) {
        self.place = Place::Over;
    }

    /// Whether nothing of it is left to come.
    pub(crate) fn is_over(&self) -> bool {
        self.place == Place::Over
    }
}
