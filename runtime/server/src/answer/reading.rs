//! Parsing of an answer's text by the model's formats, or not at all.

use super::part::AnswerPart;
use crate::process::random::random_seed;
use monomorph_text::{AnswerEvent, AnswerParser};
use std::sync::Arc;

/// Control tokens that are markup of a model's formats, by their ids.
pub(crate) type Controls = Arc<[(u32, &'static str)]>;

/// The shape of the ids made up for calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallIds {
    /// `call_` and 24 hexadecimal digits, as OpenAI's.
    Long,
    /// Nine letters and digits: Mistral's templates refuse others.
    Short,
}

/// How calls in an answer are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// They are calls.
    All,
    /// The first is one, and ends the answer.
    First,
    /// None is allowed: they are rejected markup.
    None,
}

/// Parses one answer.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// `None`: all of it is text.
    parser: Option<AnswerParser>,
    controls: Controls,
    ids: CallIds,
    calls: Calls,
}

impl Reading {
    /// An answer that is all text.
    pub(crate) fn plain() -> Reading {
        Reading { parser: None, controls: Arc::new([]), ids: CallIds::Long, calls: Calls::All }
    }

    /// An answer in a model's formats.
    pub(crate) fn new(parser: AnswerParser, controls: Controls, ids: CallIds, calls: Calls) -> Reading {
        Reading { parser: Some(parser), controls, ids, calls }
    }

    /// Whether the answer is all text.
    pub(crate) fn is_plain(&self) -> bool {
        self.parser.is_none()
    }

    /// Whether the first call ends the answer.
    pub(crate) fn ends_with_a_call(&self) -> bool {
        self.calls == Calls::First
    }

    /// The name of a markup token.
    pub(crate) fn control(&self, id: u32) -> Option<&'static str> {
        self.controls.iter().find(|(control, _)| *control == id).map(|(_, name)| *name)
    }

    /// Whether what comes next is reasoning.
    pub(crate) fn in_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::in_reasoning)
    }

    /// Bytes of text that are held back.
    pub(crate) fn held(&self) -> usize {
        self.parser.as_ref().map_or(0, AnswerParser::held)
    }

    /// Takes text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Text(text.to_owned())],
            Some(parser) => {
                let events = parser.push(text);
                self.parts(events)
            }
        }
    }

    /// Takes a markup token, by its name.
    pub(crate) fn push_control(&mut self, name: &str) -> Vec<AnswerPart> {
        let Some(parser) = &mut self.parser else { return Vec::new() };
        let events = parser.push_control(name);
        self.parts(events)
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self) -> Vec<AnswerPart> {
        let Some(parser) = &mut self.parser else { return Vec::new() };
        let events = parser.finish();
        self.parts(events)
    }

    fn parts(&self, events: Vec<AnswerEvent>) -> Vec<AnswerPart> {
        events.into_iter().filter_map(|event| self.part(event)).collect()
    }

    fn part(&self, event: AnswerEvent) -> Option<AnswerPart> {
        let forbidden = self.calls == Calls::None;
        Some(match event {
            AnswerEvent::Text(text) => AnswerPart::Text(text),
            AnswerEvent::ReasoningBegin => return None,
            AnswerEvent::Reasoning(text) => AnswerPart::Reasoning(text),
            AnswerEvent::ReasoningEnd { .. } => AnswerPart::ReasoningEnd,
            AnswerEvent::CallBegin { name, .. } if forbidden => AnswerPart::Rejected(name),
            AnswerEvent::CallArguments { delta, .. } if forbidden => AnswerPart::Rejected(delta),
            AnswerEvent::CallEnd { .. } if forbidden => return None,
            AnswerEvent::CallBegin { index, name, id, .. } => {
                AnswerPart::CallBegin { index, id: id.unwrap_or_else(|| self.ids.make()), name }
            }
            AnswerEvent::CallArguments { index, delta } => AnswerPart::CallArguments { index, delta },
            AnswerEvent::CallEnd { index, .. } => AnswerPart::CallEnd { index },
            AnswerEvent::Rejected(text) => AnswerPart::Rejected(text),
        })
    }
}

impl CallIds {
    fn make(self) -> String {
        let digits = format!("{:016x}{:016x}", random_seed(), random_seed());
        match self {
            CallIds::Long => format!("call_{}", &digits[..24]),
            CallIds::Short => digits[..9].to_owned(),
        }
    }
}
