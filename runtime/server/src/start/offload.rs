//! K/V offload to disk: flags, and the model's options.

use crate::process::out;
use monomorph_model::{ModelSpec, OffloadOptions};
use std::num::NonZero;
use std::path::PathBuf;

/// Default size of a transfer in KiB: large enough to be worth an access, and small enough that short
/// sequences can offload too.
const PAGE: usize = 128;
/// Default number of transfers at a time.
const DEPTH: u32 = 16;

/// Flags of K/V offload.
#[derive(Clone, Debug, clap::Args)]
pub struct OffloadArgs {
    /// Let sequences be longer than their share of memory: their oldest keys and values go to a file in this
    /// directory, on a fast disk, and every step reads them from there.
    #[arg(long, value_name = "DIR")]
    pub high_speed_swap: Option<PathBuf>,
    /// Size of that file, claimed at the start [default: twice what a sequence of --context takes].
    #[arg(long, value_name = "GB", requires = "high_speed_swap")]
    pub high_speed_swap_space: Option<f64>,
    /// Most reads and writes of the file in flight [default: 16].
    #[arg(long, value_name = "N", requires = "high_speed_swap")]
    pub high_speed_swap_depth: Option<NonZero<u32>>,
    /// About how much of a layer's keys and values is written and read at a time: the more, the fewer
    /// accesses, and the more blocks that a sequence has to have beyond its share before any go [default:
    /// 128].
    #[arg(long, value_name = "KiB", requires = "high_speed_swap", value_parser = clap::value_parser!(u32).range(4..=16384))]
    pub high_speed_swap_page: Option<u32>,
    /// Blocks of a sequence that stay in memory [default: half of all].
    #[arg(long, value_name = "N", requires = "high_speed_swap")]
    pub resident_blocks: Option<NonZero<usize>>,
}

impl OffloadArgs {
    /// Whether K/V offload is on.
    pub(crate) fn is_on(&self) -> bool {
        self.high_speed_swap.is_some()
    }

    /// Bytes of the staging buffers, about: the same for most models, whatever the context.
    pub(crate) fn staging(&self, spec: &ModelSpec) -> u64 {
        // Five windows of 2 MiB, or of ten blocks of a layer and two pages where these are larger; one layer
        // of four may attend.
        let part = (4 * spec.block_bytes / spec.layers.max(1)) as u64;
        if self.is_on() { 5 * (10 * part + 2 * self.page_bytes() as u64).max(2 << 20) } else { 0 }
    }

    fn page_bytes(&self) -> usize {
        self.high_speed_swap_page.map_or(PAGE, |page| page as usize) << 10
    }

    /// The model's options, with `blocks` blocks, or as many as its device holds.
    ///
    /// # Errors
    /// When this build cannot offload, or the sizes do not fit.
    pub(crate) fn options(
        &self,
        spec: &ModelSpec,
        context: usize,
        blocks: Option<usize>,
    ) -> Result<Option<OffloadOptions>, String> {
        let Some(directory) = &self.high_speed_swap else { return Ok(None) };
        let flag = format!("--high-speed-swap {}", directory.display());
        if spec.hardware.cuda.is_some() && spec.drafted() > 0 {
            return Err(format!(
                "{flag}: servers for GPUs that draft by themselves keep all keys and values on the card"
            ));
        }
        if spec.block_bytes == 0 {
            return Err(format!("{flag}: {} has no keys and values", spec.model));
        }
        if !directory.is_dir() {
            return Err(format!("{flag}: there is no such directory; make it first"));
        }
        let needed = context.div_ceil(spec.block_tokens) as u64 * spec.block_bytes as u64;
        let bytes = match self.high_speed_swap_space {
            None => 2 * needed,
            Some(space) if space > 0.0 && space.is_finite() => (space * out::GB) as u64,
            Some(space) => {
                return Err(format!("--high-speed-swap-space {space}: must be a number of GB above 0"));
            }
        };
        if let (Some(resident), Some(blocks)) = (self.resident_blocks, blocks)
            && resident.get() > blocks
        {
            return Err(format!(
                "--resident-blocks {resident}: must be at most {blocks}, the blocks that there are"
            ));
        }
        Ok(Some(OffloadOptions {
            directory: directory.clone(),
            bytes,
            depth: self.high_speed_swap_depth.map_or(DEPTH, NonZero::get),
            page_bytes: self.page_bytes(),
            resident: self.resident_blocks,
            window_pages: None,
        }))
    }
}
