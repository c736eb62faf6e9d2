//! Requests to `/tokenize` and `/detokenize`, as vLLM has them.

use super::chat::read_conversation;
use crate::error::{ApiError, wrong};
use crate::request::conversation::Conversation;
use crate::request::fields::{Fields, wrong_type};
use crate::request::generation::{ids, token_ids};
use serde_json::Value;

/// The input of tokenization.
#[derive(Debug, PartialEq)]
pub(crate) enum Source {
    /// A text, with or without the tokens that begin a prompt.
    Prompt {
        /// Its source.
        text: String,
        /// Whether to add the tokens that begin a prompt.
        add_special_tokens: bool,
    },
    /// A conversation, as the chat template writes it.
    Chat {
        /// As [`super::chat::ChatRequest`] has it.
        conversation: Box<Conversation>,
        /// Whether to add the beginning of an answer, unless its last message is one.
        add_generation_prompt: bool,
    },
}

/// A request for tokens, checked.
#[derive(Debug)]
pub(crate) struct TokenizeRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// The text or conversation to tokenize.
    pub(crate) source: Source,
    /// Whether to return the text of every token.
    pub(crate) return_token_strs: bool,
}

impl TokenizeRequest {
    /// Reads a body, for a model that takes images or does not.
    pub(crate) fn read(body: &Value, takes_images: bool) -> Result<TokenizeRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let model = fields.string("model")?.map(str::to_owned);
        let source = match (fields.string("prompt")?, fields.given("messages").is_some()) {
            (Some(text), false) => {
                fields.value("messages");
                fields.lacks(&["messages"]);
                fields.holds("prompt");
                let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
                Source::Prompt { text: text.to_owned(), add_special_tokens }
            }
            (None, true) => {
                fields.lacks(&["prompt"]);
                let conversation = Box::new(read_conversation(&mut fields, takes_images)?);
                let opens = fields.boolean("add_generation_prompt")?;
                if conversation.continues && opens == Some(true) {
                    let what = "contradicts `continue_final_message`";
                    return Err(wrong!("add_generation_prompt", "{what}"));
                }
                Source::Chat { conversation, add_generation_prompt: opens.unwrap_or(true) }
            }
            (given, _) => {
                let both = if given.is_some() { "not both" } else { "one of them is required" };
                return Err(ApiError::field("prompt", format!("`prompt` or `messages`: {both}")));
            }
        };
        let return_token_strs = fields.boolean("return_token_strs")?.unwrap_or(false);
        fields.finish()?;
        Ok(TokenizeRequest { model, source, return_token_strs })
    }
}

/// A request for text, checked.
#[derive(Debug)]
pub(crate) struct DetokenizeRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// Ids of the vocabulary.
    pub(crate) tokens: Vec<u32>,
    /// Whether special tokens are left out, and otherwise written by their names.
    pub(crate) skip_special_tokens: bool,
}

impl DetokenizeRequest {
    /// Reads a body; ids lie below `vocabulary`.
    pub(crate) fn read(body: &Value, vocabulary: usize) -> Result<DetokenizeRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let model = fields.string("model")?.map(str::to_owned);
        let tokens = match fields.of(|| ids(vocabulary)).required("tokens")? {
            ids @ Value::Array(_) => token_ids("tokens", ids, vocabulary)?,
            other => return Err(wrong_type("tokens", "an array of ids", other)),
        };
        let skip_special_tokens = fields.boolean("skip_special_tokens")?.unwrap_or(false);
        fields.finish()?;
        Ok(DetokenizeRequest { model, tokens, skip_special_tokens })
    }
}
