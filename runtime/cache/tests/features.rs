//! A random walk over the places of images beside lists that are too simple to be wrong: the images in the
//! order of their last use, and which sequences use which.

mod random;

use monomorph_cache::{Claim, FeaturePlaces, ImageDigest};
use random::Random;

const STEPS: usize = 1_000_000;
const PLACES: usize = 4;
const IMAGES: usize = 9;

fn digest(image: usize) -> ImageDigest {
    ImageDigest([image as u8; 32])
}

#[test]
fn images_keep_their_places_as_the_lists_say() {
    let (mut random, mut places) = (Random(0x5EE), FeaturePlaces::new(PLACES));
    // Images with a place, used longest ago first; and a line for each use.
    let (mut recent, mut uses): (Vec<usize>, Vec<(usize, _)>) = (Vec::new(), Vec::new());
    let (mut found, mut made, mut full) = (0, 0, 0);
    for _ in 0..STEPS {
        let touched = if random.below(2) == 0 || uses.is_empty() {
            let image = random.below(IMAGES);
            let is_used = |of: &usize| uses.iter().any(|(used, _)| used == of);
            let here = recent.contains(&image);
            let gone = recent.iter().position(|of| !is_used(of));
            let claim = places.claim(digest(image));
            match claim {
                None => {
                    assert!(!here && recent.len() == PLACES && gone.is_none(), "there is room");
                    full += 1;
                    continue;
                }
                Some(Claim::Here(place)) => {
                    assert!(here, "image {image} has no rows");
                    let same = uses.iter().all(|(used, at)| (*used == image) == (*at == place));
                    assert!(same || !is_used(&image), "image {image} has another place");
                    found += 1;
                    uses.push((image, place));
                }
                Some(Claim::Empty(place)) => {
                    assert!(!here, "image {image} has its rows");
                    assert!(uses.iter().all(|(_, at)| *at != place), "{place:?} is in use");
                    if recent.len() == PLACES {
                        recent.remove(gone.expect("something made room"));
                    }
                    made += 1;
                    uses.push((image, place));
                }
            }
            image
        } else {
            let (image, place) = uses.swap_remove(random.below(uses.len()));
            places.release(place);
            image
        };
        recent.retain(|image| *image != touched);
        recent.push(touched);
        assert!((0..IMAGES).all(|image| places.holds(&digest(image)) == recent.contains(&image)));
        let mut used: Vec<usize> = uses.iter().map(|(image, _)| *image).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!((places.held(), places.in_use()), (recent.len(), used.len()));
        if uses.len() > 6 {
            for (_, place) in uses.drain(3..) {
                places.release(place);
            }
            // In what order these were released the list does not know: it begins anew.
            (places, recent) = (FeaturePlaces::new(PLACES), Vec::new());
            uses.clear();
        }
    }
    assert!(found > STEPS / 20 && made > STEPS / 20 && full > STEPS / 100, "{found} {made} {full}");
}

#[test]
#[should_panic(expected = "nothing uses it")]
fn a_place_is_not_released_twice() {
    let mut places = FeaturePlaces::new(1);
    let Some(Claim::Empty(place)) = places.claim(digest(1)) else { panic!("an empty place") };
    places.release(place);
    places.release(place);
}
