//! One answer's way through a grammar.

use crate::error::GrammarError;
use crate::grammars::{Shared, set};
use crate::thinking::{Beside, Thinking};
use llguidance::Matcher;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// What an answer is held to, behind the tokens that it has taken. A clone goes its own way from there.
pub struct Constraint {
    shared: Arc<Shared>,
    /// `None` where anything may be answered.
    grammar: Option<Matcher>,
    thinking: Option<Thinking>,
    /// What may come next, once that was asked; `None` is anything.
    next: Option<Option<TokenMask>>,
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint {
            shared: Arc::clone(&self.shared),
            // A plain clone shares a cache of the lexer's states behind a lock, which grows with all that use it.
            grammar: self.grammar.as_ref().map(Matcher::deep_clone),
            thinking: self.thinking.clone(),
            next: self.next.clone(),
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("grammar", &self.grammar.is_some())
            .field("thinking", &self.thinking.is_some())
            .finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(
        shared: Arc<Shared>,
        grammar: Option<Matcher>,
        thinking: Option<Thinking>,
    ) -> Constraint {
        Constraint { shared, grammar, thinking, next: None }
    }

    /// With reasoning before the answer.
    pub fn after(self, thinking: Thinking) -> Constraint {
        Constraint { thinking: Some(thinking), next: None, ..self }
    }

    /// Ids that its masks are of.
    pub fn vocabulary(&self) -> usize {
        self.shared.vocabulary
    }

    /// Ids that end the answer: allowed where it is complete, and nothing else is where nothing can follow.
    pub fn end_ids(&self) -> &[u32] {
        &self.shared.ends
    }

    /// How many of the tokens that come next may be any, whatever those before them are: nobody need ask for masks so long.
    pub fn free_for(&self) -> usize {
        match (&self.grammar, &self.thinking) {
            (Some(_), _) => 0,
            (None, Some(thinking)) => thinking.free_for(),
            (None, None) => usize::MAX,
        }
    }

    /// Takes the next token of the answer, which is no end.
    ///
    /// # Errors
    /// When it may not come here.
    pub fn take(&mut self, id: u32) -> Result<(), GrammarError> {
        self.next = None;
        self.advance(id).map(drop)
    }

    /// What may come next, and behind each of `drafts` that may come and is no end, as if it had: as many masks as of the drafts may
    /// come one after another, and one; or none where any token may come in all of these places.
    ///
    /// # Errors
    /// When nothing may come, or it takes too much to find out.
    pub fn masks(&mut self, drafts: &[u32], into: &mut Vec<TokenMask>) -> Result<(), GrammarError> {
        into.clear();
        let next = match self.next.take() {
            Some(next) => next,
            None => self.allowed()?,
        };
        self.next = Some(next.clone());
        if next.is_none() && drafts.len() < self.free_for() {
            return Ok(());
        }
        into.push(next.unwrap_or_else(|| self.any()));
        if drafts.is_empty() {
            return Ok(());
        }
        let thinking = self.thinking.clone();
        let mut taken = 0;
        for id in drafts {
            if self.shared.ends.contains(id) || !into.last().is_some_and(|mask| mask.allows(*id)) {
                break;
            }
            taken += usize::from(self.advance(*id)?);
            let allowed = self.allowed()?;
            into.push(allowed.unwrap_or_else(|| self.any()));
        }
        self.thinking = thinking;
        if let Some(grammar) = &mut self.grammar
            && taken > 0
        {
            grammar.rollback(taken).map_err(|error| failed(&error.to_string()))?;
        }
        Ok(())
    }

    /// Goes on behind a token; whether the grammar took it.
    fn advance(&mut self, id: u32) -> Result<bool, GrammarError> {
        let id = self.shared.in_trie(id);
        let grammar = &mut self.grammar;
        if let Some(thinking) = &mut self.thinking
            && !thinking.is_over()
        {
            let mut answers =
                || grammar.as_mut().is_some_and(|it| it.validate_tokens(&[id]).is_ok_and(|count| count > 0));
            if !thinking.take(id, &mut answers) {
                return Ok(false);
            }
        }
        let Some(grammar) = grammar else { return Ok(false) };
        match grammar.consume_token(id) {
            Ok(()) => Ok(true),
            Err(error) => Err(failed(&error.to_string())),
        }
    }

    /// What may come next; `None` is anything.
    fn allowed(&mut self) -> Result<Option<TokenMask>, GrammarError> {
        let one = |id: u32| Ok(Some(TokenMask::of(self.shared.vocabulary, [id])));
        let beside = match (&self.thinking, &self.grammar) {
            (None, _) => Beside::Nothing,
            (Some(thinking), Some(_)) => thinking.beside(),
            (Some(thinking), None) => thinking.alone(),
        };
        match (&beside, &mut self.grammar) {
            (Beside::Only(mask), _) => Ok(Some((*mask).clone())),
            (Beside::OnlyOne(id), _) => one(*id),
            (_, None) => Ok(None),
            (_, Some(grammar)) => {
                let allowed = grammar.compute_mask_or_eos().map_err(|error| failed(&error.to_string()))?;
                let mut words = self.shared.mask(allowed.as_slice());
                match beside {
                    Beside::Also(mask) => {
                        words.iter_mut().zip(mask.words()).for_each(|(word, also)| *word |= also);
                    }
                    Beside::AlsoOne(id) => set(&mut words, id, true),
                    Beside::Nothing | Beside::Only(_) | Beside::OnlyOne(_) => {}
                }
                if words.iter().all(|word| *word == 0) {
                    return Err(GrammarError::new("allows no token here"));
                }
                Ok(Some(TokenMask::new(words)))
            }
        }
    }

    /// The mask of all tokens.
    fn any(&self) -> TokenMask {
        TokenMask::of(self.shared.vocabulary, 0..self.shared.vocabulary as u32)
    }
}

/// What the library says when it cannot go on.
fn failed(message: &str) -> GrammarError {
    GrammarError::new(format!("cannot be followed: {}", message.lines().next().unwrap_or(message)))
}
