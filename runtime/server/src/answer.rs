//! From an engine's tokens to text: detokenising, stop strings, the reason for ending, usage.

use monomorph_engine::{EngineError, Event, FinishReason, Generation, Timings};
use monomorph_sampling::Sampled;
use monomorph_text::{Detokeniser, StopMatcher, StopOutput, Tokenizer};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Why an answer ended before it was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerError {
    /// The engine could not go on with it.
    Engine(EngineError),
    /// It was not complete within this time.
    Timeout(Duration),
}

impl std::fmt::Display for AnswerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AnswerError::Engine(error) => error.fmt(f),
            AnswerError::Timeout(limit) => {
                write!(
                    f,
                    "the answer was not complete within this server's limit of {} s",
                    limit.as_secs_f64()
                )
            }
        }
    }
}

/// An answer in the making. Dropping it cancels its generation.
pub(crate) struct Answer {
    generation: Option<Generation>,
    /// How long it may take in all, and when that is over. Kept here and not by the engine, so that it holds when a step
    /// of the engine's does not come back.
    limit: Option<(Duration, Instant)>,
    tokenizer: Tokenizer,
    detokeniser: Detokeniser,
    stops: StopMatcher,
    prompt_tokens: usize,
    generated: usize,
    /// Bytes of text that came out of the detokeniser.
    decoded: usize,
    /// Bytes of text handed on.
    emitted: usize,
    /// Tokens with log-probabilities whose text was not handed on yet, each with where its text begins.
    pending: Vec<(usize, TokenLogprob)>,
}

/// A token with its log-probability, in nats.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    /// The bytes it stands for.
    pub(crate) bytes: Vec<u8>,
    /// Its log-probability.
    pub(crate) logprob: f32,
    /// The likeliest tokens in its place, likeliest first.
    pub(crate) top: Vec<(Vec<u8>, f32)>,
}

/// A part of an answer.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Whole characters; may be empty.
    pub(crate) text: String,
    /// Tokens of the text, where asked for.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// Set on the last piece.
    pub(crate) end: Option<End>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Why.
    pub(crate) reason: EndReason,
    /// What it cost.
    pub(crate) usage: Usage,
    /// Where the time went; absent when a stop string ended it, before the engine could say.
    pub(crate) timings: Option<Timings>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A stop id or a stop string.
    Stop,
    /// `max_tokens`, or the context.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub(crate) prompt_tokens: usize,
    /// How many of these were not computed again.
    pub(crate) cached_tokens: usize,
    /// Generated.
    pub(crate) completion_tokens: usize,
}

impl Usage {
    /// Of a request with several answers: its prompt counts once, as it was found by the one that found least.
    pub(crate) fn of_all(answers: impl Iterator<Item = Usage>) -> Usage {
        let add = |sum: Usage, one: Usage| Usage {
            cached_tokens: sum.cached_tokens.min(one.cached_tokens),
            completion_tokens: sum.completion_tokens + one.completion_tokens,
            ..sum
        };
        answers.reduce(add).unwrap_or_default()
    }
}

impl Answer {
    /// Wraps a generation that may take as long as `limit`.
    pub(crate) fn new(
        generation: Generation,
        tokenizer: &Tokenizer,
        stops: Vec<String>,
        prompt_tokens: usize,
        limit: Option<Duration>,
    ) -> Answer {
        // A moment beyond what the clock can say is none.
        let limit = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        Answer {
            generation: Some(generation),
            limit,
            tokenizer: tokenizer.clone(),
            detokeniser: tokenizer.detokeniser(),
            stops: StopMatcher::new(stops),
            prompt_tokens,
            generated: 0,
            decoded: 0,
            emitted: 0,
            pending: Vec::new(),
        }
    }

