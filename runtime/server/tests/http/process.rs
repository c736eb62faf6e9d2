//! This test binary as a server process.

use crate::client::{Connection, Response};
use crate::clock;
use crate::scripted::seeing::{self, write_seeing_checkpoint};
use crate::scripted::talk::write_talking_checkpoint;
use crate::scripted::write_checkpoint;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Run as this, the binary has a model that drafts.
pub const DRAFTS: &str = "echo-drafts";
/// Run as this, it has one that says that its drafts are accepted by rate.
pub const FORCED: &str = "echo-forced";

/// Run as this, it has one that knows what its weights answer.
pub const KNOWN: &str = "echo-known";
/// Run as this, it has one whose weights answer something else than they are known to.
pub const OTHERS: &str = "echo-others";

/// Run as this, it has several ranks.
pub const RANKS: &str = "echo-ranks";

/// Run as this with two formats behind it, it has one that writes calls and reasoning in them.
pub const TALK: &str = "talk:";

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// What it said before it was ready.
    pub opening: String,
    _weights: TempDir,
}

impl Server {
    /// Starts one and waits until it says that it is ready.
    pub fn start(arguments: &[&str]) -> Server {
        let weights = checkpoint();
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        Server::start_on(&path, weights, command(&[]), arguments)
    }

    /// Starts one with weights that outlive it.
    pub fn start_at(weights: &std::path::Path, arguments: &[&str]) -> Server {
        let none = tempfile::tempdir().expect("a temporary directory");
        Server::start_on(weights.to_str().expect("UTF-8"), none, command(&[]), arguments)
    }

    /// Starts one of the models that draft.
    pub fn start_as(model: &str, arguments: &[&str]) -> Server {
        let weights = checkpoint();
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        Server::start_on(&path, weights, command_as(model, &[]), arguments)
    }

    /// Starts one whose model writes calls and reasoning in these formats, `-` for none.
    pub fn start_talking(tools: &str, reasoning: &str, arguments: &[&str]) -> Server {
        let weights = tempfile::tempdir().expect("a temporary directory");
        write_talking_checkpoint(weights.path()).expect("written");
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        let command = command_as(&format!("{TALK}{tools}:{reasoning}"), &[]);
        Server::start_on(&path, weights, command, arguments)
    }

    /// Starts one whose model takes images.
    pub fn start_seeing(arguments: &[&str]) -> Server {
        let weights = tempfile::tempdir().expect("a temporary directory");
        write_seeing_checkpoint(weights.path()).expect("written");
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        Server::start_on(&path, weights, command_as(seeing::NAME, &[]), arguments)
    }

    /// Starts one that writes conversations by this template.
    pub fn start_with_template(template: &str, arguments: &[&str]) -> Server {
        let weights = checkpoint();
        std::fs::write(weights.path().join("chat_template.jinja"), template).expect("written");
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        Server::start_on(&path, weights, command(&[]), arguments)
    }

    /// Starts one behind a line of a shell, such as `ulimit -n 100`.
    pub fn start_behind(line: &str, arguments: &[&str]) -> Server {
        let weights = checkpoint();
        let path = weights.path().to_str().expect("UTF-8").to_owned();
        Server::start_on(&path, weights, command_behind(line, &[]), arguments)
    }

    /// Starts one with made-up weights.
    pub fn start_dummy(arguments: &[&str]) -> Server {
        Server::start_on("dummy", checkpoint(), command(&[]), arguments)
    }

    /// Starts one of the other models with made-up weights.
    pub fn start_dummy_as(model: &str, arguments: &[&str]) -> Server {
        Server::start_on("dummy", checkpoint(), command_as(model, &[]), arguments)
    }

    /// Starts one that takes so many milliseconds to load, and does not wait for it.
    pub fn start_loading(milliseconds: u64) -> Server {
        Server::start_loading_as("echo", milliseconds)
    }

    /// The same of one of the other models.
    pub fn start_loading_as(model: &str, milliseconds: u64) -> Server {
        let weights = format!("dummy:{milliseconds}");
        Server::start_until(
            "loading cpu/echo/none at http://",
            "/",
            &weights,
            checkpoint(),
            command_as(model, &[]),
            &[],
        )
    }

