//! Canaries: prompts whose answers are known. Those of the quant spec run once, at the start: their answers
//! come from the reference interpreter, so damaged weights are found. The health check runs one again later
//! and compares its answer with the one at the start.

use crate::failure::Failure;
use monomorph_engine::{EngineError, EngineHandle, Event, Generation, Request};
use monomorph_model::{CanarySpec, ModelSpec, NOT_NUMBERS};
use monomorph_sampling::{Sampled, Sampling};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Tokens of the answer.
pub(crate) const TOKENS: usize = 4;
/// Most tokens of the prompt: fewer than a block's, so that it never comes from the prefix cache.
const QUESTION: usize = 7;
/// Two tokens closer than this, in nats, are a tie: the winner may depend on the batch, since other kernels
/// sum in another order.
const TIE: f32 = 0.25;
/// Least margin, in nats, of the likeliest token over a uniform distribution: below it the model knows
/// nothing. Even random weights are well above.
const FLAT: f32 = 0.02;
/// Age of the last right answer at which the canary is asked again.
const FRESH: Duration = Duration::from_secs(1);

/// How a server checks its weights before it is ready.
#[derive(Clone, Debug, clap::Args)]
pub struct CanaryArgs {
    /// What the weights must answer before the server is ready: `known`, what the build's quant spec says
    /// that the checkpoint's answer, where it says anything; or `learned`, whatever they answer first, for
    /// other weights of the same shapes.
    #[arg(long, value_name = "known|learned", value_enum, default_value_t = Source::Known)]
    pub canary: Source,
}

/// The source of the first right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// The quant spec.
    Known,
    /// The server itself.
    Learned,
}

impl CanaryArgs {
    /// The canaries to ask: none with random weights, or in a build whose drafts are accepted by force.
    pub(crate) fn of(&self, spec: &ModelSpec, dummy: bool) -> &'static [CanarySpec] {
        if dummy || self.canary == Source::Learned || is_forced(spec) { &[] } else { spec.canaries }
    }
}

/// Whether a build's answers are meaningless.
fn is_forced(spec: &ModelSpec) -> bool {
    spec.draft.as_ref().is_some_and(|draft| draft.forced_acceptance.is_some())
}

/// Runs the quant spec's canaries that fit the context; returns how many were answered rightly.
///
/// # Errors
/// When an answer is wrong, or there is none.
pub(crate) fn check_known(
    engine: &EngineHandle,
    spec: &ModelSpec,
    canaries: &[CanarySpec],
) -> Result<usize, Failure> {
    let fits = |canary: &&CanarySpec| canary.prompt.len() + canary.answer.len() <= engine.context();
    // All at once, so that they share steps.
    let asked = canaries.iter().enumerate().filter(|(_, canary)| fits(canary)).map(|(place, canary)| {
        let question = question(canary.prompt.to_vec(), canary.answer.len());
        let generation = engine.submit_canary(question).map_err(|error| error.to_string())?;
        Ok((place, canary, generation))
    });
    let mut right = 0;
    for (place, canary, generation) in asked.collect::<Result<Vec<_>, String>>()? {
        let answer = listen_to(generation, || {})?;
        if let Some(wrong) = find_wrong_known(canary.answer, &answer, spec.vocabulary) {
            let target = spec.target;
            return Err(format!(
                "the weights do not answer as those of {target} do: canary {} of its quant spec: {wrong}. They are damaged, which \
                 --verify would show, or others of the same shapes, which --canary learned serves",
                place + 1,
            )
            .into());
        }
        right += 1;
    }
    Ok(right)
}

/// The message of a server whose first canary fails.
fn first_wrong(why: &str) -> Failure {
    format!("the first answer is wrong: {why}; --verify compares the weights with their digests").into()
}

/// A greedy request for so many tokens.
fn question(prompt: Vec<u32>, tokens: usize) -> Request {
    let sampling = Sampling { top_logprobs: Some(2), ..Sampling::default() };
    Request { ignore_eos: true, sampling, ..Request::new(prompt, tokens) }
}

/// Waits for an answer; `first` is called at its first token.
fn listen_to(mut generation: Generation, first: impl FnOnce()) -> Result<Vec<Sampled>, Failure> {
    let (mut answer, mut first) = (Vec::new(), Some(first));
    loop {
        match generation.blocking_recv() {
            Some(Event::Token(sampled)) => {
                first.take().into_iter().for_each(|first| first());
                answer.push(sampled);
            }
            Some(Event::Prompt(_)) => {}
            Some(Event::Finished(_)) => return Ok(answer),
            Some(Event::Failed(EngineError::Lost(why))) if why == NOT_NUMBERS => {
                return Err(first_wrong(&why));
            }
            Some(Event::Failed(error)) => return Err(error.to_string().into()),
            None => return Err("the first answer ended without a reason".to_owned().into()),
        }
    }
}

