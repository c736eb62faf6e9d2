//! K/V blocks, cached prefixes and snapshots of recurrent state: decisions on plain values, without a device
//! and without I/O.
//!
//! The K/V cache is a fixed number of blocks of `block_tokens` tokens. [`PrefixCache`] counts their uses and
//! indexes the prefixes they hold: a sequence goes on from what an earlier one with the same beginning left.
//! A [`Lease`] is what one sequence holds, [`admission`] how many blocks it may ask for, [`SavePoints`] where
//! its recurrent state is saved, [`swap`] where all of it is kept while it is pre-empted. The engine carries
//! the decisions out and owns the bytes.
//!
//! A sequence may have more blocks than the device: the [`Share`] says how many are there, [`OffloadPlace`]s
//! where the rest is on disk.
//!
//! Layers with a sliding window have blocks of their own, which sequences give back as they go on; a prefix
//! is cached no further than what the next token attends to is kept too.
//!
//! All images have the same ids, so prefixes are compared by [`Content`]: ids, and which images stand among
//! them. [`FeaturePlaces`] says which images have their rows on the device.
//!
//! [`KeptIndex`] says which prefixes, and which snapshots behind them, are in a file that outlives the
//! server, and what of that may be trusted.
//!
//! Blocks have use counts, and the index is one more user. Blocks that only the index uses are evicted when
//! sequences need room.

pub mod admission;
mod cache;
mod content;
mod features;
mod index;
mod kept;
mod offload;
mod pool;
mod reuse;
mod saves;
pub mod swap;
mod table;

pub use cache::{Lease, PrefixCache};
pub use content::{Content, ImageDigest, PlacedImage};
pub use features::{Claim, FeaturePlace, FeaturePlaces};
pub use index::Unkept;
pub use kept::{KeptId, KeptIndex, KeptPrefix, KeptRecord, MOST_IMAGES, key_words};
pub use offload::{BlockPlace, OffloadPlace, Share};
pub use pool::{Block, PoolError, SlidingBlock};
pub use reuse::{Evicted, Match, Reuse, Snapshot};
pub use saves::SavePoints;
pub use table::Shortage;
