//! Images before they are fed: a place for the rows of each, and the tower's steps.
//!
//! A running sequence claims places for the images that its next step may feed, in the order of its tokens.
//! It waits for them as long as there are places: text before an image is fed with it, since a short chunk
//! costs almost what a long one does. It gives each back when the step that feeds the last of its rows is
//! submitted: the device runs steps in order, so what takes the place next is written behind that. An image
//! that has its rows still is not computed again. The tower sees one image a step. Between two such steps
//! others are fed, if some can be.
//!
//! It never happens that all wait for places: what a sequence claims comes next among its tokens, so where
//! none is free it can be fed up to the end of what it claimed. The first of the running gets the next place
//! that is free.

use super::Forward;
use super::in_flight::InFlight;
use crate::sequence::Sequence;
use monomorph_cache::{Claim, FeaturePlaces};
use monomorph_model::{FeatureSlot, Model, Patches};
use std::time::Instant;

/// The places of images, and whose turn it is.
pub(super) struct Tower {
    places: FeaturePlaces,
    /// Whether the step before was the tower's.
    saw: bool,
    /// Images seen, and images that had their rows already; not yet added to the counters.
    seen: u64,
    found: u64,
}

impl Tower {
    /// A tower with so many places; none of a model without one.
    pub fn new(places: usize) -> Tower {
        Tower { places: FeaturePlaces::new(places), saw: false, seen: 0, found: 0 }
    }

    /// Which images have their rows, and which places are in use.
    #[cfg(test)]
    pub fn places(&self) -> &FeaturePlaces {
        &self.places
    }

    /// Records that sequences are fed, or that none can be: the tower may be next.
    pub fn rests(&mut self) {
        self.saw = false;
    }

    /// Gives back the places of a sequence's images that lie before its first `fed` tokens.
    pub fn release(&mut self, sequence: &mut Sequence, fed: usize) {
        sequence.images.release(fed).for_each(|place| self.places.release(place));
    }

    /// Images seen and found since the last call.
    pub fn count(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.seen), std::mem::take(&mut self.found))
    }

    /// Claims places for images of `running`, the first of which goes first; each may be fed `most` tokens in
    /// its next step. Returns the sequence and the image that the tower sees next, if it is its turn.
    fn next(&mut self, running: &mut [Sequence], most: usize) -> Option<(usize, usize, FeatureSlot)> {
        let mut first = None;
        for (at, sequence) in running.iter_mut().enumerate().filter(|(_, one)| !one.images.is_empty()) {
            let fed = sequence.fed();
            while let Some(image) = sequence.images.missing(fed..fed + most) {
                let digest = sequence.images.get(image).digest;
                if !self.places.holds(&digest) {
                    first = first.or(Some((at, image, digest)));
                    break;
                }
                if let Some(Claim::Here(place)) = self.places.claim(digest) {
                    sequence.images.place(image, place);
                    self.found += 1;
                }
            }
            let comes = sequence.images.missing(fed..fed + most).is_some() && self.places.has_spare();
            sequence.images.expect(comes);
        }
        let (at, image, digest) = first?;
        let others = running.iter().enumerate().any(|(other, one)| other != at && one.is_ready());
        if self.saw && others {
            return None;
        }
        let Some(Claim::Empty(place)) = self.places.claim(digest) else { return None };
        running[at].images.place(image, place);
        (self.saw, self.seen) = (true, self.seen + 1);
        Some((at, image, FeatureSlot(place.0)))
    }
}

impl Forward {
    /// Submits a step of the tower, if it is its turn. True if one is in flight now.
    pub(super) fn see<M: Model>(&mut self, model: &mut M) -> bool {
        if M::VISION.is_none() {
            return false;
        }
        self.batch.rank();
        let most = self.planner.limits().step_tokens;
        let Some((at, image, slot)) = self.tower.next(&mut self.batch, most) else { return false };
        let submitted = Instant::now();
        if self.pipeline.is_empty() {
            self.outputs.counters().step_began = Some(submitted);
        }
        let image = self.batch[at].images.get(image);
        let ticket = model.see(&Patches { pixels: &image.pixels, grid: image.grid }, slot);
        self.pipeline.push(InFlight { ticket, submitted, rows: Vec::new(), sees: true });
        true
    }
}

#[cfg(test)]
mod tests;
