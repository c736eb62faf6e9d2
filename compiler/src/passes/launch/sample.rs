//! Sampling: how many blocks share a row of logits, and how many rows are worked on at once.

use super::product::count;
use super::{Launcher, Outline, fixed, fits, integer};
use crate::passes::{PassError, pass_error};
use crate::plan::cuda::{Argument, Kernel, Launch};
use crate::spec::types::Cuda;

const THREADS: usize = 512;
/// Most blocks that share a row, most groups of blocks (templates/cuda/lib/sample_group.cuh).
const MAX_SPLITS: usize = 32;
const MAX_GROUPS: usize = 32;
/// Bins of a histogram.
const BINS: usize = 2048;

/// `SampleShared<C>`: the slice, the scratch of selections, keys.
fn shared_bytes(vocabulary: usize, splits: usize) -> usize {
    let share = vocabulary.div_ceil(splits);
    let slice = share.div_ceil(THREADS).next_multiple_of(4) * THREADS;
    let filter = 4 * BINS + 4 * 32 + 8 * 32 + 16 + 8;
    (4 * slice + filter + 8 * 32 + 8).next_multiple_of(16)
}

/// `sizeof(SampleScratch)` for steps of up to `sequences` outputs.
fn scratch_bytes(sequences: usize) -> usize {
    let group = 32 * 4 + 3 * BINS * 4 + 2 * MAX_SPLITS * 8 + 32 * 8;
    MAX_GROUPS * group + 4 * sequences + 8 * sequences * MAX_SPLITS
}

/// Groups and splits: all blocks must be resident at once, so there are no more of them than multiprocessors. As many
/// groups as there are rows, unless a row's slices then grow beyond a block's shared memory; with eight blocks a row, waiting
/// for one another costs less than the row.
fn division(vocabulary: usize, rows: usize, card: &Cuda) -> Option<(usize, usize)> {
    let blocks = card.multiprocessors as usize;
    let most = rows.min(MAX_GROUPS).min((blocks / 8).max(1));
    (1..=most).rev().map(|groups| (groups, (blocks / groups).min(MAX_SPLITS))).find(|(_, splits)| {
        fits(card, shared_bytes(vocabulary, *splits), 1)
    })
}

impl Launcher<'_> {
    /// The launch that ends a decode or head program.
    pub(super) fn sample(&mut self, outline: &Outline) -> Result<Launch, PassError> {
        let last = self.plan.bodies.last().and_then(|body| body.phases.last()).expect("a graph ends with its logits");
        let logits = last.kind.buffers().1;
        let vocabulary = self.plan.buffer(logits).width;
        let (groups, splits) = division(vocabulary, outline.rows, self.card)
            .ok_or_else(|| pass_error!("rows of {vocabulary} logits do not fit the shared memory of `sample`'s blocks"))?;
        let constants = vec![
            ("VOCABULARY", integer(vocabulary)),
            ("THREADS", integer(THREADS)),
            ("SPLITS", integer(splits)),
            ("GROUPS", integer(groups)),
        ];
        let kernel = Kernel {
            name: "sample".to_owned(),
            template: "sample",
            constants,
            block: count(THREADS),
            resident: 1,
            cluster: 1,
            shared: count(shared_bytes(vocabulary, splits)),
            decode: false,
        };
        let kernel = self.kernel(outline, kernel);
        self.most[logits.0] = self.most[logits.0].max(outline.rows);
        let scratch = self.scratch("sample_scratch", scratch_bytes(self.plan.buckets.sequences) as u64, true);
        let arguments = vec![
            Argument::Step,
            Argument::History,
            Argument::Buffer(logits),
            scratch,
            Argument::SampledIds,
            Argument::SampledOut,
        ];
        let phase = self.plan.bodies.last().map_or(0, |body| body.phases.len());
        Ok(Launch { phase, kernel, grid: fixed(groups * splits, 1, 1), arguments })
    }
}
