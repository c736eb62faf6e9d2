//! From a weights path to a running model.

use crate::failure::Failure;
use crate::process::memory::{GuardArgs, Host, HostBudget, beside_device};
use crate::process::out;
use crate::process::switch::Switch;
use crate::request::text::Text;
use crate::start::calibrate;
use crate::start::draft;
use crate::start::keep;
use crate::start::paths::{default_weights, resolve_weights};
use crate::start::repository::Repository;
use crate::start::verify::verify;
use monomorph_abi::serve;
use monomorph_engine::{EngineHandle, EngineOptions, OffloadShare, PrefixOptions, SNAPSHOT_INTERVAL};
use monomorph_model::{
    Drafter, HostGuard, LoadError, LoadOptions, Model, ModelSpec, Progress, SlidingSpec, StatesWanted,
    Weights,
};
use monomorph_weights::{Checkpoint, Packed, PackedLook};
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// Loads a model and starts its engine: the one generic step of serving, as a plain function pointer. The
/// options' blocks, sequences and snapshots become those that the model claimed.
pub type StartEngine = fn(&Weights, &LoadOptions, EngineOptions, &Progress) -> Result<EngineHandle, Failure>;

/// Loads a model, checks that its files did not change meanwhile, and calibrates it if that is asked for.
///
/// # Errors
/// As [`Model::load`], when a file changed, or when static scales cannot be measured.
pub(crate) fn load_model<M: Model>(
    weights: &Weights,
    options: &LoadOptions,
    progress: &Progress,
) -> Result<M, LoadError> {
    let mut model = M::load(weights, options, progress)?;
    if let Weights::Checkpoint(checkpoint) = weights {
        checkpoint.check_unchanged()?;
    }
    if !options.kv_calibration.is_empty() {
        let tokens = &options.kv_calibration;
        let set =
            calibrate::calibrate(&mut model, tokens, options.context).map_err(LoadError::Calibration)?;
        (options.report)(format_args!("K/V scales measured over {} tokens: {set}", tokens.len()));
    }
    Ok(model)
}

/// [`StartEngine`] for a layer stack.
///
/// # Errors
/// When the weights are not this stack's, memory is short, or the engine refuses its options.
pub fn start_engine<M: Model>(
    weights: &Weights,
    options: &LoadOptions,
    engine: EngineOptions,
    progress: &Progress,
) -> Result<EngineHandle, Failure> {
    run_engine(load_model::<M>(weights, options, progress)?, options, engine)
}

/// Starts the engine of a loaded model.
///
/// # Errors
/// When the engine refuses its options.
pub(crate) fn run_engine<M: Model>(
    model: M,
    options: &LoadOptions,
    engine: EngineOptions,
) -> Result<EngineHandle, Failure> {
    let prefix = PrefixOptions { snapshots: model.snapshots(), ..engine.prefix };
    let offload = match (&options.offload, model.offload()) {
        (None, _) => None,
        (Some(offload), Some(room)) => {
            let resident = offload.resident.map_or((model.blocks() / 2).max(1), NonZero::get);
            Some(OffloadShare { room, resident })
        }
        (Some(_), None) => return Err("this build keeps no K/V blocks on disk".to_owned().into()),
    };
    let (blocks, sequences) = (model.blocks(), model.sequences());
    let engine = EngineOptions { blocks, sequences, prefix, offload, ..engine };
    Ok(monomorph_engine::start(model, engine).map_err(|error| error.to_string())?)
}

/// Why a server for GPUs neither writes nor takes packed weights.
pub(crate) const NOT_MAPPED: &str = "packed weights are mapped by servers for CPUs; this one is for GPUs, and packs a checkpoint into their \
                                     memory whenever it loads it";

