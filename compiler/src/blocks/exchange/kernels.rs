//! Exchanges: sums, and rows put together from the ranks' parts, within a process and across processes.

use crate::kernels::{Declared, Header, LIMIT, REPLACES, Rows, World, constants, kernels};

/// Ranks, values of a row of one rank, most rows of the launch and of an inbox, and the split over threads.
const EXCHANGE: &[Declared] = constants![
    RANKS: int, WIDTH: int, ROWS: int, CAPACITY: int, THREADS: int, PIECES: int,
];

/// Ranks, values of a row of one rank, most rows, and whether so many were gathered whatever the step has.
const GATHERED: &[Declared] = constants![RANKS: int, WIDTH: int, ROWS: int, ALL_ROWS: bool, THREADS: int];

kernels! {
    /// Adds the partial sums of all ranks to the residual stream, and zeroes this rank's.
    exchange_sum => ExchangeSum in "exchange/sum.cuh", [EXCHANGE, LIMIT, constants![DECODE: bool], REPLACES];
    (step: READ Header, world: WRITE World, partial: WRITE Rows, residual: WRITE Rows)
    check "{config}::THREADS == {block}"
    bytes world "sizeof(World)"
    bytes inbox "inbox_bytes({config}::RANKS, {config}::WIDTH, {config}::CAPACITY)";

    /// Puts rows together from the parts of all ranks.
    exchange_gather => ExchangeGather in "exchange/gather.cuh", [EXCHANGE, LIMIT];
    (step: READ Header, world: WRITE World, part: READ Rows, out: WRITE Rows)
    check "{config}::THREADS == {block}"
    bytes world "sizeof(World)"
    bytes inbox "inbox_bytes({config}::RANKS, {config}::WIDTH, {config}::CAPACITY)";

    /// Adds the partial sums gathered from all ranks to the residual stream, and zeroes this rank's.
    gathered_sum => GatheredSum in "exchange/gathered.cuh", [GATHERED, LIMIT, REPLACES];
    (step: READ Header, gathered: READ Rows, partial: WRITE Rows, residual: WRITE Rows)
    check "{config}::THREADS == {block}"
    bytes gathered "gathered_bytes<{config}>()";

    /// Puts rows together from the parts that were gathered from all ranks.
    gathered_rows => GatheredRows in "exchange/gathered.cuh", [GATHERED, LIMIT];
    (step: READ Header, gathered: READ Rows, out: WRITE Rows)
    check "{config}::THREADS == {block}"
    bytes gathered "gathered_bytes<{config}>()";
}
