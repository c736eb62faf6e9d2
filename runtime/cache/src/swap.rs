//! Where the images of pre-empted sequences are: decisions on counts, without memory or disk.
//!
//! An image is a sequence's memory as a number of pages. It is made in host memory and restored from there. A
//! second tier on disk takes those that will not be needed soon: the ones swapped out longest ago, since the
//! sequence pre-empted last is the first to go on. Pages in transfer count in both tiers until they have
//! arrived.

use std::collections::BTreeMap;

/// One part in so many of the host's tier is kept free while there is room on disk, for the next sequence.
pub const FREE_PART: usize = 2;

/// Whether copying `bytes` out and back takes less time than prefilling `tokens` again, at the rates given.
/// True where the rate of prefill is not known.
///
/// ```
/// use monomorph_cache::swap::is_worth;
/// assert!(is_worth(1000, 40 << 20, 4e9, 10_000.0), "21 ms of copies and 100 of feeding");
/// assert!(!is_worth(100, 60 << 20, 4e9, 20_000.0), "a large state and a short prompt");
/// assert!(is_worth(1, 1 << 30, f64::INFINITY, 1e9), "copies that cost nothing");
/// assert!(is_worth(1, 1 << 30, 4e9, 0.0) && !is_worth(0, 0, 4e9, 0.0));
/// ```
pub fn is_worth(tokens: usize, bytes: u64, copied_per_second: f64, fed_per_second: f64) -> bool {
    let copies = 2.0 * bytes as f64 / copied_per_second;
    copies * fed_per_second < tokens as f64
}

/// An image, numbered in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Image(pub u64);

/// Where the pages of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In the host's memory.
    Host,
    /// In host memory, in transfer to the disk.
    Leaving,
    /// On disk.
    Disk,
    /// On disk, in transfer to host memory.
    Returning,
}

/// The answer to a request for an image in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// It is in host memory.
    Here,
    /// Its pages have to be read now; then call [`Tiers::returned`].
    Begins,
    /// It is in transfer, in one direction or the other, or there will be room when others have left.
    Waits,
    /// There is no room, and others do not leave: those that [`Tiers::leave`] names may be sent away first.
    NoRoom,
}

/// Pages of each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// In the host's memory.
    pub host: usize,
    /// On disk.
    pub disk: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    pages: usize,
    place: Tier,
    /// Whether it is about to be used, and so must stay.
    wanted: bool,
    /// Whether it was dropped: it is gone when its pages have arrived.
    dropped: bool,
}

/// Which images there are, and what they take.
#[derive(Debug, Default)]
pub struct Tiers {
    all: Pages,
    free: Pages,
    /// Of the host's, those of images that leave.
    leaving: usize,
    images: BTreeMap<Image, Entry>,
    next: u64,
}

impl Tiers {
    /// Empty tiers.
    pub fn new(all: Pages) -> Tiers {
        Tiers { all, free: all, ..Tiers::default() }
    }

    /// Pages of each tier.
    pub fn all(&self) -> Pages {
        self.all
    }

    /// Free pages of each tier.
    pub fn free(&self) -> Pages {
        self.free
    }

    /// Number of images, including dropped ones in transfer.
    pub fn images(&self) -> usize {
        self.images.len()
    }

    /// Where an image is; `None` of one that is gone or dropped.
    pub fn place(&self, image: Image) -> Option<Tier> {
        self.images.get(&image).filter(|entry| !entry.dropped).map(|entry| entry.place)
    }

    /// Makes an image of `pages` pages in the host's memory; `None` where there is no room.
    pub fn make(&mut self, pages: usize) -> Option<Image> {
        if pages == 0 || pages > self.free.host {
            return None;
        }
        self.free.host -= pages;
        let image = Image(self.next);
        self.next += 1;
        self.images.insert(image, Entry { pages, place: Tier::Host, wanted: false, dropped: false });
        Some(image)
    }

