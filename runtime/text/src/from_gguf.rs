//! Builds a tokenizer directly from GGUF metadata: a detour through JSON for 49 thousand tokens would take
//! most of a server's start.

use crate::error::TextError;
use crate::parts::Parts;
use crate::vocabulary::{Kind, Speller, Spelling, Vocabulary};
use monomorph_weights::Metadata;
use std::collections::BTreeSet;
use std::path::Path;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// `tokenizer.ggml.token_type` of a control token.
const CONTROL: i32 = 3;
/// `tokenizer.ggml.token_type` of a token that is matched in any text, and is itself text.
const USER_DEFINED: i32 = 4;

/// A pre-tokenizer, as named by `tokenizer.ggml.pre`.
struct Pre {
    /// Regular expressions that split the text, in order; if there are none, GPT-2's.
    splits: &'static [&'static str],
    /// Whether every digit is first split off by itself.
    digits: bool,
    /// Whether GPT-2's expression splits the rest.
    gpt2: bool,
    /// Whether a word that is a token becomes that token, whatever the merges say.
    ignore_merges: bool,
    /// Whether the text is first composed canonically (NFC).
    nfc: bool,
    /// The default of `tokenizer.ggml.add_bos_token`.
    add_bos: bool,
}

/// Llama 3's expression.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT2: Pre =
    Pre { splits: &[], digits: false, gpt2: true, ignore_merges: false, nfc: false, add_bos: false };

/// The known pre-tokenizers; each matches that of the models' own `tokenizer.json`.
fn pre_tokenizer(name: &str) -> Option<Pre> {
    Some(match name {
        "gpt-2" | "gpt2" => GPT2,
        "smollm" | "starcoder" | "refact" => Pre { digits: true, ..GPT2 },
        // Files of Nemotron-H name the last, which is split as llama.cpp does: nobody has compared it with
        // the model's own `tokenizer.json`.
        "llama-bpe" | "llama3" | "llama-v3" | "pixtral" => {
            Pre { splits: &[LLAMA3], gpt2: false, ignore_merges: true, add_bos: true, ..GPT2 }
        }
        "tekken" => Pre {
            splits: &[
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            ignore_merges: true,
            add_bos: true,
            ..GPT2
        },
        "qwen2" | "deepseek-r1-qwen" => Pre {
            splits: &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            nfc: true,
            ..GPT2
        },
        "qwen35" => Pre {
            splits: &[
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            nfc: true,
            ..GPT2
        },
        "minimax-m2" => Pre {
            splits: &[
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ],
            gpt2: false,
            ..GPT2
        },
        // llama.cpp's own, for files that do not name one; it matches no `tokenizer.json`.
        "default" => Pre {
            splits: &[
                r"[\p{P}\$\+<=>\^~\|]+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
                r"\p{N}+",
                r"[0-9][0-9][0-9]",
            ],
            gpt2: false,
            ..GPT2
        },
        _ => return None,
    })
}

/// Builds the tokenizer of a GGUF file.
pub(crate) fn read(path: &Path, metadata: &Metadata) -> Result<Parts, TextError> {
    let Some(model) = metadata.str("tokenizer.ggml.model")? else {
        return Err(TextError::missing(path, "carries no tokenizer: `tokenizer.ggml.model` is missing"));
    };
    // Gemma's are of characters, and of bytes where a character is no token; their files name no
    // pre-tokenizer, and llama.cpp reads none.
    let pre = match model {
        "gemma4" => None,
        "gpt2" => {
            let name = metadata.str("tokenizer.ggml.pre")?.unwrap_or("default");
            let unknown = || TextError::unsupported(path, format!("has the unknown pre-tokenizer `{name}`"));
            Some(pre_tokenizer(name).ok_or_else(unknown)?)
        }
        _ => {
            let what = "`gpt2` (byte-level BPE) and `gemma4` are the ones that are read";
            return Err(TextError::unsupported(path, format!("has a tokenizer of kind `{model}`; {what}")));
        }
    };

    let tokens = required(path, "tokenizer.ggml.tokens", metadata.strs("tokenizer.ggml.tokens")?)?;
    let merges = required(path, "tokenizer.ggml.merges", metadata.strs("tokenizer.ggml.merges")?)?;
    let types = metadata.i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(TextError::malformed(
            path,
            format!("has {} tokens and {} token types", tokens.len(), types.len()),
        ));
    }

    let spelling = if pre.is_some() { Spelling::ByteLevel } else { Spelling::SentencePiece };
    let speller = Speller::new(spelling);
    let mut vocabulary = Vocabulary::default();
    let mut added = Vec::new();
    for (id, &token) in tokens.iter().enumerate() {
        match types.get(id) {
            Some(&CONTROL) => {
                vocabulary.push(token.as_bytes(), Kind::Special);
                added.push(AddedToken::from(token, true));
            }
            Some(&USER_DEFINED) => {
                vocabulary.push(token.as_bytes(), Kind::Normal);
                added.push(AddedToken::from(token, false).normalized(false));
            }
            _ => vocabulary.push(&speller.spell(token), Kind::Normal),
        }
    }

    let build =
        |error: tokenizers::Error| TextError::malformed(path, format!("has a bad tokenizer: {error}"));
    let ignore_merges = pre.as_ref().is_some_and(|pre| pre.ignore_merges);
    let model = model_of(path, &tokens, &merges, (spelling, ignore_merges))?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    match &pre {
        Some(pre) => {
            if pre.nfc {
                pipeline.with_normalizer(Some(NFC)).map_err(build)?;
            }
            pipeline.with_pre_tokenizer(Some(pipeline_of(pre).map_err(build)?));
        }
        None => {
            pipeline.with_normalizer(Some(Replace::new(" ", "\u{2581}").map_err(build)?)).map_err(build)?;
            // No token has characters besides newlines next to them.
            let runs = SplitPattern::Regex(r"[^\n]+|\n+".to_owned());
            let runs = Split::new(runs, SplitDelimiterBehavior::Isolated, false).map_err(build)?;
            pipeline.with_pre_tokenizer(Some(runs));
        }
    }
    pipeline.add_tokens(added).map_err(build)?;

    let mut parts = Parts::new(pipeline, vocabulary)
        .map_err(|error| TextError::malformed(path, format!("has bad control tokens: {error}")))?;
    let id_of = |name: &str| -> Result<Option<u32>, TextError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.u32(&key)? {
            Some(id) if id as usize >= tokens.len() => Err(TextError::malformed(
                path,
                format!("`{key}` is {id}, and there are {} tokens", tokens.len()),
            )),
            id => Ok(id),
        }
    };
    parts.bos = id_of("bos")?;
    parts.eos = id_of("eos")?;
    parts.ends = [parts.eos, id_of("eot")?, id_of("eom")?]
        .into_iter()
        .flatten()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    parts.add_bos =
        metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.is_none_or(|pre| pre.add_bos));
    if parts.add_bos && parts.bos.is_none() {
        return Err(TextError::malformed(
            path,
            "wants a first token, and `tokenizer.ggml.bos_token_id` is missing",
        ));
    }
    Ok(parts)
}