/// Where the weights are.
#[derive(Clone, Debug, clap::Args)]
pub struct WeightsArgs {
    /// A GGUF file or a checkpoint directory [default: where `fetch` puts them]; a file that the verb `pack`
    /// made of one, which a server for a CPU maps; a repository of a hub, as
    /// OWNER/NAME or OWNER/NAME@REVISION, whose files are fetched into the hub's cache; or `dummy` or
    /// `dummy:SEED` for made-up weights of the right formats, which say nothing sensible and are as fast.
    #[arg(long, value_name = "PATH|OWNER/NAME")]
    pub weights: Option<PathBuf>,
    /// The directory of the drafter's checkpoint, of a build with `--draft dflash` and no other: its tensors
    /// are read beside those of the weights. Packed weights have them among theirs, and made-up ones make
    /// them up.
    #[arg(long, value_name = "DIR")]
    pub drafter: Option<PathBuf>,
    /// Where files of a hub are kept [default: where the hub's own client keeps them].
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// With made-up weights, packed or not: the checkpoint, or a directory of its text files, to take
    /// tokenizer and chat template from [default: a stand-in whose tokens are bytes].
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// Compare the SHA-256 of every file of the weights before they are loaded: with the build's quant spec,
    /// a SHA256SUMS beside them, or what a hub's cache calls them. A file of another digest, or of none that
    /// is known, is refused by name. Of a file of packed weights, compare what is in it with its own digests.
    #[arg(long)]
    pub verify: bool,
}

impl WeightsArgs {
    /// Opens the checkpoint, unless weights are made up, and verifies it on so many threads where that is
    /// asked for.
    pub(crate) fn open(&self, spec: &ModelSpec, threads: usize) -> Result<Weights, String> {
        let repository = self.weights.as_deref().and_then(Repository::named);
        if self.cache_dir.is_some() && repository.is_none() {
            return Err("--cache-dir goes with --weights OWNER/NAME, a repository of a hub".to_owned());
        }
        let drafter = self.drafter(spec)?;
        if let Some(seed) = self.dummy_seed()? {
            if self.verify {
                return Err("--verify: made-up weights have no digests".to_owned());
            }
            return Ok(Weights::Dummy { seed });
        }
        if self.tokenizer.is_some() && !self.is_dummy() {
            return Err("--tokenizer goes with --weights dummy; a checkpoint has its own".to_owned());
        }
        let path = match (repository, &self.weights) {
            (Some(repository), _) => repository.fetch(spec, self.cache_dir.as_deref())?,
            (None, Some(path)) => resolve_weights(path)?,
            (None, None) => {
                let path = default_weights(spec);
                out::say(format_args!("weights: {}, where fetch puts them", path.display()));
                resolve_weights(&path).map_err(|error| {
                    format!("{error}, or fetch them: cargo xtask fetch --target {}", spec.target)
                })?
            }
        };
        let open = match (Packed::look(&path), &spec.hardware.cuda) {
            (None, _) => Checkpoint::open,
            (Some(_), None) => Checkpoint::open_packed,
            (Some(_), Some(_)) => return Err(format!("{}: {NOT_MAPPED}", path.display())),
        };
        let checkpoint = open(&path).map_err(|error| error.to_string())?;
        if self.verify {
            verify(spec, &checkpoint, threads)?;
        }
        let Some(drafter) = drafter else { return Ok(Weights::Checkpoint(checkpoint)) };
        let drafter = Checkpoint::open(drafter).map_err(|error| error.to_string())?;
        let both = checkpoint.with(serve::DRAFTER_PREFIX, drafter).map_err(|error| error.to_string())?;
        Ok(Weights::Checkpoint(both))
    }

    /// Where the drafter's checkpoint is, of a build that has one of its own.
    fn drafter(&self, spec: &ModelSpec) -> Result<Option<&Path>, String> {
        let drafts = spec.draft.is_some_and(|draft| matches!(draft.drafter, Drafter::Block { .. }));
        let apart = !self.is_dummy() && self.packed().is_none();
        match (drafts, &self.drafter) {
            (true, None) if apart => {
                let what = "this server drafts with a drafter that has a checkpoint of its own";
                Err(format!("{what}: say where that is, --drafter DIR"))
            }
            (true, drafter) if apart => Ok(drafter.as_deref()),
            (_, None) => Ok(None),
            (true, Some(drafter)) => {
                let what = "packed and made-up weights have the drafter's among them: leave it out";
                Err(format!("--drafter {}: {what}", drafter.display()))
            }
            (false, Some(drafter)) => {
                let what = "this server has no drafter with weights of its own; `--draft dflash` builds one that does";
                Err(format!("--drafter {}: {what}", drafter.display()))
            }
        }
    }

