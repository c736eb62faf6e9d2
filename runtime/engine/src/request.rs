//! Requests, and the events that answer them.

use crate::images::PromptImages;
use monomorph_grammar::{Constraint, Stopped};
use monomorph_sampling::{Biases, Sampled, Sampling};
use std::time::Duration;

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids; at least one, all below the vocabulary.
    pub prompt: Vec<u32>,
    /// The images that stand in it.
    pub images: PromptImages,
    /// Most tokens to generate. Clipped to the context less the prompt; 0 ends at once with
    /// [`FinishReason::Length`], or when its prompt's log-probabilities are told.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Added to logits; ids beyond the vocabulary have no effect.
    pub biases: Biases,
    /// Ids that end the answer, beside the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether the model's own stop ids count as ordinary tokens.
    pub ignore_eos: bool,
    /// Whether the log-probabilities of the prompt's tokens are returned, from the second on and before the
    /// answer begins, and with how many alternatives.
    pub prompt_logprobs: Option<u8>,
    /// The answer's constraint, if any. Its end ids end the answer, even where the model's own do not.
    pub constraint: Option<Constraint>,
    /// Requests of a lower value are served first and keep their blocks longest.
    pub priority: i64,
    /// The client, by number; clients get equal service.
    pub client: u64,
}

impl Request {
    /// A greedy request without stop ids of its own.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
            images: PromptImages::default(),
            max_tokens,
            sampling: Sampling::default(),
            biases: Biases::default(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            prompt_logprobs: None,
            constraint: None,
            priority: 0,
            client: 0,
        }
    }
}

/// Why a request was refused; nothing was queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The prompt has no tokens.
    PromptEmpty,
    /// The prompt leaves no room in the context for one token of answer.
    PromptTooLong {
        /// Length of the prompt, in tokens.
        prompt: usize,
        /// Tokens a sequence may have, prompt and answer together.
        context: usize,
    },
    /// The prompt or the stop ids name a token that the model does not have.
    TokenOutOfVocabulary {
        /// The token's id.
        id: u32,
        /// Tokens of the vocabulary.
        vocabulary: usize,
    },
    /// An image does not suit the model, the prompt or what is asked for; the message says which, and why.
    Image(String),
    /// The constraint allows no answer; the message says why.
    Constraint(String),
    /// As many requests wait as are allowed.
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// Requests that may wait.
        limit: usize,
    },
    /// The engine is draining and accepts no requests.
    Draining,
    /// The engine has stopped; [`crate::EngineHandle::health`] tells why.
    Stopped,
}

impl std::fmt::Display for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubmitError::PromptEmpty => write!(f, "the prompt is empty"),
            SubmitError::PromptTooLong { prompt, context } => write!(
                f,
                "the prompt has {prompt} tokens, and the context of {context} tokens leaves no room for an answer"
            ),
            SubmitError::TokenOutOfVocabulary { id, vocabulary } => {
                write!(f, "token {id} is outside the vocabulary of {vocabulary}")
            }
            SubmitError::Image(why) => f.write_str(why),
            SubmitError::Constraint(why) => write!(f, "no answer is possible: {why}"),
            SubmitError::QueueFull { waiting, limit } => {
                write!(f, "{waiting} requests are waiting, and at most {limit} may; try again later")
            }
            SubmitError::Draining => write!(f, "the server is shutting down and takes no new requests"),
            SubmitError::Stopped => write!(f, "the engine has stopped"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// An event of an answer. Exactly one [`Event::Finished`] or [`Event::Failed`] is sent, as the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next tokens of the prompt, from its second on, with their log-probabilities.
    Prompt(Vec<Sampled>),
    /// The next token of the answer.
    Token(Sampled),
    /// The answer is complete, or was cancelled.
    Finished(Finished),
    /// The answer ends here because the engine cannot go on with it.
    Failed(EngineError),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Reason for the end.
    pub reason: FinishReason,
    /// The stop id that ended the answer, if one did, with the requested log-probabilities.
    pub stop: Option<Sampled>,
    /// Length of the prompt, in tokens.
    pub prompt_tokens: usize,
    /// Tokens sampled, the stop id included.
    pub generated_tokens: usize,
    /// Durations of its phases.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was sampled. It is counted as generated and not sent as [`Event::Token`].
    Stop {
        /// The stop id.
        id: u32,
    },
    /// `max_tokens` were generated, or the context is full.
    Length,
    /// [`crate::Generation::cancel`] was called, or the generation was dropped.
    Cancelled,
    /// [`crate::Generation::satisfied`] was called. The client is gone and does not receive it.
    Satisfied,
}

/// Wall-clock times of one generation. Phases that were not reached are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to admission.
    pub queue: Duration,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

/// Why the engine could not finish an accepted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// The forward thread panicked, the model broke its contract, or its answers are wrong; the message says
    /// how.
    Fault(String),
    /// The sequence's memory could not be written to disk or read back, or the model sampled what the
    /// constraint does not allow; the message says which.
    Lost(String),
    /// The grammar that constrains the answer cannot be followed any further; the message says why.
    Grammar(String),
    /// The engine was drained, and the answer was not complete at the deadline.
    DrainDeadline,
    /// The engine stopped before the request ran.
    Stopped,
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Fault(message) => write!(f, "the engine failed: {message}"),
            EngineError::Lost(why) | EngineError::Grammar(why) => {
                write!(f, "the answer cannot go on: {why}")
            }
            EngineError::DrainDeadline => write!(f, "the server shut down before the answer was complete"),
            EngineError::Stopped => write!(f, "the engine has stopped"),
        }
    }
}

impl std::error::Error for EngineError {}

impl From<Stopped> for EngineError {
    fn from(stopped: Stopped) -> EngineError {
        match stopped {
            Stopped::Grammar(error) => EngineError::Grammar(error.to_string()),
            Stopped::Token(error) => EngineError::Lost(error.to_string()),
        }
    }
}
