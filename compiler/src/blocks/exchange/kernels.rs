//! Exchanges: sums, and rows put together from the ranks' parts.

use crate::kernels::{Declared, Header, LIMIT, Rows, World, constants, kernels};

/// Ranks, values of a row of one rank, most rows of the launch and of an inbox, and the split over threads.
const EXCHANGE: &[Declared] = constants![
    RANKS: int, WIDTH: int, ROWS: int, CAPACITY: int, THREADS: int, PIECES: int,
];

kernels! {
    /// Adds the partial sums of all ranks to the residual stream, and zeroes this rank's.
    exchange_sum => ExchangeSum in "exchange/sum.cuh", [EXCHANGE, LIMIT, constants![DECODE: bool]];
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
}
