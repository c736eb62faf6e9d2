//! Everything between strings and tokens that a request needs.

use monomorph_model::ModelSpec;
use monomorph_text::{Chat, ChatTemplate, TextError, Tokenizer};
use monomorph_weights::Checkpoint;
use serde_json::{Map, Value};

/// A model's tokenizer and chat template.
pub(crate) struct Text {
    /// Strings to ids and back.
    pub(crate) tokenizer: Tokenizer,
    /// Absent where neither the checkpoint nor the build has one: then only text completions work.
    pub(crate) template: Option<ChatTemplate>,
}

impl Text {
    /// Reads both from a checkpoint; a template fixed at build time goes before the checkpoint's own.
    pub(crate) fn load(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<Text, TextError> {
        let tokenizer = Tokenizer::from_checkpoint(checkpoint)?;
        let template = match spec.protocol.chat_template {
            Some(source) => Some(ChatTemplate::from_source(source, &tokenizer)?),
            None => ChatTemplate::from_checkpoint(checkpoint, &tokenizer)?,
        };
        Ok(Text { tokenizer, template })
    }

    /// For made-up weights without a checkpoint: token ids are bytes, and a chat is its messages, line by line.
    pub(crate) fn stand_in(spec: &ModelSpec) -> Result<Text, TextError> {
        let tokenizer = Tokenizer::stand_in(spec.vocabulary)?;
        let template = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}";
        let template = Some(ChatTemplate::from_source(template, &tokenizer)?);
        Ok(Text { tokenizer, template })
    }

    /// The tokens of a chat, ending where the assistant's answer begins.
    pub(crate) fn encode_chat(
        &self,
        messages: &[Value],
        extra: &Map<String, Value>,
    ) -> Result<Vec<u32>, TextError> {
        self.encode(&Chat { messages, add_generation_prompt: true, extra })
    }

    /// The tokens of messages that a chat begins with, and nothing behind them.
    pub(crate) fn encode_beginning(
        &self,
        messages: &[Value],
        extra: &Map<String, Value>,
    ) -> Result<Vec<u32>, TextError> {
        self.encode(&Chat { messages, add_generation_prompt: false, extra })
    }

    fn encode(&self, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let Some(template) = &self.template else {
            let message = "this model's checkpoint has no chat template; use /v1/completions".to_owned();
            return Err(TextError::Template { line: None, message });
        };
        self.tokenizer.encode_chat(template, chat)
    }
}