/// The canary, and what is known of its answers.
pub(crate) struct Canary {
    question: Request,
    /// The answer at the start; `None` for a build whose answers are meaningless.
    known: Option<Vec<Sampled>>,
    /// Size of the vocabulary.
    vocabulary: usize,
    /// When the last right answer came.
    answered: watch::Sender<Instant>,
    /// When the pending question was asked.
    asked: Mutex<Option<Instant>>,
}

impl Canary {
    /// Runs the canary for the first time and keeps the answer; `first` is called at its first token.
    ///
    /// # Errors
    /// When the engine does not answer, or not with numbers.
    pub(crate) fn learn(
        engine: &EngineHandle,
        spec: &ModelSpec,
        first: impl FnOnce(),
    ) -> Result<Canary, Failure> {
        let ids = spec.vocabulary as u32;
        let most = QUESTION.min(spec.block_tokens - 1).min(engine.context() - 1).max(1);
        let prompt = (1..=most as u32).map(|id| id % ids).collect();
        let question = question(prompt, TOKENS);
        let generation = engine.submit_canary(question.clone()).map_err(|error| error.to_string())?;
        let known = listen_to(generation, first)?;
        let known = (!is_forced(spec)).then_some(known);
        if let Some(wrong) = known.as_deref().and_then(|known| find_wrong(known, known, spec.vocabulary)) {
            return Err(first_wrong(&wrong));
        }
        let vocabulary = spec.vocabulary;
        Ok(Canary {
            question,
            known,
            vocabulary,
            answered: watch::Sender::new(Instant::now()),
            asked: Mutex::new(None),
        })
    }

