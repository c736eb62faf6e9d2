//! Validated specs: holding one of these values proves that its checks have run.

mod batch;
mod draft;
mod file;
mod hardware;
mod model;
mod quant;
mod tuning;

pub use crate::blocks::dflash::{DFLASH_FILE, DFLASH_PREFIX, Dflash, DflashAttention, DflashLayer};
pub use crate::blocks::vision::{ImageTokens, VISION_PREFIX, Vision, VisionFamily};
pub use crate::blocks::{Ffn, Mixer};
pub use batch::{BatchInvariant, DECODE_BUCKETS};
pub use draft::{DraftMethod, DraftOption, Drafting};
pub use file::SpecFile;
pub use hardware::{Cpu, Cuda, Hardware, HardwareKind, Peers};
pub use model::{
    Activation, Around, Draft, LayerKind, Model, Norm, NormWeight, Protocol, REASONING_FORMATS, Rotary,
    RotaryPairs, RotaryScaling, SamplingPreset, TOOL_FORMATS,
};
pub use monomorph_formats::ScaleForm;
pub(crate) use quant::of_some_layers;
pub use quant::{
    Canary, CheckpointSpec, ClassScales, Companion, Compute, Container, DRAFT_PREFIX, Decay, FileTensor,
    HubFile, KvScaleNames, LEAST_MARGIN, OnePlusNorms, PerTensor, Quant, RotaryRows, RowView, Scales, Source,
    TensorClass, ValueHeads,
};
pub use tuning::{Knobs, PhaseTuning, Provenance, Settings, Tuning};

use monomorph_formats::cached::KvFormats;

/// Build options besides a target's name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BuildOptions {
    /// Drafting; `None` for a build that does not draft.
    pub draft: Option<DraftOption>,
    /// Sequences of the one decode program of a batch-invariant build, in which the batch size changes no bit
    /// of a row; `None` for other builds.
    pub batch_invariant: Option<usize>,
    /// Ranks that the model is cut for: devices that compute each token together; `None` for one.
    pub ranks: Option<usize>,
    /// Processes that these are spread over, on one host or several; `None` for one.
    pub hosts: Option<usize>,
    /// Whether each of them holds whole experts of a mixture.
    pub whole_experts: bool,
    /// Formats of keys and values in place of the quant spec's.
    pub kv: Option<KvFormats>,
    /// Whether it takes images.
    pub vision: bool,
    /// Most patches of an image in place of what a backend takes by default; with `vision` alone.
    pub image_patches: Option<usize>,
    /// Whether the server can take the time of each phase.
    pub profile: bool,
}

/// Ranks that compute each token together, and how they share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Their number.
    pub count: usize,
    /// Whether each holds whole experts of a mixture (expert parallelism), instead of a part of the width of
    /// every expert. All else is cut alike.
    pub whole_experts: bool,
}

impl Ranks {
    /// Ranks that have a part of everything.
    pub const fn tensor_parallel(count: usize) -> Ranks {
        Ranks { count, whole_experts: false }
    }

    /// Ranks that have whole experts.
    pub const fn expert_parallel(count: usize) -> Ranks {
        Ranks { count, whole_experts: true }
    }

    /// A build with these options, for these ranks.
    pub const fn of(self, options: BuildOptions) -> BuildOptions {
        BuildOptions { ranks: Some(self.count), whole_experts: self.whole_experts, ..options }
    }

    /// The option of a build that asks for them.
    pub const fn flag(self) -> &'static str {
        if self.whole_experts { "--ep" } else { "--tp" }
    }
}

/// A resolved target, `hardware/model/quant`.
#[derive(Clone, Debug)]
pub struct Target {
    /// Hardware it runs on.
    pub hardware: Hardware,
    /// Model it runs.
    pub model: Model,
    /// The model's vision tower, if VISION.toml describes one; built where `vision` is set.
    pub tower: Option<Vision>,
    /// The model's drafter of blocks, if DFLASH.toml describes one; built where `draft` says so, with the
    /// window that the build asked for.
    pub dflash: Option<Dflash>,
    /// Formats of its weights and products.
    pub quant: Quant,
    /// Tuning of its CUDA kernels; `None` on other hardware.
    pub tuning: Option<Tuning>,
    /// The files that say all this.
    pub specs: Vec<SpecFile>,
    /// Drafting; `None` for a build that does not draft. Only a build that drafts with a draft head loads it.
    pub draft: Option<Drafting>,
    /// Batch invariance, if the build has it.
    pub batch_invariant: Option<BatchInvariant>,
    /// Ranks that compute each token together, a device each; 1 for one device.
    pub ranks: usize,
    /// Processes that these are spread over, which exchange values through NCCL; 1 for one process, whose
    /// devices exchange them by themselves.
    pub hosts: usize,
    /// Whether each rank holds whole experts of a mixture.
    pub whole_experts: bool,
    /// Formats of keys and values that the build asked for; `quant` has them too.
    pub kv: Option<KvFormats>,
    /// Whether it takes images, with the vision tower.
    pub vision: bool,
    /// Most patches of an image, where the build says.
    pub image_patches: Option<usize>,
    /// Whether its server can take the time of each phase.
    pub profile: bool,
    /// Whether its CUDA kernels are built so that compute-sanitizer's racecheck can follow their barriers:
    /// slower, and only for that tool.
    pub racecheck: bool,
}

impl Target {
    /// Drafts that its steps verify of a sequence.
    pub fn drafts(&self) -> usize {
        self.draft.map_or(0, |draft| draft.drafts)
    }

    /// Whether its stack drafts itself, in passes behind its steps.
    pub fn draft_passes(&self) -> bool {
        self.draft.is_some_and(|draft| draft.method != DraftMethod::Ngram)
    }

    /// The drafter of blocks that it is built with.
    pub fn drafter(&self) -> Option<&Dflash> {
        let built = self.draft.is_some_and(|draft| draft.method.is_dflash());
        self.dflash.as_ref().filter(|_| built)
    }

    /// How ranks share the model.
    pub fn shared_by(&self) -> Ranks {
        Ranks { count: self.ranks, whole_experts: self.whole_experts }
    }

    /// Name of the target, `hardware/model/quant`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.hardware.name, self.model.name, self.quant.name)
    }

    /// Unique name of this build of the target: its name, and after a `+` the options chosen. It names
    /// directories.
    pub fn build(&self) -> String {
        let draft = self.draft.map_or(String::new(), |draft| format!("+{}", draft.name(&self.model)));
        let invariant = self.batch_invariant.map_or(String::new(), |it| format!("+{}", it.name()));
        let kind = if self.whole_experts { "ep" } else { "tp" };
        let ranks = if self.ranks > 1 { format!("+{kind}{}", self.ranks) } else { String::new() };
        let hosts = if self.hosts > 1 { format!("+hosts{}", self.hosts) } else { String::new() };
        let kv = self.kv.map_or(String::new(), |kv| format!("+kv-{}", kv.file_name()));
        let vision = match (self.vision, self.image_patches) {
            (false, _) => String::new(),
            (true, None) => "+vision".to_owned(),
            (true, Some(patches)) => format!("+vision-{patches}"),
        };
        let profile = if self.profile { "+profile" } else { "" };
        let racecheck = if self.racecheck { "+racecheck" } else { "" };
        self.name() + &draft + &invariant + &ranks + &hosts + &kv + &vision + profile + racecheck
    }
}
