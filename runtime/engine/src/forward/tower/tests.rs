//! Turns by hand: when the tower has its turn, and how long places are used.
//!
//! Planted, and caught here and not by the walks: two images one after the other while another could be fed.
//! Planted and not seen: blocks that one which waits for rows takes when it is fed, and not when it is
//! admitted, which costs time and no answer.

use crate::forward::Forward;
use crate::handle::prepare;
use crate::scripted::{PIXTRAL, Script, Scripted, Seeing, Shape, Tight};
use crate::{EngineHandle, EngineOptions, Generation, PromptImage, PromptImages, Request};
use monomorph_cache::ImageDigest;
use monomorph_model::Grid;

type Model = Seeing<Tight, PIXTRAL>;

/// An engine whose turns are taken by hand.
struct ByHand {
    engine: EngineHandle,
    forward: Forward,
    model: Scripted<Model>,
}

impl ByHand {
    fn new() -> ByHand {
        let options = EngineOptions { vision: Model::VISION, ..EngineOptions::new(96, 64, 32) };
        let (engine, forward) = prepare(Model::SPEC, options).unwrap();
        ByHand { engine, forward, model: Scripted::new(Script { blocks: 96, ..Script::default() }) }
    }

    /// Asks with these images, each a row of three tokens and its end, behind a token of text.
    fn ask(&self, images: &[u8], answer: usize) -> Generation {
        self.ask_behind(9, images, answer)
    }

    /// The same behind another first token.
    fn ask_behind(&self, first: u32, images: &[u8], answer: usize) -> Generation {
        self.ask_of_size(first, images.iter().map(|number| (*number, 3)), answer)
    }

    /// The same with images of a number and so many patches each.
    fn ask_of_size(
        &self,
        first: u32,
        images: impl IntoIterator<Item = (u8, usize)>,
        answer: usize,
    ) -> Generation {
        let (mut ids, mut given) = (Vec::new(), PromptImages::default());
        for (number, patches) in images {
            ids.push(if ids.is_empty() { first } else { 1 });
            given.images.push(PromptImage {
                digest: ImageDigest([number; 32]),
                start: ids.len(),
                tokens: patches + 1,
                grid: Grid { frames: 1, rows: 1, columns: patches },
                pixels: vec![f32::from(number); patches].into(),
            });
            ids.extend(std::iter::repeat_n(40, patches).chain([41]));
        }
        ids.push(2);
        let request = Request { images: given, ignore_eos: true, ..Request::new(ids, answer) };
        self.engine.submit(request).unwrap()
    }

    /// Takes a turn: images seen, tokens prefilled and tokens generated in it.
    fn turn(&mut self) -> [u64; 3] {
        let counts = |engine: &EngineHandle| {
            let stats = engine.stats();
            [stats.images_seen, stats.tokens_prefilled, stats.tokens_generated]
        };
        let before = counts(&self.engine);
        self.forward.take_arrivals();
        self.forward.sweep().unwrap();
        self.forward.turn(&mut self.model).unwrap();
        let after = counts(&self.engine);
        std::array::from_fn(|at| after[at] - before[at])
    }

    fn used(&self) -> usize {
        self.forward.tower.places().in_use()
    }
}

#[test]
fn all_images_of_a_lone_prompt_are_seen_before_its_first_chunk() {
    let mut hand = ByHand::new();
    let _asked = hand.ask(&[1, 2, 3], 4);
    // It is admitted, and what comes before its first image is fed with that.
    assert_eq!(hand.turn(), [0, 0, 0]);
    assert_eq!([hand.turn(), hand.turn()], [[2, 0, 0], [1, 0, 0]]);
    assert_eq!(hand.used(), 3);
    assert_eq!(hand.turn(), [0, 16, 1]);
    assert_eq!(hand.used(), 0, "rows are in the cache");
    assert_eq!(hand.turn(), [0, 0, 1]);
}

#[test]
fn others_are_fed_between_two_passes() {
    let mut hand = ByHand::new();
    let _decodes = hand.ask(&[], 40);
    assert_eq!(hand.turn(), [0, 1, 1]);
    let _sees = hand.ask(&[1, 2, 3], 4);
    assert_eq!(hand.turn(), [0, 0, 1]);
    // A pass, then a step, until all are seen.
    assert_eq!([hand.turn(), hand.turn()], [[2, 0, 0], [0, 0, 1]]);
    assert_eq!([hand.turn(), hand.turn()], [[1, 0, 0], [0, 16, 2]]);
}

#[test]
fn prompts_are_fed_as_far_as_places_go() {
    let mut hand = ByHand::new();
    let _asked = hand.ask(&[1, 2, 3, 4], 4);
    assert_eq!(hand.turn(), [0, 0, 0]);
    assert_eq!([hand.turn(), hand.turn()], [[2, 0, 0], [1, 0, 0]]);
    // Up to the fourth image, for which none is left.
    assert_eq!(hand.turn(), [0, 16, 0]);
    assert_eq!([hand.turn(), hand.turn()], [[1, 0, 0], [0, 5, 1]]);
}

#[test]
fn an_image_of_several_sequences_is_seen_once_and_used_by_each() {
    let mut hand = ByHand::new();
    let asked = [hand.ask(&[1, 2], 4), hand.ask_behind(7, &[1, 3], 4)];
    assert_eq!(hand.turn(), [0, 0, 0]);
    let mut seen = 0;
    while hand.engine.stats().tokens_generated < 2 {
        seen += hand.turn()[0];
        assert!(hand.used() <= 3);
    }
    let stats = hand.engine.stats();
    assert_eq!((seen, stats.images_found), (3, 1), "the first image is both's");
    drop(asked);
    hand.turn();
    assert_eq!(hand.used(), 0);
}

