//! How a model's answers are read and its conversations written, where its build's words are not to hold:
//! flags.

use super::text::Text;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use monomorph_text::{ChatTemplate, ReasoningFormat, ToolFormat};
use std::path::{Path, PathBuf};

/// The name of no format.
const NONE: &str = "none";

/// A format, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen<T>(Option<T>);

/// Flags of forms.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FormArgs {
    /// How the model writes tool calls [default: as MODEL.toml of its build says, which `info` prints]; of
    /// `none`, calls are text.
    #[arg(long, visible_alias = "tool-call-parser", value_name = "NAME", value_parser = tool_format())]
    pub tool_format: Option<Chosen<ToolFormat>>,
    /// How the model marks its reasoning [default: as MODEL.toml says]; of `none`, reasoning is text.
    #[arg(long, visible_alias = "reasoning-parser", value_name = "NAME", value_parser = reasoning_format())]
    pub reasoning_format: Option<Chosen<ReasoningFormat>>,
    /// A file with a chat template, in Jinja [default: the build's, or else the checkpoint's].
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

fn tool_format() -> impl TypedValueParser<Value = Chosen<ToolFormat>> {
    let names = ToolFormat::NAMES.iter().map(|(name, _)| *name).chain([NONE]);
    PossibleValuesParser::new(names).map(|name| Chosen(ToolFormat::from_name(&name)))
}

fn reasoning_format() -> impl TypedValueParser<Value = Chosen<ReasoningFormat>> {
    let names = ReasoningFormat::NAMES.iter().map(|(name, _)| *name).chain([NONE]);
    PossibleValuesParser::new(names).map(|name| Chosen(ReasoningFormat::from_name(&name)))
}

impl FormArgs {
    /// The text of the chat template, if one is given.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub(crate) fn template(&self) -> Result<Option<String>, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|error| format!("--chat-template {}: {error}", path.display()))
        };
        self.chat_template.as_deref().map(read).transpose()
    }

    /// A model's text with these forms, and this template if one is given.
    ///
    /// # Errors
    /// When the template is not valid.
    pub(crate) fn apply(&self, text: Text, template: Option<&str>) -> Result<Text, String> {
        let Text { tokenizer, template: own, tools, reasoning } = text;
        let given = template.map(|source| ChatTemplate::from_source(source, &tokenizer));
        let given = given.transpose().map_err(|error| {
            let path = self.chat_template.as_deref().unwrap_or(Path::new(""));
            format!("--chat-template {}: {error}", path.display())
        })?;
        Ok(Text {
            template: given.or(own),
            tools: self.tool_format.map_or(tools, |Chosen(format)| format),
            reasoning: self.reasoning_format.map_or(reasoning, |Chosen(format)| format),
            tokenizer,
        })
    }
}
