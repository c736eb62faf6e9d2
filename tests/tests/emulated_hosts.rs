//! CUDA servers of two ranks, each a process with an emulated card of its own (tests/emulated), which gather
//! through an emulated NCCL over loopback. They answer as one process with two cards does, to the bit, and
//! end together.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::goldens::{Golden, golden};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, post_streamed, stats};
use serde_json::json;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long clients of a world that broke may wait, and its processes may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A golden that two ranks can share, its checkpoint with a tokenizer, and where its targets are.
struct Model {
    golden: Golden,
    targets: PathBuf,
    hardware: String,
    weights: TempDir,
    directory: TempDir,
}

impl Model {
    fn new(name: &str) -> Model {
        let directory = tempfile::tempdir().expect("temporary directories can be made");
        let targets = directory.path().join("targets");
        let hardware = emulated::hardware(&targets, "h200", Some(emulated::FEW));
        let golden = golden(name).for_ranks(&directory.path().join("golden"));
        golden.import_into(&targets, Compute::F16);
        let weights = tempfile::tempdir().expect("temporary directories can be made");
        Model { golden, targets, hardware, weights, directory }
    }

    fn target(&self, hosts: Option<usize>) -> Target {
        let options = BuildOptions { ranks: Some(2), hosts, ..BuildOptions::default() };
        let search = [self.targets.clone(), root().join("targets")];
        let name = format!("{}/{}/f32", self.hardware, self.golden.name);
        spec::load_with(&search, &name, &options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A server of one process, and one of two.
    fn servers(&self) -> [Server; 2] {
        let [one, two] = [None, Some(2)].map(|hosts| self.target(hosts));
        with_tokenizer(&self.golden, one.model.vocabulary, self.weights.path());
        [one, two].map(|target| emulated::build_up_to(&target, 8))
    }
}

/// Where two processes meet.
struct Meeting {
    token: PathBuf,
    port: String,
}

impl Meeting {
    fn new(directory: &Path) -> Meeting {
        let token = directory.join("token");
        std::fs::write(&token, "a token of many bytes").expect("it is writable");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&token, mode).expect("it is this user's");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port().to_string();
        Meeting { token, port }
    }

    /// Makes a verb's command that of a process of this world.
    fn join(&self, command: &mut Command, rank: &str) {
        // One names its GPU by its number, the other by its UUID.
        let gpu = if rank == "1" { "GPU-00000000-0000-0000-0000-000000000001" } else { rank };
        command.args(["--world-size", "2", "--rank", rank, "--gpu-ordinal", gpu, "--master-addr"]);
        command.args(["127.0.0.1", "--master-port", &self.port, "--token-file"]).arg(&self.token);
    }
}

/// A process that is ended when dropped.
struct Worker(Child);

impl Worker {
    fn start(mut command: Command) -> Worker {
        Worker(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Its exit code, and what it said.
    fn end(&mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "a process did not end within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        let _ = self.0.stderr.take().expect("piped").read_to_string(&mut said);
        (status.code(), said)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended, or a test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A step of emulated cards takes as long as the machine is busy with other tests: seconds, at times over
/// ten.
const FLAGS: [&str; 10] = [
    "--threads",
    "1",
    "--context",
    "256",
    "--kv-tokens",
    "2048",
    "--snapshots",
    "3",
    "--step-seconds",
    "120",
];

/// A head that serves, and its worker.
fn world(model: &Model, server: &Server, flags: &[&str]) -> (Serving, Worker) {
    let meeting = Meeting::new(model.directory.path());
    let mut worker = server.command();
    worker.arg("serve").arg("--weights").arg(model.weights.path()).args(flags);
    meeting.join(&mut worker, "1");
    let worker = Worker::start(worker);
    let mut join = Command::new("");
    meeting.join(&mut join, "0");
    let joined: Vec<String> = join.get_args().map(|it| it.to_string_lossy().into_owned()).collect();
    let joined: Vec<&str> = flags.iter().copied().chain(joined.iter().map(String::as_str)).collect();
    (Serving::start_command(server.command(), model.weights.path(), &joined), worker)
}

/// Prompts of which some begin alike.
fn requests(vocabulary: usize) -> Vec<Request> {
    let mut random = Random(17);
    let mut requests: Vec<Request> = Vec::new();
    for first in [40, 97] {
        let mut prompt = random.ids(first, vocabulary);
        for more in [1, 33] {
            let (tokens, sampling) = (8 + 3 * requests.len(), json!({"temperature": 0}));
            requests.push(Request { prompt: prompt.clone(), tokens, sampling, surplus: 0 });
            prompt.extend(random.ids(more, vocabulary));
        }
    }
    requests
}

fn texts(answers: &[Answer]) -> Vec<&str> {
    answers.iter().map(|answer| answer.text.as_str()).collect()
}

/// The bytes that `logits` writes.
fn logits(model: &Model, one: &Server, two: &Server, flags: &[&str]) -> [Vec<u8>; 2] {
    let tokens = model.directory.path().join("tokens.json");
    let lists: Vec<Vec<u32>> =
        model.golden.prompts.iter().map(|it| it[..it.len().min(70)].to_vec()).collect();
    std::fs::write(&tokens, json!(lists).to_string()).expect("it is writable");
    let meeting = Meeting::new(model.directory.path());
    let begin = |mut command: Command, out: &Path| {
        command.arg("--weights").arg(model.weights.path()).arg("--tokens").arg(&tokens);
        command.arg("--out").arg(out).args(flags);
        command
    };
    let verb = |server: &Server| {
        let mut command = server.command();
        command.arg("logits");
        command
    };
    let [out, other, of_worker] = ["one", "two", "worker"].map(|name| model.directory.path().join(name));
    let succeed = |mut command: Command| {
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    succeed(begin(verb(one), &out));
    let [mut head, mut worker] =
        [("0", &other), ("1", &of_worker)].map(|(rank, out)| (rank, begin(verb(two), out)));
    meeting.join(&mut head.1, head.0);
    meeting.join(&mut worker.1, worker.0);
    let mut worker = Worker::start(worker.1);
    succeed(head.1);
    let (code, said) = worker.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!of_worker.exists(), "a worker writes nothing");
    [out, other].map(|path| std::fs::read(path).expect("it was written"))
}

/// With recurrent state, and with K/V.
#[test]
fn two_processes_compute_what_one_does_and_end_together() {
    let model = Model::new("qwen35-text");
    let [one, two] = model.servers();
    let vocabulary = model.target(None).model.vocabulary;
    refusals(&model, &one, &two);

    for flags in [&["--together"][..], &["--together", "--decode", "--prompt", "30"]] {
        let begin = Instant::now();
        let [found, other] = logits(&model, &one, &two, flags);
        println!("logits {flags:?}: {:.1} s", begin.elapsed().as_secs_f32());
        assert!(found == other, "logits differ with {flags:?}");
    }

    let requests = requests(vocabulary);
    let alone = |serving: &Serving| -> Vec<Answer> {
        requests.iter().map(|request| request.whole(&serving.address)).collect()
    };
    let begin = Instant::now();
    let expected = alone(&Serving::start_command(one.command(), model.weights.path(), &FLAGS));
    println!("one process: {:.1} s", begin.elapsed().as_secs_f32());
    let (serving, mut worker) = world(&model, &two, &FLAGS);
    assert_eq!(texts(&alone(&serving)), texts(&expected), "alone");
    println!("two: {:.1} s", begin.elapsed().as_secs_f32());
    assert_eq!(texts(&crowd(&serving.address, &requests, 3)), texts(&expected), "side by side");
    let counted = stats(&serving.address);
    println!("side by side: {:.1} s, {counted}", begin.elapsed().as_secs_f32());
    assert!(counted["tokens_cached"].as_u64() > Some(100), "{counted}");

    // The worker is gone in the middle of an answer: NCCL waits for ever for it.
    let body = json!({"prompt": requests[0].prompt, "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut answer = post_streamed(&serving.address, "/v1/completions", &body.to_string());
    let mut first = [0; 512];
    let some = answer.read(&mut first).expect("it answers");
    assert!(some > 0);
    worker.0.kill().expect("it runs");
    let gone = Instant::now();
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("text");
    assert!(gone.elapsed() < PATIENCE, "a client waited for {:?}", gone.elapsed());
    assert!(rest.contains("\"error\"") && rest.contains("rank 1 is gone"), "{rest}");
    assert_eq!(serving.end(PATIENCE), Some(4), "the head's code");
}

/// Builds for one process and for two are told apart, and what is missing is named.
fn refusals(model: &Model, one: &Server, two: &Server) {
    let meeting = Meeting::new(model.directory.path());
    let serve = |server: &Server| {
        let mut command = server.command();
        command.arg("serve").arg("--weights").arg(model.weights.path());
        command
    };
    let mut nowhere = serve(two);
    meeting.join(&mut nowhere, "0");
    nowhere.args(["--nccl", "/nowhere/libnccl.so.2"]);
    let mut spread = serve(one);
    spread.args(["--world-size", "2"]);
    for (mut command, expected) in [
        (serve(two), "this build runs as 2 processes: --world-size 2 is missing"),
        (spread, "exchange values within one process"),
        (nowhere, "/nowhere/libnccl.so.2: cannot open shared object file"),
    ] {
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