    /// Whether weights are a repository's.
    pub(crate) fn is_of_a_hub(&self) -> bool {
        self.weights.as_deref().and_then(Repository::named).is_some()
    }

    /// What a file of packed weights says of itself, where they are one.
    fn packed(&self) -> Option<PackedLook> {
        self.weights.as_deref().and_then(Packed::look)
    }

    /// The bytes of a file of packed weights, where they are one.
    pub(crate) fn packed_bytes(&self) -> Option<u64> {
        self.packed().map(|packed| packed.bytes)
    }

    /// Whether weights are made up, packed or not.
    pub(crate) fn is_dummy(&self) -> bool {
        matches!(self.dummy_seed(), Ok(Some(_))) || self.packed().is_some_and(|packed| packed.made_up)
    }

    fn dummy_seed(&self) -> Result<Option<u64>, String> {
        match self.weights.as_ref().and_then(|path| path.to_str()) {
            Some("dummy") => Ok(Some(0)),
            Some(text) => match text.strip_prefix("dummy:") {
                None => Ok(None),
                Some(seed) => match seed.parse() {
                    Ok(seed) => Ok(Some(seed)),
                    Err(error) => Err(format!("--weights {text}: the seed: {error}")),
                },
            },
            None => Ok(None),
        }
    }

    /// The text side of these weights.
    pub(crate) fn text(&self, weights: &Weights, spec: &ModelSpec) -> Result<Text, String> {
        let text = match (weights, &self.tokenizer) {
            (Weights::Checkpoint(checkpoint), _) if !checkpoint.is_made_up() => Text::load(checkpoint, spec),
            (_, Some(path)) => {
                let files = Checkpoint::open_text(path).map_err(|error| error.to_string())?;
                Text::load(&files, spec)
            }
            (_, None) => Text::stand_in(spec),
        };
        text.map_err(|error| error.to_string())
    }
}

/// Flags of threads.
#[derive(Clone, Debug, clap::Args)]
pub struct ThreadArgs {
    /// Threads of the CPU team, or that pack weights for a GPU [default: as many as this process may run on].
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
}

impl ThreadArgs {
    /// Number of threads.
    pub(crate) fn count(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.map_or_else(available, NonZero::get)
    }
}

/// Limits of memory.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Most of the device's memory to take, as a part of it: the GPU's, or the machine's on a CPU; less where
    /// others use it.
    #[arg(long, value_name = "F", default_value_t = serve::MEMORY_FRACTION)]
    pub memory_fraction: f64,
    /// The guard of host memory.
    #[command(flatten)]
    pub guard: GuardArgs,
}

impl MemoryArgs {
    /// The room for K/V beside `swap_bytes` of swap space and recurrent states, where the device's memory is
    /// host memory; a GPU's is planned when it is claimed. Weights may be `mapped` from a file of so many
    /// bytes.
    ///
    /// # Errors
    /// When the fraction is out of range, or a GPU's server does not fit into host memory.
    pub(crate) fn room(
        &self,
        spec: &ModelSpec,
        swap_bytes: u64,
        image_bytes: u64,
        mapped: Option<u64>,
    ) -> Result<Option<HostBudget>, String> {
        let fraction = self.fraction()?;
        let host = Host::read();
        let guard = self.guard.bytes(host);
        let room = || {
            let room = HostBudget::new(spec, swap_bytes, host, fraction, guard).beside(image_bytes);
            mapped.map_or(room, |bytes| room.mapping(bytes))
        };
        if spec.hardware.cuda.is_some() {
            // Host memory that the server takes besides the device's memory, which has a plan of its own.
            beside_device(host, guard, swap_bytes, image_bytes)?;
        }
        Ok(spec.hardware.cuda.is_none().then(room))
    }

    fn fraction(&self) -> Result<f64, String> {
        let fraction = self.memory_fraction;
        if fraction > 0.0 && fraction <= 1.0 {
            return Ok(fraction);
        }
        Err(format!("--memory-fraction {fraction} is not above 0 and at most 1"))
    }

