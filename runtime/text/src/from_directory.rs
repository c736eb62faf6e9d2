//! Reads a tokenizer from the files beside safetensors: `tokenizer.json`, and the tokens that begin and end a
//! text from `tokenizer_config.json` and `generation_config.json`; or `tekken.json`, where there is no other.

use crate::error::TextError;
use crate::from_tekken;
use crate::parts::Parts;
use crate::side_file::{end_ids, read_config, read_file};
use crate::vocabulary::{Kind, Speller, Spelling, Vocabulary};
use monomorph_weights::Checkpoint;
use serde_json::Value;
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

/// No vocabulary has ids beyond this. A larger id in a file would make the server claim memory for all ids
/// below it.
const MOST_IDS: u32 = 1 << 22;

/// The one part of `tokenizer.json` that is read without the library.
#[derive(serde::Deserialize)]
struct AddedIds {
    #[serde(default)]
    added_tokens: Vec<AddedId>,
}

#[derive(serde::Deserialize)]
struct AddedId {
    id: u32,
    content: String,
}

/// Builds the tokenizer of a checkpoint directory.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Parts, TextError> {
    let Some(file) = checkpoint.side_file("tokenizer.json") else {
        let file = checkpoint.side_file(from_tekken::FILE).ok_or_else(|| {
            let place = checkpoint.directory().unwrap_or(checkpoint.path());
            TextError::missing(place, "carries no tokenizer: there is neither tokenizer.json nor tekken.json")
        })?;
        return from_tekken::read(checkpoint, &file);
    };
    let (path, text) = (file.path(), read_file(&file)?);
    let unsound = |error: &dyn std::fmt::Display| {
        TextError::malformed(path, format!("is not a sound tokenizer: {error}"))
    };
    let pipeline = pipeline_of(&text).map_err(|error| unsound(&error))?;
    let ids: AddedIds = serde_json::from_slice(&text).map_err(|error| unsound(&error))?;
    for AddedId { id, content } in ids.added_tokens {
        // The library numbers added tokens itself, and only logs a deviation from the file.
        if pipeline.token_to_id(&content) != Some(id) {
            return Err(TextError::unsupported(
                path,
                format!(
                    "gives the added token `{content}` the id {id}, which does not follow its vocabulary"
                ),
            ));
        }
    }
    let vocabulary = vocabulary_of(path, &pipeline)?;
    let bos_written = first_of_template(&pipeline, path)?;
    let mut parts = Parts::new(pipeline, vocabulary)
        .map_err(|error| TextError::malformed(path, format!("has bad control tokens: {error}")))?;

    let config = read_config(checkpoint, "tokenizer_config.json")?;
    let id_of = |key: &str| -> Result<Option<u32>, TextError> {
        let Some(token) = config.as_ref().and_then(|config| named_token(&config[key])) else {
            return Ok(None);
        };
        parts.pipeline.token_to_id(token).map(Some).ok_or_else(|| {
            TextError::malformed(
                path,
                format!("has no token `{token}`, which is `{key}` in tokenizer_config.json"),
            )
        })
    };
    let (bos, eos) = (id_of("bos_token")?, id_of("eos_token")?);
    parts.bos = bos_written.or(bos);
    parts.add_bos = bos_written.is_some();
    parts.ends = end_ids(checkpoint, eos)?;
    parts.eos = eos.or(parts.ends.first().copied());
    Ok(parts)
}

/// A tokenizer whose model is the one that nearly all have.
type OfPairs = tokenizers::TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Parses a `tokenizer.json` with the library. The library panics on some invalid files: when it reads the
/// decoder, and when it first uses a template with a missing token, which happens here.
fn pipeline_of(text: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    let read = || {
        // Of a model whose kind is not known beforehand the library makes several copies, which takes most
        // of a start: it is read as any kind, and its errors told, only where it is not of this one.
        let pipeline = match serde_json::from_slice::<OfPairs>(text) {
            Ok(pipeline) => pipeline.into(),
            Err(_) => tokenizers::Tokenizer::from_bytes(text).map_err(|error| error.to_string())?,
        };
        // Only a panic matters, not the tokens.
        let _ = pipeline.encode("a", true);
        Ok(pipeline)
    };
    std::panic::catch_unwind(read).unwrap_or_else(|_| Err("a part of it cannot be read or used".to_owned()))
}

