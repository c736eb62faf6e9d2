//! What a build fixed, as constants that the generated crate fills in.

use crate::{KvScaleSpec, name};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};

/// A compiled model: every dimension, format and limit that the server reads.
#[derive(Clone, Copy, Debug)]
pub struct ModelSpec {
    /// `hardware/model/quant`.
    pub target: &'static str,
    /// The model's directory name, which `/v1/models` lists.
    pub model: &'static str,
    /// The files that the build was read from.
    pub specs: &'static [FileSpec],
    /// The commit of the project that built it, with `+` behind it if files differed from that; `None` where
    /// nobody said.
    pub commit: Option<&'static str>,
    /// The hardware it was compiled for.
    pub hardware: HardwareSpec,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Rows of the logits; ids at or above it are refused.
    pub vocabulary: usize,
    /// Longest sequence the model was trained for, in tokens.
    pub context: usize,
    /// Tokens a K/V block holds.
    pub block_tokens: usize,
    /// Bytes of one K/V block over all layers.
    pub block_bytes: usize,
    /// Bytes of recurrent state of one sequence over all layers, claimed at load for every sequence that may
    /// [run](crate::Model::sequences). 0 for a model with attention alone.
    pub state_bytes: u64,
    /// Most tokens one step may carry over all its sequences.
    pub step_tokens: usize,
    /// Most sequences one step may carry.
    pub step_sequences: usize,
    /// Formats of cached keys and values, but for `kv_exact_layers` layers, which keep them as bf16.
    pub kv_formats: KvFormats,
    /// See `kv_formats`.
    pub kv_exact_layers: usize,
    /// The static scales of keys and values that are [`Cached::Fp8`], if they are the checkpoint's; other
    /// static scales are 1 unless they are measured.
    pub kv_scales: Option<KvScaleSpec>,
    /// Elements of a token's keys and values over all layers that `block_bytes` counts.
    pub kv_elements: usize,
    /// Stored and compute format of each tensor class, in the quant spec's order.
    pub formats: &'static [ClassFormat],
    /// Every tensor of the checkpoint that the stack loads, ascending by name.
    pub tensors: &'static [TensorSpec],
    /// Tensors the checkpoint may hold besides: `{layer}` and `{expert}` stand for any number, `*` at the end
    /// for anything.
    pub unused: &'static [&'static str],
    /// Files of the checkpoint whose digests its quant spec names; none where it names none.
    pub files: &'static [FileSpec],
    /// Answers of the checkpoint's weights that the reference interpreter computed; empty where it was not
    /// run.
    pub canaries: &'static [CanarySpec],
    /// Bytes of weights on the device after repacking.
    pub weight_bytes: u64,
    /// Bytes of activations and scratch claimed at load.
    pub scratch_bytes: u64,
    /// The text protocol: template, stop ids, tool calls and reasoning.
    pub protocol: Protocol,
    /// What the model's makers recommend; the first is the default.
    pub sampling: &'static [SamplingPreset],
    /// What the plan predicts for this hardware.
    pub figures: Figures,
    /// How it drafts; `None` for a build without drafts.
    pub draft: Option<DraftSpec>,
    /// Its batch invariance; `None` for a build that promises none.
    pub batch_invariant: Option<BatchInvariantSpec>,
}

impl ModelSpec {
    /// Drafts of a sequence that a step verifies at most; 0 for a stack that verifies none.
    pub const fn drafts(&self) -> usize {
        match &self.draft {
            Some(draft) => draft.drafts,
            None => 0,
        }
    }

    /// Bits that an element of keys and values takes, scales and exact layers included; `None` for a model
    /// that keeps none.
    pub fn kv_bits(&self) -> Option<f64> {
        let elements = self.kv_elements * self.block_tokens;
        (elements > 0).then(|| 8.0 * self.block_bytes as f64 / elements as f64)
    }

    /// Tokens whose keys and values take 1e9 bytes, in whole blocks; `None` for a model that keeps none.
    pub fn kv_tokens_per_gb(&self) -> Option<usize> {
        1_000_000_000usize.checked_div(self.block_bytes).map(|blocks| blocks * self.block_tokens)
    }

    /// Whether static scales of its keys or values can be set by what is measured: a format has some, and
    /// they are not the checkpoint's.
    pub fn measures_kv(&self) -> bool {
        let measured =
            |format: Cached| format.has_static_scale() && (format != Cached::Fp8 || self.kv_scales.is_none());
        [self.kv_formats.keys, self.kv_formats.values].into_iter().any(measured)
    }

