//! Incremental parsing of an answer into text, reasoning and tool calls.
//!
//! Each format has a file with its tags; two readers serve four formats, Mistral and Gemma have their own.
//! Only `scanner` finds tags. Which tags count is decided for each character: none within a JSON string, only
//! the closing tag within a parameter's value.

mod bare;
mod event;
mod flow;
mod format;
mod gemma;
mod hermes;
mod json_calls;
mod json_text;
mod minimax;
mod mistral;
mod output;
mod qwen;
mod scanner;
mod schema;
mod xml_calls;

pub use event::{AnswerEvent, CallOutcome};
pub use format::{ReasoningFormat, ToolFormat};
pub use schema::ToolSet;

use flow::Flow;
use format::Reader;
use output::Output;
use scanner::{Found, Scanner};
use std::sync::Arc;

/// Most line ends before the closing tag of reasoning that are not part of the reasoning.
const LINE_ENDS: usize = 2;
/// Most bytes of leading spacing that are held back: they belong to the markup that may follow.
const LEADING: usize = 16;

/// Parses one answer in pieces. The result does not depend on how it is split.
///
/// At most the beginning of a tag and a little spacing are held back, with three exceptions: a call until its
/// name is known, a parameter that is not a string until it ends (its type decides how it is written), and in
/// bare JSON the first 512 bytes of a possible call.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    tools: Option<ToolFormat>,
    tags: Tags,
    scanner: Scanner,
    place: ParserState,
    /// Whether the current character belongs to a control token.
    control: bool,
    out: Output,
}

/// The tags that count at each place.
#[derive(Clone, Debug)]
struct Tags {
    /// Number of tags that begin calls. They come first in a list, followed by the other tags.
    openers: usize,
    /// In text: openers and closers. Before the first text of a stretch, reasoning's opening and closing tags
    /// as well.
    text: Vec<&'static str>,
    stretch: Vec<&'static str>,
    /// In reasoning: its closing tag and a call's opening tag. At its beginning, its own opening tag as well.
    reasoning: Vec<&'static str>,
    reasoning_begin: Vec<&'static str>,
}

#[derive(Clone, Debug)]
enum ParserState {
    /// At the beginning of the answer, after this much spacing.
    Start(String),
    /// After markup, before any text.
    Behind,
    /// In text.
    Text,
    Reasoning {
        /// Whether only spacing was read of it so far.
        begin: bool,
        /// Line ends that may be its last characters.
        line_ends: usize,
    },
    Calls {
        reader: Reader,
        /// Whether the block is in reasoning, which continues after it if it contains no call.
        reasoning: bool,
        /// Number of calls begun before it.
        before: usize,
    },
}

impl AnswerParser {
    /// A parser for the answer of a model with these formats to a request with these tools. With `opened`,
    /// the prompt ends within the reasoning, as it does with templates that write the opening tag.
    pub fn new(
        tools: Option<ToolFormat>,
        reasoning: Option<ReasoningFormat>,
        set: Arc<ToolSet>,
        opened: bool,
    ) -> AnswerParser {
        let openers = tools.map_or(&[][..], ToolFormat::openers);
        let text = [openers, tools.map_or(&[][..], ToolFormat::closers)].concat();
        let thought = reasoning.map(ReasoningFormat::tags);
        let stretch = [&text[..], thought.as_ref().map_or(&[][..], |tags| &tags[..])].concat();
        let mut within: Vec<_> = thought.iter().map(|[_, close]| *close).collect();
        within.extend(openers.first());
        let mut begin = within.clone();
        begin.extend(thought.iter().map(|[open, _]| *open));
        let tags = Tags { openers: openers.len(), text, stretch, reasoning: within, reasoning_begin: begin };
        let place = if opened && reasoning.is_some() {
            ParserState::Reasoning { begin: true, line_ends: 0 }
        } else {
            ParserState::Start(String::new())
        };
        AnswerParser {
            tools,
            tags,
            scanner: Scanner::default(),
            place,
            control: false,
            out: Output::new(set),
        }
    }

