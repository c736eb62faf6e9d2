//! Acceptance of drafts.

use monomorph_model::Slot;
use monomorph_sampling::Sampled;

/// The rule that accepts drafts.
pub trait Acceptance: Send + Sync + 'static {
    /// Whether to accept `draft`, which was fed at `position` of a slot's sequence, given that `sampled` was
    /// sampled before it.
    #[doc(hidden)]
    fn holds(slot: Slot, position: usize, draft: u32, sampled: &mut Sampled) -> bool;
}

/// Accepts the drafts that were sampled.
#[derive(Clone, Copy, Debug)]
pub struct Verify;

impl Acceptance for Verify {
    fn holds(_: Slot, _: usize, draft: u32, sampled: &mut Sampled) -> bool {
        sampled.id == draft
    }
}

/// For measurements only: accepts about `THRESHOLD` of 2^24 drafts, whatever was sampled, and outputs them.
/// Log-probabilities remain those of the sampled tokens.
#[cfg(feature = "forced-acceptance")]
#[derive(Clone, Copy, Debug)]
pub struct Forced<const THRESHOLD: u64>;

#[cfg(feature = "forced-acceptance")]
impl<const THRESHOLD: u64> Acceptance for Forced<THRESHOLD> {
    fn holds(slot: Slot, position: usize, draft: u32, sampled: &mut Sampled) -> bool {
        let holds = mixed((u64::from(slot.0) << 32).wrapping_add(position as u64)) >> 40 < THRESHOLD;
        if holds {
            sampled.id = draft;
        }
        holds
    }
}

/// One step of splitmix64 (Steele, Lea, Flood, 2014) from `seed`.
#[cfg(feature = "forced-acceptance")]
fn mixed(seed: u64) -> u64 {
    let bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(all(test, feature = "forced-acceptance"))]
mod tests {
    use super::*;

    #[test]
    fn drafts_hold_at_the_rate_asked_for_and_alike_every_time() {
        // The first number of the published generator's stream for seed 0.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
        type Most = Forced<{ (1 << 24) / 5 * 4 }>;
        let held = |slot: u32, position: usize| {
            let mut sampled = Sampled { id: 1, logprob: None, top: Vec::new() };
            let holds = Most::holds(Slot(slot), position, 2, &mut sampled);
            assert_eq!(sampled.id, if holds { 2 } else { 1 });
            holds
        };
        let all = || (0..4).flat_map(|slot| (0..5_000).map(move |position| held(slot, position)));
        let rate = all().filter(|held| *held).count() as f64 / 20_000.0;
        assert!((0.79..0.81).contains(&rate), "{rate}");
        assert!(all().eq(all()));
        assert!((0..5_000).any(|position| held(0, position) != held(1, position)));
    }
}
