//! `profile`: the time of each phase of a step, beside what the plan predicted.

mod report;

use crate::failure::Failure;
use crate::process::out;
use crate::start::gpus::GpuArgs;
use crate::start::load::{MemoryArgs, ThreadArgs, WeightsArgs, load_model};
use crate::verbs::bench::Ids;
use crate::verbs::report::median;
use crate::verbs::steps::{Steps, feed};
use monomorph_model::{
    Model, ModelSpec, ProfileSpec, ProfiledKind, ProfiledStep, Progress, StatesWanted, TimedRow,
};
use report::{Profiled, Report};
use std::num::NonZero;
use std::time::Instant;

/// Tokens of the prompt that is timed by default, as in the predictions of `explain`.
const PROMPT: usize = 512;

/// Flags of `profile`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// Sequences whose decode steps are timed, a token of each a step: sizes that the plan has figures of
    /// [default: the smallest].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    batch: Vec<NonZero<usize>>,
    /// Tokens of the prompts that are timed, each in one step: sizes that the plan has figures of [default:
    /// 512, or the longest].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    prompt_tokens: Vec<NonZero<usize>>,
    /// Tokens in the cache before decoding begins.
    #[arg(long, visible_alias = "context", value_name = "N", default_value = "32")]
    depth: NonZero<usize>,
    /// Decode steps of a round.
    #[arg(long, value_name = "N", default_value = "16")]
    steps: NonZero<usize>,
    /// Rounds, each without times of phases and then with them, behind one that warms up.
    #[arg(long, value_name = "N", default_value = "3")]
    repeat: NonZero<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
}

impl ProfileArgs {
    /// The steps to time, in the order of the flags.
    ///
    /// # Errors
    /// When the plan has no figures of one, or the context is too short for it.
    fn timed(
        &self,
        spec: &ModelSpec,
        profile: &'static ProfileSpec,
    ) -> Result<Vec<&'static ProfiledStep>, String> {
        let context = spec.usable_context();
        let sizes = |of: fn(ProfiledKind) -> Option<usize>| {
            let sizes = profile.steps.iter().filter_map(move |step| Some((of(step.kind)?, step)));
            sizes.collect::<Vec<_>>()
        };
        let decode = sizes(|kind| match kind {
            ProfiledKind::Decode(sequences) => Some(sequences),
            ProfiledKind::Prompt(_) => None,
        });
        let mut prompts = sizes(|kind| match kind {
            ProfiledKind::Prompt(tokens) => Some(tokens),
            ProfiledKind::Decode(_) => None,
        });
        prompts.retain(|(tokens, _)| *tokens <= context);
        let find = |flag: &str, sizes: &[(usize, &'static ProfiledStep)], asked: &[NonZero<usize>]| {
            let found = asked.iter().map(|asked| {
                let found = sizes.iter().find(|(size, _)| *size == asked.get());
                let named: Vec<String> = sizes.iter().map(|(size, _)| size.to_string()).collect();
                let message = || format!("{flag} {asked}: the plan has figures of {}", named.join(", "));
                found.map(|(_, step)| *step).ok_or_else(message)
            });
            found.collect::<Result<Vec<_>, String>>()
        };
        let mut steps = find("--batch", &decode, &self.batch)?;
        if self.batch.is_empty() {
            steps.extend(decode.first().map(|(_, step)| *step));
        }
        steps.extend(find("--prompt-tokens", &prompts, &self.prompt_tokens)?);
        if self.prompt_tokens.is_empty() {
            let usual = prompts.iter().find(|(tokens, _)| *tokens == PROMPT).or(prompts.last());
            steps.extend(usual.map(|(_, step)| *step));
        }
        let decoded = self.decoded();
        if decoded > context {
            return Err(format!(
                "--depth {} and {} decode steps: {decoded} tokens, and the model's usable context is {context}",
                self.depth,
                decoded - self.depth.get()
            ));
        }
        Ok(steps)
    }

    /// Tokens that a sequence has once all rounds are decoded.
    fn decoded(&self) -> usize {
        self.depth.get() + (1 + 2 * self.repeat.get()) * self.steps.get()
    }
}

