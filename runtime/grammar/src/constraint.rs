//! The state of a grammar within one answer.

use crate::error::{GrammarError, Stopped};
use crate::head::Head;
use crate::shared::{Shared, set};
use crate::thinking::{Beside, Thinking};
use crate::watch::{Openers, Watch, both};
use crate::words;
use llguidance::Matcher;
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// The constraint of an answer, after the tokens it has taken. Clones are independent.
pub struct Constraint {
    shared: Arc<Shared>,
    /// `None` if any answer is allowed.
    grammar: Option<Matcher>,
    thinking: Option<Thinking>,
    /// For answers that may contain calls, which the grammar describes.
    watch: Option<Watch>,
    /// The cached mask for the next token; an inner `None` allows anything.
    next: Option<Option<TokenMask>>,
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint {
            shared: Arc::clone(&self.shared),
            // A plain clone shares a locked cache of lexer states, which grows with all its users.
            grammar: self.grammar.as_ref().map(Matcher::deep_clone),
            thinking: self.thinking.clone(),
            watch: self.watch.clone(),
            next: self.next.clone(),
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("grammar", &self.grammar.is_some())
            .field("thinking", &self.thinking.is_some())
            .field("watch", &self.watch.is_some())
            .finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(
        shared: Arc<Shared>,
        grammar: Option<Matcher>,
        thinking: Option<Thinking>,
    ) -> Constraint {
        Constraint { shared, grammar, thinking, watch: None, next: None }
    }

    /// With reasoning before the answer.
    pub fn after(self, thinking: Thinking) -> Constraint {
        Constraint { thinking: Some(thinking), next: None, ..self }
    }

    /// Allows calls that one of these tags begins: within the reasoning, which the first tag ends, and, if
    /// the answer is `free`, anywhere in it. The grammar of a `free` answer describes only the calls, one
    /// after another.
    pub fn watching(self, openers: &Arc<Openers>, free: bool) -> Constraint {
        let watch = self.grammar.as_ref().map(|grammar| Watch::new(openers, None, grammar, free));
        Constraint { watch, next: None, ..self }
    }

    /// Allows calls as JSON without tags. All else is free, except that the beginning of the answer, and of
    /// the text after a call, must follow the grammar once it names one of these tools.
    pub fn watching_names(self, openers: &Arc<Openers>, names: &Arc<[String]>) -> Constraint {
        let head = Head::new(names);
        let watch = self.grammar.as_ref().map(|grammar| Watch::new(openers, Some(head), grammar, true));
        Constraint { watch, next: None, ..self }
    }

    /// Number of ids in its masks.
    pub fn vocabulary(&self) -> usize {
        self.shared.vocabulary
    }

    /// Ids that end the answer: allowed when it is complete, and the only ones allowed when nothing can
    /// follow.
    pub fn end_ids(&self) -> &[u32] {
        &self.shared.ends
    }

    /// The number of next tokens that are unconstrained, whatever comes before them; no masks are needed for
    /// them.
    pub fn free_for(&self) -> usize {
        let thinking = self.thinking.as_ref().map_or(usize::MAX, Thinking::free_for);
        match (&self.grammar, &self.watch) {
            (Some(_), Some(watch)) if !watch.held => thinking.min(watch.free_for(self.reasons())),
            (Some(_), _) => 0,
            (None, _) => thinking,
        }
    }

    /// Takes the next token of the answer, other than an end id.
    ///
    /// # Errors
    /// When it is not allowed here.
    pub fn take(&mut self, id: u32) -> Result<(), Stopped> {
        self.next = None;
        self.advance(id).map(drop)
    }

    /// Computes the mask of the next token, and the mask after each of `drafts`, up to the first draft that
    /// is not allowed or is an end: one mask more than accepted drafts. Leaves `into` empty if any token is
    /// allowed in all of these places.
    ///
    /// # Errors
    /// When no token is allowed, or the mask takes too much work.
    pub fn masks(&mut self, drafts: &[u32], into: &mut Vec<TokenMask>) -> Result<(), Stopped> {
        into.clear();
        let next = match self.next.take() {
            Some(next) => next,
            None => self.allowed()?,
        };
        self.next = Some(next.clone());
        if next.is_none() && drafts.len() < self.free_for() {
            return Ok(());
        }
        let (thinking, watch) = (self.thinking.clone(), self.watch.clone());
        let (mut masks, mut taken) = (vec![next], 0);
        for id in drafts {
            let allowed = masks.last().is_some_and(|mask| mask.as_ref().is_none_or(|mask| mask.allows(*id)));
            if self.shared.ends.contains(id) || !allowed {
                break;
            }
            taken += self.advance(*id)?;
            masks.push(self.allowed()?);
        }
        (self.thinking, self.watch) = (thinking, watch);
        if let Some(grammar) = &mut self.grammar
            && taken > 0
        {
            grammar.rollback(taken).map_err(|error| failed(&error.to_string()))?;
        }
        if masks.iter().any(Option::is_some) {
            into.extend(masks.into_iter().map(|mask| mask.unwrap_or_else(|| self.shared.any())));
        }
        Ok(())
    }

    /// Whether the next token belongs to the reasoning.
    fn reasons(&self) -> bool {
        self.thinking.as_ref().is_some_and(Thinking::is_within)
    }

    /// Advances past a token; returns how many tokens the grammar consumed.
    fn advance(&mut self, id: u32) -> Result<usize, Stopped> {
        let id = self.shared.in_trie(id);
        let free = self.watch.as_ref().is_some_and(|watch| !watch.held);
        if let Some(thinking) = &mut self.thinking
            && !thinking.is_over()
        {
            let grammar = &mut self.grammar;
            let mut answers = || {
                let grammar = grammar.as_mut().filter(|_| !free);
                grammar.is_some_and(|it| it.validate_tokens(&[id]).is_ok_and(|count| count > 0))
            };
            if !thinking.take(id, &mut answers) {
                let Some(watch) = &mut self.watch else { return Ok(0) };
                if !thinking.is_within() {
                    watch.forget();
                    return Ok(0);
                }
                let Some(told) = watch.take(id, true) else { return Ok(0) };
                thinking.end();
                return self.tell(&told);
            }
        }
        match &mut self.watch {
            Some(watch) if free => match watch.take(id, false) {
                None => Ok(0),
                Some(told) => self.tell(&told),
            },
            _ => self.tell(&[id]),
        }
    }

    /// Advances the grammar by tokens; returns how many.
    fn tell(&mut self, ids: &[u32]) -> Result<usize, Stopped> {
        let Some(grammar) = &mut self.grammar else { return Ok(0) };
        grammar.consume_tokens(ids).map_err(|error| failed(&error.to_string()))?;
        if let Some(watch) = &mut self.watch
            && watch.free
        {
            // After a call, the text is free again.
            watch.hold(!grammar.is_accepting().map_err(|error| failed(&error.to_string()))?);
        }
        Ok(ids.len())
    }

    /// The mask of the next token; `None` allows anything.
    fn allowed(&mut self) -> Result<Option<TokenMask>, Stopped> {
        let one = |id: u32| Ok(Some(TokenMask::of(self.shared.vocabulary, [id])));
        let (reasons, free) = (self.reasons(), self.watch.as_ref().is_some_and(|watch| !watch.held));
        let beside = match (&self.thinking, &self.grammar) {
            (None, _) => Beside::Nothing,
            (Some(thinking), Some(_)) if !free => thinking.beside(),
            (Some(thinking), _) => thinking.alone(),
        };
        let watch = self.watch.as_ref().filter(|_| reasons || free).zip(self.grammar.as_mut());
        let begins = watch.and_then(|(watch, grammar)| watch.mask(reasons, grammar));
        match (&beside, &mut self.grammar) {
            (Beside::Only(mask), _) => Ok(Some(begins.map_or_else(|| (*mask).clone(), |it| both(mask, &it)))),
            (Beside::OnlyOne(id), _) => one(*id),
            (_, None) => Ok(None),
            (_, Some(_)) if free => Ok(begins),
            (_, Some(grammar)) => {
                let allowed = grammar.compute_mask_or_eos().map_err(unfollowed)?;
                let mut words = self.shared.mask(allowed.as_slice());
                match beside {
                    Beside::Also(mask) => {
                        words.iter_mut().zip(mask.words()).for_each(|(word, also)| *word |= also);
                    }
                    Beside::AlsoOne(id) => set(&mut words, id, true),
                    Beside::Nothing | Beside::Only(_) | Beside::OnlyOne(_) => {}
                }
                if words.iter().all(|word| *word == 0) {
                    return Err(Stopped::Grammar(GrammarError::new("allows no token here")));
                }
                Ok(Some(TokenMask::new(words)))
            }
        }
    }
}

/// The error for a message of the library when it cannot continue.
fn failed(message: &str) -> Stopped {
    let (grammar, words) = words::stopped(message);
    let error = GrammarError::new(words);
    if grammar { Stopped::Grammar(error) } else { Stopped::Token(error) }
}

/// The same for an error without a token.
fn unfollowed(error: impl std::fmt::Display) -> Stopped {
    Stopped::Grammar(GrammarError::new(words::stopped(&error.to_string()).1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammars, Source, Token};

    /// `a`, a space, two tags, and the end: masks have a single word.
    fn compiled(regex: &str) -> (Grammars, Constraint) {
        let words = ["a", " ", "<", ">", "end"];
        let token = |id: u32| {
            let word = words.get(id as usize)?;
            Some(Token { bytes: word.as_bytes(), special: *word == "end" })
        };
        let grammars = Grammars::new(words.len(), token, &[4]).expect("a vocabulary");
        let constraint = grammars.compile(&Source::Regex(regex.to_owned())).expect("it compiles");
        (grammars, constraint)
    }

    fn next(constraint: &mut Constraint) -> Vec<u32> {
        let mut masks = Vec::new();
        constraint.masks(&[], &mut masks).expect("something may come");
        assert_eq!(masks.len(), 1);
        (0..constraint.vocabulary() as u32).filter(|id| masks[0].allows(*id)).collect()
    }

    #[test]
    fn a_mask_whose_words_all_allow_something_is_one() {
        let (_, mut constraint) = compiled("a| ");
        assert_eq!((constraint.vocabulary(), constraint.end_ids()), (5, &[4][..]));
        assert_eq!(next(&mut constraint), [0, 1]);
        constraint.take(0).expect("it is allowed");
        assert_eq!(next(&mut constraint), [4]);
    }

    #[test]
    fn spacing_behind_reasoning_is_the_answers_if_that_may_begin_with_it() {
        for (regex, after) in [(" a", vec![0]), ("a", vec![0, 1])] {
            let (grammars, constraint) = compiled(regex);
            let tags = grammars.tags(&[2], &[3]);
            let mut constraint = constraint.after(Thinking::new(&tags, true, None));
            for id in [0, 3, 1] {
                constraint.take(id).expect("it is allowed");
            }
            assert_eq!(next(&mut constraint), after, "{regex}");
        }
    }

    #[test]
    fn tags_of_several_tokens_are_forced_one_after_another() {
        let (grammars, constraint) = compiled("a");
        let tags = grammars.tags(&[2, 0, 1, 3], &[3, 1, 0, 2]);
        let mut constraint = constraint.after(Thinking::new(&tags, false, Some(1)));
        assert_eq!(next(&mut constraint), [0, 2], "the answer, or reasoning before it");
        constraint.take(2).expect("it is allowed");
        for id in [0, 1, 3] {
            assert_eq!((next(&mut constraint), constraint.free_for()), (vec![id], 0));
            constraint.take(id).expect("it is allowed");
        }
        // One token of reasoning, and the budget is spent.
        assert_eq!(next(&mut constraint), [0, 1, 2, 3]);
        constraint.take(0).expect("it is allowed");
        for id in [3, 1, 0, 2] {
            assert_eq!(next(&mut constraint), [id]);
            constraint.take(id).expect("it is allowed");
        }
        assert_eq!(next(&mut constraint), [0, 1], "at most so much spacing");
        for _ in 0..4 {
            constraint.take(1).expect("it is allowed");
        }
        assert_eq!(next(&mut constraint), [0]);
    }

    #[test]
    fn spacing_may_come_before_reasoning() {
        let (grammars, _) = compiled("a");
        let tags = grammars.tags(&[2], &[3]);
        let mut constraint = grammars.thinking(Thinking::new(&tags, false, Some(1)));
        for id in [1, 1, 2, 0] {
            constraint.take(id).expect("it is allowed");
        }
        assert_eq!(next(&mut constraint), [3], "the budget is spent");
    }
}