    /// Runs it again unless it is pending or the last answer is fresh; returns whether an answer is pending.
    /// A wrong answer poisons the engine.
    pub(crate) fn ask(self: &Arc<Canary>, engine: &EngineHandle) -> bool {
        let mut asked = self.asked();
        if asked.is_some() {
            return true;
        }
        if self.age() < FRESH {
            return false;
        }
        // An engine that refuses requests reports the reason itself.
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

    /// How long the pending canary has run.
    pub(crate) fn unanswered(&self) -> Option<Duration> {
        self.asked().map(|asked| asked.elapsed())
    }

    /// Receives the times of right answers.
    pub(crate) fn answers(&self) -> watch::Receiver<Instant> {
        self.answered.subscribe()
    }

    async fn listen(&self, mut generation: Generation, engine: &EngineHandle) {
        let (mut seen, mut lost) = (Vec::new(), None);
        let complete = loop {
            match generation.recv().await {
                Some(Event::Token(sampled)) => seen.push(sampled),
                Some(Event::Prompt(_)) => {}
                Some(Event::Finished(_)) => break true,
                Some(Event::Failed(EngineError::Lost(why))) if why == NOT_NUMBERS => {
                    lost = Some(why);
                    break true;
                }
                // The engine has stopped and reports the reason itself.
                Some(Event::Failed(_)) | None => break false,
            }
        };
        let compare = |known: &Vec<Sampled>| find_wrong(known, &seen, self.vocabulary);
        let wrong = lost.or_else(|| self.known.as_ref().and_then(compare));
        match wrong {
            Some(wrong) if complete => {
                let cause = format!("a canary was answered wrongly: {wrong}");
                tracing::error!(cause);
                engine.condemn(&cause);
                // Before the canary counts as answered, so that a waiting probe sees this.
                engine.stopped().await;
            }
            // Before the canary counts as answered, because a waiting probe reads the age then.
            _ if complete => drop(self.answered.send_replace(Instant::now())),
            _ => {}
        }
        *self.asked() = None;
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with an answer, whatever was asked: logits that are not finite, or a uniform distribution.
fn find_poison(seen: &[Sampled], vocabulary: usize) -> Option<String> {
    let flat = FLAT - (vocabulary as f32).ln();
    for (place, seen) in seen.iter().enumerate() {
        let likeliest = seen.top.first().map(|(_, logprob)| *logprob);
        if ![seen.logprob, likeliest].iter().all(|it| it.is_some_and(f32::is_finite)) {
            return Some(format!("token {place} has no finite log-probability: logits are not numbers"));
        }
        if likeliest.is_some_and(|likeliest| likeliest < flat) {
            return Some(format!(
                "for token {place} all {vocabulary} ids are equally likely: logits are all alike"
            ));
        }
    }
    None
}

/// What is wrong with an answer whose tokens were known before, each far ahead of the next likeliest.
fn find_wrong_known(known: &[u32], seen: &[Sampled], vocabulary: usize) -> Option<String> {
    if let Some(poison) = find_poison(seen, vocabulary) {
        return Some(poison);
    }
    for (place, (known, seen)) in known.iter().zip(seen).enumerate() {
        if *known != seen.id {
            return Some(format!("token {place} of the answer should be {known} and is {}", seen.id));
        }
    }
    let (known, seen) = (known.len(), seen.len());
    (known != seen).then(|| format!("the answer should have {known} tokens and has {seen}"))
}

/// What is wrong with an answer, if anything. After a tie that went the other way answers may differ.
fn find_wrong(known: &[Sampled], seen: &[Sampled], vocabulary: usize) -> Option<String> {
    if let Some(poison) = find_poison(seen, vocabulary) {
        return Some(poison);
    }
    for (place, (known, seen)) in known.iter().zip(seen).enumerate() {
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

    /// Ids of these answers.
    const VOCABULARY: usize = 1000;

    #[test]
    fn an_answer_is_wrong_where_it_could_not_have_gone_otherwise() {
        let known = answer(&[(5, 1.0), (6, 0.1), (7, 1.0)]);
        let wrong = |seen: &[Sampled]| find_wrong(&known, seen, VOCABULARY);
        assert_eq!(wrong(&known), None);
        assert!(wrong(&answer(&[(6, 1.0), (6, 0.1), (7, 1.0)])).is_some(), "a clear winner lost");
        assert_eq!(wrong(&answer(&[(5, 1.0), (7, 0.1), (9, 1.0)])), None, "a tie, and what follows from it");
        assert!(wrong(&answer(&[(5, 1.0), (9, 0.1), (7, 1.0)])).is_some(), "not the one it was tied with");
        assert!(wrong(&answer(&[(5, 1.0), (6, 0.1)])).is_some(), "it ends early");
        for nothing in [Some(f32::NEG_INFINITY), Some(f32::NAN), None] {
            let mut seen = known.clone();
            seen[2].logprob = nothing;
            assert!(wrong(&seen).is_some_and(|wrong| wrong.contains("token 2")));
        }
    }

    /// Damaged weights made all logits equal: an answer that never changes while the server runs.
    #[test]
    fn logits_that_are_all_alike_are_wrong_even_where_they_were_so_at_the_start() {
        let of = |likeliest: f32| {
            let top = vec![(0, likeliest), (1, likeliest)];
            vec![Sampled { id: 0, logprob: Some(likeliest), top }]
        };
        let uniform = -(VOCABULARY as f32).ln();
        for flat in [uniform, uniform + 0.01] {
            let wrong = find_wrong(&of(flat), &of(flat), VOCABULARY).expect("nothing was learnt");
            assert!(wrong.contains("all 1000 ids are equally likely"), "{wrong}");
            assert!(find_wrong_known(&[0], &of(flat), VOCABULARY).is_some());
        }
        assert_eq!(find_wrong(&of(uniform + 0.1), &of(uniform + 0.1), VOCABULARY), None, "made-up weights");
        let dead = of(f32::NEG_INFINITY);
        assert!(find_wrong(&dead, &dead, VOCABULARY).is_some_and(|wrong| wrong.contains("not numbers")));
    }

    #[test]
    fn a_known_answer_is_right_or_wrong_whatever_the_server_thought_likely() {
        let wrong = |known: &[u32], seen: &[(u32, f32)]| find_wrong_known(known, &answer(seen), VOCABULARY);
        assert_eq!(wrong(&[5, 6], &[(5, 1.0), (6, 0.01)]), None);
        let other = wrong(&[5, 6], &[(5, 1.0), (7, 0.01)]).expect("a tie is none here");
        assert_eq!(other, "token 1 of the answer should be 6 and is 7");
        assert!(wrong(&[5, 6], &[(5, 1.0)]).is_some_and(|wrong| wrong.contains("2 tokens and has 1")));
    }

    #[test]
    fn made_up_weights_and_others_of_the_same_shapes_are_asked_nothing_that_is_known() {
        use monomorph_engine::scripted::{Scripted, Small};
        use monomorph_model::{DraftSpec, Drafter, Model};
        static KNOWN: [CanarySpec; 1] = [CanarySpec { prompt: &[1], answer: &[2], margin: 2.0 }];
        let spec = ModelSpec { canaries: &KNOWN, ..*Scripted::<Small>::SPEC };
        let (known, learned) = (CanaryArgs { canary: Source::Known }, CanaryArgs { canary: Source::Learned });
        assert_eq!(known.of(&spec, false).len(), 1);
        assert!(known.of(&spec, true).is_empty() && learned.of(&spec, false).is_empty());
        let draft = DraftSpec {
            method: "mtp",
            drafter: Drafter::Head,
            drafts: 1,
            vocabulary: 8,
            forced_acceptance: Some(0.5),
        };
        assert!(known.of(&ModelSpec { draft: Some(draft), ..spec }, false).is_empty());
    }
}
