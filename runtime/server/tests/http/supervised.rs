//! `serve --supervised`: a server that is running again soon after whatever ended it.

use crate::clock;
use crate::lifecycle::{CHAT, begin};
use crate::process::{Server, command, run};
use crate::scripted::GREETING;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How soon it must answer again.
const SOON: Duration = Duration::from_secs(3);
/// How long no client may be left without a word.
const LONG: Duration = Duration::from_secs(15);

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

/// What a client of its own connection gets: a status and a body, or nothing where the connection ended.
fn ask(address: SocketAddr, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let mut stream = TcpStream::connect_timeout(&address, LONG).expect("its socket is always there");
    stream.set_read_timeout(Some(LONG)).expect("a socket");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        assert!(!is_late, "a client was left hanging");
        return None;
    }
    let text = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().expect("a status");
    Some((status, serde_json::from_str(body).ok()?))
}

/// Asks a server that may end before or while it answers.
pub fn try_ask(address: SocketAddr, body: &Value) {
    let body = body.to_string();
    let Ok(mut stream) = TcpStream::connect_timeout(&address, LONG) else { return };
    let _ = stream.set_read_timeout(Some(LONG));
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    if stream.write_all(format!("{head}{body}").as_bytes()).is_ok() {
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

fn greets(address: SocketAddr) -> bool {
    let answer = ask(address, &chat("Hi"));
    answer.is_some_and(|(status, body)| status == 200 && body["choices"][0]["message"]["content"] == GREETING)
}

/// The process that serves: the supervisor's only child, or none at this moment.
pub fn child(server: &Server) -> Option<i32> {
    std::fs::read_dir("/proc").expect("there is one").find_map(|entry| {
        let entry = entry.ok()?;
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?);
        (state != "Z" && parent == server.id().to_string()).then_some(id)
    })
}

/// Waits until another process serves, and answers; how long it took.
fn recovery(server: &Server, before: i32, since: Instant, limit: Duration, what: &str) -> Duration {
    loop {
        if child(server).is_some_and(|id| id != before) && greets(server.address) {
            return since.elapsed();
        }
        assert!(clock::since(since) < limit, "{what}: it does not answer again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(process: i32, signal: i32) {
    // SAFETY: sends a signal to a process that is there, or was a moment ago.
    unsafe { libc::kill(process, signal) };
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Asked(&'static str),
    Killed,
}

/// Logits that are no numbers are found by a canary, some seconds and some wrong answers later: `faults.rs`.
const FAULTS: [Fault; 4] =
    [Fault::Asked("[[fault]]"), Fault::Asked("[[panic]]"), Fault::Asked("[[hang 600000]]"), Fault::Killed];

/// Faults at moments that nobody chose, one after another, while clients ask without a pause.
fn faults(count: u64) {
    let server = Server::start(&["--supervised"]);
    let address = server.address;
    let (done, right, refused, cut) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match ask(address, &chat("Hi")) {
                        None => cut.fetch_add(1, Ordering::Relaxed),
                        Some((200, body)) => {
                            assert_eq!(body["choices"][0]["message"]["content"], GREETING, "{body}");
                            right.fetch_add(1, Ordering::Relaxed)
                        }
                        // What clients ask again after by themselves.
                        Some((status, body)) => {
                            assert!([500, 503].contains(&status), "{status}: {body}");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for number in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis((state >> 33) % 200));
            let fault = FAULTS[number as usize % FAULTS.len()];
            let before = child(&server).expect("a server");
            let since = Instant::now();
            match fault {
                Fault::Killed => signal(before, libc::SIGKILL),
                Fault::Asked(what) => {
                    scope.spawn(move || ask(address, &chat(what)));
                }
            }
            times.push((recovery(&server, before, since, SOON, &format!("{number}, {fault:?}")), fault));
        }
        done.store(true, Ordering::Relaxed);
    });
    let [right, refused, cut] = [right, refused, cut].map(AtomicU64::into_inner);
    println!("{count} faults: {right} answers right, {refused} refused, {cut} cut off");
    for fault in FAULTS {
        let of = times.iter().filter(|(_, it)| format!("{it:?}") == format!("{fault:?}"));
        let of: Vec<Duration> = of.map(|(time, _)| *time).collect();
        let mean = of.iter().sum::<Duration>() / of.len() as u32;
        println!("{fault:?}: answers again after {mean:.2?}, at most {:.2?}", of.iter().max().expect("some"));
    }
    assert!(right > count, "{right} answers");
}

pub fn every_fault() {
    faults(8);
}

/// So is one whose answers are wrong, once that is found out.
pub fn poison() {
    let server = Server::start(&["--supervised"]);
    let before = child(&server).expect("a server");
    let since = Instant::now();
    ask(server.address, &json!({"messages": chat("[[nan]]")["messages"], "max_tokens": 1}));
    let took = recovery(&server, before, since, LONG, "an engine that is poisoned");
    println!("poisoned: answers again after {took:.2?}");
}

pub fn a_hundred_faults() {
    faults(100);
}

/// Who waits for an answer when a step hangs is told to ask again.
pub fn clients_are_told() {
    let server = Server::start(&["--supervised"]);
    let mut streamed = begin(&server, "[[forever]]");
    let before = child(&server).expect("a server");
    let since = Instant::now();
    let (status, body) = ask(server.address, &chat("[[hang 600000]]")).expect("an answer");
    assert_eq!((status, body["error"]["code"].as_str()), (503, Some("restarting")), "{body}");
    assert!(body["error"]["message"].as_str().is_some_and(|it| it.contains("a step has taken")), "{body}");
    let rest = streamed.response_rest();
    assert!(rest.contains("\"code\":\"restarting\""), "{rest}");
    recovery(&server, before, since, SOON, "a hang");
}

/// A server that is not heard of is killed.
pub fn silence() {
    let server = Server::start(&["--supervised"]);
    let before = child(&server).expect("a server");
    signal(before, libc::SIGSTOP);
    recovery(&server, before, Instant::now(), Duration::from_secs(25), "a server that was stopped");
}

/// It ends with the server that it was told to end, and that server with it.
pub fn ends() {
    let mut server = Server::start(&["--supervised"]);
    let mut running = begin(&server, "[[slow]]");
    server.signal(libc::SIGTERM);
    // What was accepted is finished.
    running.read_until("data: [DONE]");
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success() && stderr.contains("finishing accepted requests"), "{status}: {stderr}");

    let mut server = Server::start(&["--supervised"]);
    let id = child(&server).expect("a server");
    server.signal(libc::SIGKILL);
    server.wait(Duration::from_secs(5));
    let killed = Instant::now();
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    while runs() {
        assert!(clock::since(killed) < Duration::from_secs(6), "a server outlives its supervisor");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is wrong with the first start is said once.
pub fn failed_starts() {
    for (arguments, code, word) in [
        (&["--weights", "/nonexistent"][..], 1, "/nonexistent"),
        (&["--weights", "dummy", "--world-size", "2", "--rank", "0"], 1, "--supervised"),
    ] {
        let output = run(&[&["serve", "--port", "0", "--supervised"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert_eq!(stderr.matches(word).count(), 1, "{arguments:?}: {stderr}");
    }
}

/// systemd hears what it asks for, by its own protocol.
pub fn systemd() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("notify");
    let inbox = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    inbox.set_read_timeout(Some(LONG)).expect("a socket");
    for supervised in [false, true] {
        let mut command = command(&["serve", "--port", "0", "--weights", "dummy"]);
        if supervised {
            command.arg("--supervised");
        }
        let mut process =
            command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "9000000").spawn().expect("it starts");
        let mut heard = Vec::new();
        let hear = |wanted: &str, heard: &mut Vec<String>| {
            let mut buffer = [0; 100];
            while !heard.iter().any(|it| it == wanted) {
                let length = inbox.recv(&mut buffer).expect("a message");
                heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
        };
        hear("READY=1", &mut heard);
        heard.clear();
        hear("WATCHDOG=1", &mut heard);
        signal(process.id() as i32, libc::SIGTERM);
        hear("STOPPING=1", &mut heard);
        assert!(process.wait().expect("a child").success(), "{supervised}");
    }
}
