//! Text in and out: tokenizer, chat templates, incremental detokenising, stop strings.
//!
//! Nothing here is on the forward path. A [`Tokenizer`] is read from a GGUF file's metadata or from the
//! `tokenizer.json` or `tekken.json` beside safetensors; all become a pipeline of the `tokenizers` library. A
//! [`ChatTemplate`] is the model's own Jinja template. [`Detokeniser`] and [`StopMatcher`] turn one
//! generation's tokens into text piece by piece, and an [`AnswerParser`] splits that into text, reasoning and
//! tool calls.

mod answer;
mod chat;
mod detokeniser;
mod error;
mod escape;
mod from_directory;
mod from_gguf;
mod from_tekken;
mod infill;
mod json;
mod parts;
mod prompt;
mod side_file;
mod stand_in;
mod stop;
mod template;
mod tokenizer;
mod vocabulary;

pub use answer::{AnswerEvent, AnswerParser, CallOutcome, ReasoningFormat, ToolFormat, ToolSet};
pub use chat::{Chat, ChatEnd};
pub use detokeniser::Detokeniser;
pub use error::TextError;
pub use infill::Infill;
pub use prompt::Prompt;
pub use stop::{StopMatcher, StopOutput};
pub use template::ChatTemplate;
pub use tokenizer::{Special, Tokenizer};
