//! Options of a build besides its target.

use crate::draft::DraftOptions;
use clap::{Args, ValueEnum};
use monomorph_compiler::spec::types::BuildOptions as Asked;
use monomorph_formats::cached::KvFormats;

#[derive(Args, Clone, Copy)]
pub struct BuildOptions {
    #[command(flatten)]
    draft: DraftOptions,
    /// Make every row independent of the batch size, so that a sequence's tokens are those of its lone run:
    /// one decode program for up to N concurrent sequences (1, 2, 4, … 128) and one prefill program; CUDA
    /// targets only [default: a program for every size].
    #[arg(long, value_name = "N")]
    batch_invariant: Option<usize>,
    /// Cut the model for N GPUs of one host, which compute each token together (tensor parallelism): 1 to 8;
    /// CUDA targets only [default: 1].
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// Spread them over N processes, on one host or several, which exchange values through NCCL: as many as
    /// `--tp` [default: 1, whose GPUs exchange values by themselves].
    #[arg(long, value_name = "N", requires = "tp")]
    hosts: Option<usize>,
    /// The same, but each GPU holds whole experts of a mixture instead of a part of each (expert
    /// parallelism).
    #[arg(long, value_name = "N", conflicts_with = "tp")]
    ep: Option<usize>,
    /// Keep keys and values in this format instead of the quant spec's, or in two: f32, bf16, f16, fp8,
    /// nvfp4, turbo8, turbo4, turbo3, or for example turbo8/turbo4 for keys and for values.
    #[arg(long, value_name = "FORMAT", value_parser = KvFormats::from_name)]
    kv: Option<KvFormats>,
    /// Build the model's vision tower too, so that it takes images.
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t = Switch::Off)]
    vision: Switch,
    /// Most patches of an image with `--vision on`, 64 to 65,536: larger ones are made smaller [default:
    /// 8,192 on CUDA devices, 4,096 on CPUs].
    #[arg(long, value_name = "N")]
    image_patches: Option<usize>,
    /// Make a profiling build, whose verb `profile` takes the time of each phase: one GPU or CPU, without
    /// drafts and images.
    #[arg(long)]
    profile: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Switch {
    On,
    Off,
}

impl BuildOptions {
    /// The same, with these formats of keys and values.
    pub fn with_kv(self, formats: KvFormats) -> BuildOptions {
        BuildOptions { kv: Some(formats), ..self }
    }

    /// What to request from the compiler.
    ///
    /// # Errors
    /// When an option goes with another.
    pub fn asked(self) -> Result<Asked, String> {
        Ok(Asked {
            draft: self.draft.option()?,
            batch_invariant: self.batch_invariant,
            ranks: self.ep.or(self.tp),
            hosts: self.hosts,
            whole_experts: self.ep.is_some(),
            kv: self.kv,
            vision: self.vision == Switch::On,
            image_patches: self.image_patches,
            profile: self.profile,
        })
    }
}
