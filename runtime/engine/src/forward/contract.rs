//! What a model may answer to a row. Anything else stops the engine with an error: to go on would mix up
//! tokens.

use super::row::Row;
use monomorph_model::{ModelSpec, RowOutput};
use monomorph_sampling::Sampled;

/// Checks a model's output against its specification.
#[derive(Debug)]
pub(super) struct Contract {
    spec: &'static ModelSpec,
}

/// The expected output of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expects {
    Nothing,
    /// Logits of this many positions.
    Logits(usize),
    Token,
    Verified,
}

impl Contract {
    pub fn new(spec: &'static ModelSpec) -> Contract {
        Contract { spec }
    }

    /// Positions that a step may write behind what it feeds a sampling sequence, `drafts` among that; its
    /// blocks must hold them too.
    pub fn ahead(&self, drafts: usize) -> usize {
        self.spec.ahead(drafts)
    }

    /// The expected output of a row.
    pub fn expects(&self, row: &Row) -> Expects {
        match (row.scores, row.samples, self.spec.drafts()) {
            (Some(first), _, _) => Expects::Logits(row.end - first),
            (None, false, _) => Expects::Nothing,
            (None, true, 0) => Expects::Token,
            (None, true, _) => Expects::Verified,
        }
    }

    /// Checks the logits of row `at`, which was fed `fed` tokens.
    ///
    /// # Errors
    /// When there are too few or too many.
    pub fn check_logits(&self, at: usize, fed: usize, logits: &[f32]) -> Result<(), String> {
        let (got, due) = (logits.len(), fed * self.spec.vocabulary);
        if got == due {
            return Ok(());
        }
        Err(format!("the model answered row {at} with {got} logits, and {due} are due for {fed} tokens"))
    }

    /// Checks a token sampled for row `at`.
    ///
    /// # Errors
    /// When the vocabulary has no such token.
    pub fn check_token(&self, at: usize, id: u32) -> Result<(), String> {
        self.check_id(at, "sampled", id)
    }

    /// Checks what was sampled and drafted for row `at`, which was fed the drafts `fed`.
    ///
    /// # Errors
    /// When there are no tokens or too many, one but the last is not the draft fed in its place, drafts are
    /// too few or too many, or the vocabulary lacks one of them.
    pub fn check_verified(
        &self,
        at: usize,
        fed: &[u32],
        sampled: &[Sampled],
        drafts: &[u32],
    ) -> Result<(), String> {
        let Some((_, held)) = sampled.split_last() else {
            return Err(format!(
                "row {at} asked the model for a sampled token and got verified drafts without one"
            ));
        };
        if held.len() > fed.len() {
            let (accepted, fed) = (held.len(), fed.len());
            return Err(format!("the model accepted {accepted} drafts in row {at}, which was fed {fed}"));
        }
        for (place, (sampled, &draft)) in held.iter().zip(fed).enumerate() {
            if sampled.id != draft {
                let id = sampled.id;
                return Err(format!(
                    "the model accepted draft {place} of row {at} as token {id}, and it was fed as {draft}"
                ));
            }
        }
        let due = self.spec.drafted();
        if drafts.len() != due {
            let got = drafts.len();
            return Err(format!("the model drafted {got} tokens in row {at}, and {due} are due"));
        }
        sampled.iter().try_for_each(|sampled| self.check_id(at, "sampled", sampled.id))?;
        drafts.iter().try_for_each(|&id| self.check_id(at, "drafted", id))
    }

    fn check_id(&self, at: usize, what: &str, id: u32) -> Result<(), String> {
        let vocabulary = self.spec.vocabulary;
        if (id as usize) < vocabulary {
            return Ok(());
        }
        Err(format!("the model {what} token {id} of a vocabulary of {vocabulary} in row {at}"))
    }
}

/// The error for a row whose output has the wrong kind.
pub(super) fn unasked(at: usize, expects: Expects, output: &RowOutput) -> String {
    let asked = match expects {
        Expects::Nothing => "nothing",
        Expects::Logits(_) => "logits",
        Expects::Token => "a sampled token",
        Expects::Verified => "verified drafts",
    };
    let got = match output {
        RowOutput::None => "nothing",
        RowOutput::Sampled(_) => "a sampled token",
        RowOutput::Verified(_) => "verified drafts",
        RowOutput::Logits(_) => "logits",
        RowOutput::Lost(_) => "nothing, for what it has lost",
    };
    format!("row {at} asked the model for {asked} and got {got}")
}
