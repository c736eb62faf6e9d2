//! A prompt that is put into the prefix cache before the first request, such as an agent's, which begins
//! every conversation.

use crate::request::text::Text;
use monomorph_engine::{EngineHandle, Event, FinishReason, Request};
use monomorph_text::{Chat, ChatEnd};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Flags of warming up.
#[derive(Clone, Debug, clap::Args)]
pub struct WarmUpArgs {
    /// A file whose prompt is computed before the server is ready, so that requests which begin like it find
    /// it in the prefix cache: a text, or where its name ends in `.json`, the messages that every chat begins
    /// with, as a list or as `messages` of a chat request.
    #[arg(long, value_name = "FILE")]
    pub warm_up: Option<PathBuf>,
}

impl WarmUpArgs {
    /// Computes the prompt; returns its number of tokens.
    ///
    /// # Errors
    /// When the file cannot be read or is no prompt, or the engine refuses it.
    pub(crate) fn run(&self, engine: &EngineHandle, text: &Text) -> Result<Option<usize>, String> {
        let Some(path) = &self.warm_up else { return Ok(None) };
        let what = |error: String| format!("--warm-up {}: {error}", path.display());
        if !engine.prefix().enabled {
            return Err(what("there is no prefix cache to put it into (--prefix-cache off)".to_owned()));
        }
        let prompt = read(path, text).map_err(what)?;
        let tokens = prompt.len();
        // One token more must be wanted, or nothing would be computed.
        let request = Request { ignore_eos: true, ..Request::new(prompt, 1) };
        let mut generation = engine.submit(request).map_err(|error| what(error.to_string()))?;
        loop {
            match generation.blocking_recv() {
                Some(Event::Prompt(_) | Event::Token(_)) => {}
                Some(Event::Finished(it))
                    if matches!(it.reason, FinishReason::Length | FinishReason::Stop { .. }) =>
                {
                    return Ok(Some(tokens));
                }
                Some(Event::Finished(_)) | None => return Err(what("the engine stopped".to_owned())),
                Some(Event::Failed(error)) => return Err(what(error.to_string())),
            }
        }
    }
}

fn read(path: &Path, text: &Text) -> Result<Vec<u32>, String> {
    let source = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if path.extension().is_none_or(|extension| extension != "json") {
        return text.tokenizer.encode_prompt(&source).map_err(|error| error.to_string());
    }
    let value: Value = serde_json::from_str(&source).map_err(|error| error.to_string())?;
    let messages = value.as_array().or_else(|| value["messages"].as_array());
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or("neither a list of messages nor an object with `messages`")?;
    let chat = Chat { messages, end: ChatEnd::Message, extra: &Map::new() };
    Ok(text.encode_chat(&chat).map_err(|error| error.to_string())?.ids)
}
