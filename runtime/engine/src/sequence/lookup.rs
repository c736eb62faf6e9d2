//! Drafts by n-gram lookup (prompt lookup): the tokens that followed the last occurrence of the current
//! n-gram.
//!
//! The index keeps where each n-gram of a sequence ended last. Every new token is looked up with those before
//! it, longest n-gram first, and added: nothing is scanned again. The drafts are the tokens that followed the
//! match; where these reach the end they repeat, so that a text of any period goes on. There are always as
//! many drafts as asked for, or none.
//!
//! Drafts that are all rejected still cost their verification. So the sequence then pauses drafting for one
//! step, the next time for three, seven, and so on up to [`LONGEST_REST`], until a draft is accepted again.

#[cfg(test)]
mod tests;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::{BuildHasher, RandomState};

/// Upper bound of the n-gram length: an index of each length takes memory and time.
pub const LONGEST_NGRAM: usize = 8;
/// Longest pause in drafting, in steps.
const LONGEST_REST: u32 = 31;

/// Which n-grams are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupOptions {
    /// The longest, in tokens; at most [`LONGEST_NGRAM`].
    pub most: usize,
    /// The shortest; at least 1 and at most `most`.
    pub least: usize,
}

impl Default for LookupOptions {
    fn default() -> LookupOptions {
        LookupOptions { most: 4, least: 2 }
    }
}

impl LookupOptions {
    /// Checks the lengths; the error says what would be right.
    pub(crate) fn check(&self) -> Result<(), String> {
        let LookupOptions { most, least } = *self;
        if least == 0 || least > most || most > LONGEST_NGRAM {
            return Err(format!(
                "n-grams of {least} to {most} tokens cannot be looked up: the shortest must be at least 1, the longest no shorter and at most {LONGEST_NGRAM}"
            ));
        }
        Ok(())
    }
}

/// The n-gram index of one sequence, and the record of its drafts.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Drafts at a time.
    drafts: usize,
    least: usize,
    hasher: RandomState,
    /// By n-gram length, from `least` on: the position after the last occurrence of each n-gram.
    ends: Vec<HashTable<u32>>,
    /// Tokens in the index.
    known: usize,
    /// Position after the last occurrence of the longest n-gram that ends the tokens.
    found: Option<usize>,
    /// Steps to go without drafts.
    rest: u32,
    /// Length of the next pause after a full rejection, in steps.
    next_rest: u32,
}

impl Lookup {
    /// An empty index, for `drafts` drafts at a time.
    pub fn new(options: LookupOptions, drafts: usize) -> Lookup {
        let LookupOptions { most, least } = options;
        Lookup {
            drafts,
            least,
            hasher: RandomState::new(),
            ends: (least..=most).map(|_| HashTable::new()).collect(),
            known: 0,
            found: None,
            rest: 0,
            next_rest: 1,
        }
    }

    /// Adds a sequence's tokens since the last call.
    pub fn learn(&mut self, tokens: &[u32]) {
        let hasher = &self.hasher;
        for end in self.known + 1..=tokens.len() {
            self.found = None;
            for (n, ends) in (self.least..).zip(&mut self.ends).take_while(|(n, _)| *n <= end) {
                let ngram = |end: u32| &tokens[end as usize - n..end as usize];
                let here = end as u32;
                let hash = |end: &u32| hasher.hash_one(ngram(*end));
                match ends.entry(hash(&here), |end| ngram(*end) == ngram(here), hash) {
                    // The longest comes last.
                    Entry::Occupied(mut entry) => {
                        self.found = Some(std::mem::replace(entry.get_mut(), here) as usize);
                    }
                    Entry::Vacant(entry) => drop(entry.insert(here)),
                }
            }
        }
        self.known = tokens.len();
    }

    /// Records how many of a step's drafts were accepted, if it had any.
    pub fn judge(&mut self, held: usize) {
        if held > 0 {
            self.next_rest = 1;
        } else {
            self.rest = self.next_rest;
            self.next_rest = (2 * self.next_rest + 1).min(LONGEST_REST);
        }
    }

    /// The drafts to verify behind `tokens`, which must be indexed. None if their last n-gram is new, if
    /// drafting pauses, or if the sequence `ends` with the next token.
    pub fn draft(&mut self, tokens: &[u32], ends: bool) -> Vec<u32> {
        if self.rest > 0 {
            self.rest -= 1;
            return Vec::new();
        }
        let Some(found) = self.found.filter(|_| !ends) else { return Vec::new() };
        let period = tokens.len() - found;
        let mut drafts: Vec<u32> = Vec::with_capacity(self.drafts);
        for at in 0..self.drafts {
            let id = if at < period { tokens[found + at] } else { drafts[at - period] };
            drafts.push(id);
        }
        drafts
    }
}
