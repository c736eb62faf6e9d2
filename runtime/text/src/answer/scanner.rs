//! The scanner for tags.

use std::collections::VecDeque;

/// Finds tags in text that arrives character by character. The set of tags may change with each character.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scanner {
    /// Undecided text: the beginning of a tag.
    held: String,
    /// For each character held, whether it belongs to a control token.
    control: VecDeque<bool>,
}

/// A decided part of the text.
pub(crate) enum Found {
    /// The tag with this index in the list.
    Tag(usize),
    /// A character that belongs to no tag, and whether it belongs to a control token.
    Plain(char, bool),
}

impl Scanner {
    /// Adds one character, of a control token or not; then call [`Scanner::next`] until it finds nothing
    /// more.
    pub(crate) fn push(&mut self, character: char, control: bool) {
        self.held.push(character);
        self.control.push_back(control);
    }

    /// Puts back a plain character: it may begin one of the tags that count now.
    pub(crate) fn unread(&mut self, character: char, control: bool) {
        self.held.insert(0, character);
        self.control.push_front(control);
    }

    /// The next decided part. No tag may begin with another of the same list.
    pub(crate) fn next(&mut self, tags: &[&'static str]) -> Option<Found> {
        let first = self.held.chars().next()?;
        if let Some(index) = tags.iter().position(|tag| self.held.starts_with(tag)) {
            self.held.drain(..tags[index].len());
            self.control.drain(..tags[index].chars().count());
            return Some(Found::Tag(index));
        }
        if tags.iter().any(|tag| tag.starts_with(&self.held)) {
            return None;
        }
        self.held.drain(..first.len_utf8());
        Some(Found::Plain(first, self.control.pop_front().unwrap_or(false)))
    }

    /// The undecided text: shorter than the longest tag.
    pub(crate) fn held(&self) -> &str {
        &self.held
    }

    /// Ends the text; returns the beginning of an incomplete tag.
    pub(crate) fn finish(&mut self) -> String {
        self.control.clear();
        std::mem::take(&mut self.held)
    }
}
