//! A chat as a prompt's text and its ids.

use crate::chat::Chat;
use crate::error::TextError;
use crate::escape::Stretch;
use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

/// A rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt's tokens.
    pub ids: Vec<u32>,
    /// The text that the template wrote. In it, control tokens spelled out in messages are broken up.
    pub text: String,
}

impl Tokenizer {
    /// A rendered chat and its ids. The template's own control tokens are parsed; those spelled out in
    /// messages, tools and the like are text. `bos` is put first if the model wants it and the template did
    /// not write it.
    ///
    /// # Errors
    /// When the template rejects the chat, or the tokenizer library the text.
    pub fn encode_chat(&self, template: &ChatTemplate, chat: &Chat) -> Result<Prompt, TextError> {
        let controls = &self.parts.controls;
        let mut escaped = false;
        let messages: Vec<serde_json::Value> =
            chat.messages.iter().map(|message| controls.escape_value(message, &mut escaped)).collect();
        let extra = controls.escape_map(chat.extra, &mut escaped);
        if !escaped {
            let text = template.render(chat)?;
            return Ok(Prompt { ids: self.with_bos(self.encode(&text, Special::Parse)?), text });
        }
        let chat = Chat { messages: &messages, extra: &extra, end: chat.end };
        let text = template.render(&chat)?;
        let mut ids = Vec::new();
        for stretch in controls.split(&text) {
            match stretch {
                Stretch::Control(id) => ids.push(id),
                Stretch::Text(text) => ids.extend(self.encode(&text, Special::Plain)?),
            }
        }
        Ok(Prompt { ids: self.with_bos(ids), text })
    }
}
