//! A model on several processes: the flags of `serve`, and what they start.

use crate::failure::{EXIT_DEVICE_FAULT, Failure};
use crate::images::ReadImages;
use crate::process::{end, out};
use crate::start::gpus::OrdinalOf;
use crate::start::load::{StartEngine, load_model, run_engine, start_engine};
use crate::start::worker_health::WorkerHealth;
use monomorph_engine::{EngineHandle, EngineOptions};
use monomorph_hosts::{
    Deadlines, Duties, Ended, Hello, Lead, Loaded, OnEnd, Options, Room, Share, Token, follow,
};
use monomorph_model::{
    LoadOptions, Model, ModelSpec, ProcessOptions, Progress, SlidingSpec, VisionSpec, Weights,
    set_device_fault,
};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::net::TcpListener;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a process may take to tell its clients when its world has ended: its forward thread may wait for
/// a device that waits for one that is gone. Clients are to know within 5 s.
const LAST: Duration = Duration::from_secs(3);
/// How many times longer than predicted a step may take.
const TOLERANCE: f64 = 4.0;
/// Bytes of each end of a checkpoint's file that its digest is over: tables of tensors are at the beginning.
const END_BYTES: u64 = 1 << 20;

/// Flags of several hosts.
#[derive(Clone, Debug, clap::Args)]
pub struct HostsArgs {
    /// Processes that the model is spread over, this one included; each is started with the same flags but
    /// `--rank`.
    #[arg(long, value_name = "N", default_value_t = NonZero::<u32>::MIN)]
    pub world_size: NonZero<u32>,
    /// Which of them this is: 0 serves, the others carry out what it says.
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Name or address of the host of rank 0, where it waits for the others.
    #[arg(long, value_name = "HOST")]
    pub master_addr: Option<String>,
    /// Port there.
    #[arg(long, value_name = "PORT")]
    pub master_port: Option<NonZero<u16>>,
    /// A file with the secret that all of them share; it must be its owner's alone (mode 0600).
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// NCCL's library, through which the processes of a build with `--hosts` exchange values [default:
    /// libnccl.so.2, where the system's loader finds it].
    #[arg(long, value_name = "FILE")]
    pub nccl: Option<PathBuf>,
    /// Port at which a worker answers `/health` [default: it listens nowhere].
    #[arg(long, value_name = "PORT")]
    pub health_port: Option<u16>,
}

/// A world of several processes, as one of them is told of it.
#[derive(Clone, Debug)]
pub(crate) struct World {
    rank: u32,
    processes: u32,
    /// Where the head listens.
    head: String,
    token: Token,
    nccl: Option<PathBuf>,
    /// Where a worker answers how it is.
    health_port: Option<u16>,
}

impl HostsArgs {
    /// Whether this is the only process.
    pub(crate) fn is_alone(&self) -> bool {
        self.world_size == NonZero::<u32>::MIN
    }

    /// How many of so many ranks are in this process.
    pub(crate) fn ranks_here(&self, ranks: usize) -> usize {
        (ranks / self.world_size.get() as usize).max(1)
    }

    /// The world that is asked for; none for one process. A build of so many `ranks` can be spread over
    /// `possible` numbers of processes.
    ///
    /// # Errors
    /// When a flag is missing or goes with others, or the build has no such world.
    pub(crate) fn read(&self, ranks: usize, possible: &[usize]) -> Result<Option<World>, String> {
        let HostsArgs { rank, master_addr, master_port, token_file, .. } = self;
        let processes = self.world_size.get();
        let given = [
            ("--rank", rank.is_some()),
            ("--master-addr", master_addr.is_some()),
            ("--master-port", master_port.is_some()),
            ("--token-file", token_file.is_some()),
        ];
        if processes == 1 {
            if let Some(least) = possible.iter().min().filter(|least| **least > 1) {
                return Err(format!("this build runs as {least} processes: --world-size {least} is missing"));
            }
            let others = [("--nccl", self.nccl.is_some()), ("--health-port", self.health_port.is_some())];
            let given = given.into_iter().chain(others).collect::<Vec<_>>();
            return match given.iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(format!("{flag} goes with --world-size 2 or more")),
                None => Ok(None),
            };
        }
        if ranks > 1 && possible == [1] {
            return Err(format!(
                "--world-size {processes}: the {ranks} ranks of this build exchange values within one process; \
                 start one, with --gpu-ordinals, or build it with --hosts {ranks}"
            ));
        }
        if !possible.contains(&(processes as usize)) {
            return Err(format!(
                "--world-size {processes}: this build is cut into {ranks}, which so many processes cannot share; \
                 `cargo xtask build --tp N --hosts N` cuts for N"
            ));
        }
        let (Some(rank), Some(host), Some(port), Some(file)) = (rank, master_addr, master_port, token_file)
        else {
            let missing = given.iter().find(|(_, given)| !given).map_or("another flag", |(flag, _)| *flag);
            return Err(format!("--world-size {processes} needs {missing} as well"));
        };
        if *rank >= processes {
            return Err(format!("--rank {rank} is not below --world-size {processes}"));
        }
        if *rank == 0 && self.health_port.is_some() {
            return Err("--health-port is a worker's; rank 0 answers at its --port".to_owned());
        }
        let token = Token::read(file)?;
        let (head, nccl) = (format!("{host}:{port}"), self.nccl.clone());
        Ok(Some(World { rank: *rank, processes, head, token, nccl, health_port: self.health_port }))
    }
}