    /// The options of a load.
    pub(crate) fn options(
        &self,
        blocks: Option<usize>,
        context: usize,
        states: StatesWanted,
        threads: usize,
        report: fn(std::fmt::Arguments),
    ) -> Result<LoadOptions, String> {
        let memory_fraction = self.fraction()?;
        let (shorter, offload) = (false, None);
        let available = || Host::read().available;
        let guard = HostGuard { bytes: self.guard.bytes(Host::read()), available };
        Ok(LoadOptions {
            blocks,
            context,
            shorter,
            states,
            offload,
            memory_fraction,
            guard,
            threads,
            report,
            ordinals: Vec::new(),
            process: None,
            kv_calibration: Vec::new(),
        })
    }
}

/// Memory for sequences.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheArgs {
    /// Longest sequence in tokens, prompt and answer [default: the model's context, at most 8192, and what
    /// memory holds].
    #[arg(long, value_name = "N")]
    pub context: Option<NonZero<usize>>,
    /// Tokens cached over all sequences [default: on a CPU 16384, or the context if that is larger, and no
    /// more than its memory holds; on a GPU what its memory holds].
    #[arg(long, value_name = "N", conflicts_with = "blocks")]
    pub kv_tokens: Option<NonZero<usize>>,
    /// The same in blocks, whose size `info` prints.
    #[arg(long, value_name = "N")]
    pub blocks: Option<NonZero<usize>>,
    /// Most sequences that run at a time; others wait [default: what a step takes, which `info` prints, and
    /// of a model with recurrent state no more than memory has room for the states of].
    #[arg(long, value_name = "N")]
    pub sequences: Option<NonZero<usize>>,
}

/// Memory planned for sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Tokens of the longest sequence.
    pub(crate) context: usize,
    /// Blocks to claim; `None` leaves them to the device.
    pub(crate) blocks: Option<usize>,
    /// States to claim, as far as that is not left to the device.
    pub(crate) states: StatesWanted,
    /// The plan of memory.
    pub(crate) room: Option<HostBudget>,
}

impl CacheArgs {
    /// What is asked for, of a model that may have layers with a sliding window; what is not is as much as
    /// the `room` holds. A sequence also takes blocks for the reach of its drafts. Where it `streams`, a
    /// sequence need not fit. `snapshots` is their number, or one per sequence.
    ///
    /// # Errors
    /// When what was asked for exceeds the model or the room, or holds no whole sequence.
    pub(crate) fn plan(
        &self,
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        room: Option<HostBudget>,
        snapshots: Option<usize>,
        streams: bool,
    ) -> Result<Planned, String> {
        let sequences = self.sequences.map(NonZero::get);
        let most = spec.step_sequences;
        if let Some(asked) = sequences.filter(|asked| *asked > most) {
            return Err(format!("--sequences {asked}: a step of this build takes {most} at most"));
        }
        let wanted = StatesWanted { sequences, snapshots };
        // Of the longest sequence that may turn out to fit.
        let longest = self.context.map_or(serve::CONTEXT.min(spec.usable_context()), NonZero::get);
        let room = room.map(|room| {
            room.with_sliding(spec, sliding, sequences.unwrap_or(most), longest + spec.reach(), streams)
        });
        let planned = room.map(|room| room.with_states(spec, wanted, self.first(spec), self.is_free()));
        let room = planned.map(|(room, _)| room);
        let states = planned.map_or(wanted, |(_, states)| StatesWanted {
            sequences: Some(states.sequences),
            snapshots: Some(states.snapshots),
        });
        let (context, blocks) = self.wanted(spec, room.as_ref(), streams)?;
        if let (Some(room), Some(blocks)) = (room, blocks)
            && blocks > room.blocks()
        {
            let (most, block) = (room.blocks(), spec.block_tokens);
            let fits = match (most * block).saturating_sub(spec.reach()) {
                0 => "not one block fits".to_owned(),
                tokens => format!("{most} blocks would fit, and a sequence of {tokens} tokens"),
            };
            return Err(format!(
                "a cache of {blocks} blocks of {block} tokens does not fit into this machine's memory: {}; {fits}; ask for less with \
                 --context, --kv-tokens or --blocks",
                room.why()
            ));
        }
        Ok(Planned { context, blocks, states, room })
    }

    /// Whether neither the context nor the number of tokens was given.
    fn is_free(&self) -> bool {
        self.context.is_none() && self.kv_tokens.is_none() && self.blocks.is_none()
    }

