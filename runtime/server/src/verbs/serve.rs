//! `serve`: HTTP until told to stop.

use super::serving;
use super::stopping::Stopping;
use super::watching;
use crate::failure::{EXIT_DEVICE_FAULT, Failure};
use crate::health::StepLimit;
use crate::health::canary::{Canary, CanaryArgs, check_known};
use crate::http::app::{App, Ready};
use crate::http::compactions::Compactions;
use crate::http::connections::ConnectionArgs;
use crate::http::cors::CorsArgs;
use crate::http::dump::file::DumpArgs;
use crate::http::hosts::HostArgs;
use crate::http::ignored::Ignored;
use crate::http::keys::KeyArgs;
use crate::http::large::Turns;
use crate::images::{ImageArgs, ImageReader, ImageRoom};
use crate::openai::responses::store::Store;
use crate::process::clock::unix_time;
use crate::process::descriptors;
use crate::process::log::LogArgs;
use crate::process::memory::{Guard, Host};
use crate::process::notify::{self, Notifier};
use crate::process::out;
use crate::process::switch::Switch;
use crate::request::defaults::SamplingArgs;
use crate::request::forms::FormArgs;
use crate::request::grammars::{GrammarArgs, GrammarStore};
use crate::request::reasoning::ReasoningArgs;
use crate::start::batches;
use crate::start::calibrate::CalibrationArgs;
use crate::start::draft;
use crate::start::gpus::GpuArgs;
use crate::start::hosts::{self, HostsArgs, Start, World};
use crate::start::keep::{self, KeepArgs};
use crate::start::load::{CacheArgs, MemoryArgs, Planned, PrefixArgs, ThreadArgs, WeightsArgs, load};
use crate::start::lookup::LookupArgs;
use crate::start::offload::OffloadArgs;
use crate::start::schedule::{self, ScheduleArgs};
use crate::start::swap::{self, SwapArgs};
use crate::start::warm_up::WarmUpArgs;
use monomorph_abi::serve::{DRAIN_SECONDS, HTTP_THREADS, PORT, TOOL_MAX_TOKENS};
use monomorph_engine::{EngineHandle, EngineOptions, SlidingPool};
use monomorph_model::{LoadOptions, ModelSpec, Progress, Weights, device_fault};
use std::hash::RandomState;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long the process may take to end when all is done.
const LAST: Duration = Duration::from_secs(3);

