//! A conversation independently of any vendor's API: messages and tools as a chat template takes them, and
//! what is asked of the reasoning.

use crate::answer::reading::{Calls, Reading};
use crate::error::{ApiError, wrong};
use crate::images::{ImageReader, Placed, PlacedImages};
use crate::request::calls::{Tool, Wanted};
use crate::request::compaction::{Compacted, Compaction, Room};
use crate::request::editing::{Edit, Edited};
use crate::request::images::RequestImage;
use crate::request::reasoning::{ReasoningMode, share_of};
use crate::request::text::{EFFORT, SWITCH, Text};
use monomorph_text::{Chat, ChatEnd, Prompt, Special, ToolSet};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The path of the template's switch in a body.
const SWITCH_FIELD: &str = "chat_template_kwargs.enable_thinking";

/// A conversation to answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conversation {
    /// Its field in the body, which errors name.
    pub(crate) at: &'static str,
    /// As templates take them: `role`, `content` (a string), `tool_calls` with their arguments as objects,
    /// and so on.
    pub(crate) messages: Vec<Value>,
    /// The images in them, in the order in which they stand there.
    pub(crate) images: Vec<RequestImage>,
    /// What is to go from them first, if the request says.
    pub(crate) edits: Option<Vec<Edit>>,
    /// Whether the last one is the beginning of the answer.
    pub(crate) continues: bool,
    /// Tools that the model is shown and may call.
    pub(crate) tools: Tools,
    /// The requested reasoning.
    pub(crate) reasoning: Reasoning,
    /// Further template variables.
    pub(crate) variables: Map<String, Value>,
}

/// Tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// As templates take them: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    /// None: calls are no calls.
    pub(crate) given: Vec<Value>,
    /// Whether each is strict: its arguments must follow all of its schema.
    pub(crate) strict: Vec<bool>,
    /// Where each stands in the request, if some there are not given.
    pub(crate) places: Option<Vec<usize>>,
    /// Path of the schema within a tool of the request.
    pub(crate) schema_at: &'static str,
    /// Whether none of them may be called now.
    pub(crate) forbidden: bool,
    /// Whether a call is required.
    pub(crate) required: bool,
    /// The tools that may be called, if not all.
    pub(crate) only: Option<Vec<String>>,
    /// Whether at most one call is wanted.
    pub(crate) one: bool,
}

/// The requested reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// Nothing: the model's default.
    #[default]
    Unsaid,
    /// None, if the model can turn it off.
    Unwanted,
    /// None; an error if the model cannot turn it off.
    Off {
        /// By which field.
        field: &'static str,
    },
    /// Reasoning is wanted.
    On {
        /// By which field.
        field: &'static str,
        /// Level of effort, if the request names one.
        effort: Option<String>,
    },
}

/// A conversation ready for the engine.
pub(crate) struct Prepared {
    /// Its field in the body.
    pub(crate) at: &'static str,
    /// The prompt's tokens.
    pub(crate) ids: Vec<u32>,
    /// The images among them, which are still to be decoded.
    pub(crate) images: PlacedImages,
    /// The parser of its answers.
    pub(crate) reading: Reading,
    /// The calls that the answer may or must contain.
    pub(crate) calls: Option<Wanted>,
    /// The share of the answer for reasoning, where the template has no variable for the effort.
    pub(crate) share: Option<f64>,
    /// What the prompt leaves out of the conversation, if anything.
    pub(crate) compacted: Option<Compacted>,
    /// What the request's edits took.
    pub(crate) edited: Option<Vec<Edited>>,
}

impl Prepared {
    /// A prompt whose tokens are given: its answers are parsed as text only.
    pub(crate) fn plain() -> Prepared {
        let reading = Reading::plain();
        let images = PlacedImages::default();
        Prepared {
            at: "prompt",
            ids: Vec::new(),
            images,
            reading,
            calls: None,
            share: None,
            compacted: None,
            edited: None,
        }
    }
}

impl Tools {
    /// Requires a call; `path` is the field that says so.
    ///
    /// # Errors
    /// When there is nothing to call.
    pub(crate) fn require(&mut self, path: &str) -> Result<(), ApiError> {
        if self.given.is_empty() {
            return Err(wrong!(path, "asks for a call, and `tools` has none to call"));
        }
        self.required = true;
        Ok(())
    }

