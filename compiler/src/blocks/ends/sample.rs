//! Sampling: the number of blocks that share a row of logits, and of rows in progress at once.

use super::kernels::Sample;
use crate::kernels::{Arguments, Header, History, Ids, Rows, Sampled};
use crate::passes::launch::{Instance, Launcher, Outline, fits, fixed, integer};
use crate::passes::{PassError, pass_error};
use crate::plan::BufferId;
use crate::plan::cuda::{Launch, MAX_SEQUENCES};
use crate::spec::types::Cuda;

const THREADS: usize = 512;
/// Most blocks that share a row, and most groups of blocks (templates/cuda/sampling/sample_group.cuh).
const MAX_SPLITS: usize = 32;
const MAX_GROUPS: usize = 32;
/// Bins of a histogram, and most entries of a list.
const BINS: usize = 2048;
const MAX_LIST: usize = 512;

/// `SampleShared<C>`: the slice, the scratch of selections, the keys.
fn shared_bytes(vocabulary: usize, splits: usize) -> usize {
    let share = vocabulary.div_ceil(splits);
    let slice = share.div_ceil(THREADS).next_multiple_of(4) * THREADS;
    let list = 8 * MAX_LIST + 8 * (MAX_LIST + 1) + 4 * MAX_LIST;
    let filter = (4 * BINS).max(list.next_multiple_of(8)) + 4 * 32 + 8 * 32 + 16 + 8;
    (4 * (slice + slice / 32) + filter + 8 * 32 + 4 + 8 + 4 + 8 + 8).next_multiple_of(16)
}

/// `sizeof(SampleScratch)` for steps of up to `sequences` outputs.
fn scratch_bytes(sequences: usize) -> usize {
    let group = 32 * 4 + 3 * BINS * 4 + 2 * MAX_SPLITS * 8 + 8 * MAX_LIST;
    MAX_GROUPS * group + 4 * sequences + 8 * sequences * MAX_SPLITS
}

/// Groups, splits and resident blocks per multiprocessor: all blocks of the grid must be resident at once.
/// There are as many groups as rows, unless that leaves each fewer than eight blocks or makes a row's slices
/// exceed shared memory. Then there are as few groups as still need the same number of turns over the rows,
/// which leaves each row more blocks. There are no more splits than whole vectors for their threads.
fn division(vocabulary: usize, rows: usize, card: &Cuda) -> Option<(usize, usize, usize)> {
    let useful = vocabulary.div_ceil(4 * THREADS).min(MAX_SPLITS);
    [2, 1].into_iter().find_map(|resident| {
        let blocks = resident * card.multiprocessors as usize;
        let most = rows.min(MAX_GROUPS).min((blocks / useful.min(8)).max(1));
        let splits = |groups: usize| (blocks / groups).min(useful);
        let widest = (1..=most)
            .rev()
            .find(|groups| fits(card, shared_bytes(vocabulary, splits(*groups)), resident))?;
        let groups = rows.div_ceil(rows.div_ceil(widest));
        Some((groups, splits(groups), resident))
    })
}

impl Launcher<'_> {
    /// The launch that ends a decode or head program.
    pub(crate) fn sample(&mut self, outline: &Outline) -> Result<Launch, PassError> {
        let phase = self.plan.bodies[self.plan.head().0].phases.len();
        self.sample_of(outline, self.plan.logits(), phase, Header::STEP, Sampled::STEP)
    }

    /// Samples from rows of `logits`, as a header says.
    pub(crate) fn sample_of(
        &mut self,
        outline: &Outline,
        logits: BufferId,
        phase: usize,
        header: Header,
        sampled: Sampled,
    ) -> Result<Launch, PassError> {
        let vocabulary = self.plan.buffer(logits).width;
        let (groups, splits, resident) = division(vocabulary, outline.rows, self.card).ok_or_else(|| {
            pass_error!("rows of {vocabulary} logits do not fit the shared memory of `sample`'s blocks")
        })?;
        let scratch_bytes = scratch_bytes(MAX_SEQUENCES);
        let constants = vec![
            ("VOCABULARY", integer(vocabulary)),
            ("THREADS", integer(THREADS)),
            ("SPLITS", integer(splits)),
            ("GROUPS", integer(groups)),
        ];
        self.most[logits.0] = self.most[logits.0].max(outline.rows);
        let arguments = Sample {
            step: header,
            history: History::STEP,
            logits: Rows::buffer(logits),
            scratch: self.scratch("sample_scratch", scratch_bytes as u64, true),
            sampled_ids: Ids::SAMPLED,
            sampled,
        };
        let shared = shared_bytes(vocabulary, splits);
        let bytes = vec![("scratch", scratch_bytes)];
        let instance =
            Instance { resident, shared, bytes, ..Instance::new("sample".to_owned(), constants, THREADS) };
        let grid = fixed(splits, groups, 1);
        let kernel = self.kernel(outline, Sample::SIGNATURE, instance, &grid);
        Ok(Launch::new(phase, kernel, grid, arguments.list()))
    }
}
