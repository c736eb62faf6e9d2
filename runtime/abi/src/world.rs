//! What the ranks of one host need in order to exchange rows on their CUDA devices. Each rank has a [`World`]
//! and two inboxes in its device's memory; the ranks write into each other's inboxes.
//! `templates/cuda/exchange/world.cuh` is printed from here ([`header`]).

use crate::wire::{print, wire};
use std::fmt::{self, Display, Formatter, Write};

/// Most ranks of one host.
pub const MAX_RANKS: usize = 8;
/// What every byte of an inbox is before the first exchange: all of its values are NOT_YET
/// (templates/cuda/core/async.cuh).
pub const EMPTY: u8 = 0xff;
/// Values that are pushed and asked for at once: rows that are exchanged are whole pieces.
pub const PIECE: usize = 4;
/// Size of a rank's world in device memory.
pub const WORLD_BYTES: usize = size_of::<World>();

wire! {
    /// One kind of exchange of one rank.
    Channel as "Channel" {
        /// Inboxes of all ranks, by rank, as this rank's device addresses them.
        inboxes: [u64; MAX_RANKS],
        /// Exchanges so far; an odd one uses the second half of the inboxes.
        turn: u32,
        /// Blocks of the running exchange that know its turn.
        blocks: u32,
    }

    /// What a rank's kernels exchange rows by, in device memory. The counters are the kernels' own.
    World as "World" {
        /// From 0.
        rank: i32,
        /// 1 once a kernel of this rank reports that a peer is missing.
        failed: u32,
        /// Nanoseconds that a kernel waits for a peer.
        deadline_ns: u64,
        /// Device address of this rank's `MissingPeer`.
        report: u64,
        /// Partial sums.
        sums: Channel,
        /// Parts of rows.
        gathers: Channel,
    }

    /// The peer that a rank's kernel waited for until its deadline, in pinned host memory. The kernel then
    /// ends with an error.
    MissingPeer as "MissingPeer" {
        /// 1 once the other fields are written.
        written: u32,
        /// The rank that waited.
        rank: i32,
        /// The rank it waited for.
        peer: i32,
        /// 0: for its partial sums, 1: for its part of rows.
        gathers: u32,
        /// Exchanges of that kind before.
        turn: u32,
        /// A row that had not arrived.
        row: u32,
    }
}

impl World {
    /// A rank's, before its first exchange. `sums` and `gathers` are the inboxes of all ranks, by rank.
    ///
    /// # Panics
    /// When there are more than [`MAX_RANKS`] ranks, or `rank` is none of them.
    pub fn new(rank: usize, [sums, gathers]: [&[u64]; 2], report: u64, deadline_ns: u64) -> World {
        assert!(rank < sums.len() && sums.len() == gathers.len(), "every rank has both inboxes");
        World {
            rank: i32::try_from(rank).expect("ranks are few"),
            failed: 0,
            deadline_ns,
            report,
            sums: Channel::new(sums),
            gathers: Channel::new(gathers),
        }
    }
}

impl Channel {
    fn new(ranks: &[u64]) -> Channel {
        let mut inboxes = [0; MAX_RANKS];
        inboxes[..ranks.len()].copy_from_slice(ranks);
        Channel { inboxes, turn: 0, blocks: 0 }
    }
}

impl MissingPeer {
    /// Before a kernel has written it.
    pub const NONE: MissingPeer = MissingPeer { written: 0, rank: 0, peer: 0, gathers: 0, turn: 0, row: 0 };
}

impl Display for MissingPeer {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let MissingPeer { rank, peer, gathers, turn, row, .. } = self;
        let what = if *gathers == 0 { "partial sums" } else { "part" };
        let exchange = if *gathers == 0 { "sum" } else { "gather" };
        write!(f, "rank {rank} waited in vain for the {what} of rank {peer} in {exchange} {turn}, row {row}")
    }
}

/// What a pass of a program exchanges: how often, and the values that a rank sends of each row to each other
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Sums and gathers.
    pub exchanges: u64,
    /// Values of a row, over all of them.
    pub row_values: u64,
}

impl Exchanged {
    /// A pass that exchanges nothing.
    pub const NONE: Exchanged = Exchanged { exchanges: 0, row_values: 0 };

