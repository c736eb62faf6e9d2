//! The constraint of an answer, and the masks that follow from it for the next step.

use monomorph_grammar::{Constraint, Stopped};
use monomorph_sampling::TokenMask;

/// A constraint advanced over all of an answer's tokens, and the masks of the next tokens.
#[derive(Debug)]
pub(crate) struct AnswerConstraint {
    constraint: Constraint,
    /// Masks as computed last: none if every next token is allowed, also behind the drafts; otherwise that of
    /// the next token and those behind the allowed drafts.
    masks: Vec<TokenMask>,
}

impl AnswerConstraint {
    /// The constraint before the first token.
    ///
    /// # Errors
    /// When no token is allowed first.
    pub fn new(constraint: Constraint) -> Result<AnswerConstraint, Stopped> {
        let mut new = AnswerConstraint { constraint, masks: Vec::new() };
        new.look_ahead(&[])?;
        Ok(new)
    }

    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// When it is not allowed here, or the grammar cannot be followed after it.
    pub fn take(&mut self, id: u32) -> Result<(), Stopped> {
        self.constraint.take(id)
    }

    /// Computes the masks of the next step, which verifies these drafts. Returns whether the first draft is
    /// allowed.
    ///
    /// # Errors
    /// When no token is allowed next.
    pub fn look_ahead(&mut self, drafts: &[u32]) -> Result<bool, Stopped> {
        self.constraint.masks(drafts, &mut self.masks)?;
        Ok(self.masks.len() != 1)
    }

    /// The masks of a step that verifies so many of the drafts, all or none.
    pub fn masks(&self, drafts: usize) -> &[TokenMask] {
        &self.masks[..self.masks.len().min(1 + drafts)]
    }

    /// How many of the next tokens are unconstrained, whatever they are.
    pub fn free_for(&self) -> usize {
        self.constraint.free_for()
    }
}
