//! Random numbers for the walks.

use std::sync::atomic::{AtomicBool, Ordering};

/// xorshift64*: a walk is the same on every run and needs no crate.
pub struct Random(pub u64);

/// Whether a walk of this program has failed. Then the others end too, whose figures nobody would read.
static FAILED: AtomicBool = AtomicBool::new(false);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(!FAILED.load(Ordering::Relaxed), "another walk failed");
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            FAILED.store(true, Ordering::Relaxed);
        }
    }
}