    fn start_on(path: &str, weights: TempDir, command: Command, arguments: &[&str]) -> Server {
        Server::start_until("OpenAI API: http://", "/v1", path, weights, command, arguments)
    }

    /// Starts one and waits until it says its address, between `before` and `after`.
    fn start_until(
        before: &str,
        after: &str,
        path: &str,
        weights: TempDir,
        mut command: Command,
        arguments: &[&str],
    ) -> Server {
        // SAFETY: `signal` may be called between fork and exec. The tests may have been started by `nohup`,
        // and servers heed that.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut child = command
            .args(["serve", "--port", "0", "--weights", path])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut opening = String::new();
        let address = loop {
            let Some(line) = lines.next() else {
                let mut stderr = String::new();
                let _ = child.stderr.take().expect("piped").read_to_string(&mut stderr);
                panic!("the server ended: {stderr}");
            };
            let line = line.expect("readable");
            opening.extend([line.as_str(), "\n"]);
            if let Some(address) = line.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) {
                break address.parse().expect("an address");
            }
        };
        Server { child, address, opening, _weights: weights }
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    pub fn get(&self, path: &str) -> Response {
        self.connect().request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.connect().post(path, body)
    }

    /// The engine's counts.
    pub fn stats(&self) -> Value {
        self.get("/health").json()["stats"].clone()
    }

    /// Waits until the counts are as wanted.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let stats = self.stats();
            if wanted(&stats) {
                return;
            }
            assert!(
                clock::since(began) < Duration::from_secs(5),
                "waited for {what}; the last counts are {stats}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks `/health/ready` until it says `status`; the whole answer.
    ///
    /// # Panics
    /// When it has not within two seconds of `since`.
    pub fn wait_for_status(&self, status: &str, since: Instant) -> Value {
        loop {
            let answer = self.get("/health/ready");
            let health = answer.json();
            assert_eq!(answer.status == 200, health["status"] == "ok", "{health}");
            assert!(clock::since(since) < Duration::from_secs(5), "waited for {status}: {health}");
            if health["status"] == status {
                return health;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of a metric, labels as written, or the first with any; 0 where it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200);
        let value = answer.text().lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
            rest.strip_prefix(' ')?.parse().ok()
        });
        value.unwrap_or_default()
    }

    /// A number of what the system knows of the process.
    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the system knows it");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Time that its threads have worked: what an answer takes on a machine that has nothing else to do.
    pub fn worked(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        // A hundred a second, on every Linux.
        Duration::from_millis(ticks * 10)
    }

    /// Bytes of memory resident now.
    pub fn resident_bytes(&self) -> u64 {
        self.status("VmRSS:") << 10
    }

    /// Most bytes of memory that were ever resident.
    pub fn most_resident_bytes(&self) -> u64 {
        self.status("VmHWM:") << 10
    }

    /// Threads that it has now.
    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    /// Seconds of processors that it has taken.
    pub fn processor_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks =
            fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().expect("a number"));
        ticks.sum::<f64>() / 100.0
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to the child, which has not been waited for and so still has its id.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for the end; the status, and what was written to standard error.
    pub fn wait(&mut self, limit: Duration) -> (ExitStatus, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if clock::since(began) >= limit {
                let _ = self.child.kill();
                panic!("the server did not end within {limit:?}: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        (status, self.said())
    }

    /// What a server that has ended wrote to standard error.
    fn said(&mut self) -> String {
        let mut stderr = String::new();
        let _ = self.child.stderr.take().expect("piped").read_to_string(&mut stderr);
        stderr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A fresh checkpoint directory.
pub fn checkpoint() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_checkpoint(directory.path()).expect("written");
    directory
}

/// This binary, to be run as a server's verb.
pub fn command(arguments: &[&str]) -> Command {
    clock::watch();
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// [`command`] of one of the models that draft.
pub fn command_as(model: &str, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.arg0(model);
    command
}

/// [`command`] behind a line of a shell, of which it takes the place.
pub fn command_behind(line: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let binary = std::env::current_exe().expect("this binary");
    command
        .args(["-c", &format!("{line}; exec \"$0\" \"$@\"")])
        .arg(binary)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Runs a verb to its end.
pub fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the verb starts")
}
