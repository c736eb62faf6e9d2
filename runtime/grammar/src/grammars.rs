//! The tokens of a model, and grammars over them.

use crate::bounds::{self, Size};
use crate::constraint::Constraint;
use crate::error::GrammarError;
use crate::patience::Patience;
use crate::pattern::Pattern;
use crate::schema::Schema;
use crate::shared::Shared;
use crate::source::{MAX_BYTES, MAX_CHOICES, Source, size};
use crate::stack;
use crate::thinking::{Tags, Thinking};
use crate::watch::{Opener, Openers};
use crate::words;
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Logger, Matcher, ParserFactory};
use monomorph_sampling::TokenMask;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

/// Limits of the search for a fault: bytes of the schema, parts to try, and time.
const MOST_SEARCHED: usize = 32 * 1024;
const MOST_TRIES: usize = 48;
const PATIENCE: Duration = Duration::from_millis(300);

/// The budget left for a search for a fault.
struct Tries {
    left: usize,
    until: Instant,
}

/// A token of a model's vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// The token's bytes; for a control token, its name.
    pub bytes: &'a [u8],
    /// Whether it is a control token rather than text.
    pub special: bool,
}

/// A model's tokens and the limits of compilation, from which grammars are compiled. Built once per server; a
/// clone is another handle.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    shared: Arc<Shared>,
    /// The time limit of compilations, if any.
    patience: Option<Arc<Patience>>,
}