    /// How many of these it drafts itself after every token sampled: all or none.
    pub const fn drafted(&self) -> usize {
        match &self.draft {
            Some(DraftSpec {
                drafter: Drafter::Head | Drafter::Layers | Drafter::Block { .. },
                drafts,
                ..
            }) => *drafts,
            Some(DraftSpec { drafter: Drafter::Caller, .. }) | None => 0,
        }
    }

    /// Positions that draft passes write behind the last accepted token. A draft head's rows stand at the
    /// position before the token that they are about, so that its first pass writes none; the model's own
    /// layers are fed that token. A block has a row more than drafts, from the position of that token on.
    const fn written(&self) -> usize {
        match &self.draft {
            Some(DraftSpec { drafter: Drafter::Head, drafts, .. }) => *drafts - 1,
            Some(DraftSpec { drafter: Drafter::Layers, drafts, .. }) => *drafts,
            Some(DraftSpec { drafter: Drafter::Block { rows, .. }, .. }) => *rows,
            Some(DraftSpec { drafter: Drafter::Caller, .. }) | None => 0,
        }
    }

    /// Positions behind a sequence's tokens that a step which feeds the last of them may write: those of the
    /// drafts it verifies, and where it drafts itself and all of them hold, those that passes for the step
    /// after write.
    pub const fn reach(&self) -> usize {
        self.drafts() + self.written()
    }

    /// Positions behind what is fed to a sequence that is sampled for, so many `drafts` among it, which its
    /// blocks hold too: a stack that drafts goes on there; one that is given drafts may fill its rows up to
    /// as many as of those that have some.
    pub const fn ahead(&self, drafts: usize) -> usize {
        match self.drafted() {
            0 => self.drafts() - drafts,
            _ => self.written(),
        }
    }

    /// Most tokens that a sequence may have: [`Self::context`] less [`Self::reach`].
    pub const fn usable_context(&self) -> usize {
        self.context.saturating_sub(self.reach())
    }

    /// Chunk alignment: a prefill chunk that does not end its prompt ends at a multiple of so many tokens; 1
    /// where it may end anywhere.
    pub const fn chunk_alignment(&self) -> usize {
        match &self.batch_invariant {
            Some(invariant) => invariant.chunk_alignment,
            None => 1,
        }
    }

    /// Whether the checkpoint may hold a tensor of this name.
    pub fn knows(&self, name: &str) -> bool {
        let used = |tensor: &TensorSpec| {
            let found = name::find(tensor.name, name);
            found.is_some_and(|it| {
                it.layer.is_none_or(|layer| tensor.layers.contains(&layer))
                    && it.expert.is_none_or(|expert| expert < tensor.experts)
            })
        };
        self.tensors.iter().any(used)
            || self.kv_scales.is_some_and(|scales| scales.knows(name))
            || self.unused.iter().any(|pattern| name::find(pattern, name).is_some())
    }

    /// How many tensors the stack loads.
    pub fn tensor_count(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.layers.len().max(1) * tensor.experts.max(1)).sum()
    }
}

/// What makes the drafts that a stack verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// The stack's draft head, after every token sampled: [`Verified`](crate::Verified) returns the drafts.
    Head,
    /// The model's own layers that have no recurrent state, when [`Head`](Self::Head) would.
    Layers,
    /// The engine, by n-gram lookup: some steps give a sequence drafts, others do not.
    Caller,
    /// A drafter of blocks with weights of its own, when [`Head`](Self::Head) would.
    Block {
        /// Rows of a block: one for each draft, and that of the token sampled last.
        rows: usize,
        /// Positions that its layers attend to at most, where the build says so.
        window: Option<usize>,
    },
}

/// How the tokens that a stack's next step verifies are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftSpec {
    /// The method's name, such as `mtp`.
    pub method: &'static str,
    /// What makes the drafts.
    pub drafter: Drafter,
    /// Tokens drafted at a time; at least 1.
    pub drafts: usize,
    /// Only ids below this one can be drafted: the model's vocabulary, unless the draft head is cut.
    pub vocabulary: usize,
    /// For measuring speed only: drafts are accepted at this rate, whatever was sampled. The answers of such
    /// a build are meaningless.
    pub forced_acceptance: Option<f64>,
}

/// Batch invariance: a sequence's bits do not depend on what else is in its batch. Prompts always go through
/// the one prefill program and generated tokens through the one decode program, each of one size; this is
/// what that asks of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInvariantSpec {
    /// Chunk alignment: a prefill chunk that does not end its prompt ends at a multiple of so many tokens,
    /// where kernels sum in the same order on both sides. At least 1, and at most [`ModelSpec::step_tokens`].
    pub chunk_alignment: usize,
}

