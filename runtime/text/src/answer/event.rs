//! The parts of an answer.

/// A part of an answer, in the order of the text.
///
/// Consecutive deltas of one kind belong together. Concatenated, they do not depend on how the answer was
/// split into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the reader.
    Text(String),
    /// Reasoning begins. Empty reasoning has no events at all.
    ReasoningBegin,
    /// Text of the reasoning.
    Reasoning(String),
    /// The reasoning is complete.
    ReasoningEnd {
        /// Whether its own tag ended it, rather than a tool call or the end of the answer.
        closed: bool,
    },
    /// A tool call begins.
    CallBegin {
        /// Index of the call in this answer, from 0.
        index: usize,
        /// The tool's name.
        name: String,
        /// Whether it is one of the tools given.
        known: bool,
        /// The id that the model gave it, if it comes before the arguments.
        id: Option<String>,
    },
    /// More of the call's arguments: JSON text of one object. All deltas together form the whole object if
    /// the call ends as [`CallOutcome::Complete`], and otherwise its beginning.
    CallArguments {
        /// Index of the call.
        index: usize,
        /// More of the JSON text.
        delta: String,
    },
    /// The call ends. Every call that begins also ends.
    CallEnd {
        /// Index of the call.
        index: usize,
        /// How the call ended.
        outcome: CallOutcome,
    },
    /// Invalid markup: a misplaced tag, the rest of a malformed call, or an incomplete tag at the end of the
    /// answer. It contains the markup as written, so it is not meant for readers; but nothing that the model
    /// wrote is lost.
    Rejected(String),
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The arguments are one JSON object.
    Complete,
    /// The answer ended within the call.
    Truncated,
    /// The call is not in the model's format; the unreadable rest follows as [`AnswerEvent::Rejected`].
    Malformed,
}
