//! The constraint of an answer, and the masks that follow from it for the next step.

use monomorph_grammar::{Constraint, Stopped};
use monomorph_sampling::TokenMask;

/// A constraint that has seen all of an answer's tokens, and the masks of the tokens that come next.
#[derive(Debug)]
pub(crate) struct AnswerConstraint {
    constraint: Constraint,
    /// As they were looked at last: none where any token may come next, also behind the drafts; else that of
    /// the next token, and those behind as many drafts as may come.
    masks: Vec<TokenMask>,
}

impl AnswerConstraint {
    /// Before the first token.
    ///
    /// # Errors
    /// When no token may be the first.
    pub fn new(constraint: Constraint) -> Result<AnswerConstraint, Stopped> {
        let mut new = AnswerConstraint { constraint, masks: Vec::new() };
        new.look_ahead(&[])?;
        Ok(new)
    }

    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// When it may not come here, or the grammar cannot be followed behind it.
    pub fn take(&mut self, id: u32) -> Result<(), Stopped> {
        self.constraint.take(id)
    }

    /// Computes the masks of the next step, which verifies these drafts. Whether the first of them may come.
    ///
    /// # Errors
    /// When no token may come next.
    pub fn look_ahead(&mut self, drafts: &[u32]) -> Result<bool, Stopped> {
        self.constraint.masks(drafts, &mut self.masks)?;
        Ok(self.masks.len() != 1)
    }

    /// The masks of a step that verifies so many of the drafts, all or none.
    pub fn masks(&self, drafts: usize) -> &[TokenMask] {
        &self.masks[..self.masks.len().min(1 + drafts)]
    }

    /// How many of the tokens that come next may be any, whatever they are.
    pub fn free_for(&self) -> usize {
        self.constraint.free_for()
    }
}
