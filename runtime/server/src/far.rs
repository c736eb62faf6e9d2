//! Sequences that are longer than memory: flags, and what they mean for a model.

use crate::out;
use monomorph_engine::FarShare;
use monomorph_model::{FarOptions, FarRoom, ModelSpec};
use std::num::NonZero;
use std::path::PathBuf;

/// About how many bytes are written and read at a time: enough to be worth an access, and few enough that sequences need not have
/// many blocks before some can go.
const PAGE_BYTES: usize = 128 << 10;
/// Pages on their way at a time unless told otherwise.
const DEPTH: u32 = 16;

/// Room on disk for what sequences have beyond their share of memory.
#[derive(Clone, Debug, clap::Args)]
pub struct FarArgs {
    /// Let sequences be longer than their share of memory: their oldest keys and values go to a file in this directory, on a fast
    /// disk, and every step reads them from there.
    #[arg(long, value_name = "DIR")]
    pub high_speed_swap: Option<PathBuf>,
    /// Size of that file, claimed at the start [default: twice what a sequence of --context takes].
    #[arg(long, value_name = "GB", requires = "high_speed_swap")]
    pub high_speed_swap_space: Option<f64>,
    /// Most reads and writes of the file on their way at a time [default: 16].
    #[arg(long, value_name = "N", requires = "high_speed_swap")]
    pub high_speed_swap_depth: Option<NonZero<u32>>,
    /// Blocks of a sequence that stay in memory [default: half of all].
    #[arg(long, value_name = "N", requires = "high_speed_swap")]
    pub resident_blocks: Option<NonZero<usize>>,
}

impl FarArgs {
    /// Whether sequences may be longer than memory.
    pub(crate) fn is_on(&self) -> bool {
        self.high_speed_swap.is_some()
    }

    /// Bytes that are claimed for reading, about: of most models as many, whatever the context.
    pub(crate) fn staging(&self, spec: &ModelSpec) -> u64 {
        // Five windows of 2 MiB, or of ten blocks of a layer where these are larger; one layer of four may attend.
        let part = (4 * spec.block_bytes / spec.layers.max(1)) as u64;
        if self.is_on() { 5 * (10 * part).max(2 << 20) } else { 0 }
    }

    /// What the model and the engine are told, where there are `blocks` blocks.
    ///
    /// # Errors
    /// When this build cannot, or the numbers leave nothing to work with.
    pub(crate) fn options(
        &self,
        spec: &ModelSpec,
        context: usize,
        blocks: Option<usize>,
    ) -> Result<Option<(FarOptions, FarShare)>, String> {
        let Some(directory) = &self.high_speed_swap else { return Ok(None) };
        let flag = format!("--high-speed-swap {}", directory.display());
        let Some(blocks) = blocks.filter(|_| spec.hardware.cuda.is_none()) else {
            return Err(format!("{flag}: servers for GPUs keep all keys and values on the card"));
        };
        if spec.block_bytes == 0 {
            return Err(format!("{flag}: {} has no keys and values", spec.model));
        }
        if !directory.is_dir() {
            return Err(format!("{flag}: there is no such directory"));
        }
        let needed = context.div_ceil(spec.block_tokens) as u64 * spec.block_bytes as u64;
        let bytes = match self.high_speed_swap_space {
            None => 2 * needed,
            Some(space) if space > 0.0 && space.is_finite() => (space * out::GB) as u64,
            Some(space) => return Err(format!("--high-speed-swap-space {space} is not above 0")),
        };
        let resident = self.resident_blocks.map_or((blocks / 2).max(1), NonZero::get);
        if resident > blocks {
            return Err(format!("--resident-blocks {resident}: there are {blocks} blocks in all"));
        }
        let options = FarOptions {
            directory: directory.clone(),
            bytes,
            depth: self.high_speed_swap_depth.map_or(DEPTH, NonZero::get),
            page_bytes: PAGE_BYTES,
            window_pages: None,
        };
        // What there is room for is known when the file is there.
        let room = FarRoom { places: 0, group: 1 };
        Ok(Some((options, FarShare { room, resident })))
    }
}
