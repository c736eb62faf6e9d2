//! Places on the device for the rows that a vision tower makes of images: decisions on plain values.
//!
//! An image has one place, by its digest, however many sequences have it. What a sequence uses stays; the
//! image used longest ago makes room for another.

use crate::content::ImageDigest;

/// A place for the rows of one image, below the number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeaturePlace(pub u32);

/// An image's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It has its rows already.
    Here(FeaturePlace),
    /// The tower has to make them there.
    Empty(FeaturePlace),
}

/// What a place has.
#[derive(Clone, Copy, Debug)]
struct Held {
    digest: ImageDigest,
    /// Sequences that use it.
    uses: u32,
    /// When a sequence began or ended to use it.
    used: u64,
}

/// Which image each place has, and which are in use.
#[derive(Debug, Default)]
pub struct FeaturePlaces {
    places: Vec<Option<Held>>,
    clock: u64,
}

impl FeaturePlaces {
    /// So many empty places.
    pub fn new(places: usize) -> FeaturePlaces {
        FeaturePlaces { places: vec![None; places], clock: 0 }
    }

    /// Whether an image has its rows.
    pub fn holds(&self, digest: &ImageDigest) -> bool {
        self.find(digest).is_some()
    }

    /// Images that have their rows.
    pub fn held(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Places that sequences use.
    pub fn in_use(&self) -> usize {
        self.places.iter().flatten().filter(|held| held.uses > 0).count()
    }

    /// Uses an image once more, until [`Self::release`]; `None` while sequences use all places for others.
    pub fn claim(&mut self, digest: ImageDigest) -> Option<Claim> {
        let here = self.find(&digest);
        let at = here.or_else(|| self.spare())?;
        self.clock += 1;
        let uses = self.places[at].filter(|_| here.is_some()).map_or(0, |held| held.uses);
        self.places[at] = Some(Held { digest, uses: uses + 1, used: self.clock });
        let place = FeaturePlace(at as u32);
        Some(if here.is_some() { Claim::Here(place) } else { Claim::Empty(place) })
    }

    /// Whether an image without rows could be claimed.
    pub fn has_spare(&self) -> bool {
        self.spare().is_some()
    }

    /// Forgets an image whose rows are not made after all, if nothing uses its place any more; whether so.
    pub fn abandon(&mut self, place: FeaturePlace) -> bool {
        let held = &mut self.places[place.0 as usize];
        let unused = held.is_some_and(|held| held.uses == 0);
        if unused {
            *held = None;
        }
        unused
    }

    /// Ends a use. The rows stay until another image takes the place.
    ///
    /// # Panics
    /// When nothing uses it.
    pub fn release(&mut self, place: FeaturePlace) {
        self.clock += 1;
        let held = self.places[place.0 as usize].as_mut().filter(|held| held.uses > 0);
        let held = held.unwrap_or_else(|| panic!("{place:?} is released, and nothing uses it"));
        (held.uses, held.used) = (held.uses - 1, self.clock);
    }

    fn find(&self, digest: &ImageDigest) -> Option<usize> {
        self.places.iter().position(|held| held.is_some_and(|held| held.digest == *digest))
    }

    /// An empty place, or the one used longest ago of those that nothing uses.
    fn spare(&self) -> Option<usize> {
        let used = |held: &Option<Held>| held.map_or(0, |held| held.used);
        let free = |held: &Option<Held>| held.is_none_or(|held| held.uses == 0);
        let spare = self.places.iter().enumerate().filter(|(_, held)| free(held));
        spare.min_by_key(|(_, held)| used(held)).map(|(at, _)| at)
    }
}
