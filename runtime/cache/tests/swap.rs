//! A random walk over the tiers beside a list of images, from which everything is counted anew after every
//! step.
//!
//! Planted, one at a time, and caught here: an image that is written and keeps its pages of the host's, or is
//! written though the disk lacks the room; one dropped in transfer that is gone at once; one that could not
//! be read and stays; the newest that leaves first; one that returns and takes no pages; one that leaves
//! though it is wanted.

mod random;

use monomorph_cache::swap::{FREE_PART, Image, Pages, Return, Tier, Tiers};
use random::Random;

const STEPS: usize = 1_000_000;

/// An image as the list has it, oldest first.
#[derive(Clone, Copy, Debug)]
struct Known {
    image: Image,
    pages: usize,
    place: Tier,
    wanted: bool,
    dropped: bool,
}

struct Truth {
    all: Pages,
    images: Vec<Known>,
}

impl Truth {
    /// Pages of images in these places.
    fn taken(&self, places: &[Tier]) -> usize {
        self.images.iter().filter(|one| places.contains(&one.place)).map(|one| one.pages).sum()
    }

    fn free(&self) -> Pages {
        use Tier::{Disk, Host, Leaving, Returning};
        Pages {
            host: self.all.host - self.taken(&[Host, Leaving, Returning]),
            disk: self.all.disk - self.taken(&[Disk, Leaving, Returning]),
        }
    }

    fn get(&mut self, image: Image) -> &mut Known {
        self.images.iter_mut().find(|one| one.image == image).expect("an image that is known")
    }

    fn forget(&mut self, image: Image) {
        self.images.retain(|one| one.image != image);
    }

    /// Which image is to leave, if any.
    fn leaves(&self, wanted: Option<usize>) -> Option<Image> {
        let enough = wanted.unwrap_or(self.all.host / FREE_PART);
        let leaves = |one: &&Known| one.place == Tier::Host && !one.dropped && one.pages <= self.free().disk;
        let images = || self.images.iter().filter(leaves);
        let first = images().find(|one| !one.wanted).or_else(|| images().next().filter(|_| wanted.is_some()));
        let short = self.free().host + self.taken(&[Tier::Leaving]) < enough;
        first.map(|one| one.image).filter(|_| short)
    }
}

/// Counts of the cases that a walk must cover.
#[derive(Debug, Default)]
struct Seen {
    refused: usize,
    left: usize,
    stayed: usize,
    returned: usize,
    lost: usize,
    no_room: usize,
    dropped_on_the_way: usize,
}

fn walk(seed: u64, all: Pages, steps: usize, seen: &mut Seen) {
    let (mut random, mut tiers, mut truth) =
        (Random(seed), Tiers::new(all), Truth { all, images: Vec::new() });
    let largest = all.host.max(2);
    let mut newest = None;
    for _ in 0..steps {
        // One that is on the list, dropped ones too: their pages arrive, and more must not happen to them.
        let any = (!truth.images.is_empty()).then(|| truth.images[random.below(truth.images.len())]);
        match (random.below(7), any) {
            (0 | 1, _) => {
                let pages = if random.below(8) == 0 { random.below(largest + 2) } else { random.below(4) };
                let room = pages > 0 && pages <= truth.free().host;
                let made = tiers.make(pages);
                assert_eq!(made.is_some(), room, "{pages} pages");
                seen.refused += usize::from(!room);
                if let Some(image) = made {
                    assert!(newest < Some(image), "{image:?} is not new");
                    newest = made;
                    let place = Tier::Host;
                    truth.images.push(Known { image, pages, place, wanted: false, dropped: false });
                }
            }
            (2, _) => {
                let wanted = (random.below(2) == 0).then(|| random.below(largest + 1));
                let expected = truth.leaves(wanted);
                assert_eq!(tiers.leave(wanted), expected);
                if let Some(image) = expected {
                    let known = truth.get(image);
                    (known.place, known.wanted) = (Tier::Leaving, false);
                }
            }
            (3, Some(one)) if one.place == Tier::Leaving => {
                let written = random.below(4) > 0;
                tiers.left(one.image, written);
                let goes = written && !one.wanted;
                truth.get(one.image).place = if goes { Tier::Disk } else { Tier::Host };
                *(if goes { &mut seen.left } else { &mut seen.stayed }) += 1;
                if one.dropped {
                    truth.forget(one.image);
                }
            }
            (4, Some(one)) if !one.dropped && (one.place == Tier::Disk || random.below(12) == 0) => {
                let (free, leaving) = (truth.free().host, truth.taken(&[Tier::Leaving]));
                let expected = match one.place {
                    Tier::Host => Return::Here,
                    Tier::Disk if one.pages <= free => Return::Begins,
                    Tier::Disk if one.pages > free + leaving => Return::NoRoom,
                    _ => Return::Waits,
                };
                assert_eq!(tiers.come_back(one.image), expected, "{one:?}");
                seen.no_room += usize::from(expected == Return::NoRoom);
                let known = truth.get(one.image);
                match one.place {
                    Tier::Host | Tier::Leaving => known.wanted = true,
                    Tier::Disk if expected == Return::Begins => known.place = Tier::Returning,
                    _ => {}
                }
            }
            (5, Some(one)) if one.place == Tier::Returning => {
                let read = random.below(4) > 0;
                tiers.returned(one.image, read);
                let known = truth.get(one.image);
                (known.place, known.wanted) = (Tier::Host, true);
                *(if read { &mut seen.returned } else { &mut seen.lost }) += 1;
                if one.dropped || !read {
                    truth.forget(one.image);
                }
            }
            (6, Some(one)) if random.below(2) == 0 => {
                let under_way = matches!(one.place, Tier::Leaving | Tier::Returning);
                assert_eq!(tiers.drop(one.image), !under_way);
                seen.dropped_on_the_way += usize::from(under_way);
                match under_way {
                    true => truth.get(one.image).dropped = true,
                    false => truth.forget(one.image),
                }
            }
            // Reports that do not fit an image's state change nothing.
            (_, Some(one)) => {
                if one.place != Tier::Leaving {
                    tiers.left(one.image, random.below(2) == 0);
                }
                if one.place != Tier::Returning {
                    tiers.returned(one.image, random.below(2) == 0);
                }
            }
            _ => {}
        }
        assert_eq!((tiers.free(), tiers.images()), (truth.free(), truth.images.len()));
        if let Some(one) = any {
            let known = truth.images.iter().find(|known| known.image == one.image && !known.dropped);
            assert_eq!(tiers.place(one.image), known.map(|known| known.place));
        }
    }
    for one in std::mem::take(&mut truth.images) {
        tiers.drop(one.image);
        tiers.left(one.image, true);
        tiers.returned(one.image, true);
    }
    assert_eq!((tiers.free(), tiers.images()), (all, 0), "a page is lost");
}

#[test]
fn tiers_are_what_a_list_of_images_says() {
    let mut seen = Seen::default();
    let worlds = [(8, 0), (8, 8), (12, 40), (3, 100), (40, 12), (0, 5)];
    for (seed, (host, disk)) in (1..).zip(worlds) {
        walk(seed * 0x9E37_79B9, Pages { host, disk }, STEPS / worlds.len() + 1, &mut seen);
    }
    println!("{seen:?}");
    let Seen { refused, left, stayed, returned, lost, no_room, dropped_on_the_way } = seen;
    let least = [refused, left, stayed, returned, lost, no_room, dropped_on_the_way].into_iter().min();
    assert!(least > Some(1_000), "{seen:?}");
}
