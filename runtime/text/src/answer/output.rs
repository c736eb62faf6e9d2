//! The event buffer that all formats write to.

use super::event::{AnswerEvent, CallOutcome};
use super::schema::ToolSet;
use std::sync::Arc;

/// Events not yet returned, and the state that all formats share.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    events: Vec<AnswerEvent>,
    /// The text of a call that has not begun yet.
    source: String,
    /// Whether a call has begun and not ended.
    open: bool,
    calls: usize,
    /// Whether reasoning has begun and not ended.
    reasoning: bool,
    tools: Arc<ToolSet>,
}

impl Output {
    pub(crate) fn new(tools: Arc<ToolSet>) -> Output {
        Output { events: Vec::new(), source: String::new(), open: false, calls: 0, reasoning: false, tools }
    }

    pub(crate) fn take(&mut self) -> Vec<AnswerEvent> {
        std::mem::take(&mut self.events)
    }

    pub(crate) fn tools(&self) -> &ToolSet {
        &self.tools
    }

    /// Number of calls begun.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn text(&mut self, text: &str) {
        if text.is_empty() {
        } else if let Some(AnswerEvent::Text(last)) = self.events.last_mut() {
            last.push_str(text);
        } else {
            self.events.push(AnswerEvent::Text(text.to_owned()));
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        if !self.reasoning {
            self.reasoning = true;
            self.events.push(AnswerEvent::ReasoningBegin);
        }
        if let Some(AnswerEvent::Reasoning(last)) = self.events.last_mut() {
            last.push_str(text);
        } else {
            self.events.push(AnswerEvent::Reasoning(text.to_owned()));
        }
    }

    pub(crate) fn end_reasoning(&mut self, closed: bool) {
        if std::mem::take(&mut self.reasoning) {
            self.events.push(AnswerEvent::ReasoningEnd { closed });
        }
    }

    /// Keeps the text of a call until it begins.
    pub(crate) fn source(&mut self, text: &str) {
        if !self.open {
            self.source.push_str(text);
        }
    }

    /// Bytes kept for a call that has not begun.
    pub(crate) fn source_len(&self) -> usize {
        self.source.len()
    }

    /// Drops the last character kept, which does not belong to the call.
    pub(crate) fn unread(&mut self) {
        self.source.pop();
    }

    /// Drops the kept text, which was spacing between calls.
    pub(crate) fn drop_source(&mut self) {
        self.source.clear();
    }

    /// Rejects the kept text, which is not a call.
    pub(crate) fn reject_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        self.reject(&source);
    }

    /// Emits the kept text as text: it is neither a call nor other markup.
    pub(crate) fn source_is_text(&mut self) {
        let source = std::mem::take(&mut self.source);
        self.text(&source);
    }

    pub(crate) fn reject(&mut self, text: &str) {
        if text.is_empty() {
        } else if let Some(AnswerEvent::Rejected(last)) = self.events.last_mut() {
            last.push_str(text);
        } else {
            self.events.push(AnswerEvent::Rejected(text.to_owned()));
        }
    }

    /// Begins a call, and ends reasoning that is still open.
    pub(crate) fn begin(&mut self, name: &str) {
        self.begin_with(name, None);
    }

    /// [`Self::begin`] for a call with an id from the model.
    pub(crate) fn begin_with(&mut self, name: &str, id: Option<String>) {
        self.source.clear();
        self.end_reasoning(false);
        let known = self.tools.contains(name);
        self.events.push(AnswerEvent::CallBegin { index: self.calls, name: name.to_owned(), known, id });
        self.calls += 1;
        self.open = true;
    }

    pub(crate) fn arguments(&mut self, text: &str) {
        if text.is_empty() {
        } else if let Some(AnswerEvent::CallArguments { delta, .. }) = self.events.last_mut() {
            delta.push_str(text);
        } else {
            let index = self.calls.saturating_sub(1);
            self.events.push(AnswerEvent::CallArguments { index, delta: text.to_owned() });
        }
    }

    /// Ends the call, if one is open.
    pub(crate) fn end(&mut self, outcome: CallOutcome) {
        if std::mem::take(&mut self.open) {
            self.events.push(AnswerEvent::CallEnd { index: self.calls.saturating_sub(1), outcome });
        }
    }
}
