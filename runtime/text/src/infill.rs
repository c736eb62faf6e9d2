//! Text between a beginning and an end: the form in which models of code were trained to fill it in.
//!
//! Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022), put beginning and
//! end behind control tokens of their own; the spellings are those of the models' cards.

use crate::error::TextError;
use crate::tokenizer::{Special, Tokenizer};

/// A piece of a form.
#[derive(Clone, Copy)]
enum Piece {
    Token(&'static str),
    Beginning,
    End,
}
use Piece::{Beginning, End, Token};

/// Forms; the first whose tokens a tokenizer has is its own.
const FORMS: [&[Piece]; 4] = [
    // Qwen, Gemma.
    &[Token("<|fim_prefix|>"), Beginning, Token("<|fim_suffix|>"), End, Token("<|fim_middle|>")],
    // StarCoder, Granite, SmolLM.
    &[Token("<fim_prefix>"), Beginning, Token("<fim_suffix>"), End, Token("<fim_middle>")],
    // DeepSeek, where the hole stands between them.
    &[Token("<｜fim▁begin｜>"), Beginning, Token("<｜fim▁hole｜>"), End, Token("<｜fim▁end｜>")],
    // Mistral, which has the end first.
    &[Token("[SUFFIX]"), End, Token("[PREFIX]"), Beginning],
];

/// Tokens that models write where what fills the middle is complete, beside those that end every answer.
const ENDS: [&str; 8] = [
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<repo_name>",
    "<file_sep>",
    "<|endoftext|>",
];

/// A tokenizer's form of text to fill in.
#[derive(Clone, Copy)]
pub struct Infill<'a> {
    tokenizer: &'a Tokenizer,
    form: &'static [Piece],
}

impl Infill<'_> {
    /// The form of this tokenizer, if it has the control tokens of one.
    pub fn of(tokenizer: &Tokenizer) -> Option<Infill<'_>> {
        let has = |piece: &Piece| match piece {
            Token(spelling) => tokenizer.token_id(spelling).is_some_and(|id| tokenizer.is_special(id)),
            Beginning | End => true,
        };
        let form = FORMS.into_iter().find(|form| form.iter().all(has))?;
        Some(Infill { tokenizer, form })
    }

    /// The first control token of every form there is, for an error to name.
    pub fn known() -> impl Iterator<Item = &'static str> {
        FORMS.iter().filter_map(|form| match form[0] {
            Token(spelling) => Some(spelling),
            Beginning | End => None,
        })
    }

    /// The ids of a prompt that asks for what stands between `beginning`, already ids, and `end`, in which
    /// control tokens are text. `bos` stays in front.
    ///
    /// # Errors
    /// When the tokenizer library rejects the end.
    pub fn prompt(&self, beginning: &[u32], end: &str) -> Result<Vec<u32>, TextError> {
        let end = self.tokenizer.encode(end, Special::Plain)?;
        let (first, beginning) = match (self.tokenizer.bos(), beginning) {
            (Some(bos), [first, rest @ ..]) if *first == bos => (Some(bos), rest),
            _ => (None, beginning),
        };
        let mut ids: Vec<u32> = first.into_iter().collect();
        for piece in self.form {
            match piece {
                Token(spelling) => ids.extend(self.tokenizer.token_id(spelling)),
                Beginning => ids.extend(beginning),
                End => ids.extend(&end),
            }
        }
        Ok(ids)
    }

    /// Ids that end what fills the middle, beside [`Tokenizer::end_ids`]: the form's own tokens among them,
    /// which begin another text.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        let of_form = self.form.iter().filter_map(|piece| match piece {
            Token(spelling) => Some(*spelling),
            Beginning | End => None,
        });
        let spellings = of_form.chain(ENDS);
        spellings.filter_map(|spelling| {
            self.tokenizer.token_id(spelling).filter(|id| self.tokenizer.is_special(*id))
        })
    }
}
