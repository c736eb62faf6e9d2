//! All interleavings of a head, two workers, three slots, a queue of two, and a death at any point, by
//! breadth-first search: no deadlock, no row for a slot that nobody claimed, no unequal order, no buffer that
//! is overwritten while it is read, no token that not all ranks sampled; every path ends with all done or all
//! ended. Each property is seen to fail on a mistake that is planted for it.

mod device;
mod engine;
mod shared;
mod world;

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use world::{Defect, World};

/// What a search found.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    ends: usize,
    /// The first property that broke.
    broken: Option<String>,
    /// How worlds ended in which the planted mistake was made: distinct reasons.
    reasons: HashSet<String>,
}

/// Two hashes of a state in one pass, each by multiplication: no two of some millions of states share both.
#[derive(Clone, Copy)]
struct Twice(u64, u64);

impl Hasher for Twice {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

fn key(world: &World) -> (u64, u64) {
    let mut hasher = Twice(1, 2);
    world.hash(&mut hasher);
    (hasher.0, hasher.1)
}

fn search(requests: usize, deaths: usize, alone: bool, defect: Defect) -> Found {
    let mut found = Found::default();
    let first = World::new(requests, deaths, alone);
    let mut seen = HashSet::from([key(&first)]);
    let mut layer = vec![first];
    while !layer.is_empty() {
        let mut later = Vec::new();
        for world in layer {
            found.states += 1;
            let next = match world.next(defect) {
                Ok(next) => next,
                Err(why) => {
                    found.broken = Some(why);
                    return found;
                }
            };
            if next.is_empty() {
                found.ends += 1;
                if let Err(why) = world.check_end() {
                    found.broken = Some(why);
                    return found;
                }
                if world.is_tampered() {
                    found.reasons.extend(world.endings().into_iter().map(ToString::to_string));
                }
            }
            later.extend(next.into_iter().filter(|next| seen.insert(key(next))));
        }
        layer = later;
    }
    found
}

#[test]
fn every_path_ends_with_all_done_or_all_ended() {
    for (requests, deaths, alone) in [(0, 3, true), (2, 1, true), (3, 0, true), (3, 1, false)] {
        let began = std::time::Instant::now();
        let found = search(requests, deaths, alone, Defect::None);
        let (states, ends) = (found.states, found.ends);
        println!("{requests} requests, {deaths} deaths: {states} states, {ends} ends, {:?}", began.elapsed());
        assert_eq!(found.broken, None, "{requests} requests, {deaths} deaths");
        // A world that nobody died in has one end, and the others as many as there are ways to die.
        assert_eq!(ends == 1, deaths == 0, "{ends} ends");
        assert!(states > 1000 * (1 + requests), "{states} states: something does not happen any more");
    }
}

/// Searches with a mistake that is made on purpose: what broke, or how the worlds ended that it was made in.
fn planted(defect: Defect) -> Found {
    let found = search(2, 0, true, defect);
    println!("{defect:?}: {} states, broken: {:?}, ends: {:?}", found.states, found.broken, found.reasons);
    found
}

/// The mistake is noticed by the machines: every world that it is made in ends for one of these reasons, and
/// nothing wrong happened before.
fn check_refused(defect: Defect, expected: &[&str]) {
    let Found { broken, reasons, .. } = planted(defect);
    assert_eq!(broken, None, "{defect:?}");
    let is_expected = |reason: &String| expected.iter().any(|it| reason.contains(it));
    assert!(reasons.iter().all(is_expected), "{defect:?}: {reasons:?}");
    let is_met = |it: &&str| reasons.iter().any(|reason| reason.contains(it));
    assert!(expected.iter().all(is_met), "{defect:?}: {reasons:?}");
}

/// With the machines' check gone, the property that the search looks at fails.
fn check_broken(defect: Defect, property: &str) {
    let broken = planted(defect).broken.unwrap_or_default();
    assert!(broken.contains(property), "{defect:?}: {broken}");
}

#[test]
fn swapped_commands_are_refused_by_their_numbers() {
    check_refused(Defect::Swapped, &["the head gives command 2, and 1 is due"]);
    check_broken(Defect::SwappedUnnoticed, "unequal order");
}

#[test]
fn a_skipped_command_is_refused_by_the_next_number_or_by_the_deadline() {
    check_refused(
        Defect::Skipped,
        &["the head gives command 3, and 2 is due", "rank 1 has not answered a command for 10 s"],
    );
    check_broken(Defect::SkippedUnnoticed, "unequal order");
}

#[test]
fn an_id_that_one_rank_sampled_otherwise_reaches_nobody() {
    check_refused(Defect::OtherId, &["otherwise than the head: row 0 is Sampled"]);
    check_broken(Defect::OtherIdUnnoticed, "a client gets token");
}

#[test]
fn a_row_of_a_slot_that_nobody_claimed_is_refused() {
    check_refused(Defect::OtherSlot, &["and no sequence ever began there", "a step has two rows of slot"]);
    check_broken(Defect::OtherSlotUnnoticed, "which nobody claimed");
}

#[test]
fn a_buffer_that_is_read_too_early_is_found() {
    check_broken(Defect::StaleBuffer, "a stale buffer is added");
}

#[test]
fn a_death_that_nobody_notices_is_a_deadlock() {
    let found = search(2, 1, false, Defect::DeafHead);
    let broken = found.broken.unwrap_or_default();
    assert!(broken.contains("a deadlock"), "{broken}");
}
