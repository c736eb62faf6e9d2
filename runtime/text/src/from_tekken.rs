//! Reads a tokenizer from `tekken.json`, the file of Mistral's own releases: byte-level BPE whose tokens are
//! given by rank, without merges, behind a number of control tokens.
//!
//! Encoding by ranks joins the neighbours that make the token of the lowest rank, the leftmost first, until
//! none make one; a piece of the pattern that is a token is that token. Merges say the same: neighbours that
//! make a token are always the same two. A token's bytes are joined in an order that depends on nothing
//! around them, as long as none is joined to what is around them; so what is left of them before the last
//! step is the one pair that makes the token, and its rank orders that merge. A token that its bytes do not
//! lead to is found only as a whole piece.

use crate::error::TextError;
use crate::parts::Parts;
use crate::side_file::{end_ids, read_file};
use crate::vocabulary::{Kind, Speller, Spelling, Vocabulary};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use monomorph_weights::{Checkpoint, SideFile};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// The file's name.
pub(crate) const FILE: &str = "tekken.json";

/// The tokens that begin and end a text.
const BOS: &str = "<s>";
const EOS: &str = "</s>";

/// Number of tokens of one byte, which come first.
const BYTES: usize = 256;

/// Most control tokens; releases have 1000. A file that asks for more claims memory for names that it does
/// not hold.
const MOST_SPECIAL: usize = 4096;

/// The part of the file that is read.
#[derive(serde::Deserialize)]
struct File<'a> {
    config: Config<'a>,
    #[serde(borrow)]
    vocab: Vec<Token<'a>>,
    /// Files up to version 7 may lack them.
    #[serde(borrow)]
    special_tokens: Option<Vec<Special<'a>>>,
}

#[derive(serde::Deserialize)]
struct Config<'a> {
    /// The regular expression of pieces.
    #[serde(borrow)]
    pattern: Cow<'a, str>,
    /// Number of ids. The file may hold more tokens, which then have none.
    default_vocab_size: usize,
    /// How many of them, the first ones, are control tokens.
    default_num_special_tokens: usize,
}

#[derive(serde::Deserialize)]
struct Token<'a> {
    rank: usize,
    /// In base64.
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
}

/// A control token: none of them is ever made of what a client wrote, whatever `is_control` says.
#[derive(serde::Deserialize)]
struct Special<'a> {
    rank: usize,
    #[serde(borrow)]
    token_str: Cow<'a, str>,
}

/// Builds the tokenizer of a file beside a checkpoint's weights.
pub(crate) fn read(checkpoint: &Checkpoint, file: &SideFile) -> Result<Parts, TextError> {
    let (path, text) = (file.path(), read_file(file)?);
    let file = parsed(path, &text)?;
    let special = special_of(path, &file)?;
    let tokens = tokens_of(path, &file)?;
    let build =
        |error: tokenizers::Error| TextError::malformed(path, format!("has a bad tokenizer: {error}"));

    // Added to an empty vocabulary, control tokens have the first ids. The model never learns their names,
    // so that no piece of a text can be one, and a token with the same bytes is another token.
    let mut pipeline = tokenizers::Tokenizer::new(BPE::default());
    pipeline.add_tokens(special.iter().map(|name| AddedToken::from(name.as_str(), true))).map_err(build)?;
    pipeline.with_model(model_of(&tokens, special.len()).map_err(build)?);
    pipeline.with_pre_tokenizer(Some(pieces_of(path, &file.config.pattern)?));
    pipeline.with_decoder(Some(ByteLevel::default()));

    let mut vocabulary = Vocabulary::default();
    special.iter().for_each(|name| vocabulary.push(name.as_bytes(), Kind::Special));
    tokens.iter().for_each(|token| vocabulary.push(token, Kind::Normal));
    let mut parts = Parts::new(pipeline, vocabulary)
        .map_err(|error| TextError::malformed(path, format!("has bad control tokens: {error}")))?;
    let id_of = |name: &str| {
        let id = special.iter().position(|known| known == name).map(|id| id as u32);
        id.ok_or_else(|| TextError::malformed(path, format!("has no {name:?} among its `special_tokens`")))
    };
    let (bos, eos) = (id_of(BOS)?, id_of(EOS)?);
    (parts.bos, parts.eos, parts.add_bos) = (Some(bos), Some(eos), true);
    parts.ends = end_ids(checkpoint, Some(eos))?;
    Ok(parts)
}

fn parsed<'a>(path: &Path, text: &'a [u8]) -> Result<File<'a>, TextError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let file = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| TextError::malformed(path, format!("`{}`: {}", error.path(), error.inner())))?;
    json.end().map_err(|error| TextError::malformed(path, format!("is not JSON: {error}")))?;
    Ok(file)
}