    /// Blocks that come before states that were not asked for.
    fn first(&self, spec: &ModelSpec) -> usize {
        let context = self.context.map_or(serve::CONTEXT.min(spec.usable_context()), NonZero::get);
        let tokens = self.kv_tokens.map_or(context.saturating_add(spec.reach()), NonZero::get);
        self.blocks.map_or(tokens.div_ceil(spec.block_tokens), NonZero::get)
    }

    /// [`Self::plan`] before it is known whether what was asked for fits.
    fn wanted(
        &self,
        spec: &ModelSpec,
        room: Option<&HostBudget>,
        streams: bool,
    ) -> Result<(usize, Option<usize>), String> {
        // The length is a default: at least one token fits, or the plan says what is missing.
        let fits = room.map_or(usize::MAX, |room| room.blocks().saturating_mul(spec.block_tokens));
        let whole = if streams { usize::MAX } else { fits.saturating_sub(spec.reach()).max(1) };
        let automatic = serve::CONTEXT.min(spec.usable_context()).min(whole);
        let context = self.context.map_or(automatic, NonZero::get);
        if context > spec.usable_context() {
            let less = match spec.reach() {
                0 => String::new(),
                reach => format!(", and drafts take {reach} of them"),
            };
            let (model, most) = (spec.model, spec.context);
            return Err(format!("--context {context}: {model} was made for {most} tokens{less}"));
        }
        let cached = if streams { 1 } else { context + spec.reach() };
        let one_sequence = cached.div_ceil(spec.block_tokens);
        if let Some(blocks) = self.blocks.map(NonZero::get) {
            if blocks < one_sequence {
                return Err(format!(
                    "--blocks {blocks} cannot hold one sequence of --context {context}, which takes {one_sequence}"
                ));
            }
            return Ok((context, Some(blocks)));
        }
        let Some(kv_tokens) = self.kv_tokens.map(NonZero::get) else {
            let everybodys = serve::KV_TOKENS.min(fits).max(cached).div_ceil(spec.block_tokens);
            return Ok((context, spec.hardware.cuda.is_none().then_some(everybodys)));
        };
        if kv_tokens < cached {
            return Err(format!(
                "--kv-tokens {kv_tokens} cannot hold one sequence of --context {context}, which takes {cached}"
            ));
        }
        Ok((context, Some(kv_tokens.div_ceil(spec.block_tokens))))
    }
}

/// Flags of the prefix cache.
#[derive(Clone, Debug, clap::Args)]
pub struct PrefixArgs {
    /// Whether what a prompt has in common with earlier ones and their answers is taken from memory, or
    /// computed again.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    pub prefix_cache: Switch,
    /// Of a model with recurrent state: how many saved states to claim memory for, of the size that `info`
    /// prints; a prompt can go on only from where one was saved [default: as many as sequences run at once,
    /// and no more than memory has room for].
    #[arg(long, value_name = "N")]
    pub snapshots: Option<usize>,
    /// Of such a model: tokens of a long prompt or answer after which its state is saved again [default:
    /// 2048]. It is saved at the end of each prompt, too.
    #[arg(long, value_name = "N")]
    pub snapshot_interval: Option<NonZero<usize>>,
}

impl PrefixArgs {
    /// The engine's options, without the number of snapshots that fit; and the number wanted, where `None` is
    /// one per sequence.
    ///
    /// # Errors
    /// When snapshots are asked for that cannot be used.
    pub(crate) fn options(&self, spec: &ModelSpec) -> Result<(PrefixOptions, Option<usize>), String> {
        let enabled = self.prefix_cache == Switch::On;
        let asked = [
            ("snapshots", self.snapshots.filter(|count| *count > 0)),
            ("snapshot-interval", self.snapshot_interval.map(NonZero::get)),
        ];
        if let Some((flag, value)) = asked.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
            if spec.state_bytes == 0 {
                return Err(format!("--{flag} {value}: {} has no recurrent state to save", spec.model));
            }
            if !enabled {
                return Err(format!("--{flag} {value} goes with --prefix-cache on"));
            }
        }
        let snapshots = self.snapshots.or((!enabled).then_some(0));
        let snapshot_interval = self.snapshot_interval.map_or(SNAPSHOT_INTERVAL, NonZero::get);
        Ok((PrefixOptions { enabled, snapshot_interval, ..KEEP_NOTHING }, snapshots))
    }
}