/// The length of the next prefill chunk of a prompt with `left` tokens from `position` on, in a step with
/// room for `room`: all of them, or as many as end at a multiple of `chunk_alignment`, which may be none.
pub const fn chunk(position: usize, left: usize, room: usize, chunk_alignment: usize) -> usize {
    if left <= room {
        return left;
    }
    let end = position + room;
    (end - end % chunk_alignment).saturating_sub(position)
}

/// The hardware a stack was compiled for.
#[derive(Clone, Copy, Debug)]
pub struct HardwareSpec {
    /// Directory name under `targets/hardware`.
    pub name: &'static str,
    /// CPU features (names as `std::is_x86_feature_detected!` takes them) the code was compiled with.
    pub features: &'static [&'static str],
    /// The GPU, where it runs on one.
    pub cuda: Option<CudaSpec>,
}

/// The GPU a stack was compiled for.
#[derive(Clone, Copy, Debug)]
pub struct CudaSpec {
    /// The architecture of its machine code, such as `sm_90a`.
    pub architecture: &'static str,
    /// Compute capability, major and minor: the device's must be the same.
    pub capability: (u32, u32),
    /// Multiprocessors. The device must have at least as many: blocks of some kernels wait for each other.
    pub multiprocessors: u32,
    /// The source of the figures that its kernels were tuned with.
    pub tuning: &'static str,
}

/// One line of the precision contract.
#[derive(Debug)]
pub struct ClassFormat {
    /// Tensor class, such as `attention` or `head`.
    pub class: &'static str,
    /// Format in the checkpoint.
    pub stored: Format,
    /// Format of the products computed with it, such as `int8-block32` or `f32`.
    pub compute: &'static str,
}

/// A tensor that the stack loads, or a family of them: one per layer, or one per expert of each layer.
#[derive(Debug)]
pub struct TensorSpec {
    /// Its name in the checkpoint, `{layer}` and `{expert}` standing for indices.
    pub name: &'static str,
    /// The layers that have it, ascending; none for a tensor outside the layers.
    pub layers: &'static [usize],
    /// Number of experts that have one each; 0 for a tensor that belongs to no expert.
    pub experts: usize,
    /// Rows by columns, outermost first.
    pub shape: &'static [usize],
    /// The only format accepted.
    pub format: Format,
}

/// A file whose content is known.
#[derive(Debug)]
pub struct FileSpec {
    /// Its name: of a file of a checkpoint without directories, of a spec below the targets directory.
    pub name: &'static str,
    /// SHA-256 of its bytes, in hex.
    pub sha256: &'static str,
}

/// A prompt and the greedy answer to it that the reference interpreter computed from the checkpoint's
/// weights.
#[derive(Debug)]
pub struct CanarySpec {
    /// Ids of the prompt.
    pub prompt: &'static [u32],
    /// Ids of the answer.
    pub answer: &'static [u32],
    /// The smallest margin, in logits, of a token of the answer over the runner-up: rounding may move logits
    /// by less without changing the answer.
    pub margin: f32,
}

/// The text protocol of a model.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Ids that end an answer.
    pub stop_ids: &'static [u32],
    /// Chat template to use instead of the checkpoint's own.
    pub chat_template: Option<&'static str>,
    /// Name of the format of its tool calls.
    pub tools: Option<&'static str>,
    /// Name of the format that marks its reasoning.
    pub reasoning: Option<&'static str>,
}

/// A set of recommended sampling parameters.
#[derive(Debug)]
pub struct SamplingPreset {
    /// Such as `default` or `precise`.
    pub name: &'static str,
    /// See `Sampling`.
    pub temperature: f32,
    /// See `Sampling`.
    pub top_p: f32,
    /// See `Sampling`.
    pub top_k: u32,
    /// See `Sampling`.
    pub min_p: f32,
    /// See `Sampling`.
    pub repetition_penalty: f32,
}

/// Speed as the plan predicts it, in tokens per second of one sequence (decode at the bench's mean context,
/// prefill of 512 tokens).
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Decode at the bandwidth limit: bytes per token over the memory bandwidth.
    pub limit_decode: f64,
    /// Prefill at the arithmetic or the bandwidth limit, whichever is slower.
    pub limit_prefill: f64,
    /// Decode as the sum of the phases' predicted times.
    pub predicted_decode: f64,
    /// Prefill as the sum of the phases' predicted times.
    pub predicted_prefill: f64,
    /// Bytes per second at which a sequence's memory is copied between the device and the host.
    pub copy_bandwidth: f64,
}
