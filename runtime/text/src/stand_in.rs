//! A stand-in tokenizer for speed measurements without a checkpoint.

use crate::error::TextError;
use crate::parts::Parts;
use crate::vocabulary::{Kind, Speller, Spelling, Vocabulary};
use std::path::Path;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Number of ids that texts are encoded with.
const BYTES: usize = 256;

/// Bytes as tokens, without merges; each further id decodes to the byte in its lowest eight bits.
pub(crate) fn parts(vocabulary: usize) -> Result<Parts, TextError> {
    let place = Path::new("the stand-in tokenizer");
    if vocabulary < BYTES {
        return Err(TextError::unsupported(place, format!("has {BYTES} tokens, and the model {vocabulary}")));
    }
    let speller = Speller::new(Spelling::ByteLevel);
    let spelled = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{143}').map(String::from);
    let ids: Vocab = spelled.map(|token| (token.clone(), u32::from(speller.spell(&token)[0]))).collect();
    let build = |error: tokenizers::Error| TextError::malformed(place, error.to_string());
    let model = BPE::builder().vocab_and_merges(ids, Merges::new()).build().map_err(build)?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
    let mut bytes = Vocabulary::default();
    for id in 0..vocabulary {
        bytes.push(&[id as u8], Kind::Normal);
    }
    Parts::new(pipeline, bytes).map_err(|error| TextError::malformed(place, error.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::{Special, Tokenizer};

    #[test]
    fn texts_are_their_bytes() {
        let tokenizer = Tokenizer::stand_in(1000).expect("large enough");
        let text = "Hé, \n\t\u{0}🌊";
        let ids = tokenizer.encode(text, Special::Parse).expect("encoded");
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids), text);
        assert_eq!(tokenizer.decode(&[256 + 72, 512 + 105]), "Hi");
        assert!(tokenizer.end_ids().is_empty());
        assert!(Tokenizer::stand_in(255).is_err());
    }
}
