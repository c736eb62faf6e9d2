//! The parts of an answer.

/// A part of an answer, in the order in which it was written.
///
/// Deltas of one kind that follow each other belong together. Concatenated, they do not depend on how the
/// answer was cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text for the reader.
    Text(String),
    /// Reasoning begins. Reasoning without a character in it has no events at all.
    ReasoningBegin,
    /// Text of the reasoning.
    Reasoning(String),
    /// Reasoning ends.
    ReasoningEnd {
        /// Whether by its own tag, and not by a tool call or the end of the answer.
        closed: bool,
    },
    /// A tool call begins.
    CallBegin {
        /// Which call of this answer, from 0.
        index: usize,
        /// The tool's name.
        name: String,
        /// Whether it is one of the tools given.
        known: bool,
        /// The id that the model gave it, where that stands before the arguments.
        id: Option<String>,
    },
    /// More of the call's arguments: JSON text of one object. Together a whole object if the call ends as
    /// [`CallOutcome::Complete`], and else the beginning of one.
    CallArguments {
        /// Which call.
        index: usize,
        /// The text.
        delta: String,
    },
    /// The call ends; one that begins always does.
    CallEnd {
        /// Which call.
        index: usize,
        /// How.
        outcome: CallOutcome,
    },
    /// Text where only markup may stand, and which is none: a tag out of place, what is left of a malformed
    /// call, the beginning of a tag at the end of the answer. It holds the markup as it was written, so it is
    /// nothing for a reader; but nothing that the model wrote is lost.
    Rejected(String),
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The arguments are one JSON object.
    Complete,
    /// The answer ended within the call.
    Truncated,
    /// The call is not in the model's format; what could not be read follows as [`AnswerEvent::Rejected`].
    Malformed,
}