/// Flags of `serve`.
// In the order of the sections of its help; a heading holds until the next.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Where the weights are.
    #[command(flatten, next_help_heading = "Model")]
    pub weights: WeightsArgs,
    /// What they must answer.
    #[command(flatten)]
    pub canary: CanaryArgs,
    /// What clients call the model [default: the name it was built under].
    #[arg(long, visible_alias = "served-model-name", value_name = "NAME", help_heading = "Model")]
    pub model_name: Option<String>,
    /// How drafts are looked up.
    #[command(flatten)]
    pub lookup: LookupArgs,
    /// Address to listen at.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST),
        help_heading = "Clients"
    )]
    pub bind: IpAddr,
    /// Port to listen at; 0 takes a free one.
    #[arg(long, value_name = "N", default_value_t = PORT, help_heading = "Clients")]
    pub port: u16,
    /// Who may ask.
    #[command(flatten, next_help_heading = "Clients")]
    pub keys: KeyArgs,
    /// Which pages in browsers may.
    #[command(flatten)]
    pub cors: CorsArgs,
    /// What clients may call this machine.
    #[command(flatten)]
    pub hosts: HostArgs,
    /// How many connections there may be.
    #[command(flatten)]
    pub connections: ConnectionArgs,
    /// Largest request body in bytes; larger ones are answered 413.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = NonZero::<usize>::MIN.saturating_add(4 * 1024 * 1024 - 1),
    )]
    pub max_body: NonZero<usize>,
    /// How large images are.
    #[command(flatten)]
    pub images: ImageArgs,
    /// Requests that may wait for their turn; more are answered 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_waiting: usize,
    /// Seconds that an answer may take, its wait in the queue included; 0 is as long as it wants.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub request_timeout: u64,
    /// How tokens are chosen where a request does not say.
    #[command(flatten, next_help_heading = "Answers")]
    pub sampling: SamplingArgs,
    /// How long models reason.
    #[command(flatten)]
    pub reasoning: ReasoningArgs,
    /// In what forms models write and read.
    #[command(flatten)]
    pub forms: FormArgs,
    /// Whether tool calls are constrained to the tools' schemas even if they are neither required nor of
    /// strict tools.
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    pub hold_calls: Switch,
    /// Shorten conversations that leave too little of the context for an answer, unless a request says
    /// otherwise: old results of tools go first, then old turns. Without it they are answered 400.
    #[arg(long)]
    pub context_compaction: bool,
    /// Most tokens of an answer that may call tools and whose request names no limit; 0 is as many as the
    /// context holds.
    #[arg(long, value_name = "N", default_value_t = TOOL_MAX_TOKENS)]
    pub tool_max_tokens: usize,
    /// How long grammars are compiled.
    #[command(flatten)]
    pub grammars: GrammarArgs,
    /// Most memory, in MiB, for the responses of `/v1/responses` that are kept; the oldest are given up
    /// first.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub response_store: u32,
    /// Memory for sequences.
    #[command(flatten, next_help_heading = "Memory")]
    pub cache: CacheArgs,
    /// What is kept for prompts that begin alike.
    #[command(flatten)]
    pub prefix: PrefixArgs,
    /// How keys and values are scaled.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Memory of the device.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// What is computed before the first request.
    #[command(flatten)]
    pub warm_up: WarmUpArgs,
    /// Sequences that are longer than memory.
    #[command(flatten, next_help_heading = "Disks and swap")]
    pub offload: OffloadArgs,
    /// Room for sequences that have to make room.
    #[command(flatten)]
    pub swap: SwapArgs,
    /// Prefixes that outlive the server.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// GPUs of the model.
    #[command(flatten, next_help_heading = "Devices and hosts")]
    pub gpus: GpuArgs,
    /// Threads of the model.
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Which of several processes this is.
    #[command(flatten)]
    pub processes: HostsArgs,
    /// How sequences share steps.
    #[command(flatten, next_help_heading = "Scheduling")]
    pub schedule: ScheduleArgs,
    /// Seconds that accepted requests get to finish after Ctrl-C, SIGTERM or SIGHUP.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_SECONDS, help_heading = "Watching and stopping")]
    pub drain_seconds: u64,
    /// Seconds that a step may take before `/health` says that it hangs [default: four times what is
    /// predicted for the largest or was measured recently, and at least 1.5].
    #[arg(long, value_name = "SECONDS", help_heading = "Watching and stopping")]
    pub step_seconds: Option<NonZero<u64>>,
    /// Keep a server running: this process starts one, and another when one ends by a fault, is dead or
    /// wrong, hangs, or is not heard of for 10 s. Clients wait meanwhile, or are told to try again.
    #[arg(long, help_heading = "Watching and stopping")]
    pub supervised: bool,
    /// Answer on the socket that is standard input: how a supervisor starts a server.
    #[arg(long, hide = true)]
    pub listener_on_stdin: bool,
    /// What to log.
    #[command(flatten, next_help_heading = "Watching and stopping")]
    pub log: LogArgs,
    /// What to write down.
    #[command(flatten)]
    pub dump: DumpArgs,
}

/// Listens where the flags say, or has a supervisor's socket.
///
/// # Errors
/// When the address is taken.
pub(super) fn listen(args: &ServeArgs) -> Result<TcpListener, String> {
    let wanted = SocketAddr::new(args.bind, args.port);
    let cannot = |error| format!("cannot listen at {wanted}: {error}");
    let listener = if args.listener_on_stdin {
        TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(cannot)?)
    } else {
        TcpListener::bind(wanted).map_err(cannot)?
    };
    listener.set_nonblocking(true).map_err(cannot)?;
    Ok(listener)
}