    /// The next piece with something in it; after one with an end there is none. Cancel-safe: a dropped call loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Result<Piece, AnswerError> {
        loop {
            let stopped = AnswerError::Engine(EngineError::Stopped);
            let Some(generation) = &mut self.generation else { return Err(stopped) };
            // No await may stand between taking an event and returning what became of it.
            let event = match self.limit {
                None => generation.recv().await,
                Some((limit, end)) => match timeout_at(end, generation.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.generation = None;
                        return Err(AnswerError::Timeout(limit));
                    }
                },
            };
            match event {
                Some(Event::Token(sampled)) => {
                    let piece = self.push(&sampled);
                    if piece.end.is_some() || !piece.text.is_empty() {
                        return Ok(piece);
                    }
                }
                Some(Event::Finished(finished)) => {
                    let reason = match finished.reason {
                        FinishReason::Stop { .. } => EndReason::Stop,
                        FinishReason::Length => EndReason::Length,
                        // Nobody cancels a generation that is still listened to.
                        FinishReason::Cancelled | FinishReason::Satisfied => {
                            return Err(stopped);
                        }
                    };
                    self.generated = finished.generated_tokens;
                    return Ok(self.finish(reason, Some(finished.timings)));
                }
                Some(Event::Failed(error)) => return Err(AnswerError::Engine(error)),
                None => return Err(stopped),
            }
        }
    }

    /// The whole of what is left, as one piece.
    pub(crate) async fn collect(&mut self) -> Result<Piece, AnswerError> {
        let mut whole = Piece { text: String::new(), logprobs: Vec::new(), end: None };
        while whole.end.is_none() {
            let piece = self.next().await?;
            whole.text.push_str(&piece.text);
            whole.logprobs.extend(piece.logprobs);
            whole.end = piece.end;
        }
        Ok(whole)
    }

    fn push(&mut self, sampled: &Sampled) -> Piece {
        self.generated += 1;
        if let Some(logprob) = sampled.logprob {
            let bytes = |id| self.tokenizer.token_bytes(id).unwrap_or_default().to_vec();
            let top = sampled.top.iter().map(|&(id, logprob)| (bytes(id), logprob)).collect();
            self.pending.push((self.decoded, TokenLogprob { bytes: bytes(sampled.id), logprob, top }));
        }
        let text = self.detokeniser.push(sampled.id);
        self.decoded += text.len();
        match self.stops.push(text) {
            StopOutput::Emit(text) => self.emit(text),
            StopOutput::Stopped { before, .. } => self.stopped(before),
        }
    }

    fn finish(&mut self, reason: EndReason, timings: Option<Timings>) -> Piece {
        let tail = self.detokeniser.finish();
        self.decoded += tail.len();
        let mut text = match self.stops.push(tail) {
            StopOutput::Emit(text) => text,
            StopOutput::Stopped { before, .. } => return self.stopped(before),
        };
        text.push_str(&self.stops.finish());
        let mut piece = self.emit(text);
        piece.logprobs.extend(self.pending.drain(..).map(|(_, token)| token));
        self.end(piece, reason, timings)
    }

    /// Ends at a stop string: the engine need not go on.
    fn stopped(&mut self, before: String) -> Piece {
        let piece = self.emit(before);
        self.end(piece, EndReason::Stop, None)
    }

    fn emit(&mut self, text: String) -> Piece {
        self.emitted += text.len();
        let ready = self.pending.iter().take_while(|(begin, _)| *begin < self.emitted).count();
        let logprobs = self.pending.drain(..ready).map(|(_, token)| token).collect();
        Piece { text, logprobs, end: None }
    }

    fn end(&mut self, mut piece: Piece, reason: EndReason, timings: Option<Timings>) -> Piece {
        // Behind a stop string the engine still goes on with it: there is no more wanted.
        let cached_tokens = self.generation.take().map_or(0, |generation| {
            let cached = generation.cached_tokens();
            generation.satisfied();
            cached
        });
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, self.generated);
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens };
        piece.end = Some(End { reason, usage, timings });
        piece
    }
}
