//! Answers independently of any vendor's API: parts, usage, end.

use monomorph_engine::Timings;

/// A part of an answer. Consecutive parts of one kind belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    /// Text for the reader.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// End of the reasoning; text or calls follow.
    ReasoningEnd,
    /// A tool call begins.
    CallBegin {
        /// Index of the call in this answer, from 0.
        index: usize,
        /// The call's id, which its result names: the model's own, or one made up.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments: JSON text of one object.
    CallArguments {
        /// Index of the call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// The arguments of a call are complete.
    CallEnd {
        /// Index of the call.
        index: usize,
    },
    /// Markup where none is allowed; not shown to a reader.
    Rejected(String),
}

impl AnswerPart {
    /// Appends a part, merged with the last one if they belong together.
    pub(crate) fn append(self, parts: &mut Vec<AnswerPart>) {
        match (self, parts.last_mut()) {
            (AnswerPart::Text(more), Some(AnswerPart::Text(text)))
            | (AnswerPart::Reasoning(more), Some(AnswerPart::Reasoning(text)))
            | (AnswerPart::Rejected(more), Some(AnswerPart::Rejected(text)))
            | (
                AnswerPart::CallArguments { delta: more, .. },
                Some(AnswerPart::CallArguments { delta: text, .. }),
            ) => {
                text.push_str(&more);
            }
            (part, _) => parts.push(part),
        }
    }
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

/// The prompt at the beginning of its answer, with the log-probabilities of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Echoed {
    /// The bytes of the first token, which has no log-probability.
    pub(crate) first: Vec<u8>,
    /// The other tokens.
    pub(crate) rest: Vec<TokenLogprob>,
}

/// The next piece of an answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// On the first piece, if requested.
    pub(crate) echoed: Option<Echoed>,
    /// Parts, in whole characters; may be empty.
    pub(crate) parts: Vec<AnswerPart>,
    /// Tokens of the text, if requested.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// All tokens since the piece before, including those without a part.
    pub(crate) ids: Vec<u32>,
    /// Set on the last piece.
    pub(crate) end: Option<End>,
}

impl Piece {
    /// The text of its parts.
    pub(crate) fn text(&self) -> String {
        let text =
            |part: &AnswerPart| if let AnswerPart::Text(text) = part { Some(text.clone()) } else { None };
        self.parts.iter().filter_map(text).collect()
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Reason for the end.
    pub(crate) reason: EndReason,
    /// How many calls of tools are in it.
    pub(crate) calls: usize,
    /// Token counts.
    pub(crate) usage: Usage,
    /// Times of its phases; absent when a stop string or a call ended it before the engine did.
    pub(crate) timings: Option<Timings>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A stop id, or a call where the first ends the answer.
    Stop,
    /// The stop string of this index.
    StopString(usize),
    /// `max_tokens`, or the context.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Length of the prompt, in tokens.
    pub(crate) prompt_tokens: usize,
    /// How many of these were cached.
    pub(crate) cached_tokens: usize,
    /// Tokens that the prompt leaves out of a conversation.
    pub(crate) compacted_tokens: usize,
    /// Generated tokens.
    pub(crate) completion_tokens: usize,
    /// How many of these are reasoning and its tags.
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    /// The sum over a request with `each` answers per prompt, in order. A prompt counts once, with the fewest
    /// cached tokens of its answers.
    pub(crate) fn of_all(answers: &[Usage], each: usize) -> Usage {
        let add = |sum: Usage, one: Usage| Usage {
            completion_tokens: sum.completion_tokens + one.completion_tokens,
            reasoning_tokens: sum.reasoning_tokens + one.reasoning_tokens,
            ..sum
        };
        let of_one = |answers: &[Usage]| {
            let cached_tokens = answers.iter().map(|one| one.cached_tokens).min().unwrap_or_default();
            Usage { cached_tokens, ..answers.iter().copied().reduce(add).unwrap_or_default() }
        };
        let next = |sum: Usage, one: Usage| Usage {
            prompt_tokens: sum.prompt_tokens + one.prompt_tokens,
            cached_tokens: sum.cached_tokens + one.cached_tokens,
            ..add(sum, one)
        };
        answers.chunks(each.max(1)).map(of_one).reduce(next).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_however_many_answers_it_has() {
        let one = |prompt_tokens, cached_tokens, completion_tokens| Usage {
            prompt_tokens,
            cached_tokens,
            compacted_tokens: 0,
            completion_tokens,
            reasoning_tokens: 1,
        };
        let answers = [one(10, 8, 1), one(10, 0, 2), one(20, 5, 3), one(20, 6, 4)];
        let sum = Usage { reasoning_tokens: 4, ..one(30, 5, 10) };
        assert_eq!(Usage::of_all(&answers, 2), sum);
        assert_eq!(Usage::of_all(&answers, 1), Usage { prompt_tokens: 60, cached_tokens: 19, ..sum });
        assert_eq!(Usage::of_all(&answers[..1], 1), answers[0]);
        assert_eq!(Usage::of_all(&[], 1), Usage::default());
    }
}
