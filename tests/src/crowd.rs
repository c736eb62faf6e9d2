//! Clients of a server that come and go: random requests, sent alone and many at once.

use crate::goldens::{Golden, goldens};
use crate::root;
use crate::server::{self, post, post_streamed};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_formats::cached::KvFormats;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const PATH: &str = "/v1/completions";
/// The token of id 0; the following ids are the characters after it.
const FIRST: char = '!';

/// Pseudo-random integers, the same in every run (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// One of `range`, which is not empty.
    pub fn within(&mut self, range: std::ops::Range<usize>) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + ((bits ^ (bits >> 31)) % range.len() as u64) as usize
    }

    /// `count` ids below `vocabulary`.
    pub fn ids(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| self.within(0..vocabulary) as u32).collect()
    }
}

/// Writes a golden's f32 weights to `directory` with a tokenizer whose tokens are one ASCII character each:
/// an answer has as many bytes as tokens.
///
/// # Panics
/// If the vocabulary has more ids than there are printable characters, or the directory is not writable.
pub fn with_tokenizer(golden: &Golden, vocabulary: usize, directory: &Path) {
    // What a byte-level tokenizer calls the space, the end of a line, and other control characters.
    let others = ('Ā'..='ğ').filter(|token| *token != 'Ċ');
    let tokens: serde_json::Map<String, Value> = (FIRST..='~')
        .chain(['Ġ', 'Ċ'])
        .chain(others)
        .take(vocabulary)
        .enumerate()
        .map(|(id, token)| (token.to_string(), id.into()))
        .collect();
    assert_eq!(tokens.len(), vocabulary, "a character for every id");
    write_tokenizer(tokens, directory);
    let file = "model.safetensors";
    std::fs::copy(golden.directory.join("f32").join(file), directory.join(file)).expect("it is writable");
}

/// Writes a tokenizer with exactly these tokens.
///
/// # Panics
/// If the directory is not writable.
pub fn write_tokenizer(tokens: serde_json::Map<String, Value>, directory: &Path) {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": tokens, "merges": [],
        },
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).expect("it is writable");
}

/// A golden's CPU server, in f32.
pub struct Served {
    /// The binary.
    pub server: PathBuf,
    /// Weights [with a tokenizer](with_tokenizer).
    pub weights: TempDir,
    /// Size of the vocabulary.
    pub vocabulary: usize,
}

impl Served {
    /// Imports a golden into `targets` and builds its server.
    ///
    /// # Panics
    /// If there is no such golden, or it cannot be built.
    pub fn build(name: &str, targets: &Path) -> Served {
        Served::keeping(name, None, targets)
    }

    /// The same with keys and values in these formats.
    ///
    /// # Panics
    /// As [`Served::build`].
    pub fn keeping(name: &str, kv: Option<KvFormats>, targets: &Path) -> Served {
        Served::with(name, &BuildOptions { kv, ..BuildOptions::default() }, targets)
    }

    /// The same with these options.
    ///
    /// # Panics
    /// As [`Served::build`].
    pub fn with(name: &str, options: &BuildOptions, targets: &Path) -> Served {
        let golden = goldens().into_iter().find(|golden| golden.name == name).expect("it is committed");
        golden.import_into(targets, Compute::F32);
        let target = format!("cpu/{name}/f32");
        let search = [targets.to_owned(), root().join("targets")];
        let vocabulary =
            spec::load(&search, &target).unwrap_or_else(|error| panic!("{error}")).model.vocabulary;
        let weights = tempfile::tempdir().expect("temporary directories can be made");
        with_tokenizer(&golden, vocabulary, weights.path());
        Served { server: server::build_with(Some(targets), &target, options), weights, vocabulary }
    }
}

/// A prompt with its sampling parameters.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Tokens to generate; end tokens do not stop it.
    pub tokens: usize,
    /// Further fields of the body, as an object; they override the defaults.
    pub sampling: Value,
    /// Ask for this many extra tokens, but disconnect once the others have arrived.
    pub surplus: usize,
}

/// The server's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// One character per token.
    pub text: String,
    /// Log-probabilities of the tokens, in nats, as the server wrote them.
    pub logprobs: Vec<f64>,
}

impl Answer {
    /// Appends the choice of a whole answer or of a streamed chunk.
    pub fn push(&mut self, answer: &Value) {
        let choice = &answer["choices"][0];
        self.text.push_str(choice["text"].as_str().unwrap_or_default());
        let logprobs = choice["logprobs"]["token_logprobs"].as_array();
        self.logprobs.extend(logprobs.into_iter().flatten().filter_map(Value::as_f64));
    }

    /// Truncates it to `tokens` tokens.
    fn cut(mut self, tokens: usize) -> Answer {
        self.text.truncate(tokens);
        self.logprobs.truncate(tokens);
        self
    }
}

impl Request {
    fn body(&self, tokens: usize, stream: bool) -> String {
        let mut body = json!({
            "prompt": self.prompt, "max_tokens": tokens, "stream": stream, "ignore_eos": true, "logprobs": 0,
        });
        let fields = self.sampling.as_object().cloned().expect("fields are an object");
        body.as_object_mut().expect("so are these").extend(fields);
        body.to_string()
    }

    /// Asks for the whole answer at once.
    ///
    /// # Panics
    /// If it is refused.
    pub fn whole(&self, address: &str) -> Answer {
        let (status, text) = post(address, PATH, &self.body(self.tokens, false)).expect("it answers");
        assert_eq!(status, 200, "{text}");
        let mut answer = Answer::default();
        answer.push(&serde_json::from_str(&text).expect("answers are JSON"));
        answer
    }

    /// Streams the answer token by token; a request for extra tokens closes the connection midway.
    ///
    /// # Panics
    /// If it is refused or fails.
    pub fn streamed(&self, address: &str) -> Answer {
        let body = self.body(self.tokens + self.surplus, true);
        let stream = post_streamed(address, PATH, &body);
        let mut answer = Answer::default();
        for line in BufReader::new(stream).lines() {
            let line = line.expect("the stream ends in good order");
            let Some(event) = line.strip_prefix("data: ").filter(|event| *event != "[DONE]") else {
                continue;
            };
            let event: Value = serde_json::from_str(event).expect("events are JSON");
            assert!(event["error"].is_null(), "{event}");
            answer.push(&event);
            if self.surplus > 0 && answer.text.len() >= self.tokens {
                break;
            }
        }
        answer.cut(self.tokens)
    }
}

/// Streams every request, in order, at most `clients` at a time, and returns the answers in the order of the
/// requests. Clients pause now and then, so that batches shrink too.
///
/// # Panics
/// If one is refused or fails.
pub fn crowd(address: &str, requests: &[Request], clients: usize) -> Vec<Answer> {
    let next = AtomicUsize::new(0);
    let client = |seed: usize| {
        let mut random = Random(seed as u64);
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = requests.get(at) else { return answers };
            answers.push((at, request.streamed(address)));
            if random.within(0..3) == 0 {
                std::thread::sleep(Duration::from_millis(random.within(1..20) as u64));
            }
        }
    };
    let mut answers: Vec<(usize, Answer)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|seed| scope.spawn(move || client(seed))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("every request is answered")).collect()
    });
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
