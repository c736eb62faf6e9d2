//! How head and workers find each other: one listens, the others dial until it does.

use crate::frame;
use crate::gate::{Door, MOST, Visitor};
use crate::head::Head;
use crate::hub::{Hub, Machine, Say};
use crate::message::{Effect, Message};
use crate::token::{Said, Token, nonce};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a worker dials, and a head looks for one.
const AGAIN: Duration = Duration::from_millis(50);
/// How long one dial may take.
const DIAL: Duration = Duration::from_secs(2);
/// Most connections that are being challenged at a time; more are closed.
const CHALLENGED: usize = 64;

impl Machine for Head {
    fn effects(&mut self) -> Vec<Effect> {
        Head::effects(self)
    }

    fn heard(&mut self, now: Duration, from: u32, message: Message) {
        Head::heard(self, now, from, message);
    }

    fn lost(&mut self, from: u32, why: &str) {
        Head::lost(self, from, why);
    }

    fn loaded(&mut self, now: Duration, bytes: u64, _: u64) {
        Head::loaded(self, now, bytes);
    }

    fn tick(&mut self, now: Duration) {
        Head::tick(self, now);
    }

    fn fail(&mut self, why: String) {
        Head::fail(self, why);
    }
}

/// Lets workers in until all are there or the world ends. What cannot show the token is turned away, and
/// nothing else comes of it.
pub(crate) fn listen(
    listener: TcpListener,
    hub: Arc<Hub<Head>>,
    token: Token,
    limit: Duration,
    say: Say,
) -> Result<(), String> {
    listener.set_nonblocking(true).map_err(|error| format!("cannot listen: {error}"))?;
    let challenged = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        while hub.ended().is_none() && !hub.tell(|head, _| head.is_complete()) {
            let Ok((stream, address)) = listener.accept() else {
                std::thread::sleep(AGAIN);
                continue;
            };
            if challenged.load(Ordering::Relaxed) >= CHALLENGED {
                continue;
            }
            challenged.fetch_add(1, Ordering::Relaxed);
            let (hub, token) = (Arc::clone(&hub), token.clone());
            let (say, left) = (Arc::clone(&say), Arc::clone(&challenged));
            let challenge = move || {
                if let Err(why) = let_in(stream, &hub, token, limit) {
                    say(format_args!("{address} is turned away: {why}"));
                }
                left.fetch_sub(1, Ordering::Relaxed);
            };
            // A connection that no thread can be had for is closed; its worker dials again.
            let _ = std::thread::Builder::new().name("challenge".into()).spawn(challenge);
        }
    };
    let thread = std::thread::Builder::new().name("listen".into()).spawn(accept);
    thread.map(drop).map_err(|error| format!("a thread could not be started: {error}"))
}

fn let_in(stream: TcpStream, hub: &Arc<Hub<Head>>, token: Token, limit: Duration) -> Result<(), String> {
    stream.set_nonblocking(false).map_err(|error| error.to_string())?;
    let mut talk = Talk::new(&stream, limit)?;
    let door = Door::new(token, nonce()?);
    talk.send(&door.challenge())?;
    let answer = talk.receive()?;
    let refuse =
        |why: &String| drop(Talk::new(&stream, limit).and_then(|mut talk| talk.send(&Door::refuse(why))));
    let said: Said = door.check(&answer).inspect_err(refuse)?;
    let mut welcomed = stream.try_clone().map_err(|error| error.to_string())?;
    let arrives = |head: &mut Head, now: Duration| {
        head.arrived(now, said.rank)?;
        if let Err(why) = frame::send(&mut welcomed, &door.welcome(&said), MOST) {
            head.lost(said.rank, &why);
        }
        Ok(())
    };
    let kept = stream.try_clone().map_err(|error| error.to_string())?;
    hub.connect(said.rank, kept, arrives).inspect_err(refuse)
}

/// Dials the head until it answers, and shows it the token.
///
/// # Errors
/// When it does not answer until the deadline, or one refuses the other.
pub(crate) fn dial(
    head: &str,
    rank: u32,
    token: &Token,
    gather: Duration,
    challenge: Duration,
    say: &Say,
) -> Result<TcpStream, String> {
    let began = Instant::now();
    let mut last = String::new();
    loop {
        let dialled = addresses(head).and_then(|addresses| {
            let mut why = "it has no address".to_owned();
            for address in addresses {
                match TcpStream::connect_timeout(&address, DIAL) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => why = error.to_string(),
                }
            }
            Err(why)
        });
        let why = match dialled {
            Ok(stream) => match greet(&stream, rank, token, challenge) {
                Ok(()) => return Ok(stream),
                Err(Unmet::Refused(why)) => return Err(why),
                // It was about to leave, or has too many at its door.
                Err(Unmet::Broken(why)) => why,
            },
            Err(why) => why,
        };
        if began.elapsed() >= gather {
            let limit = gather.as_secs_f32();
            return Err(format!("the head at {head} did not answer within {limit} s: {why}"));
        }
        if why != last {
            say(format_args!("waiting for the head at {head}: {why}"));
            last = why;
        }
        std::thread::sleep(AGAIN);
    }
}

fn addresses(head: &str) -> Result<Vec<SocketAddr>, String> {
    head.to_socket_addrs().map(Iterator::collect).map_err(|error| error.to_string())
}

/// Why head and worker did not meet.
enum Unmet {
    /// One will not have the other.
    Refused(String),
    /// The connection broke.
    Broken(String),
}

fn greet(stream: &TcpStream, rank: u32, token: &Token, limit: Duration) -> Result<(), Unmet> {
    let mut talk = Talk::new(stream, limit).map_err(Unmet::Broken)?;
    let visitor = Visitor::new(token.clone(), rank, nonce().map_err(Unmet::Refused)?);
    let challenge = talk.receive().map_err(Unmet::Broken)?;
    let (said, answer) = visitor.answer(&challenge).map_err(Unmet::Refused)?;
    talk.send(&answer).map_err(Unmet::Broken)?;
    let verdict = talk.receive().map_err(Unmet::Broken)?;
    visitor.enter(&said, &verdict).map_err(Unmet::Refused)
}

/// The few messages of a challenge, which have one deadline together.
struct Talk<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Talk<'_> {
    fn new(stream: &TcpStream, limit: Duration) -> Result<Talk<'_>, String> {
        let timeout = Some(limit.min(AGAIN));
        let set = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(Some(limit)));
        set.and_then(|()| stream.set_nodelay(true)).map_err(|error| error.to_string())?;
        Ok(Talk { stream, until: Instant::now() + limit })
    }

    fn send(&mut self, body: &[u8]) -> Result<(), String> {
        frame::send(&mut self.stream, body, MOST)
    }

    fn receive(&mut self) -> Result<Vec<u8>, String> {
        let until = self.until;
        frame::receive(&mut self.stream, MOST, || Instant::now() < until)
    }
}
