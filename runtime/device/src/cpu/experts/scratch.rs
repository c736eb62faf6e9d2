//! Scratch memory of each lane.

use super::super::format::{Input, WeightFormat};
use super::super::rows::Rows;
use super::super::team::Lane;
use super::GATHERED;
use super::groups::Groups;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Scratch memory of products of experts with `N` columns in format `F`. Layers may share one, and so may
/// products that agree in both, since each ends with a barrier.
pub struct ExpertScratch<F: WeightFormat, const N: usize> {
    /// Each lane locks only its own, so none ever waits.
    lanes: Vec<Mutex<LaneScratch<F::Input<N>>>>,
}

/// Scratch memory of one lane.
struct LaneScratch<I> {
    groups: Groups,
    /// Rows of one expert, back to back.
    gathered: I,
}

impl<F: WeightFormat, const N: usize> ExpertScratch<F, N> {
    /// Scratch for a team of `lanes` and steps of `slots` slots: rows times active experts.
    pub fn new(lanes: usize, slots: usize) -> Self {
        let lane = || LaneScratch {
            groups: Groups::with_capacity(slots),
            gathered: F::Input::with_capacity(GATHERED.min(slots)),
        };
        ExpertScratch { lanes: (0..lanes).map(|_| Mutex::new(lane())).collect() }
    }

    /// Iterates over the experts that the first `rows` rows chose and that have some of their `tiles` tiles
    /// in this lane's share. For each, calls `gather` with an input row and the slot to put there, until the
    /// rows are full or the slots run out, then `multiply` with the expert, the input, its slots, and the
    /// tiles; repeats until all slots are done.
    ///
    /// # Safety
    /// No lane writes `routing` in this phase.
    pub(super) unsafe fn each<const EXPERTS: usize, const ROUTING: usize>(
        &self,
        lane: &Lane,
        rows: usize,
        routing: &Rows<ROUTING>,
        tiles: usize,
        gather: impl Fn(&F::Input<N>, usize, usize),
        multiply: impl Fn(usize, &F::Input<N>, &[usize], Range<usize>),
    ) {
        let mut scratch = self.lanes[lane.index()].lock().unwrap_or_else(PoisonError::into_inner);
        let LaneScratch { groups, gathered } = &mut *scratch;
        // SAFETY: the caller's promise.
        unsafe { groups.fill(rows, routing, EXPERTS) };
        groups.share(lane, tiles, |expert, slots, tiles| {
            for slots in slots.chunks(GATHERED) {
                for (place, slot) in slots.iter().enumerate() {
                    gather(gathered, place, *slot);
                }
                multiply(expert, gathered, slots, tiles.clone());
            }
        });
    }
}

impl<F: WeightFormat, const N: usize> std::fmt::Debug for ExpertScratch<F, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExpertScratch({}, {N})", F::FORMAT)
    }
}
