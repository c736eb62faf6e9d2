//! Options of kept prefixes: where they are kept, and what they depend on.

use monomorph_cache::key_words;
use monomorph_model::{ModelSpec, SlidingSpec};
use monomorph_store::{Identity, KeptOptions, KeptStore, whole_page};
use std::path::PathBuf;

/// Pages in transfer at a time.
const DEPTH: u32 = 32;
/// Most bytes of pages that are written at a time, and as many that are read.
const PAGES_BYTES: usize = 64 << 20;
/// Most such pages.
const MOST_PAGES: usize = 64;

/// Prefixes that are kept in files, for the next start of the same build with the same weights.
#[derive(Clone, Debug)]
pub struct KeepOptions {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Most bytes of the files, claimed at the start; `None` is what all blocks in memory take.
    pub bytes: Option<u64>,
    /// What keys and values depend on besides tokens, by name: the build, the weights and their scales.
    pub identity: Vec<(String, String)>,
    /// Receives a line where what is kept may not be used, or a disk fails.
    pub report: fn(std::fmt::Arguments),
}

impl KeepOptions {
    /// Checks the options against a model that may have layers with a sliding window, and takes a look at the
    /// directory.
    ///
    /// # Errors
    /// When the model's prefixes cannot be kept, a size holds not one block, or the files are not to be had;
    /// the message says why.
    pub fn check(&self, spec: &ModelSpec, sliding: Option<SlidingSpec>) -> Result<(), String> {
        if spec.state_bytes > 0 {
            return Err(format!("{} has recurrent state, whose snapshots are not kept", spec.model));
        }
        if sliding.is_some() {
            return Err(format!(
                "{} has layers with a sliding window, whose blocks are not kept",
                spec.model
            ));
        }
        let options = self.of(spec, 1);
        if self.bytes.is_some() && options.slots() == 0 {
            let (bytes, block) = (options.capacity_bytes, options.page_bytes);
            return Err(format!("{bytes} bytes hold no block, which takes {block} and its entry"));
        }
        KeptStore::check(&self.directory).map_err(|error| error.to_string())
    }

    /// The store's options, where `blocks` are in memory.
    pub(crate) fn of(&self, spec: &ModelSpec, blocks: usize) -> KeptOptions {
        let page_bytes = whole_page(spec.block_bytes.max(1));
        let key_words = key_words(spec.block_tokens);
        let entry = KeptOptions::entry_bytes(key_words) as u64;
        let of_blocks = || KeptOptions::HEADER + blocks as u64 * (page_bytes as u64 + entry);
        KeptOptions {
            page_bytes,
            key_words,
            capacity_bytes: self.bytes.unwrap_or_else(of_blocks),
            depth: DEPTH,
            identity: Identity(self.identity.clone()),
        }
    }

    /// Most pages of memory in each direction.
    pub(crate) fn pages(spec: &ModelSpec) -> usize {
        (PAGES_BYTES / whole_page(spec.block_bytes.max(1))).clamp(1, MOST_PAGES)
    }

    /// Bytes of host memory that are taken as they are needed.
    pub fn memory(spec: &ModelSpec) -> u64 {
        (2 * KeepOptions::pages(spec) * whole_page(spec.block_bytes.max(1))) as u64
    }
}
