// Printed from runtime/abi/src/world.rs: `cargo xtask test --bless` does it again.
//
// What the ranks of one host exchange rows by.
#pragma once

#include <cstddef>

namespace monomorph {

// Ranks of one host.
constexpr int MAX_RANKS = 8;

// One kind of exchange of one rank.
struct Channel {
    unsigned long long inboxes[MAX_RANKS];  // Inboxes of all ranks, by rank, as this rank's device addresses them
    unsigned turn;  // Exchanges so far; an odd one uses the second half of the inboxes
    unsigned blocks;  // Blocks of the running exchange that know its turn
};
static_assert(sizeof(Channel) == 72, "as the host has it");
static_assert(offsetof(Channel, inboxes) == 0, "as the host has it");
static_assert(offsetof(Channel, turn) == 64, "as the host has it");
static_assert(offsetof(Channel, blocks) == 68, "as the host has it");

// What a rank's kernels exchange rows by, in device memory. The counters are the kernels' own.
struct World {
    int rank;  // From 0
    unsigned failed;  // 1 once a kernel of this rank reports that a peer is missing
    unsigned long long deadline_ns;  // Nanoseconds that a kernel waits for a peer
    unsigned long long report;  // Device address of this rank's `MissingPeer`
    Channel sums;  // Partial sums
    Channel gathers;  // Parts of rows
};
static_assert(sizeof(World) == 168, "as the host has it");
static_assert(offsetof(World, rank) == 0, "as the host has it");
static_assert(offsetof(World, failed) == 4, "as the host has it");
static_assert(offsetof(World, deadline_ns) == 8, "as the host has it");
static_assert(offsetof(World, report) == 16, "as the host has it");
static_assert(offsetof(World, sums) == 24, "as the host has it");
static_assert(offsetof(World, gathers) == 96, "as the host has it");

// The peer that a rank's kernel waited for until its deadline, in pinned host memory. The kernel then
// ends with an error.
struct MissingPeer {
    unsigned written;  // 1 once the other fields are written
    int rank;  // The rank that waited
    int peer;  // The rank it waited for
    unsigned gathers;  // 0: for its partial sums, 1: for its part of rows
    unsigned turn;  // Exchanges of that kind before
    unsigned row;  // A row that had not arrived
};
static_assert(sizeof(MissingPeer) == 24, "as the host has it");
static_assert(offsetof(MissingPeer, written) == 0, "as the host has it");
static_assert(offsetof(MissingPeer, rank) == 4, "as the host has it");
static_assert(offsetof(MissingPeer, peer) == 8, "as the host has it");
static_assert(offsetof(MissingPeer, gathers) == 12, "as the host has it");
static_assert(offsetof(MissingPeer, turn) == 16, "as the host has it");
static_assert(offsetof(MissingPeer, row) == 20, "as the host has it");

}  // namespace monomorph
