//! The sets of tables and pinned memory that steps in flight take.

use monomorph_model::ModelSpec;
use std::ops::Range;

/// Most steps in flight for a stack that verifies no drafts. A stack that verifies drafts has one: drafts are
/// fed in the step after the one they come from, and are known only when that one is collected.
const STEPS_IN_FLIGHT: usize = 2;

/// The slot ring: how many steps may be in flight, and how many parts each has. Every part has a slot with
/// its own step metadata and pinned memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRing {
    pub(super) steps: usize,
    pub(super) parts: usize,
}

impl SlotRing {
    pub(crate) const fn of(spec: &ModelSpec) -> SlotRing {
        let drafts = spec.drafts() > 0;
        SlotRing {
            steps: if drafts { 1 } else { STEPS_IN_FLIGHT },
            parts: if drafts || spec.batch_invariant.is_some() { 2 } else { 1 },
        }
    }

    pub(crate) fn count(self) -> usize {
        self.steps * self.parts
    }

    /// The slots of the `step`th step submitted, counted from 0.
    pub(super) fn of_step(self, step: u64) -> Range<usize> {
        let first = (step % self.steps as u64) as usize * self.parts;
        first..first + self.parts
    }
}
