//! Reasoning in Anthropic's words: whether a request wants it, whether its text is shown, and the signatures
//! of its blocks.
//!
//! A block whose text is omitted has it in its signature, as a client sends blocks back as they were: the
//! model then reads what it thought.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::words;
use crate::request::conversation::Reasoning;
use crate::request::fields::{Fields, wrong_word};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The path of the effort.
pub(super) const EFFORT: &str = "output_config.effort";
/// The path of the budget.
pub(super) const BUDGET: &str = "thinking.budget_tokens";
/// What signatures begin with, of text that is shown and of text that is in the signature.
const SHOWN: &str = "monomorph-";
const OMITTED: &str = "monomorph-omitted-";

/// How the text of reasoning is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Display {
    /// As it is. Anthropic's summaries have this name, and nothing here is summarized.
    #[default]
    Shown,
    /// In the block's signature alone.
    Omitted,
}

impl Display {
    const NAMES: [(&str, Display); 2] = [("summarized", Display::Shown), ("omitted", Display::Omitted)];

    /// The text of a block that is returned.
    pub(super) fn text(self, text: &str) -> &str {
        match self {
            Display::Shown => text,
            Display::Omitted => "",
        }
    }

    /// The signature of a block, which clients send back with it. It is a checksum and no proof: a client can
    /// make the model say anything. An empty block is what a stream opens one with, and has none.
    pub(super) fn signature(self, text: &str) -> String {
        match self {
            _ if text.is_empty() => String::new(),
            Display::Shown => format!("{SHOWN}{:016x}", checksum(text)),
            Display::Omitted => format!("{OMITTED}{:016x}-{}", checksum(text), STANDARD.encode(text)),
        }
    }
}

fn checksum(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The text that a signature holds; `None` of one that holds none.
///
/// # Errors
/// When the signature was changed or cut.
pub(super) fn held_by(signature: &str) -> Result<Option<String>, &'static str> {
    let Some(rest) = signature.strip_prefix(OMITTED) else { return Ok(None) };
    let changed = "was changed: send a block whose text is omitted as it came";
    let (sum, encoded) = rest.split_once('-').ok_or(changed)?;
    let text =
        STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(changed)?;
    if format!("{:016x}", checksum(&text)) == sum { Ok(Some(text)) } else { Err(changed) }
}

/// What a request says of reasoning.
#[derive(Debug)]
pub(super) struct Thinking {
    pub(super) reasoning: Reasoning,
    /// Tokens that it may take.
    pub(super) budget: Option<usize>,
    pub(super) display: Display,
}

/// Reads it. Reasoning is off by default where it can be turned off, as with Anthropic's models.
pub(super) fn read_thinking(fields: &mut Fields, effort: Option<String>) -> Result<Thinking, ApiError> {
    let without = || ApiError::unsupported(EFFORT, "an effort without thinking");
    let Some(thinking) = fields.value("thinking") else {
        let off = Thinking { reasoning: Reasoning::Unwanted, budget: None, display: Display::Shown };
        return if effort.is_some() { Err(without()) } else { Ok(off) };
    };
    let mut thinking = Fields::new("thinking", thinking)?;
    let kind = thinking.tag("type")?;
    thinking.holds("type");
    let budget = thinking.integer("budget_tokens", 1..=i64::from(u32::MAX))?.map(|budget| budget as usize);
    let names = Display::NAMES.map(|(name, _)| name);
    let display = match thinking.of(|| words(&names)).string("display")? {
        None => Display::default(),
        Some(given) => {
            let known = Display::NAMES.iter().find(|(name, _)| *name == given);
            known.map(|it| it.1).ok_or_else(|| wrong_word("thinking.display", &names, Some(given)))?
        }
    };
    match kind {
        Some("enabled") => thinking.holds("budget_tokens"),
        _ => thinking.lacks(&["budget_tokens"]),
    }
    thinking.finish()?;
    let reasoning = match kind {
        Some("disabled") if effort.is_some() => return Err(without()),
        Some("enabled") if budget.is_none() => {
            return Err(wrong!(BUDGET, "is required where thinking is enabled"));
        }
        Some("disabled" | "adaptive") if budget.is_some() => {
            return Err(wrong!(BUDGET, "goes with thinking that is enabled"));
        }
        Some("disabled") => Reasoning::Off { field: "thinking" },
        Some("enabled" | "adaptive") => Reasoning::On { field: "thinking", effort },
        other => return Err(wrong_word("thinking.type", &["enabled", "adaptive", "disabled"], other)),
    };
    Ok(Thinking { reasoning, budget, display })
}

#[cfg(test)]
mod tests {
    use super::{Display, held_by};

    #[test]
    fn a_signature_of_omitted_text_holds_it_and_no_other_does() {
        for text in ["Hm.", "It rains, and \u{1F327}\nfalls."] {
            assert_eq!(held_by(&Display::Omitted.signature(text)), Ok(Some(text.to_owned())));
            assert_eq!(held_by(&Display::Shown.signature(text)), Ok(None));
        }
        for other in ["", "x", "monomorph-0123"] {
            assert_eq!(held_by(other), Ok(None), "{other:?}");
        }
    }

    #[test]
    fn a_signature_that_was_changed_is_refused_wherever_it_was() {
        let whole = Display::Omitted.signature("I look around.");
        for at in "monomorph-omitted-".len()..whole.len() {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).expect("ASCII");
            assert!(held_by(&changed).is_err(), "{changed}");
            assert!(held_by(&whole[..at]).is_err(), "{}", &whole[..at]);
        }
    }
}
