//! A model with room for one sequence, for verbs that judge what it says of a list of tokens.

use crate::failure::Failure;
use crate::process::out;
use crate::request::text::Text;
use crate::start::calibrate::{self, CalibrationArgs};
use crate::start::gpus::GpuArgs;
use crate::start::hosts::{HostsArgs, Work, World, drive};
use crate::start::load::{MemoryArgs, ThreadArgs, WeightsArgs};
use monomorph_model::{Model, ModelSpec, StatesWanted, Weights};

/// Flags of loading it.
#[derive(Debug, clap::Args)]
pub(crate) struct AloneArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    /// Which of several processes this is.
    #[command(flatten)]
    pub(crate) processes: HostsArgs,
}

impl AloneArgs {
    /// Opens the weights, and loads their tokenizer.
    ///
    /// # Errors
    /// When there are none, or they are not what was asked for.
    pub(crate) fn open(&self, spec: &ModelSpec) -> Result<(Weights, Text), Failure> {
        let weights = self.weights.open(spec, self.threads.count())?;
        let text = self.weights.text(&weights, spec)?;
        Ok((weights, text))
    }

    /// Loads the model with room for a sequence of so many tokens, and does work with it.
    ///
    /// # Errors
    /// When it cannot be loaded; and those of the work.
    pub(crate) fn drive<M: Model>(
        &self,
        (weights, text): &(Weights, Text),
        tokens: usize,
        work: impl Work,
    ) -> Result<(), Failure> {
        let spec = M::SPEC;
        let world = self.processes.read(M::RANKS, M::PROCESSES)?;
        let calibration = self.calibration.count(spec)?.map(|count| calibrate::tokens(text, count));
        let kv_calibration = calibration.transpose()?.unwrap_or_default();
        let longest = tokens.max(kv_calibration.len());
        let blocks = longest.div_ceil(spec.block_tokens);
        let states = StatesWanted { sequences: Some(1), snapshots: Some(0) };
        let mut options =
            self.memory.options(Some(blocks), longest, states, self.threads.count(), out::say)?;
        options.ordinals = self.gpus.ordinals(spec, self.processes.ranks_here(M::RANKS), M::ordinal_of)?;
        options.process = world.as_ref().map(World::process);
        options.kv_calibration = kv_calibration;
        drive::<M>(world.as_ref(), weights, &options, work)
    }
}