/// Serves until a signal, then drains. `/health/ready` answers from the start, and 200 once the model is
/// loaded. It runs on so many `ranks`. `started` is when the process was.
///
/// # Errors
/// When the address is taken, the weights cannot be loaded, or the device failed.
pub fn serve(
    spec: &'static ModelSpec,
    start: Start,
    args: &ServeArgs,
    started: Instant,
) -> Result<(), Failure> {
    args.log.begin();
    args.images.check(start.vision.is_some())?;
    let notifier = Notifier::from_environment()?.map(Arc::new);
    if let Some(notifier) = &notifier {
        notifier.tell(notify::ALIVE);
    }
    descriptors::claim(args.connections.max_connections.get())?;
    let (keys, cors) = (args.keys.read()?, args.cors.layer()?);
    let guests = args.hosts.read(args.bind, &args.cors)?;
    if keys.is_empty() && !args.bind.is_loopback() {
        out::say(format_args!(
            "warning: --bind {} without --api-key-file: anyone who can reach this machine can use the server",
            args.bind
        ));
    }
    if start.profiling {
        out::say(format_args!(
            "warning: this is a profiling build, for `profile`: serve with one without --profile"
        ));
    }
    let sampling = args.sampling.sampling(spec)?;
    let world = args.processes.read(start.ranks, start.processes)?;
    let (prefix, snapshots) = args.prefix.options(spec)?;
    let swap = args.swap.options(spec, start.sliding, out::print)?;
    if args.offload.is_on() && swap.host_bytes > 0 {
        return Err("--swap-space and --high-speed-swap: a server does one of them".to_owned().into());
    }
    let keep = args.keep.options(spec, start.sliding, (&prefix, snapshots), world.is_none(), out::print)?;
    let schedule = args.schedule.options(spec)?;
    let calibration = args.calibration.count(spec)?;
    let lookup = args.lookup.options(spec)?;
    let host = Host::read();
    let for_images = start.vision.map_or(0, |_| args.images.bytes(host));
    let room = args.memory.room(spec, swap.host_bytes, for_images, args.weights.packed_bytes())?;
    let room = room.map(|room| room.beside(args.offload.staging(spec)).beside(args.keep.memory(spec)));
    let Planned { context, blocks, states, room } =
        args.cache.plan(spec, start.sliding, room, snapshots, args.offload.is_on())?;
    if let (Some(room), Some(blocks)) = (&room, blocks) {
        room.print(spec, blocks, out::print);
    }
    let mut options =
        args.memory.options(blocks, context + spec.reach(), states, args.threads.count(), out::print)?;
    let ranks_here = args.processes.ranks_here(start.ranks);
    options.ordinals = args.gpus.ordinals(spec, ranks_here, start.ordinal_of)?;
    options.process = world.as_ref().map(World::process);
    options.shorter = args.cache.context.is_none();
    options.offload = args.offload.options(spec, context, blocks)?;
    let step = args.step_seconds.map(|seconds| Duration::from_secs(seconds.get()));
    let deadlines = hosts::deadlines(spec, step);
    if let Some(world) = world.as_ref().filter(|world| world.is_worker()) {
        let weights = args.weights.open(spec, options.threads)?;
        return (start.follow)(world, &weights, &options, args.bind, deadlines);
    }
    let template = args.forms.template()?;
    let listener = listen(args)?;
    let address = listener.local_addr().map_err(|error| format!("the listening socket: {error}"))?;

    let app = Arc::new(App {
        spec,
        vision: start.vision,
        ranks: start.ranks,
        profiling: start.profiling,
        gpu_ordinals: options.ordinals.clone(),
        model_name: args.model_name.clone().unwrap_or_else(|| spec.model.to_owned()),
        keys,
        guests,
        ignored: Ignored::default(),
        compactions: Compactions::default(),
        dump: args.dump.open()?.map(Arc::new),
        body_limit: args.max_body.get(),
        dummy: args.weights.is_dummy(),
        forced: draft::forced(spec),
        sampling,
        reasoning: args.reasoning,
        tool_max_tokens: NonZero::new(args.tool_max_tokens),
        compacts: args.context_compaction,
        hold_calls: args.hold_calls == Switch::On,
        request_timeout: (args.request_timeout > 0).then(|| Duration::from_secs(args.request_timeout)),
        step_limit: args.step_seconds.map_or_else(
            || StepLimit::predicted(spec),
            |seconds| StepLimit::Fixed(Duration::from_secs(seconds.get())),
        ),
        guard: Guard::new(args.memory.guard.bytes(host)),
        turns: Turns::default(),
        responses: Arc::new(Store::new((args.response_store as usize) << 20)),
        background: Arc::default(),
        progress: Progress::default(),
        started,
        created: unix_time(),
        askers: RandomState::new(),
        condemned: watch::Sender::new(None),
        drained: OnceLock::new(),
        ready: OnceLock::new(),
    });
    let drain = Duration::from_secs(args.drain_seconds);
    let stopping = Arc::new(Stopping::listen(Arc::clone(&app), drain)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the HTTP threads: {error}"))?;
    let (stops, tells) = (Arc::clone(&stopping), notifier.clone());
    let way = serving::Way { app: Arc::clone(&app), drain, stopping: stops, notifier: tells };
    let server = runtime.spawn(way.run(listener, args.connections, cors));
    if let Some(notifier) = &notifier {
        runtime.spawn(watching::tell(Arc::clone(notifier), Arc::clone(&stopping)));
    }

    out::print(format_args!("loading {} at http://{address}/", spec.target));
    let engine = EngineOptions {
        prefix,
        keep,
        schedule,
        lookup,
        swap,
        ..EngineOptions::new(0, context, args.max_waiting)
    };
    let loading = Arc::clone(&app);
    let begin = |weights: &Weights, options: &LoadOptions, engine, progress: &Progress| match &world {
        None => (start.engine)(weights, options, engine, progress),
        Some(world) => {
            let loaded = Arc::new(move || loading.progress.read());
            (start.head)(world, weights, options, engine, (progress, loaded), deadlines)
        }
    };
    let (engine, text, reading) =
        load(spec, begin, &args.weights, &options, calibration, engine, &app.progress)?;
    let text = args.forms.apply(text, template.as_deref())?;
    if !app.reasoning.is_on() {
        text.can_answer_at_once().map_err(|why| format!("--reasoning {}: {why}", app.reasoning.name()))?;
    }
    let (blocks, context) = (engine.stats().total_blocks, engine.context());
    let cached = blocks * spec.block_tokens;
    // Before any client's request: it finds a broken device, and absorbs the first launches.
    let canary = Canary::learn(&engine, spec, || {
        if spec.hardware.cuda.is_some() {
            out::print(format_args!("first token {} ms after the start", started.elapsed().as_millis()));
        }
    })?;
    let canaries = args.canary.of(spec, app.dummy);
    let known = check_known(&engine, spec, canaries)?;
    let warm = args.warm_up.run(&engine, &text)?;
    let warm = warm.map_or(String::new(), |tokens| format!("; {tokens} tokens of a warm-up prompt cached"));
    let weights = match (app.dummy, known) {
        (true, _) => "; weights: dummy".to_owned(),
        (false, 0) => "; no answers of these weights are known".to_owned(),
        (false, known) => format!("; {known} known answers are right"),
    };
    let drafts = spec.draft.as_ref().map_or(String::new(), |it| format!("; {}", draft::describe(spec, it)));
    let invariant = spec.batch_invariant.as_ref();
    let invariant =
        invariant.map_or(String::new(), |it| format!("; batches: {}", batches::describe(spec, it)));
    let (running, most) = (engine.sequences(), spec.step_sequences);
    let running = if running < most { format!("; {running} sequences at a time") } else { String::new() };
    let kept = kept(spec, &engine);
    let room = ImageRoom::new(args.images.patch_bytes(host));
    let images = ImageReader::new(start.read_images, &engine, &args.images, room);
    let windows = windows(&engine);
    let seen = images_seen(images.as_ref());
    let gpus = if start.ranks > 1 { format!("; on GPUs {:?}", options.ordinals) } else { String::new() };
    let swapped = swap::describe(spec, engine.swap());
    let outlive = keep::describe(spec, &engine);
    let scheduled = schedule::describe(engine.schedule());
    let text = Arc::new(text);
    let grammars = GrammarStore::new(spec, &text, args.grammars);
    let _ = app.ready.set(Ready { engine, text, images, grammars, canary: Arc::new(canary), known, reading });
    if let Some(notifier) = &notifier {
        notifier.tell(notify::READY);
    }
    out::print(format_args!(
        "ready in {:.2} s: {} with a context of {context} tokens, {cached} cached in all ({}), {} threads{gpus}{running}{windows}{seen}{kept}{swapped}{outlive}{warm}{scheduled}{weights}{drafts}{invariant}",
        started.elapsed().as_secs_f64(),
        app.model_name,
        out::bytes(blocks as u64 * spec.block_bytes as u64),
        options.threads,
    ));
    out::print(format_args!("chat page:  http://{address}/\nOpenAI API: http://{address}/v1"));
    let ended = runtime.block_on(server);
    let ended = ended.unwrap_or_else(|error| Err(format!("the HTTP server ended: {error}").into()));
    let code = match &ended {
        _ if device_fault().is_some() => EXIT_DEVICE_FAULT,
        Ok(()) => 0,
        Err(failure) => failure.code,
    };
    stopping.end_within(LAST, code.into());
    if let Some(dump) = &app.dump {
        dump.flush();
    }
    // Work beside the workers (a prompt, a grammar) cannot be interrupted, and its result is no longer
    // needed.
    runtime.shutdown_background();
    ended
}

/// What there is to say of layers with a sliding window.
fn windows(engine: &EngineHandle) -> String {
    engine.sliding().map_or(String::new(), |SlidingPool { spec, blocks }| {
        let bytes = out::bytes((blocks * spec.block_bytes) as u64);
        format!("; {blocks} blocks ({bytes}) of layers with a window of {} tokens", spec.window)
    })
}

/// What there is to say of images.
fn images_seen(reader: Option<&ImageReader>) -> String {
    reader.map_or(String::new(), |reader| {
        let [most, usual] = reader.most_tokens();
        let bytes = out::bytes(reader.room().bytes());
        format!("; images of {usual} tokens, {most} where asked for, in {bytes} of memory")
    })
}

/// What there is to say of the prefix cache.
fn kept(spec: &ModelSpec, engine: &EngineHandle) -> String {
    let prefix = engine.prefix();
    match (prefix.enabled, spec.state_bytes, prefix.snapshots) {
        (false, ..) => "; prefix cache off".to_owned(),
        (true, 0, _) => String::new(),
        (true, _, 0) => "; prefix cache off: no snapshots".to_owned(),
        (true, state, snapshots) => {
            format!("; {snapshots} snapshots of {}", out::bytes(state))
        }
    }
}