/// The names of all control tokens, by id: those of the file, and stand-ins for those that have no name yet.
fn special_of(path: &Path, file: &File) -> Result<Vec<String>, TextError> {
    let number = file.config.default_num_special_tokens;
    if number > MOST_SPECIAL {
        let what =
            format!("`config.default_num_special_tokens` is {number}, and at most {MOST_SPECIAL} are known");
        return Err(TextError::malformed(path, what));
    }
    let Some(given) = &file.special_tokens else {
        let what = "names no `special_tokens`, as files up to version 7 do; later ones name them";
        return Err(TextError::unsupported(path, what));
    };
    if given.len() > number {
        let (len, key) = (given.len(), "config.default_num_special_tokens");
        return Err(TextError::malformed(
            path,
            format!("has {len} `special_tokens`, and `{key}` is {number}"),
        ));
    }
    let mut names: Vec<String> = Vec::with_capacity(number);
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(number);
    for id in 0..number {
        let name = match given.get(id) {
            Some(token) if token.rank != id => {
                let rank = token.rank;
                return Err(TextError::malformed(
                    path,
                    format!("`special_tokens[{id}].rank` is {rank} and should be {id}"),
                ));
            }
            Some(token) if token.token_str.is_empty() => {
                return Err(TextError::malformed(path, format!("`special_tokens[{id}].token_str` is empty")));
            }
            Some(token) => token.token_str.clone().into_owned(),
            None => format!("<SPECIAL_{id}>"),
        };
        if let Some(other) = seen.insert(name.clone(), id) {
            let what = format!("`special_tokens[{id}].token_str` is {name:?}, as that of {other} is");
            return Err(TextError::malformed(path, what));
        }
        names.push(name);
    }
    Ok(names)
}

/// The bytes of all other tokens that have an id, by rank.
fn tokens_of(path: &Path, file: &File) -> Result<Vec<Vec<u8>>, TextError> {
    let Config { default_vocab_size: all, default_num_special_tokens: special, .. } = file.config;
    let number = all.checked_sub(special).filter(|number| (BYTES..=file.vocab.len()).contains(number));
    let Some(number) = number else {
        let held = file.vocab.len();
        return Err(TextError::malformed(
            path,
            format!(
                "`config.default_vocab_size` is {all}: beside {special} special tokens, {BYTES} to the {held} \
                 tokens of `vocab` are wanted"
            ),
        ));
    };
    let mut tokens = Vec::with_capacity(number);
    for (rank, token) in file.vocab[..number].iter().enumerate() {
        let wrong = |field: &str, what: String| {
            Err(TextError::malformed(path, format!("`vocab[{rank}].{field}` {what}")))
        };
        if token.rank != rank {
            return wrong("rank", format!("is {} and should be {rank}", token.rank));
        }
        let bytes = match STANDARD.decode(token.token_bytes.as_ref()) {
            Ok(bytes) if bytes.is_empty() => return wrong("token_bytes", "is empty".to_owned()),
            Ok(bytes) => bytes,
            Err(error) => return wrong("token_bytes", format!("is not base64: {error}")),
        };
        if rank < BYTES && bytes != [rank as u8] {
            return wrong("token_bytes", format!("is {bytes:?}: the byte {rank} is wanted"));
        }
        tokens.push(bytes);
    }
    let mut ranks = HashMap::with_capacity(number);
    for (rank, token) in tokens.iter().enumerate() {
        if let Some(other) = ranks.insert(token.as_slice(), rank) {
            let what = format!("`vocab[{rank}].token_bytes` is the token of rank {other} once more");
            return Err(TextError::malformed(path, what));
        }
    }
    Ok(tokens)
}

/// The tokens, whose ids begin at `first`, and the merges that make them, by rank.
fn model_of(tokens: &[Vec<u8>], first: usize) -> Result<BPE, tokenizers::Error> {
    let speller = Speller::new(Spelling::ByteLevel);
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let spelled: Vec<String> = tokens.iter().map(|token| speller.write(token)).collect();
    let merges: Merges = tokens
        .iter()
        .filter_map(|token| {
            let (left, right) = token.split_at(last_cut(token, &ranks)?);
            Some((spelled[ranks[left]].clone(), spelled[ranks[right]].clone()))
        })
        .collect();
    let vocabulary: Vocab = spelled.into_iter().zip((first as u32)..).collect();
    BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(true).build()
}

/// Where the two parts meet that a token's bytes are joined to before they are that token; `None` for a
/// single byte, and where more than two parts are left.
fn last_cut(bytes: &[u8], ranks: &HashMap<&[u8], usize>) -> Option<usize> {
    let length = bytes.len();
    // By the place where a part begins: where it ends (0 where none begins), and where the one before begins.
    let mut ends: Vec<usize> = (1..=length).collect();
    let mut before: Vec<usize> = (0..length).map(|start| start.saturating_sub(1)).collect();
    // Neighbours that make a token: its rank, where they begin, and where they end.
    let mut pairs = BinaryHeap::new();
    let pair = |start: usize, end: usize| {
        let rank = if end - start < length { ranks.get(&bytes[start..end]) } else { None };
        rank.map(|&rank| Reverse((rank, start, end)))
    };
    pairs.extend((2..=length).filter_map(|end| pair(end - 2, end)));
    while let Some(Reverse((_, start, end))) = pairs.pop() {
        let middle = ends[start];
        // Either may be part of another by now.
        if middle == 0 || middle == length || ends[middle] != end {
            continue;
        }
        (ends[start], ends[middle]) = (end, 0);
        if start > 0 {
            pairs.extend(pair(before[start], end));
        }
        if end < length {
            before[end] = start;
            pairs.extend(pair(start, ends[end]));
        }
    }
    let cut = ends[0];
    (cut < length && ends[cut] == length).then_some(cut)
}

/// Splits a text at its pieces, whose bytes are then spelled as the vocabulary's are.
fn pieces_of(path: &Path, pattern: &str) -> Result<PreTokenizerWrapper, TextError> {
    let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| {
            TextError::malformed(path, format!("`config.pattern` is no regular expression: {error}"))
        })?;
    Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into())
}
