//! From an engine's tokens to an answer's parts: detokenising, markup, stop strings, the reason for ending,
//! usage.

pub(crate) mod blocks;
pub(crate) mod ends;
pub(crate) mod part;
pub(crate) mod reading;
pub(crate) mod writer;

use crate::error::ApiError;
use axum::http::StatusCode;
use ends::Ends;
use monomorph_engine::{EngineError, Event, FinishReason, Generation, Timings};
use monomorph_sampling::Sampled;
use monomorph_text::{Detokeniser, StopMatcher, StopOutput, Tokenizer};
use part::{AnswerPart, Echoed, End, EndReason, Piece, TokenLogprob, Usage};
use reading::Reading;
use std::sync::Arc;
use std::time::Duration;

/// Why an answer ended before it was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerError {
    /// The engine could not finish it.
    Engine(EngineError),
    /// It was not complete within this time.
    Timeout(Duration),
    /// The server ends, for this cause.
    Condemned(String),
}

impl std::fmt::Display for AnswerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AnswerError::Engine(error) => error.fmt(f),
            AnswerError::Condemned(cause) => write!(f, "the server starts again: {cause}"),
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

impl From<AnswerError> for ApiError {
    fn from(error: AnswerError) -> ApiError {
        let message = error.to_string();
        match error {
            AnswerError::Engine(error) => ApiError::from(error),
            AnswerError::Timeout(_) => ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message),
            AnswerError::Condemned(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "restarting", message)
            }
        }
    }
}

/// An answer in progress. Dropping it cancels its generation.
pub(crate) struct Answer {
    generation: Option<Generation>,
    ends: Ends,
    tokenizer: Tokenizer,
    detokeniser: Detokeniser,
    reading: Reading,
    /// Stop strings; matched in text only, each run of text by itself.
    stops: StopMatcher,
    prompt_tokens: usize,
    /// Tokens that were left out of the conversation.
    compacted_tokens: usize,
    /// The prompt's tokens, where the request asks for them.
    prompt: Option<Arc<[u32]>>,
    /// The part of the prompt scored so far and not yet returned.
    echoed: Option<Echoed>,
    /// Whether its tokens include the stop id that ends it.
    tells_stop: bool,
    generated: usize,
    /// How many of its tokens are reasoning.
    reasoned: usize,
    calls: usize,
    /// Bytes of text read.
    read: usize,
    /// Bytes of text passed on.
    emitted: usize,
    /// Tokens with log-probabilities whose text is not passed on yet, each with the offset of its text.
    pending: Vec<(usize, TokenLogprob)>,
    /// Tokens since the last piece.
    ids: Vec<u32>,
}