    /// The next image to write to disk, if one must leave for `wanted` pages of host memory to come free, by
    /// default a [`FREE_PART`] of all; then call [`Self::left`].
    pub fn leave(&mut self, wanted: Option<usize>) -> Option<Image> {
        let (enough, urgent) = (wanted.unwrap_or(self.all.host / FREE_PART), wanted.is_some());
        if self.free.host + self.leaving >= enough {
            return None;
        }
        let free = self.free.disk;
        let leaves = |entry: &Entry| entry.place == Tier::Host && !entry.dropped && entry.pages <= free;
        // One that was about to be used leaves when another's turn has come, and then last.
        let order = |(image, entry): (&Image, &Entry)| (entry.wanted, *image);
        let candidates = self.images.iter().filter(|(_, entry)| leaves(entry) && (urgent || !entry.wanted));
        let (_, image) = candidates.map(order).min()?;
        let entry = self.images.get_mut(&image)?;
        (entry.place, entry.wanted) = (Tier::Leaving, false);
        self.free.disk -= entry.pages;
        self.leaving += entry.pages;
        Some(image)
    }

    /// An image was written, or could not be: then it stays. So does one that is wanted by now.
    pub fn left(&mut self, image: Image, written: bool) {
        let Some(entry) = self.images.get_mut(&image).filter(|entry| entry.place == Tier::Leaving) else {
            return;
        };
        self.leaving -= entry.pages;
        if written && !entry.wanted {
            self.free.host += entry.pages;
            entry.place = Tier::Disk;
        } else {
            self.free.disk += entry.pages;
            entry.place = Tier::Host;
        }
        if entry.dropped {
            self.remove(image);
        }
    }

    /// Wants an image in the host's memory.
    pub fn come_back(&mut self, image: Image) -> Return {
        let (free, leaving) = (self.free.host, self.leaving);
        let Some(entry) = self.images.get_mut(&image).filter(|entry| !entry.dropped) else {
            return Return::NoRoom;
        };
        match entry.place {
            Tier::Host => {
                entry.wanted = true;
                Return::Here
            }
            Tier::Leaving => {
                entry.wanted = true;
                Return::Waits
            }
            Tier::Returning => Return::Waits,
            Tier::Disk if entry.pages <= free => {
                self.free.host -= entry.pages;
                entry.place = Tier::Returning;
                Return::Begins
            }
            Tier::Disk if entry.pages <= free + leaving => Return::Waits,
            Tier::Disk => Return::NoRoom,
        }
    }

    /// The pages of an image, as many as it has.
    pub fn pages(&self, image: Image) -> usize {
        self.images.get(&image).map_or(0, |entry| entry.pages)
    }

    /// An image was read; or it could not be, and is gone.
    pub fn returned(&mut self, image: Image, read: bool) {
        let Some(entry) = self.images.get_mut(&image).filter(|entry| entry.place == Tier::Returning) else {
            return;
        };
        self.free.disk += entry.pages;
        entry.place = Tier::Host;
        entry.wanted = true;
        if entry.dropped || !read {
            self.remove(image);
        }
    }

    /// Drops an image that was restored or is not needed. True when it is gone; otherwise its pages are in
    /// transfer, and it is gone when they have arrived.
    pub fn drop(&mut self, image: Image) -> bool {
        let Some(entry) = self.images.get_mut(&image) else { return true };
        match entry.place {
            Tier::Host | Tier::Disk => self.remove(image),
            Tier::Leaving | Tier::Returning => entry.dropped = true,
        }
        !self.images.contains_key(&image)
    }

    fn remove(&mut self, image: Image) {
        let Some(entry) = self.images.remove(&image) else { return };
        match entry.place {
            Tier::Disk => self.free.disk += entry.pages,
            _ => self.free.host += entry.pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_worth_it_if_it_takes_less_time_than_feeding() {
        // Out and back, 4 GB take two seconds, in which 2,000 tokens are fed.
        let worth = |tokens| is_worth(tokens, 4_000_000_000, 4e9, 1_000.0);
        assert_eq!([0, 1_999, 2_000, 2_001].map(worth), [false, false, false, true]);
    }

    #[test]
    fn tiers_and_images_have_the_pages_that_they_were_given() {
        let all = Pages { host: 9, disk: 7 };
        let mut tiers = Tiers::new(all);
        let (three, four) = (tiers.make(3).expect("there is room"), tiers.make(4).expect("there is room"));
        assert_eq!([three, four].map(|image| tiers.pages(image)), [3, 4]);
        assert!(tiers.drop(three));
        assert_eq!((tiers.pages(three), tiers.pages(four), tiers.all()), (0, 4, all));
    }
}