impl Grammars {
    /// A vocabulary of `vocabulary` ids, described by `token`; `ends` are the ids that end an answer, at
    /// least one.
    ///
    /// # Errors
    /// When there is no end, or the tokens form no trie; the message says why.
    pub fn new<'a>(
        vocabulary: usize,
        token: impl Fn(u32) -> Option<Token<'a>>,
        ends: &[u32],
    ) -> Result<Grammars, String> {
        let known = ends.iter().copied().filter(|id| (*id as usize) < vocabulary);
        let ends = known.fold(Vec::new(), |mut ends: Vec<u32>, id| {
            if !ends.contains(&id) {
                ends.push(id);
            }
            ends
        });
        let Some(end) = ends.first().copied() else {
            return Err("the model has no token that ends an answer".to_owned());
        };
        let (mut bytes, mut until) = (Vec::new(), Vec::with_capacity(vocabulary));
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(vocabulary);
        let (mut doubles, mut specials) = (Vec::new(), Vec::new());
        let mut known: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for id in 0..vocabulary as u32 {
            let mut word = Vec::new();
            if let Some(Token { bytes: spelled, special }) = token(id) {
                bytes.extend_from_slice(spelled);
                // No text contains a byte of this value, so it marks tokens that are not text. Ends are not
                // text either, whatever their spelling.
                let special = special || ends.contains(&id);
                if special {
                    specials.push(id);
                    word.push(TokTrie::SPECIAL_TOKEN_MARKER);
                }
                if special || !spelled.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
                    word.extend_from_slice(spelled);
                }
            }
            until.push(bytes.len());
            match known.get(&word) {
                _ if word.is_empty() => {}
                Some(other) => {
                    doubles.push((id, *other));
                    word.clear();
                }
                None => drop(known.insert(word.clone(), id)),
            }
            words.push(word);
        }
        drop(known);
        let info = TokRxInfo::new(vocabulary as u32, end);
        let trie = TokTrie::from(&info, &words);
        // Forced bytes are not tokenised for the model: which tokens are allowed depends on the grammar
        // alone.
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&environment, capabilities, &slices).map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let special = TokenMask::of(vocabulary, specials);
        Ok(Grammars {
            factory: Arc::new(factory),
            shared: Arc::new(Shared { vocabulary, ends, bytes, until, special, doubles, trie: environment }),
            patience: None,
        })
    }

    /// The same grammars, with a time limit.
    pub fn within(&self, patience: &Arc<Patience>) -> Grammars {
        Grammars { patience: Some(Arc::clone(patience)), ..self.clone() }
    }

    /// Whether the request was given up, or its time is over.
    pub fn is_late(&self) -> bool {
        self.patience.as_ref().is_some_and(|patience| patience.is_lost())
    }

    /// The constraint of a source, at the beginning of an answer. Takes milliseconds, or tens of them for a
    /// large source, and compiles on a thread of its own. Do not call it on a thread that other requests wait
    /// for.
    ///
    /// # Errors
    /// When the source is too large, contains something unsupported, is invalid, takes too long, or admits no
    /// answer.
    pub fn compile(&self, source: &Source) -> Result<Constraint, GrammarError> {
        let bytes = source.bytes();
        if bytes > MAX_BYTES {
            return Err(GrammarError::new(format!("has {bytes} bytes; at most {MAX_BYTES}")));
        }
        let bound = bounds::source(source)?;
        if let Source::JsonSchema(schema) = source {
            let schema = Schema::new(schema)?;
            return self.compile_schema(&schema, bound).map_err(|error| {
                if self.is_late() || size(schema.value()) > MOST_SEARCHED {
                    return error;
                }
                let mut tries = Tries { left: MOST_TRIES, until: Instant::now() + PATIENCE };
                self.find_fault(&schema, bound, String::new(), error, &mut tries)
            });
        }
        self.compiled(grammar_of(source)?, bound)
    }

    /// Compiles on the caller's stack, whatever its size, and drops the result.
    #[cfg(test)]
    pub(crate) fn attempt_here(&self, source: &Source) -> Result<(), GrammarError> {
        bounds::source(source)?;
        let grammar = TopLevelGrammar::from_grammar(grammar_of(source)?);
        self.made(grammar, Size::Unknown).map(|constraint| drop(constraint.clone()))
    }

    /// The constraint of a pattern, as [`Self::compile`].
    ///
    /// # Errors
    /// When the pattern is too large, is invalid, takes too long, or admits no answer.
    pub fn compile_pattern(&self, pattern: &Pattern) -> Result<Constraint, GrammarError> {
        let size = pattern.size()?;
        self.compiled(GrammarWithLexer::from_lark(pattern.lark()?), size)
    }

    fn compile_schema(&self, schema: &Schema, size: Size) -> Result<Constraint, GrammarError> {
        self.compiled(GrammarWithLexer::from_json_schema(schema.prepared()), size)
    }

    /// Finds the innermost part of a schema that is rejected with the same error, because the library does
    /// not say where the error is.
    fn find_fault(
        &self,
        schema: &Schema,
        size: Size,
        path: String,
        error: GrammarError,
        tries: &mut Tries,
    ) -> GrammarError {
        let definitions = if path.is_empty() { schema.definitions() } else { Vec::new() };
        let parts = schema.parts().into_iter().map(|(part, schema)| (format!("{path}{part}"), schema));
        for (path, part) in parts.chain(definitions) {
            if tries.left == 0 || Instant::now() > tries.until || self.is_late() {
                break;
            }
            tries.left -= 1;
            if let Err(other) = self.compile_schema(&part, size)
                && (other.message == error.message || error.message.contains("is unsatisfiable"))
            {
                return self.find_fault(&part, size, path, other, tries);
            }
        }
        GrammarError { path, ..error }
    }

    fn compiled(&self, grammar: GrammarWithLexer, size: Size) -> Result<Constraint, GrammarError> {
        let grammar = TopLevelGrammar::from_grammar(grammar);
        if let Some(patience) = &self.patience {
            patience.check()?;
            if size == Size::Unknown {
                let written = serde_json::to_vec(&grammar);
                patience.attempt(&written.map_err(|error| unusable(&error.to_string()))?)?;
            }
        }
        stack::with_room(|| self.made(grammar, size)).map_err(|error| unusable(&error))?
    }

    /// Compiles on the current stack.
    fn made(&self, grammar: TopLevelGrammar, size: Size) -> Result<Constraint, GrammarError> {
        // Only for a small grammar are the library's expensive tables over all tokens precomputed.
        let limits = ParserLimits { precompute_large_lexemes: size == Size::Small, ..limits() };
        let capabilities = InferenceCapabilities::default();
        let (init, quiet) = (GrammarInit::Serialized(grammar), Logger::new(0, 0));
        let mut matcher =
            Matcher::new(self.factory.create_parser_from_init_ext(init, quiet, capabilities, limits));
        if let Some(error) = matcher.get_error() {
            return Err(GrammarError::new(words::refusal(&error)));
        }
        if let Some(patience) = &self.patience {
            matcher = matcher.into_cancellable();
            patience.computes(matcher.cancellation_handle());
        }
        let mut constraint = Constraint::new(Arc::clone(&self.shared), Some(matcher), None);
        // The mask of the first token is the most expensive one.
        let first = constraint.masks(&[], &mut Vec::new());
        match &self.patience {
            None => first?,
            Some(patience) => {
                patience.computes(None);
                if first.is_err() {
                    patience.check()?;
                }
                first?;
            }
        }
        Ok(constraint)
    }

    /// Compiles a grammar serialised by another process, calls `compiled` while the result exists, and checks
    /// what follows: the first token, copies and their drop.
    ///
    /// # Errors
    /// When the grammar is invalid or admits no answer, as [`Self::compile`].
    pub fn attempt<T: Send>(
        &self,
        grammar: &[u8],
        compiled: impl FnOnce() -> T + Send,
    ) -> Result<T, GrammarError> {
        let attempt = || {
            let grammar = serde_json::from_slice(grammar).map_err(|error| unusable(&error.to_string()))?;
            let constraint = self.made(grammar, Size::Unknown)?;
            let looked = compiled();
            drop(constraint.clone());
            Ok(looked)
        };
        stack::with_stack(stack::TRIAL_BYTES, attempt).map_err(|error| unusable(&error))?
    }

    /// Prepares the tags that begin calls for this vocabulary; once per server.
    pub fn openers(&self, openers: &[Opener]) -> Arc<Openers> {
        Arc::new(Openers::new(Arc::clone(&self.shared), openers))
    }

    /// Prepares the tags around a model's reasoning, each as ids, for this vocabulary; once per server.
    pub fn tags(&self, open: &[u32], close: &[u32]) -> Arc<Tags> {
        Arc::new(Tags::new(Arc::clone(&self.shared), open, close))
    }

    /// A constraint that only bounds the reasoning.
    pub fn thinking(&self, thinking: Thinking) -> Constraint {
        Constraint::new(Arc::clone(&self.shared), None, Some(thinking))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// Translates a source for the library.
fn grammar_of(source: &Source) -> Result<GrammarWithLexer, GrammarError> {
    Ok(match source {
        Source::JsonObject => GrammarWithLexer::from_json_schema(Schema::any_object().prepared()),
        Source::JsonSchema(schema) => GrammarWithLexer::from_json_schema(Schema::new(schema)?.prepared()),
        Source::Regex(regex) => GrammarWithLexer::from_regex(regex),
        Source::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
        Source::Choice(texts) => GrammarWithLexer::from_lark(choice(texts)?),
    })
}

/// The library's limits on states and work.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 250_000,
        // Schemas that come near are rejected earlier: see `width`.
        max_items_in_row: 16_000,
        step_max_items: 200_000,
        ..ParserLimits::default()
    }
}

