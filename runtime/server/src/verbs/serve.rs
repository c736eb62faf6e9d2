//! `serve`: HTTP until told to stop.

use crate::failure::Failure;
use crate::http::app::{App, Ready};
use crate::http::router;
use crate::load::{CacheArgs, MemoryArgs, PrefixArgs, StartEngine, ThreadArgs, WeightsArgs, load};
use crate::openai::answers::unix_time;
use crate::out;
use crate::{batches, draft};
use monomorph_engine::{EngineHandle, EngineOptions, Event, Health, Request};
use monomorph_model::{ModelSpec, Progress, device_fault};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Threads for HTTP: the cores belong to the model.
const HTTP_THREADS: usize = 2;
/// How often to look whether loading is done.
const LOADING_POLL: Duration = Duration::from_millis(100);
/// How long the last bytes of answers may take to leave after the engine has stopped.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Flags of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Where the weights are.
    #[command(flatten)]
    pub weights: WeightsArgs,
    /// Address to listen at.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind: IpAddr,
    /// Port to listen at; 0 takes a free one.
    #[arg(long, value_name = "N", default_value_t = 8888)]
    pub port: u16,
    /// Memory for sequences.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// What is kept for prompts that begin alike.
    #[command(flatten)]
    pub prefix: PrefixArgs,
    /// Memory of the device.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Threads of the model.
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Requests that may wait for their turn; more are answered 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_waiting: usize,
    /// What clients call the model [default: the name it was built under].
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Largest request body in bytes; larger ones are answered 413.
    #[arg(long, value_name = "BYTES", default_value_t = NonZero::<usize>::MIN.saturating_add(4 * 1024 * 1024 - 1))]
    pub max_body: NonZero<usize>,
    /// Seconds that running answers get to finish after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u64,
}