/// No prefix cache: for verbs that measure or compare.
pub(crate) const KEEP_NOTHING: PrefixOptions =
    PrefixOptions { enabled: false, snapshots: 0, snapshot_interval: SNAPSHOT_INTERVAL };

/// Says which file is mapped, and what it was made of.
fn say_mapped(packed: &Packed) {
    let header = packed.header();
    let sources: Vec<&str> = header.sources.iter().map(|source| source.name.as_str()).collect();
    let of = match &sources[..] {
        [first, _, ..] => format!("{first} and {} more", sources.len() - 1),
        [] => "made-up weights".to_owned(),
        [one] => (*one).to_owned(),
    };
    out::say(format_args!(
        "weights: {}, packed of {of} by {}, {} mapped",
        packed.path().display(),
        header.by,
        out::bytes(packed.array_bytes())
    ));
}

/// Loads model and text side by side. Where so many tokens are to calibrate the model, the text comes first.
pub(crate) fn load(
    spec: &ModelSpec,
    start: impl FnOnce(&Weights, &LoadOptions, EngineOptions, &Progress) -> Result<EngineHandle, Failure>,
    args: &WeightsArgs,
    options: &LoadOptions,
    calibration: Option<usize>,
    engine: EngineOptions,
    progress: &Progress,
) -> Result<(EngineHandle, Text), Failure> {
    let weights = args.open(spec, options.threads)?;
    let engine = keep::bind(engine, spec, &weights, calibration)?;
    if args.is_dummy() {
        out::say(format_args!("weights: dummy (made up: answers mean nothing)"));
    }
    if let Weights::Checkpoint(checkpoint) = &weights
        && let Some(packed) = checkpoint.packed()
    {
        say_mapped(packed);
    }
    if draft::forced(spec).is_some()
        && let Some(it) = &spec.draft
    {
        out::say(format_args!("drafts: {}", draft::describe(spec, it)));
    }
    if let Some(count) = calibration {
        let text = args.text(&weights, spec)?;
        let kv_calibration = calibrate::tokens(&text, count)?;
        let options = LoadOptions { kv_calibration, ..options.clone() };
        return Ok((start(&weights, &options, engine, progress)?, text));
    }
    std::thread::scope(|scope| {
        let text = scope.spawn(|| args.text(&weights, spec));
        let handle = start(&weights, options, engine, progress)?;
        let text = text.join().map_err(|_| "reading the tokenizer panicked".to_owned())?;
        Ok((handle, text?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Drafting, Shape, Small};
    use monomorph_model::DraftSpec;

    fn args(weights: &str, drafter: Option<&str>) -> WeightsArgs {
        WeightsArgs {
            weights: Some(PathBuf::from(weights)),
            drafter: drafter.map(PathBuf::from),
            cache_dir: None,
            tokenizer: None,
            verify: false,
        }
    }

    /// Planted: a build with a drafter that starts without its checkpoint.
    #[test]
    fn a_drafters_checkpoint_is_named_where_there_is_one_and_nowhere_else() {
        let plain = Drafting::<Small, 1>::SPEC;
        let drafter = Drafter::Block { rows: 2, window: None };
        let draft = DraftSpec { drafter, ..plain.draft.expect("drafts") };
        let blocks = ModelSpec { draft: Some(draft), ..*plain };
        let asked =
            |spec: &ModelSpec, weights: &str, drafter: Option<&str>| -> Result<Option<PathBuf>, String> {
                args(weights, drafter).drafter(spec).map(|path| path.map(Path::to_owned))
            };
        assert_eq!(asked(&blocks, "weights", Some("beside")), Ok(Some(PathBuf::from("beside"))));
        assert_eq!(asked(plain, "weights", None), Ok(None));
        assert_eq!(asked(&blocks, "dummy", None), Ok(None));
        let refused = |spec: &ModelSpec, weights: &str, drafter: Option<&str>, said: &str| {
            let error = asked(spec, weights, drafter).expect_err(said);
            assert!(error.contains(said), "{error}");
        };
        refused(&blocks, "weights", None, "say where that is, --drafter DIR");
        refused(&blocks, "dummy", Some("beside"), "leave it out");
        refused(plain, "weights", Some("beside"), "`--draft dflash` builds one that does");
    }
}
