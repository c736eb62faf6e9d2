//! A question whose answer is known: asked at the start, and again when somebody wants to know whether the engine still
//! computes what it should.

use crate::failure::Failure;
use monomorph_engine::{EngineHandle, Event, Generation, Request};
use monomorph_model::ModelSpec;
use monomorph_sampling::{Sampled, Sampling};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Tokens of the answer.
pub(crate) const TOKENS: usize = 4;
/// Most tokens of the question. There are fewer than a block has, so that no cache of prefixes answers in the engine's place.
const QUESTION: usize = 7;
/// Two tokens nearer than this, in nats, are a tie: which of them wins may hang on who else is in the step, where
/// kernels for other batches add in another order.
const TIE: f32 = 0.25;
/// How old the last right answer may be before another is wanted.
const FRESH: Duration = Duration::from_secs(1);

/// The question, and what is known of its answers.
pub(crate) struct Canary {
    question: Request,
    /// The answer at the start; `None` for a build whose answers follow no rule.
    known: Option<Vec<Sampled>>,
    /// When the last right answer came.
    answered: watch::Sender<Instant>,
    /// When the question was asked that is not answered yet.
    asked: Mutex<Option<Instant>>,
}

impl Canary {
    /// Asks for the first time and remembers the answer; `first` hears of its first token.
    ///
    /// # Errors
    /// When the engine does not answer, or not with numbers.
    pub(crate) fn learn(
        engine: &EngineHandle,
        spec: &ModelSpec,
        first: impl FnOnce(),
    ) -> Result<Canary, Failure> {
        let vocabulary = spec.vocabulary as u32;
        let most = QUESTION.min(spec.block_tokens - 1).min(engine.context() - 1).max(1);
        let prompt = (1..=most as u32).map(|id| id % vocabulary).collect();
        let sampling = Sampling { top_logprobs: Some(2), ..Sampling::default() };
        let question = Request { ignore_eos: true, sampling, ..Request::new(prompt, TOKENS) };
        let mut generation = engine.submit_canary(question.clone()).map_err(|error| error.to_string())?;
        let (mut known, mut first) = (Vec::new(), Some(first));
        loop {
            match generation.blocking_recv() {
                Some(Event::Token(sampled)) => {
                    first.take().into_iter().for_each(|first| first());
                    known.push(sampled);
                }
                Some(Event::Prompt(_)) => {}
                Some(Event::Finished(_)) => break,
                Some(Event::Failed(error)) => return Err(error.to_string().into()),
                None => return Err("the first answer ended without a reason".to_owned().into()),
            }
        }
        let forced = spec.draft.as_ref().is_some_and(|draft| draft.forced_acceptance.is_some());
        let known = (!forced).then_some(known);
        if let Some(wrong) = known.as_deref().and_then(|known| find_wrong(known, known)) {
            return Err(format!("the first answer is wrong: {wrong}").into());
        }
        Ok(Canary { question, known, answered: watch::Sender::new(Instant::now()), asked: Mutex::new(None) })
    }

    /// Asks again unless a question is on its way or the last answer is fresh; whether an answer is to come. An answer that is wrong
    /// condemns the engine.
    pub(crate) fn ask(self: &Arc<Canary>, engine: &EngineHandle) -> bool {
        let mut asked = self.asked();
        if asked.is_some() {
            return true;
        }
        if self.age() < FRESH {
            return false;
        }
        // One that takes no questions says why itself.
        let Ok(generation) = engine.submit_canary(self.question.clone()) else { return false };
        *asked = Some(Instant::now());
        drop(asked);
        let (canary, engine) = (Arc::clone(self), engine.clone());
        tokio::spawn(async move { canary.listen(generation, &engine).await });
        true
    }

    /// Time since the last right answer.
    pub(crate) fn age(&self) -> Duration {
        self.answered.borrow().elapsed()
    }

    /// For how long a question has not been answered.
    pub(crate) fn unanswered(&self) -> Option<Duration> {
        self.asked().map(|asked| asked.elapsed())
    }

    /// Hears of right answers.
    pub(crate) fn answers(&self) -> watch::Receiver<Instant> {
        self.answered.subscribe()
    }

    async fn listen(&self, mut generation: Generation, engine: &EngineHandle) {
        let mut seen = Vec::new();
        let complete = loop {
            match generation.recv().await {
                Some(Event::Token(sampled)) => seen.push(sampled),
                Some(Event::Prompt(_)) => {}
                Some(Event::Finished(_)) => break true,
                // The engine is over, and says why itself.
                Some(Event::Failed(_)) | None => break false,
            }
        };
        let wrong = self.known.as_deref().and_then(|known| find_wrong(known, &seen));
        match wrong {
            Some(wrong) if complete => {
                let cause = format!("a canary was answered wrongly: {wrong}");
                tracing::error!(cause);
                engine.condemn(&cause);
                // Until then the question is not answered: a probe that waits for it must not miss this.
                engine.stopped().await;
            }
            // Before the question counts as answered: whoever waits for that reads the age.
            _ if complete => drop(self.answered.send_replace(Instant::now())),
            _ => {}
        }
        *self.asked() = None;
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with an answer, if anything is. Behind a tie that went the other way, answers may differ.
fn find_wrong(known: &[Sampled], seen: &[Sampled]) -> Option<String> {
    for (place, (known, seen)) in known.iter().zip(seen).enumerate() {
        if !seen.logprob.is_some_and(f32::is_finite) {
            return Some(format!("token {place} has no finite log-probability: logits are not numbers"));
        }
        if known.id == seen.id {
            continue;
        }
        let tied = known.top.iter().any(|&(id, logprob)| {
            id == seen.id && known.logprob.is_some_and(|likeliest| likeliest - logprob < TIE)
        });
        if tied {
            return None;
        }
        return Some(format!("token {place} was {} at the start and is {} now", known.id, seen.id));
    }
    (known.len() != seen.len())
        .then(|| format!("it had {} tokens at the start and has {} now", known.len(), seen.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tokens: &[(u32, f32)]) -> Vec<Sampled> {
        let one = |&(id, margin): &(u32, f32)| Sampled {
            id,
            logprob: Some(-0.5),
            top: vec![(id, -0.5), (id + 1, -0.5 - margin)],
        };
        tokens.iter().map(one).collect()
    }

    #[test]
    fn an_answer_is_wrong_where_it_could_not_have_gone_otherwise() {
        let known = answer(&[(5, 1.0), (6, 0.1), (7, 1.0)]);
        assert_eq!(find_wrong(&known, &known), None);
        assert!(
            find_wrong(&known, &answer(&[(6, 1.0), (6, 0.1), (7, 1.0)])).is_some(),
            "a clear winner lost"
        );
        assert_eq!(
            find_wrong(&known, &answer(&[(5, 1.0), (7, 0.1), (9, 1.0)])),
            None,
            "a tie, and what follows from it"
        );
        assert!(
            find_wrong(&known, &answer(&[(5, 1.0), (9, 0.1), (7, 1.0)])).is_some(),
            "not the one it was tied with"
        );
        assert!(find_wrong(&known, &answer(&[(5, 1.0), (6, 0.1)])).is_some(), "it ends early");
        for nothing in [Some(f32::NEG_INFINITY), Some(f32::NAN), None] {
            let mut seen = known.clone();
            seen[2].logprob = nothing;
            assert!(find_wrong(&known, &seen).is_some_and(|wrong| wrong.contains("token 2")));
        }
    }
}