impl World {
    /// Whether this process carries out what another says.
    pub(crate) fn is_worker(&self) -> bool {
        self.rank > 0
    }

    /// This process, as the model is told of it.
    pub(crate) fn process(&self) -> ProcessOptions {
        ProcessOptions {
            rank: self.rank as usize,
            processes: self.processes as usize,
            nccl: self.nccl.clone(),
        }
    }
}

/// Starts the engine of a head.
type StartHead = fn(
    &World,
    &Weights,
    &LoadOptions,
    EngineOptions,
    (&Progress, Loaded),
    Deadlines,
) -> Result<EngineHandle, Failure>;
/// Runs a worker until its world ends.
type Follow = fn(&World, &Weights, &LoadOptions, IpAddr, Deadlines) -> Result<(), Failure>;

/// What is compiled for each model, as plain functions: how it is started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub(crate) engine: StartEngine,
    pub(crate) head: StartHead,
    pub(crate) follow: Follow,
    /// Its layers with a sliding window.
    pub(crate) sliding: Option<SlidingSpec>,
    /// Ranks that the build is cut into.
    pub(crate) ranks: usize,
    /// How many processes may share them.
    pub(crate) processes: &'static [usize],
    /// Looks up GPUs that are named by their UUIDs.
    pub(crate) ordinal_of: OrdinalOf,
    /// Whether it is a profiling build.
    pub(crate) profiling: bool,
    /// Its vision tower, if it has one.
    pub(crate) vision: Option<VisionSpec>,
    /// What prepares images, of a model that takes some: others do not link it.
    pub(crate) read_images: Option<ReadImages>,
}

impl Start {
    /// The functions of a model.
    pub fn of<M: Model>() -> Start {
        Start {
            engine: start_engine::<M>,
            head: start_head::<M>,
            follow: start_worker::<M>,
            sliding: M::SLIDING,
            ranks: M::RANKS,
            processes: M::PROCESSES,
            ordinal_of: M::ordinal_of,
            profiling: M::PROFILE.is_some(),
            vision: M::VISION,
            read_images: ReadImages::of::<M>(),
        }
    }
}

/// How long processes with this model wait for each other; a step may take so long, if that is given.
pub(crate) fn deadlines(spec: &ModelSpec, step: Option<Duration>) -> Deadlines {
    let predicted = TOLERANCE * spec.step_tokens as f64 / spec.figures.predicted_prefill;
    // Without predictions the number is not finite.
    let predicted = Duration::try_from_secs_f64(predicted).unwrap_or_default();
    let least = Deadlines::default();
    Deadlines { step: step.unwrap_or(predicted.max(least.step)), ..least }
}

/// What a model does in the start of its world.
struct OfModel<'a, M> {
    world: &'a World,
    weights: &'a Weights,
    options: LoadOptions,
    progress: &'a Progress,
    /// Set once programs are recorded.
    ready: Arc<AtomicBool>,
    model: PhantomData<fn() -> M>,
}