/// Asks, and says which of the images are seen together, by how many.
fn passes(asked: &[&[(u8, usize)]], turns: usize) -> Vec<u64> {
    let mut hand = ByHand::new();
    let asked = (5..).zip(asked).map(|(first, images)| hand.ask_of_size(first, images.iter().copied(), 1));
    let _asked: Vec<Generation> = asked.collect();
    let seen = (0..turns).map(|_| hand.turn()[0]).collect::<Vec<_>>();
    let stats = hand.engine.stats();
    let passes = seen.iter().filter(|seen| **seen > 0).count() as u64;
    assert_eq!((seen.iter().sum(), passes), (stats.images_seen, stats.image_passes));
    seen
}

#[test]
fn images_share_a_pass_that_is_one_step() {
    // As many patches as a step has, and as many images as a pass.
    assert_eq!(passes(&[&[(1, 4), (2, 3)]], 2), [0, 2]);
    assert_eq!(passes(&[&[(1, 4), (2, 4)]], 3), [0, 1, 1]);
    assert_eq!(passes(&[&[(1, 1), (2, 1), (3, 1)]], 3), [0, 2, 1]);
    // One that is cut is alone, whatever follows it.
    assert_eq!(passes(&[&[(1, 12), (2, 1)]], 5), [0, 0, 0, 1, 1]);
    assert_eq!(passes(&[&[(1, 1), (2, 12)]], 5), [0, 1, 0, 0, 1]);
}

#[test]
fn images_of_several_sequences_share_a_pass_in_their_order() {
    assert_eq!(passes(&[&[(1, 3)], &[(2, 2)]], 2), [0, 2]);
    // The first sequence's second one has no room, and its place is not taken by what has some.
    assert_eq!(passes(&[&[(1, 4), (2, 4)], &[(3, 1)]], 3), [0, 1, 2]);
    // The same one of both is one.
    assert_eq!(passes(&[&[(1, 3)], &[(1, 3), (2, 3)]], 2), [0, 2]);
    assert_eq!(passes(&[&[(1, 3), (1, 3)]], 2), [0, 1]);
}

#[test]
fn those_that_leave_give_their_places_back() {
    let mut hand = ByHand::new();
    let asked = hand.ask(&[1, 2, 3], 4);
    assert_eq!([hand.turn(), hand.turn()], [[0, 0, 0], [2, 0, 0]]);
    assert_eq!(hand.used(), 2);
    drop(asked);
    hand.forward.sweep().unwrap();
    assert_eq!(hand.used(), 0);
    // What was seen stays until another takes its place.
    let _again = hand.ask(&[2], 1);
    let seen: u64 = (0..3).map(|_| hand.turn()[0]).sum();
    assert_eq!((seen, hand.engine.stats().images_found), (0, 1));
}

#[test]
fn others_are_fed_between_the_steps_of_a_large_image() {
    let mut hand = ByHand::new();
    let _decodes = hand.ask(&[], 40);
    assert_eq!(hand.turn(), [0, 1, 1]);
    let _sees = hand.ask_of_size(9, [(1, 12), (2, 3)], 4);
    assert_eq!(hand.turn(), [0, 0, 1]);
    // Three layers, a step each; the image is seen with the last.
    assert_eq!([hand.turn(), hand.turn()], [[0, 0, 0], [0, 0, 1]]);
    assert_eq!([hand.turn(), hand.turn()], [[0, 0, 0], [0, 0, 1]]);
    assert_eq!([hand.turn(), hand.turn()], [[1, 0, 0], [0, 0, 1]]);
    assert_eq!([hand.turn(), hand.turn()], [[1, 0, 0], [0, 20, 2]]);
}

#[test]
fn an_image_that_all_have_left_is_not_seen_to_its_end() {
    let mut hand = ByHand::new();
    let asked = hand.ask_of_size(9, [(1, 12)], 4);
    assert_eq!([hand.turn(), hand.turn()], [[0, 0, 0]; 2]);
    assert_eq!(hand.used(), 1);
    drop(asked);
    hand.forward.sweep().unwrap();
    assert_eq!((hand.used(), hand.forward.tower.places().held()), (0, 0), "it has no rows");
    // From its first layer on.
    let _again = hand.ask_of_size(7, [(1, 12)], 4);
    assert_eq!(hand.turn(), [0, 0, 0]);
    assert_eq!([hand.turn(), hand.turn(), hand.turn()], [[0, 0, 0], [0, 0, 0], [1, 0, 0]]);
    assert_eq!((hand.turn(), hand.engine.stats().images_found), ([0, 15, 1], 0));
}

#[test]
fn who_asks_for_an_image_under_way_waits_for_its_end() {
    let mut hand = ByHand::new();
    let first = hand.ask_of_size(9, [(1, 12)], 4);
    assert_eq!([hand.turn(), hand.turn()], [[0, 0, 0]; 2]);
    let _second = hand.ask_of_size(7, [(1, 12)], 4);
    let mut seen = 0;
    while hand.engine.stats().images_found == 0 {
        seen += hand.turn()[0];
    }
    // Who asked first goes, and the other still waits for what is left.
    assert_eq!((seen, hand.used(), hand.engine.stats().tokens_prefilled), (0, 1, 0));
    drop(first);
    hand.forward.sweep().unwrap();
    assert_eq!(hand.used(), 1);
    while hand.engine.stats().tokens_generated == 0 {
        seen += hand.turn()[0];
    }
    assert_eq!(seen, 1);
}
