//! Detects the beginning of calls in otherwise free text.

use crate::head::Head;
use crate::shared::Shared;
use crate::thinking::{Scan, scan};
use llguidance::Matcher;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// A tag that begins a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener<'a> {
    /// The tag as text.
    pub text: &'a str,
    /// The tag as a control token, if the vocabulary has one.
    pub token: Option<u32>,
}

/// The tags that begin a call, prepared for a model's vocabulary; built once per server.
#[derive(Debug)]
pub struct Openers {
    tags: Vec<Tag>,
    /// Tokens that may end a tool's name, for calls without tags.
    quotes: Vec<u32>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Tag {
    text: Vec<u8>,
    token: Option<u32>,
    /// Tokens for the grammar when the tag was read.
    told: Vec<u32>,
    /// By the number of bytes of the tag that the text so far ends with: the tokens that would complete it
    /// and continue, each with the tokens of its remaining bytes.
    beyond: Vec<Vec<(u32, Vec<u32>)>>,
}

impl Openers {
    /// Prepares the tags.
    pub(crate) fn new(shared: Arc<Shared>, openers: &[Opener]) -> Openers {
        let tokens = |text: &[u8]| shared.tokens(text);
        let tag = |opener: &Opener| {
            let text = opener.text.as_bytes().to_vec();
            let told = opener.token.map_or_else(|| tokens(&text), |id| vec![id]);
            let last = text.last().copied().unwrap_or_default();
            let runs_on = |id: &u32| {
                let bytes = shared.text(*id);
                bytes.iter().position(|byte| *byte == last).is_some_and(|at| at + 1 < bytes.len())
            };
            let candidates: Vec<u32> = (0..shared.vocabulary as u32).filter(runs_on).collect();
            let beyond = (0..text.len()).map(|matched| {
                let rest = |id: &u32| match scan(&text, matched, shared.text(*id)) {
                    Scan::Closed(rest) if !rest.is_empty() => Some((*id, tokens(rest))),
                    _ => None,
                };
                candidates.iter().filter_map(rest).collect()
            });
            let beyond = beyond.collect();
            Tag { text, token: opener.token, told, beyond }
        };
        let tags = openers.iter().map(tag).collect();
        let quotes = (0..shared.vocabulary as u32).filter(|id| shared.text(*id).contains(&b'"')).collect();
        Openers { tags, quotes, shared: Arc::clone(&shared) }
    }

    /// Masks for each tag and each prefix of it. They exclude ids that complete the tag and continue in a way
    /// that `grammar`, which describes calls, does not accept.
    pub(crate) fn forbid(&self, grammar: &Matcher) -> Arc<Vec<Vec<Option<TokenMask>>>> {
        let of_tag = |tag: &Tag| {
            let mut behind = grammar.deep_clone();
            let follows = behind.consume_tokens(&tag.told).is_ok();
            let mut allowed =
                |rest: &[u32]| follows && behind.validate_tokens(rest).is_ok_and(|count| count == rest.len());
            let of_place = |beyond: &Vec<(u32, Vec<u32>)>| {
                let bad: Vec<u32> =
                    beyond.iter().filter(|(_, rest)| !allowed(rest)).map(|(id, _)| *id).collect();
                self.shared.all_but(&bad)
            };
            tag.beyond.iter().map(of_place).collect()
        };
        Arc::new(self.tags.iter().map(of_tag).collect())
    }
}

/// The state of an answer that may contain calls.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    openers: Arc<Openers>,
    allowed: Arc<Vec<Vec<Option<TokenMask>>>>,
    /// For each tag, how many bytes of it the text ends with.
    matched: Vec<usize>,
    /// For calls without tags.
    head: Option<Head>,
    /// Whether text between calls is free.
    pub(crate) free: bool,
    /// Whether the grammar constrains the current text: a call, or the whole answer.
    pub(crate) held: bool,
}

impl Watch {
    pub(crate) fn new(openers: &Arc<Openers>, head: Option<Head>, grammar: &Matcher, free: bool) -> Watch {
        Watch {
            openers: Arc::clone(openers),
            allowed: openers.forbid(grammar),
            matched: vec![0; openers.tags.len()],
            head,
            free,
            held: !free,
        }
    }

    /// The mask of the next token in free text, if not all are allowed. Within reasoning, only the first tag
    /// counts.
    pub(crate) fn mask(&self, reasoning: bool, grammar: &mut Matcher) -> Option<TokenMask> {
        let Openers { quotes, shared, .. } = &*self.openers;
        match &self.head {
            Some(head) if !reasoning => head.mask(shared, quotes, grammar),
            _ => self.mask_of_tags(reasoning),
        }
    }

    /// [`Self::mask`] for tags.
    fn mask_of_tags(&self, reasoning: bool) -> Option<TokenMask> {
        let places = self.allowed.iter().zip(&self.matched).take(if reasoning { 1 } else { usize::MAX });
        let masks = places.filter_map(|(allowed, matched)| allowed[*matched].as_ref());
        masks.fold(None, |all, mask| match all {
            None => Some(mask.clone()),
            Some(all) => Some(both(&all, mask)),
        })
    }

    /// The number of next tokens that are unconstrained.
    pub(crate) fn free_for(&self, reasoning: bool) -> usize {
        match &self.head {
            Some(head) if !reasoning && head.is_open() => 0,
            Some(_) if !reasoning => usize::MAX,
            _ => usize::from(self.mask_of_tags(reasoning).is_none()),
        }
    }

    /// Sets whether the grammar constrains the following text; if not, a call is over.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
        if let Some(head) = self.head.as_mut().filter(|_| !held) {
            head.go_on();
        }
    }

    /// Forgets partial tags.
    pub(crate) fn forget(&mut self) {
        self.matched.fill(0);
    }

    /// Takes a token of free text; if it begins a call, returns the tokens for the grammar.
    pub(crate) fn take(&mut self, id: u32, reasoning: bool) -> Option<Vec<u32>> {
        let openers = Arc::clone(&self.openers);
        if let Some(head) = self.head.as_mut().filter(|_| !reasoning) {
            return head.take(&openers.shared, openers.shared.text(id));
        }
        let looked_for = if reasoning { 1 } else { openers.tags.len() };
        for (tag, matched) in openers.tags.iter().zip(&mut self.matched).take(looked_for) {
            let bytes = openers.shared.text(id);
            let begun = match scan(&tag.text, *matched, bytes) {
                _ if tag.token == Some(id) => Some(tag.told.clone()),
                Scan::Closed(rest) => {
                    let beyond = tag.beyond[*matched].iter().find(|(other, _)| *other == id);
                    let rest = if rest.is_empty() { None } else { beyond.map(|(_, rest)| rest) };
                    Some(tag.told.iter().chain(rest.into_iter().flatten()).copied().collect())
                }
                Scan::Open(now) => {
                    *matched = now;
                    None
                }
            };
            if begun.is_some() {
                self.forget();
                return begun;
            }
        }
        None
    }
}

/// The intersection of two masks.
pub(crate) fn both(one: &TokenMask, other: &TokenMask) -> TokenMask {
    TokenMask::new(one.words().iter().zip(other.words()).map(|(one, other)| one & other).collect::<Vec<_>>())
}
