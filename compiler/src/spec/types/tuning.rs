//! Tuning of CUDA kernels: numbers that change speed but never results.

use crate::spec::reader::{list, nearest};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The knobs of one phase and bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Most rows of a step whose products stream the weights past f32 activations. More rows are staged and
    /// use tensor cores.
    pub stream_rows: u32,
    /// Blocks of a streaming product per multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Stages of a streaming block's ring of weights in shared memory.
    pub ring_stages: u32,
    /// Bytes of one stage of that ring, a multiple of 512.
    pub stage_bytes: u32,
    /// Consumer warps of a streaming block: 4, 8 or 16 (other numbers are rounded down). More warps hide
    /// latency, which formats with many decoding instructions need; more than 8 leave no registers for the
    /// next kernel's block.
    pub stream_warps: u32,
    /// Streaming kernels resident on a multiprocessor at a time. With 2, the next kernel fills its ring while
    /// this one works, provided that every phase fills the multiprocessors evenly. With 1, no multiprocessor
    /// gets two blocks of one kernel while another gets none. 0 leaves the choice to the planner.
    pub stream_kernels: u32,
    /// Most rows of a step whose two expert products are one launch, which hands inner values from block to
    /// block, rather than two launches.
    pub experts_together: u32,
    /// KiB of the next layer's weights that the experts' kernel of a mixture prefetches into L2: it leaves
    /// memory idle most of its time.
    pub fetch_ahead: u32,
    /// Splits of a sequence's cached tokens in decode attention; 0 leaves the choice to the planner.
    pub attention_splits: u32,
    /// Outputs (rows of the weight matrix) of one tile of a tensor-core product.
    pub gemm_outputs: u32,
    /// Most token rows of one tile of a tensor-core product.
    pub gemm_rows: u32,
    /// Inputs (columns of the weight matrix) of one stage of a tensor-core product.
    pub gemm_inputs: u32,
    /// Stages of a tensor-core product's pipeline.
    pub gemm_stages: u32,
}

impl Knobs {
    /// Keys in TOML files, each with its smallest and largest value.
    pub const KEYS: [(&'static str, u32, u32); 13] = [
        ("stream_rows", 0, 8),
        ("blocks_per_multiprocessor", 1, 16),
        ("ring_stages", 2, 32),
        ("stage_bytes", 512, 65_536),
        ("stream_warps", 4, 16),
        ("stream_kernels", 0, 2),
        ("experts_together", 0, 2),
        ("fetch_ahead", 0, 32_768),
        ("attention_splits", 0, 256),
        ("gemm_outputs", 16, 256),
        ("gemm_rows", 8, 256),
        ("gemm_inputs", 16, 512),
        ("gemm_stages", 1, 16),
    ];

    /// The knob of a key; `None` if the key is not one of [`Knobs::KEYS`].
    pub fn get_mut(&mut self, key: &str) -> Option<&mut u32> {
        Some(match key {
            "stream_rows" => &mut self.stream_rows,
            "blocks_per_multiprocessor" => &mut self.blocks_per_multiprocessor,
            "ring_stages" => &mut self.ring_stages,
            "stage_bytes" => &mut self.stage_bytes,
            "stream_warps" => &mut self.stream_warps,
            "stream_kernels" => &mut self.stream_kernels,
            "experts_together" => &mut self.experts_together,
            "fetch_ahead" => &mut self.fetch_ahead,
            "attention_splits" => &mut self.attention_splits,
            "gemm_outputs" => &mut self.gemm_outputs,
            "gemm_rows" => &mut self.gemm_rows,
            "gemm_inputs" => &mut self.gemm_inputs,
            "gemm_stages" => &mut self.gemm_stages,
            _ => return None,
        })
    }
}

/// Knobs that a tuning file sets, by key.
pub type Settings = BTreeMap<String, u32>;

/// Settings of a tuning file for one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhaseTuning {
    /// Settings for every bucket.
    pub all: Settings,
    /// Settings by bucket: a number of rows, or `None` for prefill.
    pub buckets: BTreeMap<Option<usize>, Settings>,
    /// Line of the file on which it begins.
    pub line: usize,
}

/// Origin of the knobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// HARDWARE.toml's `[defaults]`.
    Defaults,
    /// A tuning file, which overrides the defaults.
    Measured {
        /// Path relative to the targets directory.
        file: PathBuf,
        /// The card it was measured on.
        card: String,
        /// Date of the measurement: year, month and day.
        date: String,
        /// The command that measured it.
        command: String,
    },
}

/// The knobs of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// HARDWARE.toml's `[defaults]`.
    pub defaults: Knobs,
    /// Knobs of phases without settings of their own.
    pub knobs: Knobs,
    /// Settings by phase name, as the plan names phases.
    pub phases: BTreeMap<String, PhaseTuning>,
    /// Origin of the knobs.
    pub provenance: Provenance,
}

impl Tuning {
    /// The knobs of `phase` at `bucket` rows, or in prefill at `None`.
    pub fn of(&self, phase: &str, bucket: Option<usize>) -> Knobs {
        let mut knobs = self.knobs;
        if let Some(tuning) = self.phases.get(phase) {
            for (key, value) in tuning.all.iter().chain(tuning.buckets.get(&bucket).into_iter().flatten()) {
                if let Some(knob) = knobs.get_mut(key) {
                    *knob = *value;
                }
            }
        }
        knobs
    }

    /// The mistake of a tuning file that names phases the plan does not have. The planner asks for it, since
    /// the loader does not know the phases yet.
    pub fn unknown_phase<'p>(&self, known: impl Iterator<Item = &'p str> + Clone) -> Option<String> {
        let (name, phase) =
            self.phases.iter().find(|(name, _)| !known.clone().any(|it| it == name.as_str()))?;
        let Provenance::Measured { file, .. } = &self.provenance else { return None };
        let near = nearest(name, known.clone()).map(|near| format!("did you mean `{near}`?"));
        let help = near.unwrap_or_else(|| format!("known here: {}", list(known)));
        Some(format!("{}:{}: the plan has no phase `{name}`; {help}", file.display(), phase.line))
    }
}