    /// Consumes the next piece of the answer.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerEvent> {
        self.read(piece, false)
    }

    /// Consumes a control token of the formats, by name. If it is neither a tag nor part of one, it is
    /// [`AnswerEvent::Rejected`], in text and in reasoning: control tokens are not meant for readers.
    pub fn push_control(&mut self, name: &str) -> Vec<AnswerEvent> {
        self.read(name, true)
    }

    fn read(&mut self, piece: &str, control: bool) -> Vec<AnswerEvent> {
        for character in piece.chars() {
            self.scanner.push(character, control);
            while let Some(found) = self.scanner.next(self.tags.at(&self.place)) {
                match found {
                    Found::Tag(which) => self.tag(which),
                    Found::Plain(character, control) => {
                        self.control = control;
                        self.plain(character);
                    }
                }
            }
        }
        self.out.take()
    }

    /// Ends the answer. An incomplete tag is [`AnswerEvent::Rejected`]. The caller must judge whether it
    /// would have been completed, because it knows why the answer ended.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        match std::mem::replace(&mut self.place, ParserState::Text) {
            ParserState::Start(spacing) => self.out.text(&spacing),
            ParserState::Reasoning { line_ends, .. } if line_ends > 0 => {
                self.out.reasoning(&"\n".repeat(line_ends))
            }
            ParserState::Calls { mut reader, .. } => reader.finish(&mut self.out),
            ParserState::Behind | ParserState::Text | ParserState::Reasoning { .. } => {}
        }
        self.out.end_reasoning(false);
        let held = self.scanner.finish();
        self.out.reject(&held);
        self.out.take()
    }

    /// Bytes held back as the beginning of a tag or as spacing.
    pub fn held(&self) -> usize {
        self.scanner.held().len()
            + match &self.place {
                ParserState::Start(spacing) => spacing.len(),
                ParserState::Reasoning { line_ends, .. } => *line_ends,
                ParserState::Behind | ParserState::Text | ParserState::Calls { .. } => 0,
            }
    }

    /// Whether the next text is reasoning, as far as is known.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.place, ParserState::Reasoning { .. } | ParserState::Calls { reasoning: true, .. })
    }

    fn tag(&mut self, which: usize) {
        self.control = false;
        let tag = self.tags.at(&self.place)[which];
        match &mut self.place {
            ParserState::Calls { reader, .. } => {
                let flow = reader.tag(which, &mut self.out);
                self.flow(flow);
            }
            ParserState::Reasoning { line_ends, .. } => match which {
                0 => {
                    self.out.end_reasoning(true);
                    self.place = ParserState::Behind;
                }
                1 if self.tags.openers > 0 => {
                    let line_ends = std::mem::take(line_ends);
                    if line_ends > 0 {
                        self.out.reasoning(&"\n".repeat(line_ends));
                    }
                    self.open(tag, true);
                }
                // Its own opening tag, which the prompt already contained.
                _ => {}
            },
            place => {
                let spacing = if let ParserState::Start(spacing) = place {
                    std::mem::take(spacing)
                } else {
                    String::new()
                };
                if which < self.tags.openers {
                    self.out.source(&spacing);
                    self.open(tag, false);
                } else if which < self.tags.text.len() {
                    self.out.reject(&spacing);
                    self.out.reject(tag);
                } else if which == self.tags.text.len() {
                    self.place = ParserState::Reasoning { begin: true, line_ends: 0 };
                } else {
                    self.out.reject(&spacing);
                    self.out.reject(tag);
                    self.place = ParserState::Behind;
                }
            }
        }
    }

    fn plain(&mut self, character: char) {
        let space = character.is_ascii_whitespace();
        let bare = self.tools == Some(ToolFormat::BareJson) && matches!(character, '{' | '[');
        let mut bytes = [0; 4];
        let text: &str = character.encode_utf8(&mut bytes);
        match &mut self.place {
            ParserState::Start(_)
            | ParserState::Behind
            | ParserState::Text
            | ParserState::Reasoning { .. }
                if self.control =>
            {
                self.out.reject(text);
            }
            ParserState::Start(spacing) if space && spacing.len() < LEADING => spacing.push(character),
            ParserState::Behind if space => {}
            ParserState::Start(_) | ParserState::Behind if bare => {
                if let ParserState::Start(spacing) = &self.place {
                    self.out.source(spacing);
                }
                self.open("", false);
                self.plain(character);
            }
            ParserState::Start(spacing) => {
                self.out.text(spacing);
                self.out.text(text);
                spacing.clear();
                if !space {
                    self.place = ParserState::Text;
                }
            }
            ParserState::Behind => {
                self.out.text(text);
                self.place = ParserState::Text;
            }
            ParserState::Text => self.out.text(text),
            ParserState::Reasoning { begin: true, .. } if space => {}
            ParserState::Reasoning { begin, line_ends } => {
                *begin = false;
                if character == '\n' && *line_ends < LINE_ENDS {
                    *line_ends += 1;
                } else if character == '\n' {
                    self.out.reasoning("\n");
                } else {
                    let line_ends = std::mem::take(line_ends);
                    self.out.reasoning(&("\n".repeat(line_ends) + text));
                }
            }
            ParserState::Calls { reader, .. } => {
                let flow = reader.plain(character, &mut self.out);
                self.flow(flow);
            }
        }
    }

    fn open(&mut self, tag: &'static str, reasoning: bool) {
        let Some(format) = self.tools else { return };
        self.out.source(tag);
        self.place = ParserState::Calls { reader: format.reader(tag), reasoning, before: self.out.calls() };
    }

    fn flow(&mut self, flow: Flow) {
        if matches!(flow, Flow::Stay) {
            return;
        }
        let ParserState::Calls { reasoning, before, .. } = &self.place else { return };
        let none = *before == self.out.calls();
        self.place = match flow {
            _ if none && *reasoning => ParserState::Reasoning { begin: false, line_ends: 0 },
            // The text continues, with its spacing.
            _ if none => ParserState::Text,
            Flow::Text(_) => ParserState::Text,
            _ => ParserState::Behind,
        };
        if let Flow::Again(character) | Flow::Text(character) = flow {
            self.scanner.unread(character, self.control);
        }
    }
}

impl Tags {
    fn at<'a>(&'a self, place: &ParserState) -> &'a [&'static str] {
        match place {
            ParserState::Start(_) | ParserState::Behind => &self.stretch,
            ParserState::Text => &self.text,
            ParserState::Reasoning { begin: true, .. } => &self.reasoning_begin,
            ParserState::Reasoning { .. } => &self.reasoning,
            ParserState::Calls { reader, .. } => reader.tags(),
        }
    }
}