impl<M: Model> Duties for OfModel<'_, M> {
    type Model = M;

    fn plan(&mut self) -> Result<Room, String> {
        Ok(Room { blocks: self.options.blocks.map_or(u64::MAX, |blocks| blocks as u64), ..Room::ANY })
    }

    fn load(&mut self, room: Room) -> Result<M, String> {
        let most = usize::try_from(room.blocks).unwrap_or(usize::MAX);
        self.options.blocks = self.options.blocks.map(|blocks| blocks.min(most));
        load_model(self.weights, &self.options, self.progress).map_err(|error| error.to_string())
    }

    fn identify(&mut self) -> Result<Vec<u8>, String> {
        M::identify()
    }

    fn join(&mut self, model: &mut M, name: &[u8]) -> Result<(), String> {
        model.join(name, self.world.rank as usize, self.world.processes as usize)
    }

    fn sum(&mut self, model: &mut M) -> Result<u64, String> {
        model.add_up(1 << self.world.rank)
    }

    fn record(&mut self, model: &mut M) -> Result<(), String> {
        model.record()?;
        self.ready.store(true, Ordering::Release);
        Ok(())
    }
}

fn start_head<M: Model>(
    world: &World,
    weights: &Weights,
    options: &LoadOptions,
    engine: EngineOptions,
    (progress, loaded): (&Progress, Loaded),
    deadlines: Deadlines,
) -> Result<EngineHandle, Failure> {
    let handle: Arc<OnceLock<EngineHandle>> = Arc::default();
    let ending = Arc::clone(&handle);
    let condemn = move |why: &str| {
        // An idle engine hears of it in no step.
        if let Some(engine) = ending.get() {
            engine.condemn(why);
        }
    };
    let lead = lead::<M>(world, weights, options, (progress, loaded), deadlines, condemn)?;
    let engine = run_engine(lead, options, engine)?;
    let _ = handle.set(engine.clone());
    Ok(engine)
}