/// Serves until a signal, then drains. `/health` answers from the start, and 200 once the model is loaded. `started` is
/// when the process was.
///
/// # Errors
/// When the address is taken, the weights cannot be loaded, or the device failed.
pub fn serve(
    spec: &'static ModelSpec,
    start: StartEngine,
    args: &ServeArgs,
    started: Instant,
) -> Result<(), Failure> {
    let (context, blocks) = args.cache.plan(spec)?;
    let prefix = args.prefix.options(spec)?;
    let mut options =
        args.memory.options(blocks, context + spec.reach(), args.threads.count(), out::print)?;
    options.snapshots = prefix.snapshots;
    let wanted = SocketAddr::new(args.bind, args.port);
    let cannot_listen = |error| format!("cannot listen at {wanted}: {error}");
    let listener = TcpListener::bind(wanted).map_err(cannot_listen)?;
    listener.set_nonblocking(true).map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;

    let app = Arc::new(App {
        spec,
        model_name: args.model_name.clone().unwrap_or_else(|| spec.model.to_owned()),
        body_limit: args.max_body.get(),
        dummy: args.weights.is_dummy(),
        forced: draft::forced(spec),
        progress: Progress::default(),
        started,
        created: unix_time(),
        ready: OnceLock::new(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the HTTP threads: {error}"))?;
    let drain = Duration::from_secs(args.drain_seconds);
    let server = runtime.spawn(run(Arc::clone(&app), listener, drain));

    out::print(format_args!("loading {} at http://{address}/", spec.target));
    let engine = EngineOptions { blocks: 0, context, max_waiting: args.max_waiting, prefix };
    let (engine, text) = load(spec, start, &args.weights, &options, engine, &app.progress)?;
    let (blocks, context) = (engine.stats().total_blocks, engine.context());
    let cached = blocks * spec.block_tokens;
    if spec.hardware.cuda.is_some() {
        first_token(&engine, started)?;
    }
    let weights = if app.dummy { "; weights: dummy" } else { "" };
    let drafts = spec.draft.as_ref().map_or(String::new(), |it| format!("; {}", draft::describe(spec, it)));
    let invariant = spec.batch_invariant.as_ref();
    let invariant =
        invariant.map_or(String::new(), |it| format!("; batches: {}", batches::describe(spec, it)));
    let kept = kept(spec, &engine);
    let _ = app.ready.set(Ready { engine, text: Arc::new(text) });
    out::print(format_args!(
        "ready in {:.2} s: {} with a context of {context} tokens, {cached} cached in all ({}), {} threads{kept}{weights}{drafts}{invariant}",
        started.elapsed().as_secs_f64(),
        app.model_name,
        out::bytes(blocks as u64 * spec.block_bytes as u64),
        options.threads,
    ));
    out::print(format_args!("chat page:  http://{address}/\nOpenAI API: http://{address}/v1"));
    match runtime.block_on(server) {
        Ok(result) => Ok(result?),
        Err(error) => Err(format!("the HTTP server ended: {error}").into()),
    }
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

/// Answers a request of one token before anybody else's: a device that cannot is found out, and its first launches are
/// over.
fn first_token(engine: &EngineHandle, started: Instant) -> Result<(), Failure> {
    let request = Request { ignore_eos: true, ..Request::new(vec![0], 1) };
    let mut generation = engine.submit(request).map_err(|error| error.to_string())?;
    loop {
        match generation.blocking_recv() {
            Some(Event::Token(_)) => {
                out::print(format_args!("first token {} ms after the start", started.elapsed().as_millis()));
            }
            Some(Event::Finished(_)) => return Ok(()),
            Some(Event::Failed(error)) => return Err(error.to_string().into()),
            None => return Err("the first answer ended without a reason".to_owned().into()),
        }
    }
}

/// Serves HTTP until a signal, then lets running answers finish.
async fn run(app: Arc<App>, listener: TcpListener, drain: Duration) -> Result<(), String> {
    let mut signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(NoDelay(listener), router(Arc::clone(&app))).with_graceful_shutdown(async {
        // A sender that was dropped means the same.
        let _ = stopping.await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        ended = &mut server => return Err(format!("the HTTP server ended by itself: {ended:?}")),
        fault = fault(&app) => {
            // The engine has told its clients; what is left is bytes on their way.
            let _ = stop.send(());
            let _ = tokio::time::timeout(FLUSH_TIME, server).await;
            return Err(fault);
        }
        name = signals.next() => {
            let Some(ready) = app.ready.get() else {
                out::say(format_args!("{name} while loading: leaving"));
                std::process::exit(1);
            };
            let seconds = drain.as_secs();
            out::say(format_args!("{name}: finishing running answers, for {seconds} s at most; once more leaves at once"));
            ready.engine.drain(drain);
            let _ = stop.send(());
        }
    }
    let drained = async {
        if let Some(ready) = app.ready.get() {
            ready.engine.stopped().await;
        }
        // The engine cut what it could not finish: what is left is bytes on their way.
        tokio::time::timeout(FLUSH_TIME, server).await
    };
    tokio::select! {
        flushed = drained => {
            if flushed.is_err() {
                out::say(format_args!("some clients did not take their last bytes in time"));
            }
            out::say(format_args!("stopped"));
            Ok(())
        }
        name = signals.next() => {
            out::say(format_args!("{name} again: leaving"));
            std::process::exit(1);
        }
    }
}

/// Waits for a fault of the device that has ended the engine. An engine that died of anything else stays to be asked
/// what it died of.
async fn fault(app: &App) -> String {
    let ready = loop {
        match app.ready.get() {
            Some(ready) => break ready,
            // Loading reports its own errors.
            None => tokio::time::sleep(LOADING_POLL).await,
        }
    };
    ready.engine.stopped().await;
    match (ready.engine.health(), device_fault()) {
        (Health::Dead(_), Some(fault)) => fault.to_owned(),
        _ => std::future::pending().await,
    }
}

/// A listener whose connections send every event at once instead of waiting for more bytes.
struct NoDelay(tokio::net::TcpListener);

impl axum::serve::Listener for NoDelay {
    type Io = tokio::net::TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = axum::serve::Listener::accept(&mut self.0).await;
        // Slower, not wrong, where the system refuses.
        let _ = stream.set_nodelay(true);
        (stream, address)
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one and names it.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