/// The content of a token given as a string, or as an object with `content`.
fn named_token(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn vocabulary_of(path: &Path, pipeline: &tokenizers::Tokenizer) -> Result<Vocabulary, TextError> {
    let speller = Speller::new(spelling_of(path, pipeline)?);
    let added = pipeline.get_added_vocabulary();
    let (model, count) = (pipeline.get_model(), pipeline.get_vocab_size(false) as u32);
    let normal = |id: u32, token: &str| (id, speller.spell(token), Kind::Normal);
    // Nearly all models number their tokens from 0 on. Of one that does not, the map is copied.
    let numbered = (0..count).map(|id| Some(normal(id, &model.id_to_token(id)?)));
    let mut tokens = numbered.collect::<Option<Vec<_>>>().unwrap_or_else(|| {
        pipeline.get_vocab(false).into_iter().map(|(token, id)| normal(id, &token)).collect()
    });
    for (&id, token) in added.get_added_tokens_decoder() {
        let kind = if token.special { Kind::Special } else { Kind::Normal };
        tokens.push((id, token.content.clone().into_bytes(), kind));
    }
    // An added token that the model has too stands behind it, and counts.
    tokens.sort_by_key(|(id, ..)| *id);
    if let Some((id, ..)) = tokens.last().filter(|(id, ..)| *id >= MOST_IDS) {
        return Err(TextError::malformed(path, format!("has a token of id {id}")));
    }
    let mut vocabulary = Vocabulary::default();
    let mut tokens = tokens.into_iter().peekable();
    while let Some((id, bytes, kind)) = tokens.next() {
        if tokens.peek().is_some_and(|(next, ..)| *next == id) {
            continue;
        }
        while vocabulary.len() < id as usize {
            vocabulary.push(&[], Kind::Absent);
        }
        vocabulary.push(&bytes, kind);
    }
    Ok(vocabulary)
}

/// The spelling of tokens, according to the decoder.
fn spelling_of(path: &Path, pipeline: &tokenizers::Tokenizer) -> Result<Spelling, TextError> {
    let decoder = serde_json::to_value(pipeline.get_decoder())
        .map_err(|error| TextError::malformed(path, format!("has a decoder that cannot be read: {error}")))?;
    let steps = match &decoder["decoders"] {
        Value::Array(steps) => steps.clone(),
        _ => vec![decoder.clone()],
    };
    let kinds: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
    match kinds[..] {
        ["ByteLevel"] => Ok(Spelling::ByteLevel),
        ["Replace", "ByteFallback", "Fuse"] | ["Replace", "ByteFallback", "Fuse", "Strip"] => {
            Ok(Spelling::SentencePiece)
        }
        _ => Err(TextError::unsupported(path, format!("has a decoder of an unknown kind: {decoder}"))),
    }
}

/// The token that the post-processor puts before a text, if any.
fn first_of_template(pipeline: &tokenizers::Tokenizer, path: &Path) -> Result<Option<u32>, TextError> {
    let encode = |special| {
        pipeline
            .encode_fast("a", special)
            .map_err(|error| TextError::malformed(path, format!("has a bad post-processor: {error}")))
    };
    let (with, without) = (encode(true)?, encode(false)?);
    Ok(match (with.get_ids(), without.get_ids()) {
        ([first, ..], without) if with.get_ids() != without && without.first() != Some(first) => Some(*first),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::pipeline_of;
    use serde_json::{Value, json};

    fn file(model: &Value) -> Vec<u8> {
        let added = json!([{"id": 3, "content": "<end>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true});
        let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": {"type": "NFC"}, "pre_tokenizer": decoder, "post_processor": null,
            "decoder": decoder, "model": model});
        file.to_string().into_bytes()
    }

    #[test]
    fn a_model_of_pairs_is_what_one_of_any_kind_is() {
        let vocabulary = json!({"a": 0, "b": 1, "ab": 2});
        let pairs = |kind: Value, merges: Value| {
            json!({"type": kind, "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": true, "vocab": vocabulary, "merges": merges})
        };
        let mut untyped = pairs(Value::Null, json!(["a b"]));
        untyped.as_object_mut().expect("an object").remove("type");
        let words = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"});
        for model in
            [pairs("BPE".into(), json!([["a", "b"]])), pairs("BPE".into(), json!(["a b"])), untyped, words]
        {
            let text = file(&model);
            let any = tokenizers::Tokenizer::from_bytes(&text).expect("the library reads it");
            let found = pipeline_of(&text).expect("so do we");
            let written = |it: &tokenizers::Tokenizer| serde_json::to_value(it).expect("it can be written");
            assert_eq!(written(&found), written(&any));
        }
        let wrong = file(&pairs("BPE".into(), json!([["a", "c"]])));
        let any = tokenizers::Tokenizer::from_bytes(&wrong).expect_err("there is no `c`");
        assert_eq!(pipeline_of(&wrong).expect_err("there is no `c`"), any.to_string());
    }
}