/// The error for a source that cannot be compiled.
fn unusable(why: &str) -> GrammarError {
    GrammarError::new(format!("cannot be used: {why}"))
}

/// A Lark grammar of some texts.
fn choice(texts: &[String]) -> Result<String, GrammarError> {
    let count = texts.len();
    if count == 0 || count > MAX_CHOICES {
        return Err(GrammarError::new(format!(
            "has {count} texts to choose from; 1 to {MAX_CHOICES} can be"
        )));
    }
    if let Some(at) = texts.iter().position(String::is_empty) {
        let path = format!("[{at}]");
        return Err(GrammarError { path, message: "is an empty text".to_owned() });
    }
    // A JSON string is also a Lark string.
    let texts: Vec<String> =
        texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}", texts.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fault_is_sought_in_schemas_up_to_a_size() {
        let bytes: Vec<[u8; 1]> = (0..=255u8).map(|byte| [byte]).collect();
        let token = |id: u32| match bytes.get(id as usize) {
            Some(byte) => Some(Token { bytes: byte, special: false }),
            None => Some(Token { bytes: b"<end>", special: true }),
        };
        let grammars = Grammars::new(257, token, &[256]).expect("a vocabulary");
        let schema = |length: usize| {
            let fault = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
            json!({"type": "object", "properties": {"a": fault, "z": {"const": "a".repeat(length)}}})
        };
        let least = size(&schema(0));
        for (bytes, path) in [(32_768, ".properties.a"), (32_769, "")] {
            let schema = schema(bytes - least);
            assert_eq!(size(&schema), bytes);
            let error = grammars.compile(&Source::JsonSchema(schema)).expect_err("both may be");
            assert_eq!(error.path, path, "{error}");
        }
    }

    #[test]
    fn grammars_are_smaller_and_masks_take_more_work_than_by_default() {
        let (own, default) = (limits(), ParserLimits::default());
        assert!(own.max_grammar_size < default.max_grammar_size);
        assert!(own.max_items_in_row > default.max_items_in_row);
        assert!(own.step_max_items > default.step_max_items);
    }
}
