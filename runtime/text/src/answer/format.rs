//! The formats by name, and an enum of all their readers.

use super::flow::Flow;
use super::gemma::{self, Gemma};
use super::json_calls::JsonCalls;
use super::mistral::{self, Mistral};
use super::output::Output;
use super::xml_calls::XmlCalls;
use super::{bare, hermes, minimax, qwen};

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 to 3.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen
    /// 3.5 and 3.6, Nemotron 3.
    QwenXml,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]` and `[TOOL_CALLS]NAME[ARGS]{…}`.
    Mistral,
    /// `<minimax:tool_call><invoke name="NAME"><parameter
    /// name="KEY">value</parameter></invoke></minimax:tool_call>`.
    MiniMax,
    /// `<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `{"name": …, "parameters": {…}}` as the whole answer: Llama 3. Only JSON that starts with the name of
    /// one of the tools is a call; other JSON is text.
    BareJson,
}

impl ToolFormat {
    /// Every format with its name in MODEL.toml.
    pub const NAMES: [(&'static str, ToolFormat); 6] = [
        ("hermes", ToolFormat::Hermes),
        ("qwen-xml", ToolFormat::QwenXml),
        ("mistral", ToolFormat::Mistral),
        ("minimax", ToolFormat::MiniMax),
        ("gemma", ToolFormat::Gemma),
        ("bare-json", ToolFormat::BareJson),
    ];

    /// The format with this name.
    pub fn from_name(name: &str) -> Option<ToolFormat> {
        ToolFormat::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Its name in MODEL.toml.
    pub fn name(self) -> &'static str {
        ToolFormat::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// The format that a chat template writes calls in, by its tags; `None` where it has none of them.
    pub fn of_template(source: &str) -> Option<ToolFormat> {
        // What is written as Qwen's calls has Hermes' tags around it.
        let hermes = if source.contains(qwen::FUNCTION) { ToolFormat::QwenXml } else { ToolFormat::Hermes };
        [ToolFormat::Gemma, ToolFormat::MiniMax, ToolFormat::Mistral, hermes]
            .into_iter()
            .find(|format| source.contains(format.openers()[0]))
    }

    /// Tags that begin a block of calls; only the first also counts within reasoning.
    pub fn openers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &[hermes::OPEN],
            ToolFormat::QwenXml => &[qwen::OPEN, qwen::FUNCTION],
            ToolFormat::Mistral => &[mistral::OPEN],
            ToolFormat::MiniMax => &[minimax::OPEN],
            ToolFormat::Gemma => &[gemma::OPEN],
            ToolFormat::BareJson => &[],
        }
    }

