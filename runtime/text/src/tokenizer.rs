//! The tokenizer: text to ids and back.

use crate::detokeniser::Detokeniser;
use crate::error::TextError;
use crate::parts::Parts;
use crate::vocabulary::Kind;
use crate::{from_directory, from_gguf, stand_in};
use monomorph_weights::Checkpoint;
use std::sync::Arc;
use tokenizers::{Model, OffsetType, PreTokenizer};

/// The treatment of control tokens (`<|im_end|>`) spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They become those tokens.
    Parse,
    /// They are text like any other.
    Plain,
}

/// A model's tokenizer. Cloning it is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    pub(crate) parts: Arc<Parts>,
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint: a GGUF file's metadata, or `tokenizer.json` in its directory, or
    /// else `tekken.json`.
    ///
    /// # Errors
    /// When there is none, or its kind is not supported (the error names it), or it contradicts itself.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Tokenizer, TextError> {
        let parts = match checkpoint.gguf_metadata() {
            Some(metadata) => from_gguf::read(checkpoint.path(), metadata)?,
            None => from_directory::read(checkpoint)?,
        };
        Ok(Tokenizer { parts: Arc::new(parts) })
    }

    /// A stand-in tokenizer: the first 256 ids are bytes, and every id below `vocabulary` decodes to the byte
    /// in its lowest eight bits.
    ///
    /// # Errors
    /// When the vocabulary is too small for all bytes.
    pub fn stand_in(vocabulary: usize) -> Result<Tokenizer, TextError> {
        Ok(Tokenizer { parts: Arc::new(stand_in::parts(vocabulary)?) })
    }

    /// The ids of a text, without `bos`. Bytes without a token are left out, as in every engine (SmolLM2
    /// lacks six control characters and the unassigned planes of Unicode).
    ///
    /// # Errors
    /// When the tokenizer library rejects the text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        let pipeline = &self.parts.pipeline;
        let added = match special {
            Special::Parse => pipeline.get_added_vocabulary(),
            Special::Plain => &self.parts.plain,
        };
        // The library's own `encode`, without offsets, and without truncation and padding, which a server
        // must not do.
        let mut pieces = added.extract_and_normalize(pipeline.get_normalizer(), text);
        if let Some(pre_tokenizer) = pipeline.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(TextError::encode)?;
        }
        let model = pipeline.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get())).map_err(TextError::encode)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(TextError::encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a prompt for completion: `bos` first if the model wants it, control tokens parsed (as in
    /// llama.cpp and vLLM, so that people can write a chat format by hand).
    ///
    /// # Errors
    /// When the tokenizer library rejects the text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.with_bos(self.encode(text, Special::Parse)?))
    }

    pub(crate) fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.parts.bos
            && self.parts.add_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The text of ids: special tokens are left out, invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokeniser = self.detokeniser();
        let mut text = String::new();
        for &id in ids {
            text += detokeniser.push(id);
        }
        text + detokeniser.finish()
    }

    /// A detokeniser for one generation.
    pub fn detokeniser(&self) -> Detokeniser {
        Detokeniser::new(Arc::clone(&self.parts.vocabulary))
    }

    /// Number of ids, from 0 on. A model's embedding may have more rows, as padding.
    pub fn vocabulary(&self) -> usize {
        self.parts.vocabulary.len()
    }

    /// The bytes of a token, which need not be UTF-8 by themselves; for a special token, its name.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.parts.vocabulary.bytes(id)
    }

    /// Whether a token is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.vocabulary.kind(id) == Kind::Special
    }

    /// The id of a token spelled as in the vocabulary (`<|im_end|>`, `Ġthe`).
    pub fn token_id(&self, spelling: &str) -> Option<u32> {
        self.parts.pipeline.token_to_id(spelling)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// Every token that ends an answer, according to the checkpoint.
    pub fn end_ids(&self) -> &[u32] {
        &self.parts.ends
    }

    /// The name of a special token, as written by templates.
    pub(crate) fn spelling(&self, id: Option<u32>) -> Option<String> {
        self.parts.pipeline.id_to_token(id?)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("bos", &self.bos())
            .field("eos", &self.eos())
            .finish_non_exhaustive()
    }
}
