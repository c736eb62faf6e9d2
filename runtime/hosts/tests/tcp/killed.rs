//! Processes that are killed or stopped, at any moment: all others end with a code and a reason, clients are
//! told, and a restart works.

use crate::support::*;
use monomorph_engine::scripted::{Pipelined, Script, Small};
use monomorph_engine::{EngineError, EngineOptions, Event, start};
use monomorph_hosts::{Ended, Lead, Token, follow};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process may take to end when another is gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Processes of the world.
const RANKS: u32 = 3;

/// Runs this binary as a process of a world: `head ADDRESS TOKEN STEPS` or `worker ADDRESS TOKEN RANK`.
pub fn main(verb: &str, arguments: &[String]) -> ExitCode {
    let [address, token, number] = arguments else { return ExitCode::from(2) };
    let number: u32 = number.parse().expect("a number");
    let mut options = options();
    options.token = Token::read(Path::new(token)).expect("a token");
    options.deadlines.gather = Duration::from_secs(3);
    // A thread may wait for a device that waits for one that is gone.
    options.on_end = Arc::new(|ended: &Ended| {
        let code = ended.code();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(code.into());
        });
    });
    let script = Script { step_time: Duration::from_millis(1), ..Script::default() };
    let duties = Alone::<Pipelined<Small, 2>>::new(script, RANKS);
    if verb == "worker" {
        let ended = follow(address, number, hello(RANKS), &options, duties);
        println!("ended: {ended}");
        return ExitCode::from(ended.code());
    }
    let listener = TcpListener::bind(address).expect("the port is free");
    match Lead::start(listener, hello(RANKS), &options, duties) {
        Ok(lead) => serve(lead, number as usize),
        Err(ended) => {
            println!("ended: {ended}");
            ExitCode::from(ended.code())
        }
    }
}

/// Answers so many requests after another, four at a time; says when the first four have their answers.
fn serve(lead: Lead<monomorph_engine::scripted::Scripted<Pipelined<Small, 2>>>, count: usize) -> ExitCode {
    println!("ready");
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    for (at, four) in requests(count).chunks(4).enumerate() {
        let running: Vec<_> = four.iter().map(|request| engine.submit(request.clone())).collect();
        for generation in running {
            let end = match generation {
                Ok(generation) => answer(generation).1,
                Err(error) => {
                    println!("turned away: {error}");
                    return ExitCode::from(4);
                }
            };
            if let Event::Failed(EngineError::Fault(why)) = end {
                println!("failed: {why}");
                assert!(monomorph_model::device_fault().is_some_and(|fault| why.ends_with(fault)));
                return ExitCode::from(4);
            }
        }
        if at == 0 {
            println!("answering");
        }
    }
    println!("done");
    drop(engine);
    std::thread::sleep(Duration::from_millis(300));
    ExitCode::SUCCESS
}

/// A world of processes; what the head says comes line by line.
struct Processes {
    head: Child,
    lines: BufReader<ChildStdout>,
    workers: [Child; 2],
}

fn spawn(verb: &str, address: &str, token: &Path, number: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([verb, address]).arg(token).arg(number.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

fn processes(address: &str, token: &Path, steps: usize, head_first: bool) -> Processes {
    let mut head = head_first.then(|| spawn("head", address, token, steps));
    let workers = [1, 2].map(|rank| spawn("worker", address, token, rank));
    let mut head = head.take().unwrap_or_else(|| spawn("head", address, token, steps));
    let lines = BufReader::new(head.stdout.take().unwrap());
    Processes { head, lines, workers }
}

impl Processes {
    /// Waits for the first answers. All workers carry out steps then: a head that is only ready may not have
    /// told them yet that they serve, and they would end as those that never did.
    fn answering(&mut self) {
        for expected in ["ready\n", "answering\n"] {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            assert_eq!(line, expected);
        }
    }
}

/// Waits for a process to end; its code.
fn code(child: &mut Child, what: &str) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or_else(|| panic!("{what}: {status}"));
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{what} did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn setting() -> (tempfile::TempDir, std::path::PathBuf, String) {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a token of many bytes\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (listener, address) = listener();
    drop(listener);
    (directory, token, address)
}

/// Fifty times on one port, a worker is killed at some moment of the start or of serving.
pub fn at_any_moment() {
    let (_directory, token, address) = setting();
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut served = 0;
    for round in 0..50 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (pause, victim) = ((random >> 20) % 500, (random >> 50) as usize % 2);
        let mut world = processes(&address, &token, 100_000, round % 2 == 0);
        std::thread::sleep(Duration::from_millis(pause));
        world.workers[victim].kill().unwrap();
        world.workers[victim].wait().unwrap();
        let killed = Instant::now();
        let what = format!("round {round}, rank {} killed after {pause} ms", victim + 1);
        let head = code(&mut world.head, &format!("{what}: the head"));
        let took = killed.elapsed();
        let other = code(&mut world.workers[1 - victim], &format!("{what}: the other worker"));
        let lines: Vec<String> = world.lines.lines().map(Result::unwrap).collect();
        let ready = lines.contains(&"ready".to_owned());
        served += u32::from(ready);
        let last = lines.last().map_or("", String::as_str);
        assert_eq!(head, if ready { 4 } else { 1 }, "{what}: {lines:?}");
        assert!(
            other == head || other == 1,
            "{what}: the other worker ends with {other}, the head with {head}"
        );
        let told = last.starts_with(if ready { "failed: " } else { "ended: " });
        let turned_away = ready && last.starts_with("turned away: ");
        assert!(told || turned_away, "{what}: {lines:?}");
        assert!(took < PATIENCE, "{what}: {took:?}");
    }
    assert!((5..50).contains(&served), "{served} of 50 worlds were ready: too few moments of one kind");
    whole(&address, &token);
}

/// A world that nobody disturbs.
fn whole(address: &str, token: &Path) {
    let mut world = processes(address, token, 8, true);
    let lines: Vec<String> = world.lines.lines().map(Result::unwrap).collect();
    assert_eq!(lines, ["ready", "answering", "done"]);
    assert_eq!(code(&mut world.head, "the head"), 0);
    for worker in &mut world.workers {
        assert_eq!(code(worker, "a worker"), 0);
    }
}

/// The head is killed: its workers end.
pub fn head() {
    let (_directory, token, address) = setting();
    let mut world = processes(&address, &token, 100_000, false);
    world.answering();
    world.head.kill().unwrap();
    world.head.wait().unwrap();
    for worker in &mut world.workers {
        assert_eq!(code(worker, "a worker"), 4);
    }
    whole(&address, &token);
}

/// A process that is stopped sends nothing and closes nothing, as a host that lost its power: silence ends
/// the world.
pub fn silence() {
    for frozen in [0, 1] {
        let (_directory, token, address) = setting();
        let mut world = processes(&address, &token, 100_000, true);
        world.answering();
        let id = if frozen == 0 { world.head.id() } else { world.workers[0].id() };
        let signal = |name: &str| {
            let sent = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
            assert!(sent.success());
        };
        signal("-STOP");
        assert_eq!(code(&mut world.workers[1], "a worker"), 4);
        if frozen == 0 {
            assert_eq!(code(&mut world.workers[0], "the other worker"), 4);
        } else {
            assert_eq!(code(&mut world.head, "the head"), 4);
        }
        signal("-CONT");
        let mut last = if frozen == 0 {
            world.head
        } else {
            {
                let [first, _] = world.workers;
                first
            }
        };
        assert_eq!(code(&mut last, "the one that was frozen"), 4);
    }
}
