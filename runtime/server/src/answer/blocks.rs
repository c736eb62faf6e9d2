//! The parts of an answer as consecutive blocks, each opened, filled and closed: the shape of every API but
//! OpenAI's chat streams, and of whole answers in all of them.

use super::part::AnswerPart;

/// One block of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Text for the reader.
    Text(String),
    /// The model's reasoning.
    Reasoning(String),
    /// A call of a tool.
    Call {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// JSON text of one object, if the model followed its format.
        arguments: String,
    },
}

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kind of a [`Block::Text`].
    Text,
    /// Kind of a [`Block::Reasoning`].
    Reasoning,
    /// Kind of a [`Block::Call`].
    Call,
}

/// An event of the block with this number, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It begins, empty.
    Open(usize, Block),
    /// It grows: more text, or more arguments of a call.
    More(usize, Kind, String),
    /// It is complete.
    Close(usize, Block),
}

/// Makes blocks of parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    open: Option<Block>,
    /// Number of blocks opened.
    count: usize,
}

impl Blocks {
    /// The blocks of a whole answer.
    pub(crate) fn of(parts: &[AnswerPart]) -> Vec<Block> {
        let mut blocks = Blocks::default();
        let mut steps: Vec<Step> = parts.iter().flat_map(|part| blocks.take(part)).collect();
        steps.extend(blocks.finish());
        let whole = |step| if let Step::Close(_, block) = step { Some(block) } else { None };
        steps.into_iter().filter_map(whole).collect()
    }

    /// Takes the next part.
    pub(crate) fn take(&mut self, part: &AnswerPart) -> Vec<Step> {
        match part {
            AnswerPart::Text(text) => self.more(text, Kind::Text),
            AnswerPart::Reasoning(text) => self.more(text, Kind::Reasoning),
            AnswerPart::CallBegin { id, name, .. } => {
                let (id, name) = (id.clone(), name.clone());
                self.open(Block::Call { id, name, arguments: String::new() })
            }
            AnswerPart::CallArguments { delta, .. } => match &mut self.open {
                Some(Block::Call { arguments, .. }) => {
                    arguments.push_str(delta);
                    vec![Step::More(self.count - 1, Kind::Call, delta.clone())]
                }
                _ => Vec::new(),
            },
            AnswerPart::ReasoningEnd | AnswerPart::CallEnd { .. } => self.finish(),
            AnswerPart::Rejected(_) => Vec::new(),
        }
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self) -> Vec<Step> {
        self.open.take().map(|block| Step::Close(self.count - 1, block)).into_iter().collect()
    }

    fn open(&mut self, block: Block) -> Vec<Step> {
        let mut steps = self.finish();
        self.open = Some(block.clone());
        self.count += 1;
        steps.push(Step::Open(self.count - 1, block));
        steps
    }

    fn more(&mut self, more: &str, kind: Kind) -> Vec<Step> {
        let mut steps = match (&self.open, kind) {
            (Some(Block::Text(_)), Kind::Text) | (Some(Block::Reasoning(_)), Kind::Reasoning) => Vec::new(),
            (_, Kind::Text) => self.open(Block::Text(String::new())),
            (_, _) => self.open(Block::Reasoning(String::new())),
        };
        if let Some(Block::Text(text) | Block::Reasoning(text)) = &mut self.open {
            text.push_str(more);
        }
        steps.push(Step::More(self.count - 1, kind, more.to_owned()));
        steps
    }
}