/// The model of a head, once all workers are ready. `broken` is called if the world breaks after that.
fn lead<M: Model>(
    world: &World,
    weights: &Weights,
    options: &LoadOptions,
    (progress, loaded): (&Progress, Loaded),
    deadlines: Deadlines,
    broken: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Lead<M>, Failure> {
    let hello = hello::<M>(world, weights, options)?;
    let listener = TcpListener::bind(&world.head).map_err(|error| {
        format!("--master-addr and --master-port: cannot listen at {}: {error}", world.head)
    })?;
    out::print(format_args!("rank 0 of {} waits for the others at {}", world.processes, world.head));
    let on_end: OnEnd = Arc::new(move |ended| {
        if let Ended::Broken(why) = ended {
            set_device_fault(why);
            broken(why);
        }
        // A head that stops is ended by its server.
        if *ended != Ended::Stopped {
            leave_within(LAST, ended);
        }
    });
    let options_of = options_of(world, deadlines, loaded, on_end);
    let duties = OfModel::<M> {
        world,
        weights,
        options: options.clone(),
        progress,
        ready: Arc::default(),
        model: PhantomData,
    };
    Lead::start(listener, hello, &options_of, duties).map_err(failure)
}

/// What a verb does with a model that it drives itself.
pub(crate) trait Work {
    /// Does it.
    ///
    /// # Errors
    /// Its own.
    fn run<M: Model>(self, model: M) -> Result<(), Failure>;
}

/// Loads a model and does work with it: alone, or as the head of a world. A worker of one carries out what
/// its head says.
///
/// # Errors
/// When the model cannot be loaded, the world does not come about or breaks; and those of the work.
pub(crate) fn drive<M: Model>(
    world: Option<&World>,
    weights: &Weights,
    options: &LoadOptions,
    work: impl Work,
) -> Result<(), Failure> {
    let Some(world) = world else {
        return work.run(load_model::<M>(weights, options, &Progress::default())?);
    };
    let (progress, deadlines) = (Arc::new(Progress::default()), deadlines(M::SPEC, None));
    if world.is_worker() {
        let bind = IpAddr::from([127, 0, 0, 1]);
        return start_worker::<M>(world, weights, options, bind, deadlines);
    }
    let read = Arc::clone(&progress);
    let loaded: Loaded = Arc::new(move || read.read());
    work.run(lead::<M>(world, weights, options, (&progress, loaded), deadlines, |_| ())?)
}

fn start_worker<M: Model>(
    world: &World,
    weights: &Weights,
    options: &LoadOptions,
    bind: IpAddr,
    deadlines: Deadlines,
) -> Result<(), Failure> {
    let (progress, ready) = (Arc::<Progress>::default(), Arc::<AtomicBool>::default());
    if let Some(port) = world.health_port {
        let (rank, processes) = (world.rank, world.processes);
        let (progress, ready) = (Arc::clone(&progress), Arc::clone(&ready));
        let port = WorkerHealth { rank, processes, progress, ready }.listen(bind, port)?;
        out::print(format_args!("health: http://{bind}:{port}/health"));
    }
    let hello = hello::<M>(world, weights, options)?;
    let (rank, size, head) = (world.rank, world.processes, &world.head);
    out::print(format_args!("rank {rank} of {size} follows the head at {head}"));
    let read = Arc::clone(&progress);
    let on_end: OnEnd = Arc::new(|ended| {
        if let Ended::Broken(why) = ended {
            set_device_fault(why);
        }
        leave_within(LAST, ended);
    });
    let options_of = options_of(world, deadlines, Arc::new(move || read.read()), on_end);
    let progress = &*progress;
    let duties =
        OfModel::<M> { world, weights, options: options.clone(), progress, ready, model: PhantomData };
    match follow(head, rank, hello, &options_of, duties) {
        Ended::Stopped => Ok(()),
        ended => Err(failure(ended)),
    }
}

fn options_of(world: &World, deadlines: Deadlines, loaded: Loaded, on_end: OnEnd) -> Options {
    let say = Arc::new(|line: std::fmt::Arguments<'_>| out::print(line));
    Options { token: world.token.clone(), deadlines, share: Share::Part, say, loaded, on_end }
}

/// Ends the process after so long, if it has not ended by itself.
fn leave_within(limit: Duration, ended: &Ended) {
    let ended = ended.clone();
    let leave = move |limit| {
        std::thread::sleep(limit);
        if ended != Ended::Stopped {
            out::say(format_args!("error: {ended}"));
        }
        end::at_once(ended.code())
    };
    let late = std::thread::Builder::new().name("leave".into()).spawn({
        let leave = leave.clone();
        move || leave(limit)
    });
    // Without a thread for it the process ends at once.
    if late.is_err() {
        leave(Duration::ZERO);
    }
}

fn failure(ended: Ended) -> Failure {
    let code = if matches!(ended, Ended::Broken(_)) { EXIT_DEVICE_FAULT } else { 1 };
    Failure { message: ended.to_string(), code }
}

/// What this process must have in common with the others. Plan and kernels are in its own program.
fn hello<M: Model>(world: &World, weights: &Weights, options: &LoadOptions) -> Result<Hello, String> {
    let spec = M::SPEC;
    let program = Path::new("/proc/self/exe");
    let program = File::open(program).and_then(|file| sum(file, u64::MAX)).map_err(|error| {
        format!("this program cannot be read, which other processes compare with theirs: {error}")
    })?;
    let checkpoint = match weights {
        Weights::Dummy { seed } => format!("dummy:{seed}"),
        Weights::Checkpoint(checkpoint) => {
            let mut all = Sha256::new();
            for file in checkpoint.files() {
                let ends = ends(file.path(), file.bytes()).map_err(|error| error.to_string())?;
                all.update(format!("{:?} {} {ends}\n", file.path().file_name(), file.bytes()));
            }
            hex(all)
        }
    };
    let (driver, nccl) = M::versions(options)?;
    let number = |count: usize| count as u64;
    Ok(Hello {
        plan: format!("{} {}", spec.target, hex(Sha256::new().chain_update(format!("{spec:?}")))),
        cubins: program,
        checkpoint,
        ranks: world.processes,
        context: number(options.context),
        kv_format: spec.kv_formats.to_string(),
        block_tokens: number(spec.block_tokens),
        block_bytes: number(spec.block_bytes),
        state_bytes: spec.state_bytes,
        blocks: options.blocks.map(number),
        sequences: options.states.sequences.map(number),
        snapshots: options.states.snapshots.map(number),
        driver,
        nccl,
    })
}

/// A digest of a file's two ends.
fn ends(path: &Path, bytes: u64) -> std::io::Result<String> {
    let mut last = File::open(path)?;
    last.seek(SeekFrom::Start(bytes.saturating_sub(END_BYTES)))?;
    Ok(format!("{} {}", sum(File::open(path)?, END_BYTES)?, sum(last, END_BYTES)?))
}

/// A digest of so many bytes of a file, at most.
fn sum(file: File, most: u64) -> std::io::Result<String> {
    let (mut file, mut sum, mut chunk) = (file.take(most), Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(sum)),
            count => sum.update(&chunk[..count]),
        }
    }
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
