//! Worlds over real connections, in threads of this process, around scripted models.

use monomorph_engine::scripted::{Controls, Script, Scripted, Shape};
use monomorph_engine::{EngineHandle, EngineOptions, Event, Generation, Request, Stats, start};
use monomorph_hosts::{Deadlines, Duties, Ended, Hello, Lead, Options, Room, Share, Token, follow};
use monomorph_model::Model;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a process of a test does: nothing is exchanged, since each has the whole model.
pub struct Alone<S: Shape> {
    pub script: Script,
    pub ranks: u32,
    /// Where the model's controls go.
    pub controls: Option<Arc<Mutex<Option<Controls>>>>,
    pub shape: std::marker::PhantomData<fn() -> S>,
}

impl<S: Shape> Alone<S> {
    pub fn new(script: Script, ranks: u32) -> Alone<S> {
        Alone { script, ranks, controls: None, shape: std::marker::PhantomData }
    }
}

impl<S: Shape> Duties for Alone<S> {
    type Model = Scripted<S>;

    fn plan(&mut self) -> Result<Room, String> {
        let offload = self.script.offload;
        Ok(Room {
            blocks: self.script.blocks as u64,
            sliding: S::SLIDING.map_or(0, |_| self.script.sliding as u64),
            sequences: self.script.sequences.min(S::SPEC.step_sequences) as u64,
            snapshots: if S::SPEC.state_bytes > 0 { self.script.snapshots as u64 } else { 0 },
            places: offload.map_or(0, |room| room.places as u64),
            group: offload.map_or(0, |room| room.group as u64),
        })
    }

    /// Takes what it planned, not what all agreed on: more blocks than the others is a case of its own.
    fn load(&mut self, _: Room) -> Result<Scripted<S>, String> {
        let model = Scripted::new(self.script.clone());
        if let Some(controls) = &self.controls {
            *controls.lock().unwrap() = Some(model.controls());
        }
        Ok(model)
    }

    fn identify(&mut self) -> Result<Vec<u8>, String> {
        Ok(b"a collective".to_vec())
    }

    fn join(&mut self, _: &mut Scripted<S>, name: &[u8]) -> Result<(), String> {
        if name == b"a collective" { Ok(()) } else { Err(format!("{name:?} is another collective")) }
    }

    fn sum(&mut self, _: &mut Scripted<S>) -> Result<u64, String> {
        Ok((1 << self.ranks) - 1)
    }

    fn record(&mut self, _: &mut Scripted<S>) -> Result<(), String> {
        Ok(())
    }
}

/// Short enough for tests, and long enough for a machine that others use too.
pub const DEADLINES: Deadlines = Deadlines {
    gather: Duration::from_secs(20),
    challenge: Duration::from_secs(5),
    heartbeat: Duration::from_millis(250),
    silence: Duration::from_secs(3),
    stage: Duration::from_secs(10),
    stall: Duration::from_secs(10),
    step: Duration::from_secs(3),
};

pub fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

pub fn options() -> Options {
    Options {
        token: token("a token of many bytes"),
        deadlines: DEADLINES,
        share: Share::Whole,
        say: Arc::new(|_| ()),
        loaded: Arc::new(|| (0, 0)),
        on_end: Arc::new(|_| ()),
    }
}

pub fn hello(ranks: u32) -> Hello {
    Hello {
        plan: "p1".into(),
        cubins: "c1".into(),
        checkpoint: "w1".into(),
        ranks,
        context: 4096,
        kv_format: "f32".into(),
        driver: "none".into(),
        nccl: "none".into(),
        ..Hello::default()
    }
}

pub fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A worker in a thread; how it ended comes from the channel.
pub fn worker<D: Duties + Send + 'static>(
    head: &str,
    rank: u32,
    hello: Hello,
    options: Options,
    duties: D,
) -> Receiver<Ended> {
    let (send, ended) = channel();
    let head = head.to_owned();
    std::thread::spawn(move || send.send(follow(&head, rank, hello, &options, duties)));
    ended
}

/// A head in a thread.
pub fn head<D: Duties + Send + 'static>(
    listener: TcpListener,
    hello: Hello,
    options: Options,
    duties: D,
) -> JoinHandle<Result<Lead<D::Model>, Ended>> {
    std::thread::spawn(move || Lead::start(listener, hello, &options, duties))
}

/// A world of three whose workers have these scripts, and how they end.
pub fn world<S: Shape>(
    scripts: [Script; 3],
    head_first: bool,
) -> (Lead<Scripted<S>>, Vec<Receiver<Ended>>, Vec<Controls>) {
    let (listener, address) = listener();
    let kept: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(None))).collect();
    let duties = |rank: usize| {
        let mut duties = Alone::<S>::new(scripts[rank].clone(), 3);
        duties.controls = Some(Arc::clone(&kept[rank]));
        duties
    };
    let workers =
        || [1, 2].map(|rank| worker(&address, rank, hello(3), options(), duties(rank as usize))).into();
    let pause = || std::thread::sleep(Duration::from_millis(120));
    let (leading, ended): (_, Vec<_>) = if head_first {
        let leading = head(listener, hello(3), options(), duties(0));
        pause();
        (leading, workers())
    } else {
        // Nobody listens there yet.
        drop(listener);
        let ended = workers();
        pause();
        let listener = TcpListener::bind(&address).unwrap();
        (head(listener, hello(3), options(), duties(0)), ended)
    };
    let lead = leading.join().unwrap().unwrap_or_else(|ended| panic!("{ended}"));
    let controls = kept.iter().map(|kept| kept.lock().unwrap().clone().unwrap()).collect();
    (lead, ended, controls)
}

/// How a worker ended.
pub fn ended(worker: &Receiver<Ended>) -> Ended {
    worker.recv_timeout(Duration::from_secs(15)).expect("the worker ends")
}

/// The whole answer and its end.
pub fn answer(mut generation: Generation) -> (Vec<u32>, Event) {
    let mut ids = Vec::new();
    loop {
        match generation.blocking_recv().expect("the last event is not a token") {
            Event::Token(sampled) => ids.push(sampled.id),
            end => return (ids, end),
        }
    }
}

/// Requests of all sorts, the same on every run.
pub fn requests(count: usize) -> Vec<Request> {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % bound
    };
    let one = |_| {
        let prompt = (0..1 + below(90)).map(|_| below(500) as u32 + 3).collect();
        let mut request = Request::new(prompt, 1 + below(60) as usize);
        request.sampling.temperature = below(2) as f32;
        request.sampling.seed = below(1000);
        request.sampling.frequency_penalty = if below(2) == 0 { 0.5 } else { 0.0 };
        request.sampling.top_logprobs = if below(3) == 0 { Some(2) } else { None };
        request
    };
    (0..count).map(one).collect()
}

/// The answers of an engine over a model to requests that come all at once, and its counts.
pub fn answers<M: Model>(model: M, options: EngineOptions, requests: &[Request]) -> (Vec<Vec<u32>>, Stats) {
    let engine: EngineHandle = start(model, options).unwrap();
    let running: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let answers = running.into_iter().map(|generation| match answer(generation) {
        (ids, Event::Finished(_)) => ids,
        (_, end) => panic!("{end:?}"),
    });
    (answers.collect(), engine.stats())
}
