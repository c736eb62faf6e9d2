//! Launches of exchanges.

use super::kernels::{ExchangeGather, ExchangeSum};
use crate::blocks::products::cuda::limit;
use crate::graph::Rows;
use crate::kernels::World;
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Site, fixed, integer, no_kernel};
use crate::plan::BufferId;
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use monomorph_abi::world::{PIECE, WORLD_BYTES, inbox_bytes};

/// Threads of a block. A row of one token is two blocks of them, or a few.
const THREADS: usize = 256;

/// Pieces that a thread has under way at a time, and blocks a multiprocessor, which run together: as many as
/// registers allow.
fn split(ranks: usize, prompts: bool) -> (usize, usize) {
    match (ranks, prompts) {
        (..=4, true) => (2, 4),
        (..=4, false) => (1, 4),
        _ => (1, 2),
    }
}

/// An exchange as it is launched.
struct Exchange {
    instance: Instance,
    grid: [Extent; 3],
    world: World,
}

impl Launcher<'_> {
    /// Adds the partial sums of all ranks to the residual stream, and zeroes this rank's.
    ///
    /// # Errors
    /// When rows are no whole pieces.
    pub(crate) fn exchange_sum(
        &mut self,
        site: Site,
        partial: BufferId,
        residual: BufferId,
    ) -> Result<Launch, PassError> {
        let Exchange { mut instance, grid, world } = self.exchange(site, partial, "sum_inbox")?;
        let decode = matches!(site.program.regime, Regime::Decode | Regime::Draft);
        instance.constants.push(("DECODE", Constant::Flag(decode)));
        let partial = self.buffer(site, partial);
        let arguments =
            ExchangeSum { step: site.header, world, partial, residual: self.buffer(site, residual) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// Puts the rows of `out` together from the ranks' `part`s.
    ///
    /// # Errors
    /// When parts of rows are no whole pieces.
    pub(crate) fn exchange_gather(
        &mut self,
        site: Site,
        part: BufferId,
        out: BufferId,
    ) -> Result<Launch, PassError> {
        let Exchange { instance, grid, world } = self.exchange(site, part, "gather_inbox")?;
        let part = self.buffer(site, part);
        let arguments = ExchangeGather { step: site.header, world, part, out: self.buffer(site, out) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// An exchange of rows of `pushed` through the scratch buffer `inbox`.
    fn exchange(&mut self, site: Site, pushed: BufferId, inbox: &str) -> Result<Exchange, PassError> {
        let ranks = self.plan.target.ranks;
        let (width, rows) = (self.plan.buffer(pushed).width, site.program.rows);
        if !width.is_multiple_of(PIECE) {
            let what = format!(
                "{ranks} ranks exchange rows of {width}, and only multiples of {PIECE} have a kernel"
            );
            return Err(no_kernel(site, self.plan, &what));
        }
        let capacity = self.inbox_rows(pushed);
        let prompts = matches!(site.program.regime, Regime::Prefill | Regime::Learn);
        let (pieces, resident) = split(ranks, prompts);
        let constants = vec![
            ("RANKS", integer(ranks)),
            ("WIDTH", integer(width)),
            ("ROWS", integer(rows)),
            ("CAPACITY", integer(capacity)),
            ("THREADS", integer(THREADS)),
            ("PIECES", integer(pieces)),
            ("LIMIT", limit(site, false)),
        ];
        let inbox_bytes = inbox_bytes(ranks, capacity, width);
        // The kernels find the inbox through the world.
        self.scratch::<World>(inbox, inbox_bytes as u64, false);
        let world = self.world();
        let bytes = vec![("world", WORLD_BYTES), ("inbox", inbox_bytes)];
        let blocks = (rows * width).div_ceil(PIECE * pieces * THREADS);
        let most = resident * self.card.multiprocessors as usize;
        let name = self.kernel_name(site, "");
        let instance = Instance { resident, bytes, ..Instance::new(name, constants, THREADS) };
        Ok(Exchange { instance, grid: fixed(blocks.clamp(1, most), 1, 1), world })
    }

    /// What a rank's kernels know of the ranks.
    pub(crate) fn world(&mut self) -> World {
        self.scratch("world", WORLD_BYTES as u64, true)
    }

    /// Most rows of this buffer in any program: each rank's slot in an inbox has as many.
    fn inbox_rows(&self, pushed: BufferId) -> usize {
        let buckets = self.plan.buckets;
        let decode = (buckets.sequences * (1 + self.plan.drafts())).next_power_of_two();
        match self.plan.buffer(pushed).rows {
            Rows::Outputs => decode,
            Rows::Tokens | Rows::Slots(_) => decode.max(buckets.tokens),
        }
    }
}
