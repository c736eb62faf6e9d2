//! Images before they are fed: a place for the rows of each, and the tower's steps.
//!
//! A running sequence claims places for the images that its next step may feed, in the order of its tokens.
//! It waits for them as long as there are places: text before an image is fed with it, since a short chunk
//! costs almost what a long one does. It gives each back when the step that feeds the last of its rows is
//! submitted: the device runs steps in order, so what takes the place next is written behind that. An image
//! that has its rows still is not computed again. The tower sees one image a step, or runs some layers over a
//! large one. Between two such steps others are admitted and fed, if some can be. A sequence with an image of
//! which layers are left waits for them; when all such have gone, the layers are not run.
//!
//! It never happens that all wait for places: what a sequence claims comes next among its tokens, so where
//! none is free it can be fed up to the end of what it claimed. The first of the running gets the next place
//! that is free.

use super::Forward;
use super::in_flight::InFlight;
use crate::images::PromptImage;
use crate::sequence::Sequence;
use monomorph_cache::{Claim, FeaturePlace, FeaturePlaces};
use monomorph_model::{FeatureSlot, Grid, Model, Patches, VisionSpec};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The places of images, and whose turn it is.
pub(super) struct Tower {
    places: FeaturePlaces,
    /// An image of which layers are left.
    under_way: Option<UnderWay>,
    /// Whether the step before was the tower's.
    saw: bool,
    /// Images seen, and images that had their rows already; not yet added to the counters.
    seen: u64,
    found: u64,
}

/// An image that the tower sees in several steps.
#[derive(Clone)]
struct UnderWay {
    pixels: Arc<[f32]>,
    grid: Grid,
    place: FeaturePlace,
    /// The layer that comes next.
    from: usize,
}

impl Tower {
    /// A tower with so many places; none of a model without one.
    pub fn new(places: usize) -> Tower {
        Tower { places: FeaturePlaces::new(places), under_way: None, saw: false, seen: 0, found: 0 }
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
        for place in sequence.images.release(fed) {
            self.places.release(place);
            if self.under_way.as_ref().is_some_and(|it| it.place == place) && self.places.abandon(place) {
                self.under_way = None;
            }
        }
    }

    /// Images seen and found since the last call.
    pub fn count(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.seen), std::mem::take(&mut self.found))
    }

    /// Claims places for images of `running`, the first of which goes first; each may be fed `most` tokens in
    /// its next step, and some may wait to be admitted. Returns what the tower sees next, if it is its turn:
    /// an image, and its layers.
    fn next(
        &mut self,
        vision: &VisionSpec,
        running: &mut [Sequence],
        waiting: bool,
        most: usize,
    ) -> Option<(UnderWay, Range<usize>)> {
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
            let unfinished = self.under_way.as_ref().map(|it| it.place);
            let comes = unfinished.is_some_and(|place| sequence.images.reads(fed..fed + most, place))
                || sequence.images.missing(fed..fed + most).is_some() && self.places.has_spare();
            sequence.images.expect(comes);
        }
        if self.under_way.is_none() && first.is_none() {
            return None;
        }
        // Who awaits an image is not ready.
        if self.saw && (waiting || running.iter().any(Sequence::is_ready)) {
            return None;
        }
        let it = match self.under_way.take() {
            Some(it) => it,
            None => {
                let (at, image, digest) = first?;
                let Some(Claim::Empty(place)) = self.places.claim(digest) else { return None };
                let images = &mut running[at].images;
                images.place(image, place);
                let PromptImage { pixels, grid, .. } = images.get(image);
                UnderWay { pixels: Arc::clone(pixels), grid: *grid, place, from: 0 }
            }
        };
        self.saw = true;
        let layers = vision.part(it.grid.patches(), it.from);
        if layers.end < vision.layers {
            self.under_way = Some(UnderWay { from: layers.end, ..it.clone() });
        } else {
            self.seen += 1;
        }
        Some((it, layers))
    }
}

impl Forward {
    /// Submits a step of the tower, if it is its turn. True if one is in flight now.
    pub(super) fn see<M: Model>(&mut self, model: &mut M) -> bool {
        let Some(vision) = &M::VISION else { return false };
        self.batch.rank();
        let (waiting, most) = (!self.queue.is_empty(), self.planner.limits().step_tokens);
        let Some((image, layers)) = self.tower.next(vision, &mut self.batch, waiting, most) else {
            return false;
        };
        let submitted = Instant::now();
        if self.pipeline.is_empty() {
            self.outputs.counters().step_began = Some(submitted);
        }
        let patches = Patches { pixels: &image.pixels, grid: image.grid };
        let ticket = model.see(&patches, FeatureSlot(image.place.0), layers);
        self.pipeline.push(InFlight { ticket, submitted, rows: Vec::new(), sees: true });
        true
    }
}

#[cfg(test)]
mod tests;
