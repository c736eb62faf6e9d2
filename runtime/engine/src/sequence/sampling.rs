//! A sequence's sampling inputs, updated token by token.

use super::constraint::AnswerConstraint;
use crate::request::EngineError;
use monomorph_grammar::Stopped;
use monomorph_sampling::{Biases, Sampling, TokenBias, TokenMask, TokenUse};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Sampling inputs besides the logits.
#[derive(Debug)]
pub(crate) struct SamplingState {
    parameters: Sampling,
    biases: Biases,
    /// Token counts; `None` unless the sampling parameters need them.
    history: Option<History>,
    /// The answer's constraint, if any.
    constraint: Option<Box<AnswerConstraint>>,
    /// Whether masks are computed when drafts are looked up: they decide which drafts are worth a row.
    masks_first: bool,
}

impl SamplingState {
    /// The state before the first token after `prompt`. With `masks_first` masks are computed before a step
    /// is planned: [`SamplingState::look_ahead`] is called with the drafts it verifies.
    pub fn new(
        prompt: &[u32],
        parameters: Sampling,
        biases: Biases,
        constraint: Option<Box<AnswerConstraint>>,
        masks_first: bool,
    ) -> SamplingState {
        let history = parameters.needs_history().then(|| History::new(prompt));
        SamplingState { parameters, biases, history, constraint, masks_first }
    }

    /// How tokens are chosen.
    pub fn parameters(&self) -> &Sampling {
        &self.parameters
    }

    /// Whether the inputs of the next sample are better bound after the step is submitted: because they
    /// depend on the tokens that are `coming` (counts of a history, biases that look at tokens, constraints),
    /// or because they include masks, which take a while to compute.
    pub fn binds_later(&self, coming: usize) -> bool {
        let counts = self.history.is_some() || self.biases.needs_tokens();
        let constraint = self.constraint.as_ref().filter(|_| !self.masks_first);
        (counts && coming > 0) || constraint.is_some_and(|constraint| constraint.free_for() <= coming)
    }

    /// Replaces the sampling inputs of the token after `tokens` and after each of the `drafts` that the step
    /// verifies.
    ///
    /// # Errors
    /// When no token is allowed next.
    pub fn bind(
        &mut self,
        tokens: &[u32],
        drafts: &[u32],
        history: &mut Vec<TokenUse>,
        biases: &mut Vec<Arc<[TokenBias]>>,
        masks: &mut Vec<TokenMask>,
    ) -> Result<(), EngineError> {
        history.clear();
        biases.clear();
        masks.clear();
        if let Some(known) = &self.history {
            history.extend_from_slice(known.uses());
        }
        if !self.biases.is_none() {
            let mut context = Cow::Borrowed(tokens);
            biases.push(self.biases.after(&context));
            for &draft in drafts {
                if self.biases.needs_tokens() {
                    context.to_mut().push(draft);
                }
                biases.push(self.biases.after(&context));
            }
        }
        if let Some(constraint) = &mut self.constraint {
            if !self.masks_first {
                constraint.look_ahead(drafts)?;
            }
            masks.extend_from_slice(constraint.masks(drafts.len()));
        }
        Ok(())
    }

    /// Computes the masks of a step that verifies `drafts`. Returns whether the first draft is allowed.
    ///
    /// # Errors
    /// When no token is allowed next.
    pub fn look_ahead(&mut self, drafts: &[u32]) -> Result<bool, Stopped> {
        self.constraint.as_mut().map_or(Ok(true), |constraint| constraint.look_ahead(drafts))
    }

    /// Takes a token of the answer.
    ///
    /// # Errors
    /// When it is not allowed here, or the constraint cannot be followed after it.
    pub fn take(&mut self, id: u32) -> Result<(), Stopped> {
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.take(id))?;
        if let Some(history) = &mut self.history {
            history.generated(id);
        }
        Ok(())
    }
}

/// Tokens seen so far with their counts.
#[derive(Debug)]
struct History {
    uses: Vec<TokenUse>,
    places: HashMap<u32, usize>,
}

impl History {
    /// The history of a prompt.
    fn new(prompt: &[u32]) -> History {
        let mut history = History { uses: Vec::new(), places: HashMap::new() };
        for &id in prompt {
            history.seen(id);
        }
        history
    }

    /// Every token once, in the order of first occurrence.
    fn uses(&self) -> &[TokenUse] {
        &self.uses
    }

    fn generated(&mut self, id: u32) {
        self.seen(id).generated += 1;
    }

    fn seen(&mut self, id: u32) -> &mut TokenUse {
        let place = *self.places.entry(id).or_insert(self.uses.len());
        if place == self.uses.len() {
            self.uses.push(TokenUse { id, generated: 0 });
        }
        &mut self.uses[place]
    }
}