    /// Bytes that a rank sends to each other one in a pass over so many rows.
    pub const fn bytes(self, rows: usize) -> u64 {
        self.row_values * rows as u64 * size_of::<f32>() as u64
    }
}

/// What the programs of a stack exchange. A decode program is layers and head, over as many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// All layers; rows are token rows.
    pub layers: Exchanged,
    /// The head; rows are those of logits.
    pub head: Exchanged,
    /// Draft prefill; rows are token rows.
    pub learn: Exchanged,
    /// All draft passes behind a step; rows are sequences.
    pub drafts: Exchanged,
}

impl Traffic {
    /// That of a stack that is alone.
    pub const NONE: Traffic = Traffic {
        layers: Exchanged::NONE,
        head: Exchanged::NONE,
        learn: Exchanged::NONE,
        drafts: Exchanged::NONE,
    };
}

/// Bytes of a rank's inbox for exchanges of up to `rows` rows of `width` values a rank. It has two halves,
/// which exchanges alternate between; a half has a slot for each of the other ranks, in the order of ranks.
pub const fn inbox_bytes(ranks: usize, rows: usize, width: usize) -> usize {
    2 * (ranks - 1) * rows * width * size_of::<f32>()
}

/// The text of `templates/cuda/exchange/world.cuh`.
pub fn header() -> String {
    let mut out = "\
// Printed from runtime/abi/src/world.rs: `cargo xtask test --bless` does it again.
//
// What the ranks of one host exchange rows by.
#pragma once

#include <cstddef>

namespace monomorph {

"
    .to_owned();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "// Ranks of one host.");
    let _ = writeln!(out, "constexpr int MAX_RANKS = {MAX_RANKS};");
    for it in DECLARATIONS {
        out.push('\n');
        print(&mut out, it, &[("Channel", "Channel")], "");
    }
    out.push_str("\n}  // namespace monomorph\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes_of;

    #[test]
    fn an_inbox_has_two_halves_with_a_slot_a_peer() {
        assert_eq!(inbox_bytes(2, 1, 2048), 2 * 2048 * 4);
        assert_eq!(inbox_bytes(8, 128, 31_040), 2 * 7 * 128 * 31_040 * 4);
    }

    #[test]
    fn bytes_that_are_sent_follow_the_rows() {
        let sums = Exchanged { exchanges: 2, row_values: 2 * 96 };
        assert_eq!((sums.bytes(0), sums.bytes(3)), (0, 3 * 2 * 96 * 4));
    }

    #[test]
    fn a_new_world_has_the_inboxes_of_all_ranks_and_no_turn() {
        let world = World::new(1, [&[10, 11], &[20, 21]], 30, 40);
        assert_eq!((world.rank, world.failed, world.report, world.deadline_ns), (1, 0, 30, 40));
        assert_eq!(world.sums.inboxes, [10, 11, 0, 0, 0, 0, 0, 0]);
        assert_eq!((world.gathers.inboxes[1], world.gathers.turn, world.gathers.blocks), (21, 0, 0));
        assert_eq!(bytes_of(&[world]).len(), WORLD_BYTES);
    }

    #[test]
    #[should_panic(expected = "every rank has both inboxes")]
    fn a_rank_that_does_not_exist_has_no_world() {
        World::new(2, [&[10, 11], &[20, 21]], 30, 40);
    }

    #[test]
    fn a_missing_peer_is_named_with_its_exchange() {
        let sums = MissingPeer { written: 1, rank: 0, peer: 1, gathers: 0, turn: 17, row: 3 };
        assert_eq!(sums.to_string(), "rank 0 waited in vain for the partial sums of rank 1 in sum 17, row 3");
        let gathers = MissingPeer { gathers: 1, ..sums };
        assert_eq!(gathers.to_string(), "rank 0 waited in vain for the part of rank 1 in gather 17, row 3");
    }

    #[test]
    fn the_header_declares_what_kernels_use() {
        let text = header();
        for declared in ["constexpr int MAX_RANKS = 8;", "struct World {", "Channel sums;  // Partial sums"] {
            assert!(text.contains(declared), "{text}");
        }
    }
}
