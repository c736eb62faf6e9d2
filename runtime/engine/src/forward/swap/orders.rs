//! What the walks of `walk.rs` cannot see, because it takes a coincidence or changes no answer: in what order
//! copies are made, and that what is on disk is not in memory too.
//!
//! Planted, and caught here: copies of states made behind those that come back; pages kept though they are on
//! disk; an image kept when its sequence has come back.

use super::images::{Images, Wanted};
use crate::scripted::{Recurrent, Script, Scripted, Shape, Tight};
use crate::{SwapDisk, SwapOptions};
use monomorph_cache::Block;
use monomorph_model::{BlockId, Model, ModelSpec, Slot, SnapshotId, StateCopy, StatePlace};
use monomorph_store::ALIGN;
use std::time::{Duration, Instant};

type Small = Recurrent<Tight>;
const SPEC: &ModelSpec = Small::SPEC;
/// Pages of an image of two blocks: these, and a state.
const PAGES: u64 = 3;

/// A state of these tokens, as the scripted model writes one.
fn state(tokens: &[u32]) -> Vec<u8> {
    let words = std::iter::once(tokens.len() as u32).chain(tokens.iter().copied());
    let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    bytes.resize(SPEC.state_bytes as usize, 0);
    bytes
}

/// Blocks and a slot that hold `tokens`, which are eight.
fn fill(model: &mut Scripted<Small>, blocks: [u32; 2], slot: Slot, tokens: &[u32]) {
    for (block, tokens) in blocks.into_iter().zip(tokens.chunks(SPEC.block_tokens)) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        model.write_block(BlockId(block), &bytes);
    }
    model.write_state(StatePlace::Slot(slot), &state(tokens));
}

/// What a place holds.
fn held(model: &mut Scripted<Small>, place: StatePlace) -> Vec<u8> {
    let mut bytes = state(&[]);
    model.read_state(place, &mut bytes);
    bytes
}

#[test]
fn what_those_who_are_over_left_is_saved_before_another_comes_back_to_their_slot() {
    let mut model = Scripted::<Small>::new(Script::default());
    let options = SwapOptions { host_bytes: 2 * PAGES * ALIGN as u64, ..SwapOptions::default() };
    let mut images = Images::new(SPEC, None, &options).unwrap();
    let (first, second, slot) = ([1, 2, 3, 4, 5, 6, 7, 8], [9; 8], Slot(2));

    fill(&mut model, [0, 1], slot, &first);
    let image = images.take(8, &[Block(0), Block(1)], Vec::new(), slot).expect("there is room");
    images.begin(0);
    images.carry(&mut model, &mut Vec::new());
    // Another has the slot and is over; its state is to be kept, and the first comes back to where it was.
    fill(&mut model, [0, 1], slot, &second);
    let place = StatePlace::Snapshot(SnapshotId(1));
    let mut copies = vec![StateCopy { from: StatePlace::Slot(slot), to: place }];
    images.begin(copies.len());
    assert_eq!(images.want(image), Wanted::Here);
    images.bring_back(image, 0, &[Block(4), Block(5)], Vec::new(), slot);
    images.carry(&mut model, &mut copies);
    assert_eq!(held(&mut model, place), state(&second));
    assert_eq!(held(&mut model, StatePlace::Slot(slot)), state(&first));
    assert!(copies.is_empty(), "the step would save what came back");
    assert!(images.is_empty());
}

#[test]
fn what_is_on_disk_is_not_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SwapDisk { directory: directory.path().to_owned(), bytes: 8 * PAGES * ALIGN as u64 };
    let options =
        SwapOptions { host_bytes: PAGES * ALIGN as u64, disk: Some(disk), ..SwapOptions::default() };
    let mut images = Images::new(SPEC, None, &options).unwrap();
    let mut model = Scripted::<Small>::new(Script::default());
    // Room for one in memory: each has to leave before the next is made.
    let made: Vec<_> = (0..4)
        .map(|number| {
            fill(&mut model, [0, 1], Slot(0), &[number; 8]);
            let image = images.take(8, &[Block(0), Block(1)], Vec::new(), Slot(0)).expect("there is room");
            images.begin(0);
            images.carry(&mut model, &mut Vec::new());
            wait(&mut images, |images| !images.under_way());
            assert_eq!(images.in_memory(), 0, "image {number} is on disk");
            image
        })
        .collect();
    for (number, image) in (0..).zip(made) {
        wait(&mut images, |images| images.want(image) == Wanted::Here);
        assert_eq!(images.in_memory(), PAGES as usize);
        images.begin(0);
        images.bring_back(image, 0, &[Block(6), Block(7)], Vec::new(), Slot(1));
        images.carry(&mut model, &mut Vec::new());
        assert_eq!(held(&mut model, StatePlace::Slot(Slot(1))), state(&[number; 8]));
        assert_eq!(images.in_memory(), 0);
    }
    assert!(images.is_empty());
}

/// Until it is so; never with more pages than there is memory for.
fn wait(images: &mut Images, mut so: impl FnMut(&mut Images) -> bool) {
    let began = Instant::now();
    while !so(images) {
        assert!(began.elapsed() < Duration::from_secs(10), "the disk does not answer");
        images.wait(Duration::from_millis(5));
    }
}
