//! What an answer is made of, in no vendor's words: parts, what they cost, how they ended.

use monomorph_engine::Timings;

/// A part of an answer. Those of one kind that follow each other belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text for the reader.
    Text(String),
    /// What the model thought before.
    Reasoning(String),
    /// It has done with thinking.
    ReasoningEnd,
    /// It calls a tool.
    CallBegin {
        /// Which call of this answer, from 0.
        index: usize,
        /// What the call's result is to name: the model's own id, or one made up.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments: JSON text of one object.
    CallArguments {
        /// Which call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// A call is over.
    CallEnd {
        /// Which.
        index: usize,
    },
    /// Markup where none may stand: nothing for a reader.
    Rejected(String),
}

impl Part {
    /// Puts a part behind others, together with the last one if they belong together.
    pub(crate) fn append(self, parts: &mut Vec<Part>) {
        match (self, parts.last_mut()) {
            (Part::Text(more), Some(Part::Text(text)))
            | (Part::Reasoning(more), Some(Part::Reasoning(text)))
            | (Part::Rejected(more), Some(Part::Rejected(text)))
            | (Part::CallArguments { delta: more, .. }, Some(Part::CallArguments { delta: text, .. })) => {
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

/// A prompt that its answer begins with, with the log-probabilities of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Echoed {
    /// The bytes of the first token, which follows nothing.
    pub(crate) first: Vec<u8>,
    /// The others.
    pub(crate) rest: Vec<TokenLogprob>,
}

/// Some more of an answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Of the first piece, where asked for.
    pub(crate) echoed: Option<Echoed>,
    /// Of whole characters; may be none.
    pub(crate) parts: Vec<Part>,
    /// Tokens of the text, where asked for.
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// All tokens since the piece before, those that no part came of too.
    pub(crate) ids: Vec<u32>,
    /// Set on the last piece.
    pub(crate) end: Option<End>,
}

impl Piece {
    /// The text in it.
    pub(crate) fn text(&self) -> String {
        let text = |part: &Part| if let Part::Text(text) = part { Some(text.clone()) } else { None };
        self.parts.iter().filter_map(text).collect()
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Why.
    pub(crate) reason: EndReason,
    /// How many calls of tools are in it.
    pub(crate) calls: usize,
    /// What it cost.
    pub(crate) usage: Usage,
    /// Where the time went; absent when a stop string or a call ended it, before the engine could say.
    pub(crate) timings: Option<Timings>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A stop id, or a call where one is all that is wanted.
    Stop,
    /// The stop string of this index.
    StopString(usize),
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
    /// How many of these are reasoning and its tags.
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    /// Of a request with so many answers to each of its prompts, prompt by prompt. A prompt counts once, as
    /// it was found by the answer that found least.
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
