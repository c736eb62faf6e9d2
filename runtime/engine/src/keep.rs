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
    /// When the model's prefixes cannot be kept, a size holds not one block and snapshot, or the files are
    /// not to be had; the message says why.
    pub fn check(&self, spec: &ModelSpec, sliding: Option<SlidingSpec>) -> Result<(), String> {
        if sliding.is_some() {
            return Err(format!(
                "{} has layers with a sliding window, whose blocks are not kept",
                spec.model
            ));
        }
        let (options, parts) = (self.of(spec, 1, 1), parts(spec));
        if self.bytes.is_some() && options.slots() < 1 + parts {
            let (bytes, pages) = (options.capacity_bytes, (1 + parts) * options.page_bytes);
            return Err(match parts {
                0 => format!("{bytes} bytes hold no block, which takes {pages} and its entry"),
                _ => format!(
                    "{bytes} bytes hold no block and the state behind it, which take {pages} and their entries"
                ),
            });
        }
        KeptStore::check(&self.directory).map_err(|error| error.to_string())
    }

    /// The store's options, where `blocks` and `snapshots` are in memory.
    pub(crate) fn of(&self, spec: &ModelSpec, blocks: usize, snapshots: usize) -> KeptOptions {
        let page_bytes = page_bytes(spec);
        let key_words = key_words(spec.block_tokens);
        let entry = KeptOptions::entry_bytes(key_words) as u64;
        let pages = blocks + snapshots * parts(spec);
        let of_pages = || KeptOptions::HEADER + pages as u64 * (page_bytes as u64 + entry);
        KeptOptions {
            page_bytes,
            key_words,
            capacity_bytes: self.bytes.unwrap_or_else(of_pages),
            depth: DEPTH,
            identity: Identity(self.identity.clone()),
        }
    }

    /// Most pages of memory in each direction.
    pub(crate) fn pages(spec: &ModelSpec) -> usize {
        (PAGES_BYTES / page_bytes(spec)).clamp(1, MOST_PAGES)
    }

    /// Bytes of host memory that are taken as they are needed: pages and a state in each direction.
    pub fn memory(spec: &ModelSpec) -> u64 {
        2 * ((KeepOptions::pages(spec) * page_bytes(spec)) as u64 + spec.state_bytes)
    }
}

/// Bytes of a page, which holds a block or a part of a state. A model may have no layers that keep blocks.
fn page_bytes(spec: &ModelSpec) -> usize {
    whole_page(spec.block_bytes.max(1))
}

/// Pages of a snapshot of the model's recurrent state, if it has some.
pub(crate) fn parts(spec: &ModelSpec) -> usize {
    usize::try_from(spec.state_bytes.div_ceil(page_bytes(spec) as u64)).unwrap_or(usize::MAX)
}
