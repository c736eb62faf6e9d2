//! Builds servers and runs their verbs.

use crate::root;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Target};
use monomorph_compiler::toolchain::{self, Built, Dependencies, Levels, Linking};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Builds a target and returns its server.
///
/// # Panics
/// If the build fails.
pub fn build(targets: Option<&Path>, target: &str) -> PathBuf {
    build_with(targets, target, &BuildOptions::default())
}

/// How well tests have servers optimised. What they spend their time in are kernels; all that a server
/// depends on is there already.
pub const LEVELS: Levels = Levels { dependencies: Dependencies::OfTests, ..Levels::SHIPPED };

/// Widest residual stream of models that compile longer at the level that ships than tests run them: that of
/// all that are no one's but the tests'.
const NARROW: usize = 512;

/// How well a CPU target is optimised: goldens compile in ten seconds for nineteen, and are run for seconds.
fn levels(target: &Target) -> Levels {
    if target.model.hidden <= NARROW { Levels { generated: 1, ..LEVELS } } else { LEVELS }
}

/// Options for the servers of tests, with cargo's output in the directory `below`. They are kept apart from
/// those that people build, and from those of other test programs, whose models may have the same names.
pub fn linking(below: &str) -> Linking<'_> {
    static INTO: LazyLock<String> = LazyLock::new(|| {
        let program = std::env::current_exe().expect("a process has a program");
        let name = program.file_stem().expect("a program has a name").to_string_lossy();
        // What cargo adds to the name changes with the program.
        format!("target/dist/{}", name.rsplit_once('-').map_or(&*name, |(name, _)| name))
    });
    Linking { levels: LEVELS, into: &INTO, ..Linking::new(below) }
}

/// Builds a CPU target with these options, and returns its server.
///
/// # Panics
/// If the build fails.
pub fn build_with(targets: Option<&Path>, target: &str, options: &BuildOptions) -> PathBuf {
    let search: Vec<PathBuf> =
        targets.map(Path::to_owned).into_iter().chain([root().join("targets")]).collect();
    let target = spec::load_with(&search, target, options).unwrap_or_else(|error| panic!("{error}"));
    link(&target, &Linking { levels: levels(&target), ..linking(&target.hardware.name) })
}

/// The same without optimising the generated crate, which compiles in a quarter of the time and whose kernels
/// take twenty times as long: for tests of small models that ask for hundreds of tokens.
///
/// # Panics
/// If the build fails.
pub fn build_unoptimised(targets: &Path, target: &str, options: &BuildOptions) -> PathBuf {
    let search = [targets.to_owned(), root().join("targets")];
    let target = spec::load_with(&search, target, options).unwrap_or_else(|error| panic!("{error}"));
    assert!(target.model.hidden <= NARROW, "{}: its kernels would take too long", target.build());
    link(&target, &Linking { levels: Levels { generated: 0, ..LEVELS }, ..linking(&target.hardware.name) })
}

