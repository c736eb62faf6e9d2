//! How processes meet, or refuse each other by name.

use crate::support::*;
use monomorph_engine::scripted::{Script, Small};
use monomorph_hosts::{Door, Ended, Hello, Options};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn alone(ranks: u32) -> Alone<Small> {
    Alone::new(Script::default(), ranks)
}

/// Options whose lines are kept.
fn heard() -> (Options, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let say = Arc::new(move |line: std::fmt::Arguments<'_>| kept.lock().unwrap().push(line.to_string()));
    (Options { say, ..options() }, lines)
}

fn refused(ended: Ended) -> String {
    match ended {
        Ended::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

/// A worker with another token is turned away, and the head waits on for the right one. So it does when
/// strangers call, and when a rank comes twice or is none.
pub fn strangers() {
    let (listener, address) = listener();
    let (loud, lines) = heard();
    let leading = head(listener, hello(3), loud, alone(3));
    let other = Options { token: token("another token of many bytes"), ..options() };
    let why = refused(ended(&worker(&address, 1, hello(3), other, alone(3))));
    assert!(why.starts_with("the head refuses this process: rank 1 has another token"), "{why}");

    let mut http = TcpStream::connect(&address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut taken = Vec::new();
    http.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = http.read_to_end(&mut taken);
    assert!(taken.len() < 200, "a stranger gets a challenge and no more");
    drop(TcpStream::connect(&address).unwrap());

    let first = worker(&address, 1, hello(3), options(), alone(3));
    std::thread::sleep(Duration::from_millis(300));
    let why = refused(ended(&worker(&address, 1, hello(3), options(), alone(3))));
    assert!(why.contains("--rank 1 is there already"), "{why}");
    let why = refused(ended(&worker(&address, 7, hello(9), options(), alone(9))));
    assert!(why.contains("--rank 7 is none of a worker: they are 1 to 2"), "{why}");
    let why = refused(ended(&worker(&address, 0, hello(3), options(), alone(3))));
    assert!(why.contains("--rank 0 of --world-size 3"), "{why}");

    let second = worker(&address, 2, hello(3), options(), alone(3));
    let lead = leading.join().unwrap().unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while TcpStream::connect(&address).is_ok() {
        assert!(Instant::now() < until, "nobody listens any more");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(lead);
    assert_eq!((ended(&first), ended(&second)), (Ended::Stopped, Ended::Stopped));
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("is turned away: rank 1 has another token"), "{lines}");
    assert!(lines.contains("is turned away: a message of 542393671 bytes is longer than 512"), "{lines}");
}

/// A head that lets anyone in, and does not hold the token itself.
pub fn impostor() {
    let (listener, address) = listener();
    let following = worker(&address, 1, hello(2), options(), alone(2));
    let (mut stream, _) = listener.accept().unwrap();
    let door = Door::new(token("another token of many bytes"), [7; 32]);
    let mut send = |body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        stream.write_all(&[&length, body].concat()).unwrap();
    };
    send(&door.challenge());
    let said = monomorph_hosts::Said { rank: 1, head: [7; 32], worker: [0; 32] };
    send(&door.welcome(&said));
    let why = refused(ended(&following));
    assert!(why.starts_with("the head has another token"), "{why}");
}

/// Each field that must be equal, on both sides by name and with both values.
pub fn unequal() {
    type Change = fn(&mut Hello);
    let other: [(&str, Change); 14] = [
        ("plan is \"p1\" here and \"p2\" on", |it| it.plan = "p2".into()),
        ("cubins is \"c1\" here and \"c2\" on", |it| it.cubins = "c2".into()),
        ("checkpoint is \"w1\" here and \"w2\" on", |it| it.checkpoint = "w2".into()),
        ("world size is \"2\" here and \"3\" on", |it| it.ranks = 3),
        ("context is \"4096\" here and \"1024\" on", |it| it.context = 1024),
        ("K/V format is \"f32\" here and \"fp8\" on", |it| it.kv_format = "fp8".into()),
        ("tokens of a K/V block is \"0\" here and \"16\" on", |it| it.block_tokens = 16),
        ("bytes of a K/V block is \"0\" here and \"64\" on", |it| it.block_bytes = 64),
        ("bytes of a recurrent state is \"0\" here and \"8\" on", |it| it.state_bytes = 8),
        ("K/V blocks asked for is \"as many as fit\" here and \"9\" on", |it| it.blocks = Some(9)),
        ("sequences asked for is \"as many as fit\" here and \"9\" on", |it| it.sequences = Some(9)),
        ("snapshots asked for is \"as many as fit\" here and \"9\" on", |it| it.snapshots = Some(9)),
        ("driver is \"none\" here and \"580\" on", |it| it.driver = "580".into()),
        ("NCCL is \"none\" here and \"2.30\" on", |it| it.nccl = "2.30".into()),
    ];
    for (named, change) in other {
        let (listener, address) = listener();
        let mut differing = hello(2);
        change(&mut differing);
        let following = worker(&address, 1, differing, options(), alone(2));
        let leading = head(listener, hello(2), options(), alone(2));
        let why = refused(leading.join().unwrap().unwrap_err());
        // Either notices first, and tells the other.
        let there = named.split_once(" is ").unwrap().0;
        assert!(why.contains(named) || why.contains("rank 1 ended") && why.contains(there), "{named}: {why}");
        let why = refused(ended(&following));
        assert!(why.contains(there) && why.contains("need the same"), "{named}: {why}");
    }
}

/// A worker that nobody answers gives up, and so does a head that waits for one.
pub fn nobody() {
    let (listener, address) = listener();
    drop(listener);
    let mut short = options();
    short.deadlines.gather = Duration::from_millis(300);
    let why = refused(ended(&worker(&address, 1, hello(2), short.clone(), alone(2))));
    assert!(why.contains("did not answer within 0.3 s: Connection refused"), "{why}");
    let (listener, _) = crate::support::listener();
    let why = refused(head(listener, hello(2), short, alone(2)).join().unwrap().unwrap_err());
    assert_eq!(why, "rank 1 has not said what it is for 0.3 s");
}

/// A rank that cannot load ends all, with its reason.
pub fn failing() {
    let (listener, address) = listener();
    let mut duties = alone(2);
    duties.ranks = 1;
    let following = worker(&address, 1, hello(2), options(), duties);
    let why = refused(head(listener, hello(2), options(), alone(2)).join().unwrap().unwrap_err());
    assert!(
        why.contains("rank 1 adds the known value up to 1, and 3 is right: what differs is of rank 1"),
        "{why}"
    );
    assert!(refused(ended(&following)).contains("what differs is of rank 1"));
}
