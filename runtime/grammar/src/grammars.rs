//! A model's tokens, and grammars over them.

use crate::bounds::{self, Size};
use crate::constraint::Constraint;
use crate::error::GrammarError;
use crate::patience::Patience;
use crate::pattern::Pattern;
use crate::schema::Schema;
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

/// Largest schema, in bytes, in which a fault is looked for; how many of its parts are tried, and how long.
const MOST_SEARCHED: usize = 32 * 1024;
const MOST_TRIES: usize = 48;
const PATIENCE: Duration = Duration::from_millis(300);

/// How long a fault is looked for.
struct Tries {
    left: usize,
    until: Instant,
}

/// A token of a model's vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// The bytes it stands for; of a control token its name.
    pub bytes: &'a [u8],
    /// Whether it is a control token, which is no text.
    pub special: bool,
}

/// A model's tokens and the limits of compilation, from which grammars are made. Built once per server; a
/// clone is another handle.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    shared: Arc<Shared>,
    /// The time limit of compilations, if any.
    patience: Option<Arc<Patience>>,
}

/// What constraints know of the vocabulary.
pub(crate) struct Shared {
    pub(crate) vocabulary: usize,
    /// Ids that end an answer; the first is the one that llguidance knows.
    pub(crate) ends: Vec<u32>,
    /// The bytes of each token, one behind the other, and where each ends.
    bytes: Vec<u8>,
    until: Vec<usize>,
    /// Tokens that are no text.
    special: TokenMask,
    /// Tokens that stand for the same bytes as another: those, and the other, which is the one in the trie.
    doubles: Vec<(u32, u32)>,
    trie: TokEnv,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Shared {
    /// The bytes of a token; none of one that there is not.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(until) = self.until.get(id) else { return &[] };
        &self.bytes[if id == 0 { 0 } else { self.until[id - 1] }..*until]
    }

    /// The text of a token; none of one that is no text.
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        if self.special.allows(id) { &[] } else { self.bytes(id) }
    }

    /// Some tokens that a text can be written with.
    pub(crate) fn tokens(&self, text: &[u8]) -> Vec<u32> {
        self.trie.tok_trie().greedy_tokenize(text)
    }

    /// The token that stands for the same bytes and is in the trie.
    pub(crate) fn in_trie(&self, id: u32) -> u32 {
        self.doubles.binary_search_by_key(&id, |(double, _)| *double).map_or(id, |at| self.doubles[at].1)
    }

    /// The mask of all tokens.
    pub(crate) fn any(&self) -> TokenMask {
        TokenMask::of(self.vocabulary, 0..self.vocabulary as u32)
    }

    /// The mask of all tokens but these; none where these are none.
    pub(crate) fn all_but(&self, ids: &[u32]) -> Option<TokenMask> {
        if ids.is_empty() {
            return None;
        }
        let mut words = self.any().words().to_vec();
        ids.iter().for_each(|id| set(&mut words, *id, false));
        Some(TokenMask::new(words))
    }

    /// The mask of what llguidance allows.
    pub(crate) fn mask(&self, allowed: &[u32]) -> Vec<u32> {
        let mut words = vec![0; TokenMask::words_for(self.vocabulary)];
        let known = words.len().min(allowed.len());
        words[..known].copy_from_slice(&allowed[..known]);
        for (double, other) in &self.doubles {
            let allowed = get(&words, *other);
            set(&mut words, *double, allowed);
        }
        // One end is as good as another.
        let ends = self.ends.first().is_some_and(|end| get(&words, *end));
        self.ends.iter().for_each(|end| set(&mut words, *end, ends));
        if let Some(last) = words.last_mut()
            && !self.vocabulary.is_multiple_of(32)
        {
            *last &= (1 << (self.vocabulary % 32)) - 1;
        }
        words
    }
}

/// A bit of a mask's words.
fn get(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// Sets a bit of a mask's words.
pub(crate) fn set(words: &mut [u32], id: u32, to: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word = *word & !(1 << (id % 32)) | u32::from(to) << (id % 32);
    }
}

impl Grammars {
    /// Of `vocabulary` ids, as `token` tells them, of which `ends` end an answer; at least one.
    ///
    /// # Errors
    /// When there is no end, or the tokens make no trie; the message says why.
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
                // No text has a byte of this value, so it marks what is no text. Nor is an end, however it is
                // spelled.
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
        // Forced bytes are not turned into tokens for the model: which tokens are allowed depends on the
        // grammar alone.
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