/// Writes the crate of a target without kernels of its own, and builds its server.
///
/// # Panics
/// If the build fails.
pub fn link(target: &Target, linking: &Linking) -> PathBuf {
    let _alone = alone(target);
    let (directory, _) =
        toolchain::write_crate(&root(), target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    match toolchain::link(&root(), target, &directory, linking).unwrap_or_else(|error| panic!("{error}")) {
        Built::Server(server) => server,
        Built::Crate { why, .. } => panic!("{}: {why}", target.name()),
    }
}

/// See [`toolchain::alone`].
///
/// # Panics
/// If it fails.
pub fn alone(target: &Target) -> File {
    toolchain::alone(&root(), target).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether a binary has the path of a directory in it.
pub fn names(binary: &[u8], directory: &Path) -> bool {
    let path = directory.as_os_str().as_encoded_bytes();
    binary.windows(path.len()).any(|window| window == path)
}

/// Runs a verb to its end and returns its standard output.
///
/// # Panics
/// If it fails.
pub fn verb(server: &Path, arguments: &[&str]) -> String {
    let output =
        Command::new(server).args(arguments).stdin(Stdio::null()).output().expect("the server starts");
    assert!(
        output.status.success(),
        "{} {arguments:?}: {}\n{}",
        server.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// A server answering on loopback, ended when dropped.
pub struct Serving {
    process: std::process::Child,
    /// Where it listens, as `host:port`.
    pub address: String,
    /// Time from the process's start until `/health` answered 200.
    pub ready_after: std::time::Duration,
    /// Processors' seconds that the process had used by then.
    pub ready_processor: f64,
}

impl Serving {
    /// Starts `serve` on a free port and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready within a minute.
    pub fn start(server: &Path, weights: &Path, arguments: &[&str]) -> Serving {
        Serving::start_command(Command::new(server), weights, arguments)
    }

    /// The same, started by a given command.
    ///
    /// # Panics
    /// As [`Serving::start`].
    pub fn start_command(mut server: Command, weights: &Path, arguments: &[&str]) -> Serving {
        use std::io::BufRead;
        let started = std::time::Instant::now();
        let mut process = server
            .args(["serve", "--port", "0", "--weights"])
            .arg(weights)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = std::io::BufReader::new(process.stdout.take().expect("output is piped")).lines();
        let said = lines.by_ref().map(|line| line.expect("output is UTF-8"));
        let mut addresses = said.filter_map(|line| Some(line.split_once("http://")?.1.to_owned()));
        let address = addresses.next().expect("it says where it is");
        let address = address.trim_end_matches('/').to_owned();
        // The rest is read so that the server never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        while get(&address, "/health").is_none_or(|(status, _)| status != 200) {
            assert!(started.elapsed().as_secs() < 60, "the server is not ready after a minute");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let ready_after = started.elapsed();
        let ready_processor = processor_seconds(process.id());
        Serving { process, address, ready_after, ready_processor }
    }

    /// The code that it ends with by itself within so long; none if a signal ended it.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(mut self, patience: std::time::Duration) -> Option<i32> {
        let began = std::time::Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.code();
            }
            assert!(began.elapsed() < patience, "the server did not end within {patience:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal, by the name that kill(1) takes.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().expect("kill(1) is there");
        assert!(sent.success(), "{name} was not sent");
    }

    /// Overwrites every unlinked file that it has open in `directory`, as a failing disk would; returns how
    /// many there were.
    ///
    /// # Panics
    /// If the process is gone, or its files cannot be written.
    pub fn spoil_files(&self, directory: &Path) -> usize {
        use std::io::Write;
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("it runs");
        let open = open.map(|entry| entry.expect("entries are readable").path());
        let is_one = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|file| file.starts_with(directory));
        let spoilt = open.filter(is_one).map(|path| {
            let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is writable");
            let bytes = file.metadata().expect("it is there").len();
            for _ in 0..bytes.div_ceil(1 << 16) {
                file.write_all(&[0x5a; 1 << 16]).expect("it is writable");
            }
            file.sync_all().expect("it is writable");
        });
        spoilt.count()
    }

    /// Resident bytes now.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("processes have memory");
        let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number");
        kilobytes * 1024
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // A failed test must not leave a server behind. An error means that it has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Processor seconds that a process has used: fields 14 and 15 of `/proc/PID/stat` (proc(5)), in hundredths.
/// The name before them ends at the last parenthesis.
fn processor_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// One GET request; status and body, or `None` without an answer.
pub fn get(address: &str, path: &str) -> Option<(u16, String)> {
    get_with(address, path, &[])
}

/// The same with these headers.
pub fn get_with(address: &str, path: &str, headers: &[(&str, &str)]) -> Option<(u16, String)> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"))
}

/// One POST request with a JSON body; status and body, or `None` without an answer.
pub fn post(address: &str, path: &str, body: &str) -> Option<(u16, String)> {
    request(address, &post_text(address, path, body))
}

/// Sends a POST request with a JSON body and returns the connection to read the answer from, which the server
/// closes.
///
/// # Panics
/// If the connection is refused.
pub fn post_streamed(address: &str, path: &str, body: &str) -> std::net::TcpStream {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.write_all(post_text(address, path, body).as_bytes()).expect("it reads");
    stream
}

fn post_text(address: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// The counters in `/health`, under `stats`.
///
/// # Panics
/// If there is no answer, or it is not JSON.
pub fn stats(address: &str) -> serde_json::Value {
    let (_, health) = get(address, "/health").expect("it answers");
    let mut health: serde_json::Value = serde_json::from_str(&health).expect("health is JSON");
    health["stats"].take()
}

/// The value of a metric.
///
/// # Panics
/// If there is no metric of this name.
pub fn metric(address: &str, name: &str) -> f64 {
    let (_, text) = get(address, "/metrics").expect("it answers");
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}:\n{text}"));
    line.split_whitespace().last().and_then(|value| value.parse().ok()).expect("metrics are numbers")
}

fn request(address: &str, text: &str) -> Option<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}
