//! The scanner for tags.

use std::collections::VecDeque;

/// Finds tags in text that comes character by character. What a tag is may change from one character to the
/// next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scanner {
    /// Read and not yet decided on: the beginning of a tag.
    held: String,
    /// Of each character held, whether it is of a control token.
    control: VecDeque<bool>,
}

/// What was found.
pub(crate) enum Found {
    /// The tag with this index in the list.
    Tag(usize),
    /// A character that belongs to no tag, and whether it is of a control token.
    Plain(char, bool),
}

impl Scanner {
    /// Takes one character, of a control token or not; call [`Scanner::next`] until it finds nothing more.
    pub(crate) fn push(&mut self, character: char, control: bool) {
        self.held.push(character);
        self.control.push_back(control);
    }

    /// Puts a character back that was found to be plain: it may begin a tag of those that count now.
    pub(crate) fn unread(&mut self, character: char, control: bool) {
        self.held.insert(0, character);
        self.control.push_front(control);
    }

    /// The next thing that is certain. No tag may begin another one of the same list.
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

    /// What is held: less than the longest tag.
    pub(crate) fn held(&self) -> &str {
        &self.held
    }

    /// Ends the text: the beginning of a tag that never came to its end.
    pub(crate) fn finish(&mut self) -> String {
        self.control.clear();
        std::mem::take(&mut self.held)
    }
}