fn required<T>(path: &Path, key: &str, value: Option<T>) -> Result<T, TextError> {
    value.ok_or_else(|| TextError::malformed(path, format!("metadata `{key}` is missing")))
}

fn model_of(
    path: &Path,
    tokens: &[&str],
    merges: &[&str],
    (spelling, ignore_merges): (Spelling, bool),
) -> Result<BPE, TextError> {
    let mut vocabulary = Vocab::with_capacity(tokens.len());
    for (id, &token) in (0..).zip(tokens) {
        if let Some(other) = vocabulary.insert(token.to_owned(), id) {
            return Err(TextError::malformed(path, format!("tokens {other} and {id} are both `{token}`")));
        }
    }
    // The library copies both halves of a merge into a buffer as long as the longest token, without checking
    // that they fit.
    let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
    let merges = merges
        .iter()
        .enumerate()
        .map(|(index, merge)| {
            // In other vocabularies a half may itself be a space, so the first byte is skipped.
            let split = merge.as_bytes().iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
            let (left, right) = split
                .map(|at| (&merge[..at], &merge[at + 1..]))
                .filter(|(left, right)| left.len() + right.len() <= longest)
                .ok_or_else(|| {
                    TextError::malformed(
                        path,
                        format!("merge {index}, `{merge}`, does not make a token of two"),
                    )
                })?;
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect::<Result<Merges, TextError>>()?;
    BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(ignore_merges)
        .byte_fallback(spelling == Spelling::SentencePiece)
        .build()
        .map_err(|error| TextError::malformed(path, format!("has a bad tokenizer: {error}")))
}

fn pipeline_of(pre: &Pre) -> Result<PreTokenizerWrapper, tokenizers::Error> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    if pre.digits {
        steps.push(Digits::new(true).into());
    }
    for &expression in pre.splits {
        let pattern = SplitPattern::Regex(expression.to_owned());
        steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
    }
    steps.push(ByteLevel::new(false, true, pre.gpt2).into());
    Ok(Sequence::new(steps).into())
}