/// Times the phases, if the build does.
pub(crate) fn profile<M: Model>(args: &ProfileArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    let Some(profile) = M::PROFILE else {
        return Err(
            "profile: this build takes no times of phases; `cargo xtask build --profile` makes one that does"
                .to_owned()
                .into(),
        );
    };
    let timed = args.timed(spec, profile)?;
    let blocks_of = |tokens: usize| tokens.div_ceil(spec.block_tokens);
    let needs = timed.iter().map(|step| match step.kind {
        ProfiledKind::Decode(sequences) => {
            (sequences, sequences * blocks_of(args.decoded() + spec.reach().max(1)))
        }
        ProfiledKind::Prompt(tokens) => (1, blocks_of(tokens + spec.reach())),
    });
    let (sequences, blocks) =
        needs.fold((1, 1), |(sequences, blocks), it| (sequences.max(it.0), blocks.max(it.1)));
    let prompts = timed.iter().map(|step| match step.kind {
        ProfiledKind::Decode(_) => args.decoded(),
        ProfiledKind::Prompt(tokens) => tokens,
    });
    let context = (prompts.max().unwrap_or(1) + 1).min(spec.usable_context());
    let weights = args.weights.open(spec, args.threads.count())?;
    let states = StatesWanted { sequences: Some(sequences), snapshots: Some(0) };
    let reach = context + spec.reach();
    let mut options = args.memory.options(Some(blocks), reach, states, args.threads.count(), out::say)?;
    options.ordinals = args.gpus.ordinals(spec, M::RANKS, M::ordinal_of)?;
    let mut model = load_model::<M>(&weights, &options, &Progress::default())?;
    let mut ids = Ids::new(spec.vocabulary);
    let mut all = Vec::new();
    for step in timed {
        let taken = match step.kind {
            ProfiledKind::Decode(sequences) => decode(args, &mut model, &mut ids, sequences)?,
            ProfiledKind::Prompt(tokens) => prompt(args, &mut model, &mut ids, tokens)?,
        };
        all.push(Profiled::of(profile, step, taken)?);
    }
    let report =
        Report { spec, profile, threads: options.threads, dummy: args.weights.is_dummy(), steps: all };
    if args.json {
        out::print(format_args!("{}", report.json()));
    } else {
        report.print();
    }
    Ok(())
}

/// What was timed of a step.
#[derive(Debug, Default)]
struct Taken {
    /// Tokens in the cache of each sequence, in the mean.
    context: f64,
    /// Steps whose phases were timed.
    steps: usize,
    /// Seconds of a step without times of phases, each round's.
    plain: Vec<f64>,
    /// Seconds of all steps with them.
    timed: f64,
    rows: Vec<TimedRow>,
}

impl Taken {
    fn add(&mut self, rows: Vec<TimedRow>) {
        if self.rows.len() < rows.len() {
            self.rows.resize(rows.len(), TimedRow::default());
        }
        for (sum, row) in self.rows.iter_mut().zip(rows) {
            sum.count += row.count;
            sum.seconds += row.seconds;
        }
    }

    fn step(&self) -> f64 {
        median(&self.plain)
    }
}

/// Decode steps of so many sequences.
fn decode<M: Model>(
    args: &ProfileArgs,
    model: &mut M,
    ids: &mut Ids,
    sequences: usize,
) -> Result<Taken, String> {
    let (depth, count) = (args.depth.get(), args.steps.get());
    let prompts = (0..sequences).map(|_| ids.take(depth)).collect();
    let mut steps = Steps::after(model, prompts, args.decoded())?;
    let (mut taken, mut context) = (Taken::default(), depth + count);
    steps.decode(count)?;
    for _ in 0..args.repeat.get() {
        taken.plain.push(steps.decode(count)?.seconds / count as f64);
        steps.model().time_phases(true);
        taken.timed += steps.decode(count)?.seconds;
        taken.add(steps.model().time_phases(false));
        taken.steps += count;
        // The first of these steps has `context` and as many tokens as the round before decoded.
        taken.context += (context + count) as f64 + (count - 1) as f64 / 2.0;
        context += 2 * count;
    }
    taken.context /= args.repeat.get() as f64;
    Ok(taken)
}

/// Prompts of so many tokens.
fn prompt<M: Model>(
    args: &ProfileArgs,
    model: &mut M,
    ids: &mut Ids,
    tokens: usize,
) -> Result<Taken, String> {
    let mut taken = Taken::default();
    let mut fed = |model: &mut M| {
        let prompt = ids.take(tokens);
        let begin = Instant::now();
        feed(model, &prompt)?;
        Ok::<f64, String>(begin.elapsed().as_secs_f64())
    };
    fed(model)?;
    for _ in 0..args.repeat.get() {
        taken.plain.push(fed(model)?);
        model.time_phases(true);
        taken.timed += fed(model)?;
        taken.add(model.time_phases(false));
        taken.steps += 1;
    }
    Ok(taken)
}
