//! From a weights path to a model at work.

use crate::paths::{default_weights, resolve_weights};
use crate::text::Text;
use monomorph_engine::{EngineHandle, EngineOptions};
use monomorph_model::{LoadOptions, Model, ModelSpec, Progress};
use monomorph_weights::Checkpoint;
use std::num::NonZero;
use std::path::PathBuf;

/// Longest sequence that is claimed memory for without being asked to, in tokens.
const DEFAULT_CONTEXT: usize = 8192;
/// Tokens cached without being asked to: eight sequences of 2,048.
const DEFAULT_KV_TOKENS: usize = 8 * 2048;

/// Loads a model and starts its engine: the one generic step of serving, as a plain function pointer.
pub type StartEngine =
    fn(&Checkpoint, &LoadOptions, EngineOptions, &Progress) -> Result<EngineHandle, String>;

/// [`StartEngine`] for a layer stack.
///
/// # Errors
/// When the weights are not this stack's, memory is short, or the engine refuses its options.
pub fn start_engine<M: Model>(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    engine: EngineOptions,
    progress: &Progress,
) -> Result<EngineHandle, String> {
    let model = M::load(checkpoint, options, progress).map_err(|error| error.to_string())?;
    monomorph_engine::start(model, engine).map_err(|error| error.to_string())
}

/// Where the weights are.
#[derive(Clone, Debug, clap::Args)]
pub struct WeightsArgs {
    /// A GGUF file or a checkpoint directory [default: where `fetch` puts them].
    #[arg(long, value_name = "PATH")]
    pub weights: Option<PathBuf>,
}

impl WeightsArgs {
    /// Opens the checkpoint.
    pub(crate) fn open(&self, spec: &ModelSpec) -> Result<Checkpoint, String> {
        let path = self.weights.clone().unwrap_or_else(|| default_weights(spec));
        Checkpoint::open(&resolve_weights(&path)?).map_err(|error| error.to_string())
    }
}

/// Threads of the CPU team.
#[derive(Clone, Debug, clap::Args)]
pub struct ThreadArgs {
    /// Threads of the CPU team [default: as many as this process may run on].
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
}

impl ThreadArgs {
    /// The count.
    pub(crate) fn count(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.map_or_else(available, NonZero::get)
    }
}

/// Memory for sequences.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArgs {
    /// Longest sequence in tokens, prompt and answer [default: the model's context, at most 8192].
    #[arg(long, value_name = "N")]
    pub context: Option<NonZero<usize>>,
    /// Tokens cached over all sequences [default: 16384, or the context if that is larger].
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<NonZero<usize>>,
}

impl CacheArgs {
    /// The context in tokens and the blocks to claim.
    pub(crate) fn plan(&self, spec: &ModelSpec) -> Result<(usize, usize), String> {
        let context = self.context.map_or(DEFAULT_CONTEXT.min(spec.context), NonZero::get);
        if context > spec.context {
            return Err(format!("--context {context}: {} was made for {} tokens", spec.model, spec.context));
        }
        let kv_tokens = self.kv_tokens.map_or(DEFAULT_KV_TOKENS.max(context), NonZero::get);
        if kv_tokens < context {
            return Err(format!("--kv-tokens {kv_tokens} cannot hold one sequence of --context {context}"));
        }
        Ok((context, kv_tokens.div_ceil(spec.block_tokens)))
    }
}

/// Loads model and text side by side.
pub(crate) fn load(
    spec: &ModelSpec,
    start: StartEngine,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    engine: EngineOptions,
    progress: &Progress,
) -> Result<(EngineHandle, Text), String> {
    std::thread::scope(|scope| {
        let text = scope.spawn(|| Text::load(checkpoint, spec));
        let handle = start(checkpoint, options, engine, progress)?;
        let text = text.join().map_err(|_| "reading the tokenizer panicked".to_owned())?;
        Ok((handle, text.map_err(|error| error.to_string())?))
    })
}