impl Answer {
    /// Wraps a generation.
    pub(crate) fn new(
        generation: Generation,
        tokenizer: &Tokenizer,
        reading: Reading,
        stops: Vec<String>,
        prompt_tokens: usize,
        ends: Ends,
    ) -> Answer {
        Answer {
            generation: Some(generation),
            ends,
            tokenizer: tokenizer.clone(),
            detokeniser: tokenizer.detokeniser(),
            reading,
            stops: StopMatcher::new(stops),
            prompt_tokens,
            compacted_tokens: 0,
            prompt: None,
            echoed: None,
            tells_stop: false,
            generated: 0,
            reasoned: 0,
            calls: 0,
            read: 0,
            emitted: 0,
            pending: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Length of its prompt, in tokens.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Makes it tell that so many tokens were left out of its conversation.
    pub(crate) fn with_compacted(self, compacted_tokens: usize) -> Answer {
        Answer { compacted_tokens, ..self }
    }

    /// Makes the answer return its prompt's tokens.
    pub(crate) fn with_prompt(self, prompt: Option<Arc<[u32]>>) -> Answer {
        Answer { prompt, ..self }
    }

    /// Makes it begin with its prompt: this first token, if any, and the others with their log-probabilities.
    /// The stop id that ends it is returned too, since callers that sum log-probabilities count from either
    /// end.
    pub(crate) fn with_echoed(self, first: Option<u32>) -> Answer {
        let bytes = |id| self.tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        let echoed = first.map(|first| Echoed { first: bytes(first), rest: Vec::new() });
        Answer { tells_stop: echoed.is_some(), echoed, ..self }
    }

    /// Its prompt's tokens, if the request asks for them.
    pub(crate) fn prompt(&self) -> Option<&Arc<[u32]>> {
        self.prompt.as_ref()
    }

    /// The next piece that is not empty; one with an end is the last. Cancel-safe: a dropped call loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Result<Piece, AnswerError> {
        loop {
            let scored = |echoed: &mut Echoed| echoed.rest.len() + 1 == self.prompt_tokens;
            if let Some(echoed) = self.echoed.take_if(scored) {
                return Ok(Piece { echoed: Some(echoed), ..Piece::default() });
            }
            let stopped = AnswerError::Engine(EngineError::Stopped);
            let Some(generation) = &mut self.generation else { return Err(stopped) };
            // No await may come between taking an event and returning its piece.
            let event = tokio::select! {
                // What is there is passed on before the answer ends.
                biased;
                event = generation.recv() => event,
                error = self.ends.wait() => {
                    self.generation = None;
                    return Err(error);
                }
            };
            match event {
                Some(Event::Prompt(scores)) => {
                    let scores: Vec<TokenLogprob> =
                        scores.iter().filter_map(|score| self.logprob(score)).collect();
                    if let Some(echoed) = &mut self.echoed {
                        echoed.rest.extend(scores);
                    }
                }
                Some(Event::Token(sampled)) => {
                    self.ids.push(sampled.id);
                    let piece = self.push(&sampled);
                    if piece.end.is_some() || !piece.parts.is_empty() {
                        return Ok(Piece { ids: std::mem::take(&mut self.ids), ..piece });
                    }
                }
                Some(Event::Finished(finished)) => {
                    let reason = match finished.reason {
                        FinishReason::Stop { id } => {
                            self.ids.push(id);
                            EndReason::Stop
                        }
                        FinishReason::Length => EndReason::Length,
                        // Not cancelled: the client still listens.
                        FinishReason::Cancelled | FinishReason::Satisfied => {
                            return Err(stopped);
                        }
                    };
                    self.generated = finished.generated_tokens;
                    let stop = finished.stop.filter(|_| self.tells_stop).and_then(|stop| self.logprob(&stop));
                    let mut piece = self.finish(reason, Some(finished.timings));
                    piece.logprobs.extend(stop);
                    return Ok(Piece { ids: std::mem::take(&mut self.ids), ..piece });
                }
                Some(Event::Failed(error)) => return Err(AnswerError::Engine(error)),
                None => return Err(stopped),
            }
        }
    }

    /// All that is left, as one piece.
    pub(crate) async fn collect(&mut self) -> Result<Piece, AnswerError> {
        let mut whole = Piece::default();
        while whole.end.is_none() {
            let piece = self.next().await?;
            piece.parts.into_iter().for_each(|part| part.append(&mut whole.parts));
            whole.echoed = whole.echoed.or(piece.echoed);
            whole.logprobs.extend(piece.logprobs);
            whole.ids.extend(piece.ids);
            whole.end = piece.end;
        }
        Ok(whole)
    }

    fn push(&mut self, sampled: &Sampled) -> Piece {
        self.generated += 1;
        if let Some(token) = self.logprob(sampled) {
            self.pending.push((self.read + self.reading.held(), token));
        }
        let reasoned = self.reading.in_reasoning();
        let parts = match self.reading.control(sampled.id) {
            Some(name) => {
                // Half a character before it is dropped.
                let mut parts = self.reading.push(self.detokeniser.finish());
                parts.extend(self.reading.push_control(name));
                parts
            }
            None => self.reading.push(self.detokeniser.push(sampled.id)),
        };
        self.reasoned += usize::from(reasoned || self.reading.in_reasoning());
        self.take(parts, EndReason::Stop)
    }

    /// A token with its log-probability, if that came with it.
    fn logprob(&self, sampled: &Sampled) -> Option<TokenLogprob> {
        let bytes = |id| self.tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        let top = sampled.top.iter().map(|&(id, logprob)| (bytes(id), logprob)).collect();
        Some(TokenLogprob { bytes: bytes(sampled.id), logprob: sampled.logprob?, top })
    }

    fn finish(&mut self, reason: EndReason, timings: Option<Timings>) -> Piece {
        let mut parts = self.reading.push(self.detokeniser.finish());
        parts.extend(self.reading.finish());
        let mut piece = self.take(parts, reason);
        if piece.end.is_some() {
            return piece;
        }
        let text = self.stops.finish();
        self.emit(text, &mut piece);
        piece.logprobs.extend(self.pending.drain(..).map(|(_, token)| token));
        self.end(piece, reason, timings)
    }

    /// Passes parts on; `at_call` is the reason for ending an answer whose first call ends it.
    fn take(&mut self, parts: Vec<AnswerPart>, at_call: EndReason) -> Piece {
        let mut piece = Piece::default();
        for part in parts {
            match part {
                AnswerPart::Text(text) => {
                    self.read += text.len();
                    match self.stops.push(&text) {
                        StopOutput::Emit(text) => self.emit(text, &mut piece),
                        StopOutput::Stopped { before, which } => {
                            self.emit(before, &mut piece);
                            // The rest of the generation is not needed.
                            return self.end(piece, EndReason::StopString(which), None);
                        }
                    }
                }
                AnswerPart::Rejected(_) => part.append(&mut piece.parts),
                part => {
                    // Another kind of part ends a run of text, so a pending prefix of a stop string is plain
                    // text.
                    let text = self.stops.finish();
                    self.emit(text, &mut piece);
                    let ends = matches!(part, AnswerPart::CallEnd { .. });
                    self.calls += usize::from(ends);
                    part.append(&mut piece.parts);
                    if ends && self.reading.ends_with_a_call() {
                        self.pending.clear();
                        return self.end(piece, at_call, None);
                    }
                }
            }
        }
        // Tokens without text: reasoning, calls, tags.
        if !self.reading.is_plain() && self.reading.held() == 0 && self.detokeniser.held() == 0 {
            self.pending.retain(|(begin, _)| *begin < self.read);
        }
        piece
    }

    fn emit(&mut self, text: String, piece: &mut Piece) {
        self.emitted += text.len();
        if !text.is_empty() {
            AnswerPart::Text(text).append(&mut piece.parts);
        }
        let ready = self.pending.iter().take_while(|(begin, _)| *begin < self.emitted).count();
        piece.logprobs.extend(self.pending.drain(..ready).map(|(_, token)| token));
    }

    fn end(&mut self, mut piece: Piece, reason: EndReason, timings: Option<Timings>) -> Piece {
        // The engine does not see stop strings and would go on.
        let cached_tokens = self.generation.take().map_or(0, |generation| {
            let cached = generation.cached_tokens();
            generation.satisfied();
            cached
        });
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens,
            compacted_tokens: self.compacted_tokens,
            completion_tokens: self.generated,
            reasoning_tokens: self.reasoned,
        };
        piece.end = Some(End { reason, calls: self.calls, usage, timings });
        piece
    }
}
