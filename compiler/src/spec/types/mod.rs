//! What a person wrote, validated: holding one of these values is proof that its checks ran.

mod draft;
mod hardware;
mod model;
mod quant;
mod tuning;

pub use draft::{DraftOption, Drafting};
pub use hardware::{Cpu, Cuda, Hardware, HardwareKind};
pub use model::{
    Activation, Attention, DeltaNet, DeltaShape, Draft, Experts, Ffn, LayerKind, Mixer, Model, Norm,
    NormWeight, Protocol, Rotary, RotaryPairs, RotaryScaling, SamplingPreset, SharedExpert,
};
pub use monomorph_formats::ScaleForm;
pub use quant::{
    CheckpointSpec, ClassScales, Companion, Compute, Container, DRAFT_PREFIX, FileTensor, HubFile, PerTensor,
    Quant, RotaryRows, RowView, Scales, Source, TensorClass,
};
pub use tuning::{Knobs, PhaseTuning, Provenance, Settings, Tuning};

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
    /// How it drafts; `None` for a build that does not, which neither holds nor reads a draft head.
    pub draft: Option<Drafting>,
    /// Whether its CUDA kernels are built so that compute-sanitizer's racecheck can follow their barriers: slower, and for nothing else.
    pub racecheck: bool,
}

impl Target {
    /// `hardware/model/quant`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.hardware.name, self.model.name, self.quant.name)
    }

    /// What this build of the target is called, which no other build of it is: its name, and behind a `+` what was chosen
    /// besides. It names directories.
    pub fn build(&self) -> String {
        let draft = self.draft.map_or(String::new(), |draft| format!("+{}", draft.name(&self.model)));
        let racecheck = if self.racecheck { "+racecheck" } else { "" };
        self.name() + &draft + racecheck
    }
}
