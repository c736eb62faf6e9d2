//! What each lane works in.

use super::super::format::{Input, WeightFormat};
use super::super::rows::Rows;
use super::super::team::Lane;
use super::GATHERED;
use super::groups::Groups;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Room that products of experts with `N` columns in format `F` work in. Layers may share one, and so may
/// products that agree in both, since each ends with a barrier.
pub struct ExpertScratch<F: WeightFormat, const N: usize> {
    /// Each lane locks its own and no other, so none ever waits.
    lanes: Vec<Mutex<LaneScratch<F::Input<N>>>>,
}

/// What one lane works in.
struct LaneScratch<I> {
    groups: Groups,
    /// Rows of one expert, side by side.
    gathered: I,
}

impl<F: WeightFormat, const N: usize> ExpertScratch<F, N> {
    /// Room for a team of `lanes` and steps of `slots` slots: rows times active experts.
    pub fn new(lanes: usize, slots: usize) -> Self {
        let lane = || LaneScratch {
            groups: Groups::with_capacity(slots),
            gathered: F::Input::with_capacity(GATHERED.min(slots)),
        };
        ExpertScratch { lanes: (0..lanes).map(|_| Mutex::new(lane())).collect() }
    }

    /// For each expert that the first `rows` rows chose and of whose `tiles` tiles some are this lane's:
    /// calls `gather` with a place in the input and the slot that is wanted there, until places are filled or
    /// slots run out, then `multiply` with the expert, the input, the slots in it, and the tiles; until all
    /// slots had their turn.
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
