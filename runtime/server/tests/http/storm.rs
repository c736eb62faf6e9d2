//! Many clients that go away at any moment.

use crate::clock;
use crate::process::Server;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Clients of one round.
const CLIENTS: u64 = 1_000;
const THREADS: u64 = 20;
/// Rounds in which [`REACH`] clients reach the engine, also on a machine that is busy with other tests.
const ROUNDS: u64 = 10;
/// Clients that the engine must have met before the storm ends.
const REACH: u64 = 500;

/// The `index`th of a sequence of numbers that look random (SplitMix64).
fn random(index: u64) -> u64 {
    let mut hash = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

/// Sends a request, or half of one, and hangs up within a few milliseconds.
fn hang_up(server: &Server, client: u64) {
    let random = random(client);
    let prompt = format!("{}[[forever]]", " ".repeat((random >> 8) as usize % 300));
    let body = json!({"prompt": prompt, "max_tokens": 150, "stream": random.is_multiple_of(2)}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    let sent = if random % 16 == 1 { body.len() / 2 } else { body.len() };
    stream.write_all(head.as_bytes()).expect("taken");
    stream.write_all(&body.as_bytes()[..sent]).expect("taken");
    std::thread::sleep(Duration::from_micros((random >> 24) % 12_000));
    // Some close both ways, some only go.
    if random.is_multiple_of(3) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn lone_time(server: &Server) -> Duration {
    let asked = Instant::now();
    let answer = server.post("/v1/completions", &json!({"prompt": "[[say so it is]]"}));
    assert_eq!(answer.json()["choices"][0]["text"], "so it is", "{}", answer.text());
    clock::since(asked)
}

/// Room for a few at once, so that most of them wait, and some are refused.
///
/// Planted once: one of the running whose client is gone is dropped with its blocks. This test waited for the
/// counts to come back in vain.
pub fn hangups() {
    let server = Server::start(&["--kv-tokens", "2048", "--max-waiting", "64"]);
    let lone = (0..5).map(|_| lone_time(&server)).min().expect("five");
    let counts = |stats: &Value| ["waiting", "running", "free_blocks"].map(|name| stats[name].clone());
    let before = counts(&server.stats());
    let ended =
        |stats: &Value| ["finished", "cancelled"].iter().filter_map(|it| stats[*it].as_u64()).sum::<u64>();
    let ended_before = ended(&server.stats());
    let met = || ended(&server.stats()) - ended_before;
    let round = |clients: std::ops::Range<u64>| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (server, clients) = (&server, clients.clone());
                scope.spawn(move || {
                    clients.skip(thread as usize).step_by(THREADS as usize).for_each(|it| hang_up(server, it))
                });
            }
        })
    };
    for number in 0..ROUNDS {
        round(number * CLIENTS..(number + 1) * CLIENTS);
        if met() >= REACH {
            break;
        }
    }
    let passed = Instant::now();
    server.wait_for("the storm to pass", |stats| counts(stats) == before);
    assert!(clock::since(passed) < Duration::from_secs(2), "{:?}", passed.elapsed());
    let after = (0..5).map(|_| lone_time(&server)).min().expect("five");
    assert!(after < lone + Duration::from_millis(100), "{lone:?} before, {after:?} after");
    let met = met();
    assert!(met >= REACH, "{met} of {ROUNDS} rounds reached the engine, not {REACH}");
    assert_eq!(server.stats()["failed"], 0);
}
