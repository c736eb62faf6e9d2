//! Chat templates: the model's own Jinja, in the environment that transformers provides.
//!
//! Two differences from Jinja2 are known and accepted: a list or map printed as such (not through `tojson`)
//! writes floats beyond 1e16 or below 1e-4 as Rust does, and `str.title` treats only spaces as word
//! boundaries.

use crate::chat::{Chat, ChatEnd};
use crate::error::TextError;
use crate::json::{python_float, tojson};
use crate::side_file::{read_config, read_file};
use crate::tokenizer::Tokenizer;
use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use monomorph_weights::Checkpoint;
use serde_json::Value as Json;
use std::io::Write;

/// The template's name in its environment.
const NAME: &str = "chat";

/// Most instructions of one rendering: a template is a program from a downloaded file.
const FUEL: u64 = 20_000_000;
/// Most bytes of one rendering: many times what any context holds.
const MOST_BYTES: usize = 64 << 20;

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// The template in a checkpoint: `tokenizer.chat_template` of a GGUF file; `chat_template.jinja`,
    /// `chat_template.json` or the `chat_template` of `tokenizer_config.json` in a directory. `None` if there
    /// is none.
    ///
    /// # Errors
    /// When a file cannot be read, or the template is not valid Jinja (the error names the line).
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, TextError> {
        match ChatTemplate::source_in(checkpoint)? {
            Some(source) => ChatTemplate::from_source(&source, tokenizer).map(Some),
            None => Ok(None),
        }
    }

    /// The text of the template in a checkpoint, as [`ChatTemplate::from_checkpoint`] finds it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn source_in(checkpoint: &Checkpoint) -> Result<Option<String>, TextError> {
        find(checkpoint)
    }

    /// A template given as text, for a model without one or instead of its own.
    ///
    /// # Errors
    /// When it is not valid Jinja, naming the line.
    pub fn from_source(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, TextError> {
        let mut environment = Environment::new();
        // The same settings as in transformers.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| match value.kind() {
            // Python's spelling of names and numbers.
            ValueKind::Bool => {
                out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from)
            }
            ValueKind::None => out.write_str("None").map_err(Error::from),
            ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
                Ok(number) => out.write_str(&python_float(number)).map_err(Error::from),
                Err(_) => minijinja::escape_formatter(out, state, value),
            },
            _ => minijinja::escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            jiff::fmt::strtime::format(&format, &Zoned::now())
                .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
        });
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| template_error(&error))?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            bos: tokenizer.spelling(tokenizer.bos()),
            eos: tokenizer.spelling(tokenizer.eos()),
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the conversation in the format that the model was trained on.
    ///
    /// # Errors
    /// [`TextError::Template`] when the template rejects the messages (`raise_exception`) or cannot handle
    /// them, or does not write the content that an answer is to go on with.
    pub fn render(&self, chat: &Chat) -> Result<String, TextError> {
        if chat.end == ChatEnd::Content {
            return self.render_content(chat);
        }
        let mut variables = serde_json::Map::new();
        variables.extend(chat.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        variables.insert("messages".to_owned(), Json::Array(chat.messages.to_vec()));
        variables.insert("add_generation_prompt".to_owned(), Json::Bool(chat.end == ChatEnd::Answer));
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if let Some(token) = token {
                variables.insert(name.to_owned(), Json::String(token.clone()));
            }
        }
        let mut written = Bounded::default();
        let rendered = self.environment.get_template(NAME).and_then(|template| {
            template.render_captured_to(Value::from(Serde(&variables)), &mut written).map(drop)
        });
        let too_long =
            || TextError::Template { line: None, message: format!("writes more than {MOST_BYTES} bytes") };
        match rendered {
            Err(_) if written.full => Err(too_long()),
            Err(error) => Err(template_error(&error)),
            // Every piece written is valid text.
            Ok(()) => Ok(String::from_utf8_lossy(&written.bytes).into_owned()),
        }
    }

    /// The conversation up to the end of its last content, which a mark shows in what the template writes.
    fn render_content(&self, chat: &Chat) -> Result<String, TextError> {
        let refused = |message: &str| TextError::Template { line: None, message: message.to_owned() };
        let mut messages = chat.messages.to_vec();
        let content = messages.last_mut().and_then(|last| last.get_mut("content"));
        let Some(Json::String(content)) = content else {
            return Err(refused("the last message has no text to go on with"));
        };
        content.push_str(CONTENT_END);
        let mut text = self.render(&Chat { messages: &messages, end: ChatEnd::Message, ..*chat })?;
        let Some(end) = text.rfind(CONTENT_END) else {
            return Err(refused("it does not write the text of the last message"));
        };
        text.truncate(end);
        Ok(text)
    }
}

/// Stands behind a content while it is rendered. No text has this character: it is none that is exchanged
/// (Unicode 16, 23.7). Of several in the output, the last is ours.
const CONTENT_END: &str = "\u{fdd1}";

/// A template's output, up to its bound.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.full |= self.bytes.len() + bytes.len() > MOST_BYTES;
        if self.full {
            return Err(std::io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

fn template_error(error: &Error) -> TextError {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    // A message that a template raises itself is a complete sentence; other kinds need their name.
    let message = match error.kind() {
        ErrorKind::InvalidOperation => message,
        kind if error.detail().is_some() => format!("{kind}: {message}"),
        _ => message,
    };
    TextError::Template { line: error.line(), message }
}

fn find(checkpoint: &Checkpoint) -> Result<Option<String>, TextError> {
    if let Some(metadata) = checkpoint.gguf_metadata() {
        return Ok(metadata.str("tokenizer.chat_template")?.map(str::to_owned));
    }
    if let Some(file) = checkpoint.side_file("chat_template.jinja") {
        return String::from_utf8(read_file(&file)?)
            .map(Some)
            .map_err(|_| TextError::malformed(file.path(), "is not UTF-8"));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let Some(config) = read_config(checkpoint, name)? else { continue };
        match &config["chat_template"] {
            Json::Null => {}
            Json::String(source) => return Ok(Some(source.clone())),
            // Several, by name: the one without tools is called `default`.
            Json::Array(templates) => {
                let default = templates.iter().find(|template| template["name"] == "default");
                if let Some(source) = default.and_then(|template| template["template"].as_str()) {
                    return Ok(Some(source.to_owned()));
                }
                return Err(TextError::malformed(
                    checkpoint.path(),
                    format!("`chat_template` of {name} is a list without a `default`"),
                ));
            }
            _ => {
                return Err(TextError::malformed(
                    checkpoint.path(),
                    format!("`chat_template` of {name} is neither a string nor a list"),
                ));
            }
        }
    }
    Ok(None)
}

/// Replaces transformers' `{% generation %}` tags, which mark the text to train on and render nothing, by
/// tags that do nothing. Lines and whitespace control stay as they are.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        text += before;
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        match word {
            "generation" => text += &tag.replace("generation", "if true"),
            "endgeneration" => text += &tag.replace("endgeneration", "endif"),
            _ => text += tag,
        }
        rest = after;
    }
    text + rest
}
