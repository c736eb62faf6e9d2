//! Launches of exchanges.

use super::Sum;
use super::kernels::{ExchangeGather, ExchangeSum, GatheredRows, GatheredSum};
use crate::blocks::PhaseKind;
use crate::blocks::products::cuda::limit;
use crate::graph::Rows;
use crate::kernels::{Operand, Rows as RowsOf, World};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, REPLACING, Site, Summing, fixed, integer, no_kernel};
use crate::plan::BufferId;
use crate::plan::cuda::{AllGather, Constant, Extent, Launch, Regime};
use monomorph_abi::world::{PIECE, WORLD_BYTES, inbox_bytes};

/// Threads of a block. A row of one token is two blocks of them, or a few.
const THREADS: usize = 256;

/// Pieces that a thread has under way at a time, and blocks a multiprocessor, which run together: as many as
/// registers allow.
fn split(ranks: usize, prompts: bool) -> (usize, usize) {
    match (ranks, prompts) {
        (..=2, true) => (2, 4),
        // Two-shot: a piece of each rank (templates/cuda/exchange/sum_two_shot.cuh).
        (_, true) => (ranks, 2),
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

/// An exchange of processes: what is gathered, and the kernel behind.
struct Gathered {
    instance: Instance,
    grid: [Extent; 3],
    gathered: RowsOf,
    gather: AllGather,
}

/// Blocks a multiprocessor of the kernels behind what processes gather.
const BLOCKS: usize = 4;

impl Launcher<'_> {
    /// The sum over ranks of what this phase adds to `part`, if nothing else is added to it. Its kernel may
    /// then make the sum, which saves a launch. Only decode programs do: prompts have more blocks than are on
    /// the card together. Between processes NCCL gathers the parts.
    pub(crate) fn sum_of(&self, site: Site, part: BufferId) -> Option<Sum> {
        if site.program.regime != Regime::Decode || self.plan.target.hosts > 1 {
            return None;
        }
        let phases = self.plan.bodies[site.body].phases.iter().enumerate().skip(site.phase);
        let mut sums = phases.filter_map(|(at, phase)| match phase.kind {
            PhaseKind::Sum(sum) if sum.part == part => Some((at, sum)),
            _ => None,
        });
        let (at, sum) = sums.next()?;
        (self.adders(site.body, at, &sum) == [site.phase]).then_some(sum)
    }

    /// Whether the phase that computes this rank's part has summed it with the others' in this program.
    /// `site`: of the sum.
    pub(crate) fn is_summed(&self, site: Site, sum: &Sum) -> Result<bool, PassError> {
        match self.adders(site.body, site.phase, sum)[..] {
            [phase] => {
                self.plan.bodies[site.body].phases[phase].kind.kind().sums(self, Site { phase, ..site })
            }
            _ => Ok(false),
        }
    }

    /// The phases of a body that compute a rank's part of the sum that is its phase `at`. The sums of a body
    /// may follow each other in one buffer.
    fn adders(&self, body: usize, at: usize, sum: &Sum) -> Vec<usize> {
        let (phases, part) = (&self.plan.bodies[body].phases, sum.part);
        let zeros = |kind: &PhaseKind| matches!(kind, PhaseKind::Zeros(it) if it.out == part);
        let writes = |at: &usize| phases[*at].kind.buffers().1.contains(&part);
        if !sum.adds() {
            // The buffer held other values before.
            return (0..at).rfind(writes).into_iter().collect();
        }
        let begin = phases[..at].iter().rposition(|it| zeros(&it.kind)).map_or(0, |at| at + 1);
        (begin..at).filter(writes).collect()
    }

    /// The world of a kernel that sums rows as wide as `residual`'s over the ranks.
    pub(crate) fn summing(&mut self, residual: BufferId) -> Summing {
        let (ranks, rows) = (self.plan.target.ranks, self.inbox_rows(residual));
        let (world, bytes) = self.inbox("sum_inbox", residual);
        Summing { world, constants: [("RANKS", integer(ranks)), ("INBOX_ROWS", integer(rows))], bytes }
    }

    /// A buffer that parts of a body are summed to: what all sums of squares share the inbox with.
    pub(crate) fn summed(&self, body: usize) -> Option<BufferId> {
        self.plan.bodies[body].phases.iter().find_map(|phase| match phase.kind {
            PhaseKind::Sum(Sum { residual, .. }) => Some(residual),
            _ => None,
        })
    }

    /// Adds the partial sums of all ranks to the residual stream, and zeroes this rank's; or puts their sum
    /// in its place.
    ///
    /// # Errors
    /// When rows are no whole pieces.
    pub(crate) fn exchange_sum(&mut self, site: Site, sum: &Sum) -> Result<Launch, PassError> {
        let Sum { part: partial, residual } = *sum;
        let replaces = (!sum.adds()).then_some(REPLACING);
        if self.plan.target.hosts > 1 {
            let Gathered { mut instance, grid, gathered, gather } = self.gathered(site, partial)?;
            instance.constants.extend(replaces);
            let partial = self.buffer(site, partial);
            let arguments =
                GatheredSum { step: site.header, gathered, partial, residual: self.buffer(site, residual) };
            return Ok(Launch { gathers: Some(gather), ..self.launch(site, instance, grid, arguments) });
        }
        let Exchange { mut instance, grid, world } = self.exchange(site, partial, "sum_inbox")?;
        let decode = matches!(site.program.regime, Regime::Decode | Regime::Draft);
        instance.constants.push(("DECODE", Constant::Flag(decode)));
        instance.constants.extend(replaces);
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
        if self.plan.target.hosts > 1 {
            let Gathered { instance, grid, gathered, gather } = self.gathered(site, part)?;
            let arguments = GatheredRows { step: site.header, gathered, out: self.buffer(site, out) };
            return Ok(Launch { gathers: Some(gather), ..self.launch(site, instance, grid, arguments) });
        }
        let Exchange { instance, grid, world } = self.exchange(site, part, "gather_inbox")?;
        let part = self.buffer(site, part);
        let arguments = ExchangeGather { step: site.header, world, part, out: self.buffer(site, out) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// An exchange of rows of `pushed` through the scratch buffer `inbox`.
    fn exchange(&mut self, site: Site, pushed: BufferId, inbox: &str) -> Result<Exchange, PassError> {
        let (ranks, rows) = (self.plan.target.ranks, site.program.rows);
        let width = self.width_in_pieces(site, pushed)?;
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
        let (world, bytes) = self.inbox(inbox, pushed);
        let blocks = (rows * width).div_ceil(PIECE * pieces * THREADS);
        let most = resident * self.card.multiprocessors as usize;
        let name = self.kernel_name(site, "");
        let instance = Instance { resident, bytes, ..Instance::new(name, constants, THREADS) };
        Ok(Exchange { instance, grid: fixed(blocks.clamp(1, most), 1, 1), world })
    }

    /// The values of a row of `buffer`, which kernels of exchanges take in whole pieces.
    fn width_in_pieces(&self, site: Site, buffer: BufferId) -> Result<usize, PassError> {
        let (ranks, width) = (self.plan.target.ranks, self.plan.buffer(buffer).width);
        if width.is_multiple_of(PIECE) {
            return Ok(width);
        }
        let what =
            format!("{ranks} ranks exchange rows of {width}, and only multiples of {PIECE} have a kernel");
        Err(no_kernel(site, self.plan, &what))
    }

    /// The world, with room for an inbox of this name for rows of `pushed`, and the bytes of both.
    fn inbox(&mut self, inbox: &str, pushed: BufferId) -> (World, Vec<(&'static str, usize)>) {
        let (rows, width) = (self.inbox_rows(pushed), self.plan.buffer(pushed).width);
        let bytes = inbox_bytes(self.plan.target.ranks, rows, width);
        // The kernels find the inbox through the world.
        self.scratch::<World>(inbox, bytes as u64, false);
        (self.world(), vec![("world", WORLD_BYTES), ("inbox", bytes)])
    }

    /// What processes gather of `part`, and the kernel that reads it. Whatever is gathered goes through one
    /// buffer: the kernel behind has read it before more is.
    fn gathered(&mut self, site: Site, part: BufferId) -> Result<Gathered, PassError> {
        let (ranks, rows) = (self.plan.target.ranks, site.program.rows);
        let width = self.width_in_pieces(site, part)?;
        // A recording has one number of rows. What is launched one by one has the step's.
        let [count, ..] = self.grid_of_rows(site, 1);
        let bytes = ranks * rows * width * size_of::<f32>();
        let to: RowsOf = self.scratch("gathered", bytes as u64, false);
        let gather =
            AllGather { from: self.buffer(site, part).argument(), to: to.argument(), rows: count, width };
        let constants = vec![
            ("RANKS", integer(ranks)),
            ("WIDTH", integer(width)),
            ("ROWS", integer(rows)),
            ("ALL_ROWS", Constant::Flag(matches!(count, Extent::Fixed(_)))),
            ("THREADS", integer(THREADS)),
            ("LIMIT", limit(site, false)),
        ];
        let name = self.kernel_name(site, "");
        let instance =
            Instance { bytes: vec![("gathered", bytes)], ..Instance::new(name, constants, THREADS) };
        let blocks = (rows * width).div_ceil(PIECE * THREADS);
        let most = BLOCKS * self.card.multiprocessors as usize;
        Ok(Gathered { instance, grid: fixed(blocks.clamp(1, most), 1, 1), gathered: to, gather })
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
            // What is summed is the text's. A tower, which is whole on every rank, has its values in the same
            // buffers, and more rows of them.
            Rows::Tokens | Rows::Slots(_) | Rows::Patches | Rows::ImageTokens => decode.max(buckets.tokens),
        }
    }
}
