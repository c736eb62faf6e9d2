//! Random numbers for seeds and ids.

use std::hash::{BuildHasher, RandomState};

/// A random number: the standard library seeds every hasher from the system's entropy.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0u8)
}
