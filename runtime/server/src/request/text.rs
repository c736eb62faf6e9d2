//! The text side of a model: tokenizer, chat template, formats.

use crate::answer::reading::{CallIds, Calls, Controls, Reading};
use crate::request::calls::Form;
use monomorph_model::ModelSpec;
use monomorph_text::{
    AnswerParser, Chat, ChatTemplate, Prompt, ReasoningFormat, TextError, Tokenizer, ToolFormat, ToolSet,
};
use monomorph_weights::Checkpoint;
use std::sync::Arc;

/// Template variable that turns reasoning on or off.
pub(crate) const SWITCH: &str = "enable_thinking";
/// Template variable of the effort.
pub(crate) const EFFORT: &str = "reasoning_effort";

/// A model's tokenizer, chat template and answer formats.
pub(crate) struct Text {
    /// Strings to ids and back.
    pub(crate) tokenizer: Tokenizer,
    /// Absent where neither the checkpoint nor the build has one: then only text completions work.
    pub(crate) template: Option<ChatTemplate>,
    /// How it writes tool calls.
    pub(crate) tools: Option<ToolFormat>,
    /// How it marks its reasoning.
    pub(crate) reasoning: Option<ReasoningFormat>,
}

impl Text {
    /// Reads both from a checkpoint; a template fixed at build time goes before the checkpoint's own.
    pub(crate) fn load(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Text, TextError> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        let template = match spec.protocol.chat_template {
            Some(source) => Some(ChatTemplate::from_source(source, &tokenizer)?),
            None => ChatTemplate::from_checkpoint(checkpoint, &tokenizer)?,
        };
        Ok(Text::new(tokenizer, template, spec))
    }

    /// For random weights without a checkpoint: token ids are bytes, and a chat is its messages, a line each.
    pub(crate) fn stand_in(spec: &ModelSpec) -> Result<Text, TextError> {
        let tokenizer = Tokenizer::stand_in(spec.vocabulary)?;
        let template = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}";
        let template = Some(ChatTemplate::from_source(template, &tokenizer)?);
        Ok(Text::new(tokenizer, template, spec))
    }

    fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, spec: &ModelSpec) -> Text {
        // The compiler takes no other names.
        let tools = spec.protocol.tools.and_then(ToolFormat::from_name);
        let reasoning = spec.protocol.reasoning.and_then(ReasoningFormat::from_name);
        Text { tokenizer, template, tools, reasoning }
    }

    /// Whether the chat template's text mentions a variable.
    pub(crate) fn template_knows(&self, variable: &str) -> bool {
        self.template.as_ref().is_some_and(|template| template.source().contains(variable))
    }

    /// Checks that reasoning can be turned off.
    ///
    /// # Errors
    /// When its chat template has no switch.
    pub(crate) fn can_answer_at_once(&self) -> Result<(), String> {
        if self.reasoning.is_none() || [SWITCH, EFFORT].iter().any(|it| self.template_knows(it)) {
            return Ok(());
        }
        Err(format!("the chat template knows neither `{SWITCH}` nor `{EFFORT}`, of which one is its switch"))
    }

    /// A chat, as its template writes it.
    pub(crate) fn encode_chat(&self, chat: &Chat) -> Result<Prompt, TextError> {
        let Some(template) = &self.template else {
            let message = "this model's checkpoint has no chat template; use /v1/completions".to_owned();
            return Err(TextError::Template { line: None, message });
        };
        self.tokenizer.encode_chat(template, chat)
    }

    /// The parser of answers to a prompt with these tools. Without tools, calls are plain text.
    pub(crate) fn reading(&self, prompt: &Prompt, tools: Option<(Arc<ToolSet>, Calls)>) -> Reading {
        let format = self.tools.filter(|_| tools.is_some());
        if format.is_none() && self.reasoning.is_none() {
            return Reading::plain();
        }
        let (set, calls) = tools.unwrap_or_else(|| (Arc::default(), Calls::All));
        let opened = self.reasoning.is_some_and(|reasoning| reasoning.is_open_after(&prompt.text));
        let ids = if self.tools == Some(ToolFormat::Mistral) { CallIds::Short } else { CallIds::Long };
        let parser = AnswerParser::new(format, self.reasoning, set, opened);
        Reading::new(parser, self.controls(format), ids, calls)
    }

    /// The form of its calls, if known.
    pub(crate) fn form(&self) -> Option<Form> {
        self.tools.map(|format| Form { format, controls: self.controls(Some(format)) })
    }

    /// The control tokens that are tags of the reasoning, and of calls in a format.
    fn controls(&self, format: Option<ToolFormat>) -> Controls {
        let of_tools = format.map_or(&[][..], ToolFormat::control_tokens);
        let of_reasoning = self.reasoning.map_or(&[][..], ReasoningFormat::control_tokens);
        let names = of_tools.iter().chain(of_reasoning);
        let control = |name: &&'static str| {
            let id = self.tokenizer.token_id(name).filter(|id| self.tokenizer.is_special(*id))?;
            Some((id, *name))
        };
        names.filter_map(control).collect()
    }
}