    /// Leaves out those of all the request's tools that `kept` says no to.
    pub(crate) fn keep(&mut self, kept: &[bool]) {
        let places = kept.iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| at);
        let places: Vec<usize> = places.collect();
        if places.len() < self.given.len() {
            self.given = places.iter().map(|&at| self.given[at].clone()).collect();
            self.strict = places.iter().map(|&at| self.strict[at]).collect();
            self.places = Some(places);
        }
    }

    /// Restricts calls to these tools; `path` is the field that says so.
    ///
    /// # Errors
    /// When there are none, or one of them is no tool of the request.
    pub(crate) fn allow(&mut self, names: Vec<String>, path: &str) -> Result<(), ApiError> {
        let given = |name: &String| self.given.iter().any(|tool| tool["function"]["name"] == name.as_str());
        if let Some(name) = names.iter().find(|name| !given(name)) {
            return Err(wrong!(path, "names {name:?}, which is not among `tools`"));
        }
        if names.is_empty() {
            return Err(wrong!(path, "must not be empty"));
        }
        self.only = Some(names);
        Ok(())
    }

    fn set(&self) -> ToolSet {
        let one = |tool: &'_ Value| {
            let function = &tool["function"];
            (function["name"].as_str().unwrap_or_default().to_owned(), function["parameters"].clone())
        };
        let tools: Vec<_> = self.given.iter().map(one).collect();
        ToolSet::new(tools.iter().map(|(name, parameters)| (name.as_str(), parameters)))
    }
}

impl Tools {
    /// The calls allowed in an answer; `None` if none are, or the model has no form of tool calls.
    fn wanted(&self, text: &Text, set: &Arc<ToolSet>) -> Option<Wanted> {
        let form = text.form().filter(|_| !self.forbidden)?;
        let tool = |(at, given): (usize, &Value)| {
            let function = &given["function"];
            let name = function["name"].as_str().unwrap_or_default().to_owned();
            let strict = self.strict.get(at).copied().unwrap_or(false);
            let place = self.places.as_ref().map_or(at, |places| places[at]);
            let path = format!("tools[{place}].{}", self.schema_at);
            Tool { name, schema: function["parameters"].clone(), strict, path }
        };
        let may_be = |tool: &Tool| self.only.as_ref().is_none_or(|only| only.contains(&tool.name));
        let tools = self.given.iter().enumerate().map(tool).filter(may_be).collect();
        let (required, one) = (self.required, self.one);
        Some(Wanted { form, tools, set: Arc::clone(set), required, one })
    }
}

/// Bytes of the texts and names in a value, and one for all else in it.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum::<usize>() + 1,
        Value::Object(map) => map.iter().map(|(name, value)| name.len() + bytes_of(value)).sum::<usize>() + 1,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Puts images into the prompt that the template wrote. A model without a reader of images was sent none: the
/// readers of messages refuse them.
fn place(
    images: Vec<RequestImage>,
    ids: Vec<u32>,
    at: &str,
    reader: Option<&ImageReader>,
) -> Result<Placed, ApiError> {
    match reader.filter(|_| !images.is_empty()) {
        Some(reader) => reader.place(images, &ids, at),
        None => Ok(Placed { ids, ..Placed::default() }),
    }
}

impl Conversation {
    /// The size to render.
    pub(crate) fn bytes(&self) -> usize {
        let values = self.messages.iter().chain(&self.tools.given).chain(self.variables.values());
        values.map(bytes_of).sum()
    }