    /// The same, with a time limit.
    pub fn within(&self, patience: &Arc<Patience>) -> Grammars {
        Grammars { patience: Some(Arc::clone(patience)), ..self.clone() }
    }

    /// Whether the request has gone.
    pub fn is_late(&self) -> bool {
        self.patience.as_ref().is_some_and(|patience| patience.is_lost())
    }

    /// The constraint of a source, at the beginning of an answer. Takes milliseconds, or tens of them of a
    /// large source, on a thread of its own: not for a thread that others wait for.
    ///
    /// # Errors
    /// When it is too large, says what is not supported, makes no sense, takes too long, or no answer is
    /// possible.
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

    /// Compiles on this very stack, whatever that is, and forgets it; whether it could be.
    #[cfg(test)]
    pub(crate) fn attempt_here(&self, source: &Source) -> Result<(), GrammarError> {
        bounds::source(source)?;
        let grammar = TopLevelGrammar::from_grammar(grammar_of(source)?);
        self.made(grammar, Size::Unknown).map(|constraint| drop(constraint.clone()))
    }

    /// The constraint of a pattern, as [`Self::compile`].
    ///
    /// # Errors
    /// When it is too large, makes no sense, takes too long, or no answer is possible.
    pub fn compile_pattern(&self, pattern: &Pattern) -> Result<Constraint, GrammarError> {
        let size = pattern.size()?;
        self.compiled(GrammarWithLexer::from_lark(pattern.lark()?), size)
    }

    fn compile_schema(&self, schema: &Schema, size: Size) -> Result<Constraint, GrammarError> {
        self.compiled(GrammarWithLexer::from_json_schema(schema.prepared()), size)
    }

    /// Finds the innermost part of a schema that is refused with the same error: the library does not say
    /// where it is.
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

    /// Compiles here, on this stack.
    fn made(&self, grammar: TopLevelGrammar, size: Size) -> Result<Constraint, GrammarError> {
        // What takes the library long for all tokens is done for a small grammar alone.
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
        // What the first token may be is the most expensive question.
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

    /// Compiles what another process has written down, asks `compiled` while that is there, and looks at what
    /// follows: the first token, copies and their end.
    ///
    /// # Errors
    /// When it makes no sense or no answer is possible, as [`Self::compile`].
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

    /// What the tokens have to do with the tags that begin calls; made once a server.
    pub fn openers(&self, openers: &[Opener]) -> Arc<Openers> {
        Arc::new(Openers::new(Arc::clone(&self.shared), openers))
    }

    /// What the tokens have to do with the tags around a model's reasoning, as ids each; made once a server.
    pub fn tags(&self, open: &[u32], close: &[u32]) -> Arc<Tags> {
        Arc::new(Tags::new(Arc::clone(&self.shared), open, close))
    }

    /// A constraint that only ends reasoning in time.
    pub fn thinking(&self, thinking: Thinking) -> Constraint {
        Constraint::new(Arc::clone(&self.shared), None, Some(thinking))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A source in the library's words.
fn grammar_of(source: &Source) -> Result<GrammarWithLexer, GrammarError> {
    Ok(match source {
        Source::JsonObject => GrammarWithLexer::from_json_schema(Schema::any_object().prepared()),
        Source::JsonSchema(schema) => GrammarWithLexer::from_json_schema(Schema::new(schema)?.prepared()),
        Source::Regex(regex) => GrammarWithLexer::from_regex(regex),
        Source::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
        Source::Choice(texts) => GrammarWithLexer::from_lark(choice(texts)?),
    })
}

/// The library's limits of states and of work.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 250_000,
        // Schemas that come near are refused before: see `width`.
        max_items_in_row: 16_000,
        step_max_items: 200_000,
        ..ParserLimits::default()
    }
}

/// The error for what nothing can be made of.
fn unusable(why: &str) -> GrammarError {
    GrammarError::new(format!("cannot be used: {why}"))
}

/// A grammar of some texts.
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
    // JSON's way to write a text is Lark's.
    let texts: Vec<String> =
        texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    Ok(format!("start: {}", texts.join(" | ")))
}
