//! Images before they are fed: a place for the rows of each, and the tower's steps.
//!
//! A running sequence claims places for the images that its next step may feed, in the order of its tokens.
//! It waits for them as long as there are places: text before an image is fed with it, since a short chunk
//! costs almost what a long one does. It gives each back when the step that feeds the last of its rows is
//! submitted: the device runs steps in order, so what takes the place next is written behind that. An image
//! that has its rows still is not computed again. In a step the tower sees the images that come next, of one
//! sequence or of several, as many as [share a pass](VisionSpec::takes), or runs some layers over a large
//! one. It never waits for more. Between two such steps others are admitted and fed, if some can be. A
//! sequence with an image of which layers are left waits for them; when all such have gone, the layers are
//! not run.
//!
//! It never happens that all wait for places: what a sequence claims comes next among its tokens, so where
//! none is free it can be fed up to the end of what it claimed. The first of the running gets the next place
//! that is free.

use super::Forward;
use super::in_flight::InFlight;
use crate::images::PromptImage;
use crate::sequence::Sequence;
use monomorph_cache::{Claim, FeaturePlace, FeaturePlaces};
use monomorph_model::{FeatureSlot, Grid, Model, Patches, Shown, VisionSpec};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The places of images, and whose turn it is.
pub(super) struct Tower {
    places: FeaturePlaces,
    /// An image of which layers are left, and the layer that comes next.
    under_way: Option<(Image, usize)>,
    /// Whether the step before was the tower's.
    saw: bool,
    /// Not yet added to the counters.
    counts: TowerCounts,
}

/// What a tower did.
#[derive(Debug, Default)]
pub(super) struct TowerCounts {
    /// Images seen.
    pub seen: u64,
    /// Passes that saw them.
    pub passes: u64,
    /// Images that had their rows already.
    pub found: u64,
}

/// An image that the tower sees.
#[derive(Clone)]
struct Image {
    pixels: Arc<[f32]>,
    grid: Grid,
    place: FeaturePlace,
}

impl Tower {
    /// A tower with so many places; none of a model without one.
    pub fn new(places: usize) -> Tower {
        let (places, counts) = (FeaturePlaces::new(places), TowerCounts::default());
        Tower { places, under_way: None, saw: false, counts }
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
            let is_under_way = self.under_way.as_ref().is_some_and(|(image, _)| image.place == place);
            if is_under_way && self.places.abandon(place) {
                self.under_way = None;
            }
        }
    }

    /// What it did since the last call.
    pub fn count(&mut self) -> TowerCounts {
        std::mem::take(&mut self.counts)
    }

    /// Claims places for images of `running`, the first of which goes first; each may be fed `most` tokens in
    /// its next step, and some may wait to be admitted. Returns what the tower sees next, if it is its turn:
    /// images, and its layers.
    fn next(
        &mut self,
        vision: &VisionSpec,
        running: &mut [Sequence],
        waiting: bool,
        most: usize,
    ) -> Option<(Vec<Image>, Range<usize>)> {
        let mut is_due = self.under_way.is_some();
        for sequence in with_images(running) {
            let fed = sequence.fed();
            is_due |= self.find(sequence, most).is_some();
            let unfinished = self.under_way.as_ref().map(|(image, _)| image.place);
            let comes = unfinished.is_some_and(|place| sequence.images.reads(fed..fed + most, place))
                || sequence.images.missing(fed..fed + most).is_some() && self.places.has_spare();
            sequence.images.expect(comes);
        }
        // Who awaits an image is not ready.
        if !is_due || self.saw && (waiting || running.iter().any(Sequence::is_ready)) {
            return None;
        }
        let (images, from) = match self.under_way.take() {
            Some((image, from)) => (vec![image], from),
            None => (self.claim(vision, running, most), 0),
        };
        let first = images.first()?;
        self.saw = true;
        let layers = vision.part(images.iter().map(|image| image.grid.patches()).sum(), from);
        if layers.end < vision.layers {
            self.under_way = Some((first.clone(), layers.end));
        } else {
            self.counts.seen += images.len() as u64;
            self.counts.passes += 1;
        }
        Some((images, layers))
    }

    /// Has a sequence use what is seen already of the images that its next step may feed, `most` tokens: up
    /// to one that is not, which is returned.
    fn find(&mut self, sequence: &mut Sequence, most: usize) -> Option<usize> {
        let fed = sequence.fed();
        while let Some(image) = sequence.images.missing(fed..fed + most) {
            let digest = sequence.images.get(image).digest;
            match self.places.holds(&digest).then(|| self.places.claim(digest)) {
                Some(Some(Claim::Here(place))) => sequence.images.place(image, place),
                _ => return Some(image),
            }
            self.counts.found += 1;
        }
        None
    }

    /// Claims places for the images of a pass. It ends before the first that has no room in it or no place:
    /// another behind that one would take the place that it gets next.
    fn claim(&mut self, vision: &VisionSpec, running: &mut [Sequence], most: usize) -> Vec<Image> {
        let (mut pass, mut patches) = (Vec::new(), 0);
        for sequence in with_images(running) {
            while let Some(at) = self.find(sequence, most) {
                let PromptImage { digest, ref pixels, grid, .. } = *sequence.images.get(at);
                patches += grid.patches();
                if !vision.takes(pass.len() + 1, patches) {
                    return pass;
                }
                let Some(Claim::Empty(place)) = self.places.claim(digest) else { return pass };
                pass.push(Image { pixels: Arc::clone(pixels), grid, place });
                sequence.images.place(at, place);
            }
        }
        pass
    }
}

/// Those with images, in their order.
fn with_images(running: &mut [Sequence]) -> impl Iterator<Item = &mut Sequence> {
    running.iter_mut().filter(|one| !one.images.is_empty())
}

impl Forward {
    /// Submits a step of the tower, if it is its turn. True if one is in flight now.
    pub(super) fn see<M: Model>(&mut self, model: &mut M) -> bool {
        let Some(vision) = &M::VISION else { return false };
        self.batch.rank();
        let (waiting, most) = (!self.queue.is_empty(), self.planner.limits().step_tokens);
        let Some((images, layers)) = self.tower.next(vision, &mut self.batch, waiting, most) else {
            return false;
        };
        let submitted = Instant::now();
        if self.pipeline.is_empty() {
            self.outputs.counters().step_began = Some(submitted);
        }
        let shown = images.iter().map(|Image { pixels, grid, place }| Shown {
            patches: Patches { pixels, grid: *grid },
            slot: FeatureSlot(place.0),
        });
        let ticket = model.see(&shown.collect::<Vec<_>>(), layers);
        self.pipeline.push(InFlight { ticket, submitted, rows: Vec::new(), sees: true });
        true
    }
}

#[cfg(test)]
mod tests;
