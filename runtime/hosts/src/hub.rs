//! What carries a machine's decisions out: one lock around it, a thread that reads for each connection, and
//! one that ticks.

use crate::codec::{decode, encode};
use crate::ended::Ended;
use crate::frame;
use crate::message::{Effect, Message};
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a machine is told the time, at least.
const TICK: Duration = Duration::from_millis(100);
/// How long a reader waits before it looks whether all is over.
const LOOK: Duration = Duration::from_millis(500);

/// A machine of the protocol. Its peers are ranks; a worker's only one is 0.
pub(crate) trait Machine: Send + 'static {
    fn effects(&mut self) -> Vec<Effect>;
    fn heard(&mut self, now: Duration, from: u32, message: Message);
    fn lost(&mut self, from: u32, why: &str);
    fn loaded(&mut self, now: Duration, bytes: u64, total: u64);
    fn tick(&mut self, now: Duration);
    fn fail(&mut self, why: String);
}

/// Lines for the user.
pub type Say = Arc<dyn Fn(std::fmt::Arguments<'_>) + Send + Sync>;
/// Bytes loaded, and bytes to load.
pub type Loaded = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;
/// Told once, by the thread that noticed, when a world ends. The process then has to leave, even if its other
/// threads wait for a device that waits for one that is gone.
pub type OnEnd = Arc<dyn Fn(&Ended) + Send + Sync>;

pub(crate) struct Hub<M> {
    inner: Mutex<Inner<M>>,
    changed: Condvar,
    began: Instant,
    /// Most bytes of a message.
    most: usize,
    write_limit: Duration,
    say: Say,
    on_end: OnEnd,
}

struct Inner<M> {
    machine: M,
    /// By rank.
    links: Vec<Option<TcpStream>>,
    /// What is for this process's own thread.
    local: VecDeque<Effect>,
    ended: Option<Ended>,
    /// Whether the user was told so.
    told: bool,
}

impl<M: Machine> Hub<M> {
    pub fn new(
        machine: M,
        began: Instant,
        most: usize,
        write_limit: Duration,
        say: Say,
        on_end: OnEnd,
    ) -> Arc<Hub<M>> {
        let inner = Inner { machine, links: Vec::new(), local: VecDeque::new(), ended: None, told: false };
        Arc::new(Hub {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            began,
            most,
            write_limit,
            say,
            on_end,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Tells the machine something, and carries out what it says to that.
    pub fn tell<T>(&self, tell: impl FnOnce(&mut M, Duration) -> T) -> T {
        let mut inner = self.lock();
        let said = tell(&mut inner.machine, self.now());
        self.carry_out(&mut inner);
        let ended = inner.ended.clone().filter(|_| !inner.told);
        inner.told |= ended.is_some();
        drop(inner);
        self.changed.notify_all();
        if let Some(ended) = ended {
            (self.on_end)(&ended);
        }
        said
    }

    fn carry_out(&self, inner: &mut Inner<M>) {
        loop {
            let effects = inner.machine.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Send(rank, message) => self.send(inner, rank..rank + 1, &message),
                    Effect::SendAll(message) => self.send(inner, 0..inner.links.len() as u32, &message),
                    Effect::Begin(_) | Effect::Carry(..) => inner.local.push_back(effect),
                    Effect::Say(line) => (self.say)(format_args!("{line}")),
                    Effect::End(ended) => {
                        // Only the sending half: what was said last still arrives.
                        inner.links.iter().flatten().for_each(|link| drop(link.shutdown(Shutdown::Write)));
                        inner.ended = Some(ended);
                    }
                }
            }
        }
    }

    /// Sends a message to those of these ranks that are connected.
    fn send(&self, inner: &mut Inner<M>, ranks: std::ops::Range<u32>, message: &Message) {
        let body = encode(message);
        for rank in ranks {
            let Some(Some(link)) = inner.links.get_mut(rank as usize) else { continue };
            if let Err(why) = frame::send(link, &body, self.most) {
                inner.links[rank as usize] = None;
                inner.machine.lost(rank, &why);
            }
        }
    }

    /// Connects a rank: what it says goes to the machine from now on. `arrives` may refuse it.
    pub fn connect(
        self: &Arc<Self>,
        rank: u32,
        stream: TcpStream,
        arrives: impl FnOnce(&mut M, Duration) -> Result<(), String>,
    ) -> Result<(), String> {
        let named = |error: std::io::Error| format!("the connection cannot be used: {error}");
        stream.set_nodelay(true).map_err(named)?;
        stream.set_read_timeout(Some(LOOK)).map_err(named)?;
        stream.set_write_timeout(Some(self.write_limit)).map_err(named)?;
        let reader = stream.try_clone().map_err(named)?;
        let mut refused = Ok(());
        self.tell_with(|inner, now| {
            refused = arrives(&mut inner.machine, now);
            if refused.is_ok() {
                let at = rank as usize;
                inner.links.resize_with(inner.links.len().max(at + 1), || None);
                inner.links[at] = Some(stream);
            }
        });
        refused?;
        let hub = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("rank {rank}"));
        thread.spawn(move || hub.read(rank, reader)).map_err(named)?;
        Ok(())
    }

    fn tell_with(&self, tell: impl FnOnce(&mut Inner<M>, Duration)) {
        tell(&mut self.lock(), self.now());
        self.tell(|_, _| ());
    }

    /// Reads until the connection breaks or all is over.
    fn read(&self, rank: u32, mut stream: TcpStream) {
        loop {
            let waits = || self.lock().ended.is_none();
            let read = frame::receive(&mut stream, self.most, waits);
            let message = read.and_then(|body| {
                decode(&body).map_err(|why| format!("it sent a message that is malformed: {why}"))
            });
            match message {
                Ok(message) => self.tell(|machine, now| machine.heard(now, rank, message)),
                Err(why) => return self.tell(|machine, _| machine.lost(rank, &why)),
            }
        }
    }

    /// Ticks until all is over.
    pub fn tick(self: &Arc<Self>, heartbeat: Duration, loaded: Loaded) -> Result<(), String> {
        let (hub, pause) = (Arc::clone(self), TICK.min(heartbeat / 4));
        let thread = std::thread::Builder::new().name("hosts".into());
        let ticks = move || {
            while hub.lock().ended.is_none() {
                let (bytes, total) = loaded();
                hub.tell(|machine, now| {
                    machine.loaded(now, bytes, total);
                    machine.tick(now);
                });
                std::thread::sleep(pause);
            }
        };
        thread.spawn(ticks).map_err(|error| format!("a thread could not be started: {error}"))?;
        Ok(())
    }

    /// Waits until `ready` has something.
    ///
    /// # Errors
    /// When the world ended.
    pub fn wait<T>(&self, mut ready: impl FnMut(&mut M) -> Option<T>) -> Result<T, Ended> {
        let mut inner = self.lock();
        loop {
            if let Some(ended) = &inner.ended {
                return Err(ended.clone());
            }
            if let Some(ready) = ready(&mut inner.machine) {
                return Ok(ready);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next thing that is for this process's own thread.
    ///
    /// # Errors
    /// When the world ended.
    pub fn local(&self) -> Result<Effect, Ended> {
        let mut inner = self.lock();
        loop {
            if let Some(ended) = &inner.ended {
                return Err(ended.clone());
            }
            if let Some(effect) = inner.local.pop_front() {
                return Ok(effect);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How the world ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }
}

/// Ends a world when its thread leaves without having ended it, as in a panic.
pub(crate) struct Leaving<M: Machine>(Option<Arc<Hub<M>>>);

impl<M: Machine> Leaving<M> {
    pub fn new(hub: &Arc<Hub<M>>) -> Leaving<M> {
        Leaving(Some(Arc::clone(hub)))
    }

    /// The thread leaves, and the world goes on.
    pub fn goes_on(mut self) {
        self.0 = None;
    }
}

impl<M: Machine> Drop for Leaving<M> {
    fn drop(&mut self) {
        if let Some(hub) = &self.0 {
            hub.tell(|machine, _| machine.fail("its thread panicked".to_owned()));
        }
    }
}
