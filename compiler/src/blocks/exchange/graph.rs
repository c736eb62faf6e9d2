//! The ops by which ranks make one of their results: sums over all ranks, and rows gathered from all of them.
//! [`shard`](crate::passes::shard) puts them into a graph; a graph of one rank has none.

use crate::blocks::Operation;

/// `() -> 0`: a row of zeros, to which a rank adds its part of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeros;

/// `(residual, part) -> residual + (part of rank 0 + part of rank 1 + …)`, added in this order on every rank,
/// so that all ranks have the same bits. It takes the part: what held it is zero again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum;

/// `part -> part of rank 0 + part of rank 1 + …`, added as [`Sum`] does: what is needed whole before it is
/// added to anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total;

/// `part -> [part of rank 0 | part of rank 1 | …]`, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather;

impl Operation for Zeros {
    const NAME: &'static str = "zeros";
    /// Its buffer is zero whenever it is not being added to.
    const ALONE: bool = true;
}

impl Operation for Sum {
    const NAME: &'static str = "sum";
}

impl Operation for Total {
    const NAME: &'static str = "total";
}

impl Operation for Gather {
    const NAME: &'static str = "gather";
}
