//! Coding agents against the scripted model, set up as `docs/agents.md` says. Each is told to make a file,
//! calls its tool for that, and repeats what it is told once the tool has run. None may contact any host but
//! the server, with one exception.
//!
//! Planted, and caught: Codex without the switch for its plugins (it contacted other hosts); a tool that
//! prints a text other than the expected one. Refusals by the server that broke it until they were fixed:
//! `client_metadata`, several instructions at the beginning, instructions in the middle.

use monomorph_tests::npm::Npm;
use monomorph_tests::scripted;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A coding agent and how to run it.
struct Agent {
    name: &'static str,
    /// Its program in the package.
    program: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// A settings file, in its home or its working directory; `<URL>` in values and settings is the server's
    /// address.
    settings: Option<(&'static str, &'static str)>,
    /// The tool that runs commands, its argument for the command, and the call's other arguments.
    tool: (&'static str, &'static str, &'static str),
    /// What ends the reasoning that it makes the model begin with.
    thought: &'static str,
    /// The beginning of the requests that it sends to other hosts all the same.
    stubborn: Option<&'static str>,
}

const CODEX: Agent = Agent {
    name: "codex",
    program: "codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    arguments: &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-"],
    environment: &[],
    settings: Some((
        ".codex/config.toml",
        r#"
model = "talk"
model_provider = "monomorph"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.monomorph]
name = "Monomorph"
base_url = "<URL>/v1"
wire_api = "responses"

[agents]
enabled = false

[features]
plugins = false

[analytics]
enabled = false
"#,
    )),
    tool: ("exec_command", "cmd", ""),
    thought: "",
    stubborn: None,
};

const CLAUDE_CODE: Agent = Agent {
    name: "claude-code",
    program: "@anthropic-ai/claude-code-linux-x64/claude",
    arguments: &["-p", "--allowedTools", "Bash"],
    environment: &[
        ("ANTHROPIC_BASE_URL", "<URL>"),
        ("ANTHROPIC_AUTH_TOKEN", "none"),
        ("ANTHROPIC_MODEL", "talk"),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "talk"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ],
    settings: None,
    tool: ("Bash", "command", r#", "description": "Writes a file""#),
    thought: "</think>",
    stubborn: None,
};

const OPENCODE: Agent = Agent {
    name: "opencode",
    program: "opencode-linux-x64-baseline/bin/opencode",
    arguments: &["run"],
    environment: &[
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ],
    settings: Some((
        "work/opencode.json",
        r#"{
  "model": "monomorph/talk",
  "small_model": "monomorph/talk",
  "provider": {
    "monomorph": {
      "npm": "@ai-sdk/openai-compatible",
      "options": { "baseURL": "<URL>/v1" },
      "models": { "talk": { "limit": { "context": 262144, "output": 4096 } } }
    }
  }
}"#,
    )),
    tool: ("bash", "command", r#", "description": "Writes a file""#),
    thought: "",
    // In a fresh home it requests a package from npm's registry, which no switch prevents, and works without
    // it.
    stubborn: Some("CONNECT registry."),
};

impl Agent {
    /// Its prompt. The model says what the last text in double brackets tells it: first the text here, then
    /// what the command prints. The command spells its brackets in octal, so that they are not found in the
    /// prompt.
    fn question(&self) -> String {
        let (name, argument, more) = self.tool;
        let thought = self.thought;
        let command = format!(
            r"echo by {} > made.txt; printf '\\133\\133say {thought}It is written.\\135\\135'",
            self.name
        );
        format!(
            "Make a file. [[say {thought}I make it.\n<tool_call>\n{{\"name\": \"{name}\", \"arguments\": \
             {{\"{argument}\": \"{command}\"{more}}}}}\n</tool_call>]]"
        )
    }

    /// Runs it in a home of its own and returns its output.
    fn run(&self, npm: &Npm, home: &Path, url: &str, proxy: &str) -> String {
        let work = home.join("work");
        fs::create_dir(&work).expect("writable");
        if let Some((file, text)) = self.settings {
            let file = home.join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("writable");
            fs::write(&file, text.replace("<URL>", url)).expect("writable");
        }
        let question = home.join("question.txt");
        fs::write(&question, self.question()).expect("writable");
        let answer = home.join("answer.txt");
        let mut command = Command::new(npm.file(self.program));
        command.current_dir(&work).args(self.arguments).env_clear();
        command.env("PATH", std::env::var_os("PATH").expect("there are programs")).env("HOME", home);
        command.envs(self.environment.iter().map(|(name, value)| (name, value.replace("<URL>", url))));
        command.envs(["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, proxy)));
        command.env("NO_PROXY", "127.0.0.1");
        command.stdin(Stdio::from(fs::File::open(&question).expect("it is there")));
        command.stdout(Stdio::from(fs::File::create(&answer).expect("writable")));
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let deadline = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = process.try_wait().expect("it is ours") {
                break status;
            }
            if Instant::now() > deadline {
                process.kill().expect("it is ours");
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let said = fs::read_to_string(&answer).expect("it is there");
        assert!(status.success(), "{}: {status}\n{said}", self.name);
        let made = fs::read_to_string(work.join("made.txt")).expect("the tool made a file");
        assert_eq!(made, format!("by {}\n", self.name));
        said
    }
}

/// A proxy for all other hosts, which records the first line of each request and forwards none.
fn outside() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 256];
            let read = stream.read(&mut bytes).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            keep.lock().expect("nobody panics").extend(text.lines().next().map(str::to_owned));
        }
    });
    (address, asked)
}

/// Run by `cargo xtask test` if npm is installed, on x86-64; fetches 385 MB.
#[test]
#[ignore = "needs npm (xtask/clients/debian.sh), and 385 MB of agents"]
fn agents_call_their_tools_and_end() {
    let npm = Npm::install("agents");
    let (proxy, asked) = outside();
    for agent in [CODEX, CLAUDE_CODE, OPENCODE] {
        let home = tempfile::tempdir().expect("a temporary directory");
        let dump = home.path().join("dump.jsonl");
        let arguments = ["--context", "262144", "--dump", dump.to_str().expect("UTF-8")];
        let talking = scripted::agent(&arguments);
        let began = Instant::now();
        let said = agent.run(&npm, home.path(), &format!("http://{}", talking.serving.address), &proxy);
        let took = began.elapsed().as_secs_f64();
        assert!(said.trim_end().ends_with("It is written."), "{}: {said}", agent.name);
        let lines = fs::read_to_string(&dump).expect("it is written");
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("lines are JSON")).collect();
        let refused: Vec<&Value> = lines.iter().filter(|line| line["status"] != 200).collect();
        assert!(refused.is_empty(), "{}: {refused:?}", agent.name);
        // The command's output came back as the tool's result.
        let last = lines.last().expect("it asked")["request"].to_string();
        assert!(last.contains(&format!("[[say {}It is written.]]", agent.thought)), "{}: {last}", agent.name);
        let mut asked = std::mem::take(&mut *asked.lock().expect("nobody panics"));
        asked.retain(|line| agent.stubborn.is_none_or(|it| !line.starts_with(it)));
        assert!(asked.is_empty(), "{} asks others: {asked:?}", agent.name);
        println!("ok      {}: {} requests in {took:.1} s", agent.name, lines.len());
    }
}
