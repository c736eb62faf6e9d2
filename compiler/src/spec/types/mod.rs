//! What a person wrote, validated: holding one of these values is proof that its checks ran.

mod batch;
mod draft;
mod hardware;
mod model;
mod quant;
mod tuning;

pub use crate::blocks::{Ffn, Mixer};
pub use batch::BatchInvariant;
pub use draft::{DraftMethod, DraftOption, Drafting};
pub use hardware::{Cpu, Cuda, Hardware, HardwareKind};
pub use model::{
    Activation, Draft, LayerKind, Model, Norm, NormWeight, Protocol, REASONING_FORMATS, Rotary, RotaryPairs,
    RotaryScaling, SamplingPreset, TOOL_FORMATS,
};
pub use monomorph_abi::state::DeltaShape;
pub use monomorph_formats::ScaleForm;
pub use quant::{
    Canary, CheckpointSpec, ClassScales, Companion, Compute, Container, DRAFT_PREFIX, FileTensor, HubFile,
    LEAST_MARGIN, PerTensor, Quant, RotaryRows, RowView, Scales, Source, TensorClass,
};
pub use tuning::{Knobs, PhaseTuning, Provenance, Settings, Tuning};

/// What was asked for besides a target's name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BuildOptions {
    /// What it is to draft with; `None` for a build that does not.
    pub draft: Option<DraftOption>,
    /// How many sequences its one decode program is to take, where the size of a batch is to change no bit of
    /// a row.
    pub batch_invariant: Option<usize>,
}

/// `hardware/model/quant`, resolved.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it runs.
    pub hardware: Hardware,
    /// What runs.
    pub model: Model,
    /// In which formats.
    pub quant: Quant,
    /// How its CUDA kernels are cut; `None` for hardware of another kind.
    pub tuning: Option<Tuning>,
    /// How it drafts; `None` for a build that does not. A draft head is held and read only by a build that
    /// drafts with it.
    pub draft: Option<Drafting>,
    /// Where the size of a batch changes no bit of a row: how.
    pub batch_invariant: Option<BatchInvariant>,
    /// Whether its CUDA kernels are built so that compute-sanitizer's racecheck can follow their barriers:
    /// slower, and for nothing else.
    pub racecheck: bool,
}

impl Target {
    /// `hardware/model/quant`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.hardware.name, self.model.name, self.quant.name)
    }

    /// What this build of the target is called, which no other build of it is: its name, and behind a `+`
    /// what was chosen besides. It names directories.
    pub fn build(&self) -> String {
        let draft = self.draft.map_or(String::new(), |draft| format!("+{}", draft.name(&self.model)));
        let invariant = self.batch_invariant.map_or(String::new(), |it| format!("+{}", it.name()));
        let racecheck = if self.racecheck { "+racecheck" } else { "" };
        self.name() + &draft + &invariant + racecheck
    }
}