    /// The field that asks for reasoning, if one does.
    pub(crate) fn asks_to_reason(&self) -> Option<&'static str> {
        match &self.reasoning {
            Reasoning::On { field, .. } => Some(*field),
            _ => (self.variables.get(SWITCH) == Some(&Value::Bool(true))).then_some(SWITCH_FIELD),
        }
    }

    /// Renders and tokenizes it, on a server whose models reason in this way; with `room`, shortened if it
    /// does not fit.
    ///
    /// # Errors
    /// When the model does not support what is asked, or the template refuses it.
    pub(crate) fn prepare(
        self,
        text: &Text,
        mode: ReasoningMode,
        room: Option<Room>,
        reader: Option<&ImageReader>,
    ) -> Result<Prepared, ApiError> {
        let (edited, this) = self.edit(text, mode)?;
        this.prepare_edited(text, mode, room, reader, edited)
    }

    fn prepare_edited(
        self,
        text: &Text,
        mode: ReasoningMode,
        room: Option<Room>,
        reader: Option<&ImageReader>,
        edited: Option<Vec<Edited>>,
    ) -> Result<Prepared, ApiError> {
        // What is left out of a conversation may be an image, or what the answer is to go on with.
        let room = room.filter(|_| self.images.is_empty() && !self.continues);
        let images = self.images.clone();
        let calls = match (self.tools.forbidden, self.tools.one) {
            (true, _) => Calls::None,
            (false, true) => Calls::First,
            (false, false) => Calls::All,
        };
        let set = (!self.tools.given.is_empty()).then(|| Arc::new(self.tools.set()));
        let wanted = set.as_ref().and_then(|set| self.tools.wanted(text, set));
        let share = match &self.reasoning {
            Reasoning::On { effort: Some(effort), .. }
                if mode == ReasoningMode::On && !text.template_knows(EFFORT) =>
            {
                share_of(effort)
            }
            _ => None,
        };
        let at = self.at;
        let (prompt, compacted) = self.fit(text, mode, room)?;
        let reading = text.reading(&prompt, set.map(|set| (set, calls)));
        let Placed { ids, images } = place(images, prompt.ids, at, reader)?;
        Ok(Prepared { at, reading, ids, images, calls: wanted, share, compacted, edited })
    }

    /// What its edits took, and the conversation without that.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn edit(
        mut self,
        text: &Text,
        mode: ReasoningMode,
    ) -> Result<(Option<Vec<Edited>>, Conversation), ApiError> {
        let Some(edits) = self.edits.take() else { return Ok((None, self)) };
        let count = |of: &Conversation| Ok::<_, ApiError>(of.clone().render(text, mode, true)?.ids.len());
        let mut edited = Vec::new();
        if edits.is_empty() {
            return Ok((Some(edited), self));
        }
        let mut tokens = count(&self)?;
        for edit in edits {
            let Some(change) = edit.of(&self.messages, tokens) else { continue };
            let stays =
                |(at, image): (usize, &RequestImage)| (!change.images.contains(&at)).then(|| image.clone());
            let images = self.images.iter().enumerate().filter_map(stays).collect();
            let shorter = Conversation { messages: change.messages, images, ..self.clone() };
            let left = count(&shorter)?;
            let taken = tokens.saturating_sub(left);
            if taken < edit.at_least() {
                continue;
            }
            edited.push(edit.edited(change.count, taken));
            (self, tokens) = (shorter, left);
        }
        Ok((Some(edited), self))
    }

    /// The tokens of its prompt, images included, with the beginning of an answer behind it or not.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn ids(
        self,
        text: &Text,
        mode: ReasoningMode,
        open: bool,
        reader: Option<&ImageReader>,
    ) -> Result<Vec<u32>, ApiError> {
        let (images, at) = (self.images.clone(), self.at);
        let ids = self.render(text, mode, open)?.ids;
        Ok(place(images, ids, at, reader)?.ids)
    }

    /// Renders it with the beginning of an answer behind it; with `room`, shortened if it does not fit. What
    /// cannot be made short enough is as short as it can be.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn fit(
        self,
        text: &Text,
        mode: ReasoningMode,
        room: Option<Room>,
    ) -> Result<(Prompt, Option<Compacted>), ApiError> {
        let Some(room) = room else { return Ok((self.render(text, mode, true)?, None)) };
        let whole = self.clone().render(text, mode, true)?;
        let mut excess = room.excess(whole.ids.len());
        if excess == 0 {
            return Ok((whole, None));
        }
        let count = |part: &str| text.tokenizer.encode(part, Special::Plain).map(|ids| ids.len());
        let compaction = Compaction::new(&self.messages, count)?;
        loop {
            let (messages, compacted, more) = compaction.without(excess);
            let prompt = Conversation { messages, ..self.clone() }.render(text, mode, true)?;
            // Templates do more than to put messages one after another: what stays may take more.
            if prompt.ids.len() > room.prompt && more {
                excess += room.step;
                continue;
            }
            let tokens = whole.ids.len().saturating_sub(prompt.ids.len());
            let compacted = (compacted != Compacted::default()).then_some(Compacted { tokens, ..compacted });
            return Ok((prompt, compacted));
        }
    }

    /// Renders it, with the beginning of an answer behind it or not; up to its last content if the answer
    /// goes on with that.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn render(mut self, text: &Text, mode: ReasoningMode, open: bool) -> Result<Prompt, ApiError> {
        self.switch_reasoning(text, mode)?;
        if !self.tools.given.is_empty() {
            if text.tools.is_none() {
                let what = "this model has no form of tool calls";
                return Err(ApiError::unsupported("tools", what));
            }
            if !text.template_knows("tools") {
                let what = "this checkpoint's chat template has no tools";
                return Err(ApiError::unsupported("tools", what));
            }
            if !self.tools.forbidden {
                let given = std::mem::take(&mut self.tools.given);
                self.variables.insert("tools".to_owned(), given.into());
            }
        }
        let end = match (self.continues, open) {
            (true, _) => ChatEnd::Content,
            (false, true) => ChatEnd::Answer,
            (false, false) => ChatEnd::Message,
        };
        let chat = Chat { messages: &self.messages, end, extra: &self.variables };
        text.encode_chat(&chat).map_err(|error| ApiError::of_text(self.at, error))
    }

    /// Sets the template's variables of reasoning.
    fn switch_reasoning(&mut self, text: &Text, mode: ReasoningMode) -> Result<(), ApiError> {
        let field = SWITCH_FIELD;
        let said = match self.variables.get(SWITCH) {
            None => None,
            Some(Value::Bool(said)) => Some(*said),
            Some(_) => return Err(wrong!(field, "must be a boolean")),
        };
        let wanted = match &self.reasoning {
            Reasoning::Unsaid | Reasoning::Unwanted => None,
            Reasoning::Off { field } => Some((*field, false)),
            Reasoning::On { field, .. } => Some((*field, true)),
        };
        if let (Some((other, wanted)), Some(said)) = (wanted, said)
            && wanted != said
        {
            return Err(wrong!(field, "contradicts `{other}`; give one of them"));
        }
        let on = wanted.map(|(_, on)| on).or(said);
        if mode == ReasoningMode::Off && on == Some(true) {
            let field = wanted.map_or(field, |(field, _)| field);
            let message = format!("`{field}`: this server was started with --reasoning off");
            return Err(ApiError { code: "unsupported_parameter", ..ApiError::field(field, message) });
        }
        let forced = mode == ReasoningMode::ForcedOff;
        let (wanted, on) = if forced { (None, None) } else { (wanted, on) };
        let (switch, effort) = (text.template_knows(SWITCH), text.template_knows(EFFORT));
        match (wanted, text.reasoning) {
            (Some((field, true)), None) => {
                return Err(ApiError::unsupported(field, "this model does not reason"));
            }
            (Some((field, false)), Some(_)) if !switch && !effort => {
                let what = "this checkpoint's chat template has no switch for reasoning";
                return Err(ApiError::unsupported(field, what));
            }
            _ => {}
        }
        let unwanted = on.is_none() && self.reasoning == Reasoning::Unwanted;
        let on = if mode == ReasoningMode::On && !unwanted { on } else { Some(false) };
        if let Some(on) = on.filter(|_| text.reasoning.is_some()) {
            if switch {
                self.variables.insert(SWITCH.to_owned(), on.into());
            }
            let word = match &self.reasoning {
                Reasoning::On { effort, .. } if !forced => effort.clone(),
                _ => (!on).then(|| "none".to_owned()),
            };
            if let Some(word) = word.filter(|_| effort) {
                self.variables.insert(EFFORT.to_owned(), word.into());
            }
        }
        Ok(())
    }
}
