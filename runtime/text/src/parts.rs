//! What a tokenizer consists of, whatever it was read from.

use crate::escape::Controls;
use crate::vocabulary::Vocabulary;
use std::sync::Arc;
use tokenizers::AddedVocabulary;

/// The parts of a tokenizer, as read from a checkpoint.
pub(crate) struct Parts {
    pub(crate) pipeline: tokenizers::Tokenizer,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Every id that ends an answer.
    pub(crate) ends: Vec<u32>,
    /// Whether a prompt begins with `bos`.
    pub(crate) add_bos: bool,
    /// The pipeline's added tokens, configured to ignore control tokens.
    pub(crate) plain: AddedVocabulary,
    pub(crate) controls: Controls,
}

impl Parts {
    pub(crate) fn new(
        pipeline: tokenizers::Tokenizer,
        vocabulary: Vocabulary,
    ) -> Result<Parts, aho_corasick::BuildError> {
        let mut plain = pipeline.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let mut controls: Vec<(String, u32)> = pipeline
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, token)| (token.content.clone(), id))
            .collect();
        controls.sort_unstable_by_key(|(_, id)| *id);
        Ok(Parts {
            pipeline,
            vocabulary: Arc::new(vocabulary),
            bos: None,
            eos: None,
            ends: Vec::new(),
            add_bos: false,
            plain,
            controls: Controls::new(&controls)?,
        })
    }
}