    /// Tags that end a block of calls; misplaced in text.
    pub(crate) fn closers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &[hermes::CLOSE],
            ToolFormat::QwenXml => &[qwen::CLOSE, qwen::FUNCTION_CLOSE],
            ToolFormat::MiniMax => &[minimax::CLOSE],
            ToolFormat::Gemma => &[gemma::CLOSE],
            ToolFormat::Mistral | ToolFormat::BareJson => &[],
        }
    }

    /// The names of its tags in vocabularies that have them as control tokens.
    pub fn control_tokens(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes | ToolFormat::QwenXml => &[hermes::OPEN, hermes::CLOSE],
            ToolFormat::Mistral => &[mistral::OPEN, mistral::ARGUMENTS, mistral::CALL_ID],
            ToolFormat::MiniMax => &[minimax::OPEN, minimax::CLOSE],
            ToolFormat::Gemma => &[gemma::OPEN, gemma::CLOSE, gemma::QUOTE],
            ToolFormat::BareJson => &[],
        }
    }

    /// The reader of a block that this tag opened.
    pub(crate) fn reader(self, tag: &str) -> Reader {
        match self {
            ToolFormat::Hermes => Reader::Json(JsonCalls::new(&hermes::DIALECT)),
            ToolFormat::QwenXml => Reader::Xml(XmlCalls::new(&qwen::DIALECT, tag)),
            ToolFormat::Mistral => Reader::Mistral(Mistral::new()),
            ToolFormat::MiniMax => Reader::Xml(XmlCalls::new(&minimax::DIALECT, tag)),
            ToolFormat::Gemma => Reader::Gemma(Gemma::new()),
            ToolFormat::BareJson => Reader::Json(JsonCalls::new(&bare::DIALECT)),
        }
    }
}

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>`.
    Think,
    /// `[THINK]…[/THINK]`.
    Mistral,
    /// `<|channel>thought` … `<channel|>`: Gemma 4.
    Gemma,
}

impl ReasoningFormat {
    /// Every format with its name in MODEL.toml.
    pub const NAMES: [(&'static str, ReasoningFormat); 3] = [
        ("think", ReasoningFormat::Think),
        ("mistral", ReasoningFormat::Mistral),
        ("gemma", ReasoningFormat::Gemma),
    ];

    /// The format with this name.
    pub fn from_name(name: &str) -> Option<ReasoningFormat> {
        ReasoningFormat::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Its name in MODEL.toml.
    pub fn name(self) -> &'static str {
        ReasoningFormat::NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// The format that a chat template marks reasoning in; `None` where it has no such tags.
    pub fn of_template(source: &str) -> Option<ReasoningFormat> {
        let mut all = ReasoningFormat::NAMES.into_iter().map(|(_, format)| format);
        all.find(|format| format.control_tokens().iter().any(|tag| source.contains(tag)))
    }

    /// The names of its tags in vocabularies that have them as control tokens.
    pub fn control_tokens(self) -> &'static [&'static str] {
        match self {
            ReasoningFormat::Think => &["<think>", "</think>"],
            ReasoningFormat::Mistral => &["[THINK]", "[/THINK]"],
            ReasoningFormat::Gemma => &["<|channel>", "<channel|>"],
        }
    }

    /// Whether the answer to a prompt with this end begins within reasoning: the prompt's last word is the
    /// opening tag.
    pub fn is_open_after(self, prompt: &str) -> bool {
        let [open, _] = self.tags();
        prompt.trim_end().ends_with(open)
    }

    /// The opening and the closing tag.
    pub fn tags(self) -> [&'static str; 2] {
        match self {
            ReasoningFormat::Think => ["<think>", "</think>"],
            ReasoningFormat::Mistral => ["[THINK]", "[/THINK]"],
            ReasoningFormat::Gemma => ["<|channel>thought", "<channel|>"],
        }
    }
}

/// A reader of a block of calls.
#[derive(Clone, Debug)]
pub(crate) enum Reader {
    Json(JsonCalls),
    Xml(XmlCalls),
    Mistral(Mistral),
    Gemma(Gemma),
}

impl Reader {
    /// The tags that count at this point.
    pub(crate) fn tags(&self) -> &'static [&'static str] {
        match self {
            Reader::Json(reader) => reader.tags(),
            Reader::Xml(reader) => reader.tags(),
            Reader::Mistral(reader) => reader.tags(),
            Reader::Gemma(reader) => reader.tags(),
        }
    }

    /// Consumes a tag of [`Reader::tags`].
    pub(crate) fn tag(&mut self, which: usize, out: &mut Output) -> Flow {
        match self {
            Reader::Json(reader) => reader.tag(which, out),
            Reader::Xml(reader) => reader.tag(which, out),
            Reader::Mistral(reader) => reader.tag(which, out),
            Reader::Gemma(reader) => reader.tag(which, out),
        }
    }

    /// Consumes a character that belongs to no tag.
    pub(crate) fn plain(&mut self, character: char, out: &mut Output) -> Flow {
        match self {
            Reader::Json(reader) => reader.plain(character, out),
            Reader::Xml(reader) => reader.plain(character, out),
            Reader::Mistral(reader) => reader.plain(character, out),
            Reader::Gemma(reader) => reader.plain(character, out),
        }
    }

    /// The answer ends within the block.
    pub(crate) fn finish(&mut self, out: &mut Output) {
        match self {
            Reader::Json(reader) => reader.finish(out),
            Reader::Xml(reader) => reader.finish(out),
            Reader::Mistral(reader) => reader.finish(out),
            Reader::Gemma(reader) => reader.finish(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_show_their_formats() {
        let cases = [
            ("[INST]{{ m }}[/INST]{{ '[TOOL_CALLS]' }}", Some("mistral"), None),
            ("[THINK]{{ m }}[/THINK]{{ name + '[ARGS]' }}[TOOL_CALLS]", Some("mistral"), Some("mistral")),
            (
                "<think>{{ m }}</think><tool_call>{{ call | tojson }}</tool_call>",
                Some("hermes"),
                Some("think"),
            ),
            ("<tool_call>\n<function={{ name }}>", Some("qwen-xml"), None),
            ("<minimax:tool_call><invoke></think>", Some("minimax"), Some("think")),
            ("<|channel>thought<channel|><|tool_call>call:f{}<tool_call|>", Some("gemma"), Some("gemma")),
            ("{% for m in messages %}{{ m.content }}{% endfor %}", None, None),
        ];
        for (source, tools, reasoning) in cases {
            assert_eq!(ToolFormat::of_template(source).map(ToolFormat::name), tools, "{source}");
            assert_eq!(
                ReasoningFormat::of_template(source).map(ReasoningFormat::name),
                reasoning,
                "{source}"
            );
        }
    }

    #[test]
    fn names_are_those_of_formats() {
        for (name, format) in ToolFormat::NAMES {
            assert_eq!((format.name(), ToolFormat::from_name(name)), (name, Some(format)));
        }
        for (name, format) in ReasoningFormat::NAMES {
            assert_eq!((format.name(), ReasoningFormat::from_name(name)), (name, Some(format)));
        }
    }
}
