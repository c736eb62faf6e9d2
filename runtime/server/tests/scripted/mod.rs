//! A server binary around the scripted model, and the checkpoint it wants: byte tokens and ChatML.
//!
//! What it answers is in the prompt. `[[say TEXT]]` says the text, `[[slowly TEXT]]` with 20 ms a token;
//! `[[forever]]` goes on until it is stopped; `[[slow]]` takes 100 ms a token; `[[half]]` ends within a
//! character; `[[panic]]` panics; `[[fault]]` fails as a device does; `[[hang N]]` greets after a step that
//! takes N ms; `[[drawn]]` draws letters as the request's sampling has it; from `[[poison]]` on tokens are
//! wrong, and from `[[nan]]` on logits are not finite, in all answers; from the prompt after `[[poison N]]`
//! on tokens of rank N are; `[[seen]]` says the prompt, and what is seen of images. Anything else gets
//! [`GREETING`]. With made-up weights of seed N, loading takes N ms, of ranks the last one's. With [`BROKEN`]
//! it fails.

pub mod seeing;
pub mod talk;

use monomorph_engine::scripted::images::id_of;
use monomorph_engine::scripted::{Controls, Next, Pipelined, Poison, Script, Scripted, Shape, Tokens};
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_model::{
    BlockId, ClassFormat, Figures, FileSpec, HardwareSpec, LoadError, LoadOptions, Model, ModelSpec, Output,
    Progress, Protocol, SamplingPreset, Shown, Step, StepOutput, Ticket, VisionSpec, Weights,
};
use monomorph_world::{Rank, Seat};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The answer to a prompt without a command: two-byte and four-byte characters in it.
pub const GREETING: &str = "Hello, wörld! 🌊";
/// Longest sequence.
pub const CONTEXT: usize = 512;
/// Id of `<|im_end|>`.
pub const STOP: u32 = 258;

/// What this very build needs of a CPU, so that the check at the start has something to check when it is
/// compiled for a newer one (`RUSTFLAGS="-C target-cpu=x86-64-v4"`).
const COMPILED_FEATURES: &[&str] = if cfg!(target_feature = "avx512f") {
    &["avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512vl"]
} else if cfg!(target_feature = "avx2") {
    &["avx", "avx2", "fma", "bmi2"]
} else {
    &[]
};

/// The dimensions of [`Echo`].
pub struct Bytes;

impl Shape for Bytes {
    const SPEC: &'static ModelSpec = &ModelSpec {
        target: "cpu/echo/none",
        model: "echo",
        specs: &[FileSpec { name: "models/echo/MODEL.toml", sha256: "0123abcd" }],
        commit: Some("4567cdef+"),
        hardware: HardwareSpec { name: "cpu", features: COMPILED_FEATURES, cuda: None },
        hidden: 64,
        layers: 1,
        vocabulary: 259,
        context: CONTEXT,
        block_tokens: 16,
        block_bytes: 64,
        state_bytes: 0,
        step_tokens: 64,
        step_sequences: 16,
        kv_formats: KvFormats::both(Cached::F32),
        kv_exact_layers: 0,
        kv_scales: None,
        kv_elements: 0,
        formats: &[ClassFormat { class: "embedding", stored: Format::F32, compute: "f32" }],
        tensors: &[],
        unused: &[],
        files: &[],
        canaries: &[],
        weight_bytes: 4,
        scratch_bytes: 0,
        protocol: Protocol { stop_ids: &[STOP], chat_template: None, tools: None, reasoning: None },
        sampling: &[SamplingPreset {
            name: "default",
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }],
        figures: Figures {
            limit_decode: 100.0,
            limit_prefill: 200.0,
            predicted_decode: 80.0,
            predicted_prefill: 160.0,
            copy_bandwidth: 4e9,
        },
        draft: None,
        batch_invariant: None,
    };
}

/// How the process's model is commanded by what it is asked; of several ranks, each.
static CONTROLS: [OnceLock<Controls>; RANKS] = [const { OnceLock::new() }; RANKS];
/// Ranks of a build. Each computes all of it, so that all answer alike.
const RANKS: usize = 6;
/// Of made-up weights with this seed the last rank does not load.
pub const BROKEN: u64 = 666;
/// The rank of `[[poison N]]`, until the next prompt.
static ARMED: Mutex<Option<usize>> = Mutex::new(None);

/// Two steps are in flight, as on a card: what ends an answer is seen here when the next token is on its way.
pub type Echo = Loaded<Pipelined<Bytes, 2>>;

/// The scripted model, loaded as a layer stack is, for sequences of so many positions.
pub struct Loaded<S: Shape>(Scripted<S>, usize);

/// Processes of the world that this one is in.
static PROCESSES: OnceLock<usize> = OnceLock::new();

impl<S: Shape> Loaded<S> {
    fn of_rank(
        rank: usize,
        weights: &Weights,
        options: &LoadOptions,
        progress: &Progress,
    ) -> Result<Self, LoadError> {
        progress.expect(4);
        match weights {
            Weights::Dummy { seed: BROKEN } => return Err(LoadError::Hardware("it is broken".to_owned())),
            Weights::Dummy { seed } => std::thread::sleep(Duration::from_millis(*seed)),
            _ => {}
        }
        progress.advance(4);
        let tokens = Tokens::Rows(Arc::new(next));
        let blocks = options.blocks_or_one_sequence(S::SPEC.block_tokens);
        let sequences = options.states(S::SPEC).sequences;
        let model = Scripted::new(Script { tokens, blocks, sequences, ..Script::default() });
        let _ = CONTROLS[rank].set(model.controls());
        Ok(Loaded(model, options.context))
    }
}

impl<S: Shape> Rank for Loaded<S> {
    fn load_rank(
        weights: &Weights,
        options: &LoadOptions,
        progress: &Progress,
        seat: Seat,
    ) -> Result<Self, LoadError> {
        let (rank, at_once) = (seat.rank(), Weights::Dummy { seed: 0 });
        let is_last = rank + 1 == seat.ranks();
        let own = if is_last || !matches!(weights, Weights::Dummy { .. }) { weights } else { &at_once };
        let loaded = Loaded::of_rank(rank, own, options, progress)?;
        seat.meet("loaded")?;
        Ok(loaded)
    }
}

impl<S: Shape> Model for Loaded<S> {
    const RANKS: usize = RANKS;
    const PROCESSES: &'static [usize] = &[1, 2, 3, 6];
    const SPEC: &'static ModelSpec = S::SPEC;
    const STEPS_IN_FLIGHT: usize = S::STEPS_IN_FLIGHT;
    const SPLIT_SAMPLING: bool = Scripted::<S>::SPLIT_SAMPLING;
    const VISION: Option<VisionSpec> = S::VISION;

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        Loaded::of_rank(0, weights, options, progress)
    }

    fn blocks(&self) -> usize {
        self.0.blocks()
    }

    fn sequences(&self) -> usize {
        self.0.sequences()
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.0.read_block(block, into);
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.0.write_block(block, from);
    }

    fn identify() -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn join(&mut self, _: &[u8], _: usize, processes: usize) -> Result<(), String> {
        PROCESSES.set(processes).map_err(|_| "it is joined already".to_owned())
    }

    fn add_up(&mut self, _: u64) -> Result<u64, String> {
        Ok((1 << PROCESSES.get().ok_or("it is not joined")?) - 1)
    }

    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        self.0.see(images, layers)
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        for row in &step.sequences {
            let samples = matches!(row.output, Output::Sample { .. });
            let drafting = if samples { Self::DRAFTS.saturating_sub(1) } else { 0 };
            let end = row.position + row.tokens.len() + drafting;
            assert!(end <= self.1, "a step up to position {end} of a model loaded for {}", self.1);
        }
        self.0.submit(step)
    }

    fn sample(&mut self, step: &Step) {
        self.0.sample(step);
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.0.collect(ticket)
    }
}

/// What is answered.
pub enum Reply {
    /// A text, and the end.
    Text(Vec<u8>),
    /// Tokens, and the end.
    Ids(Vec<u32>),
    /// One token, and no end.
    Endless(u32),
    /// One of these logits.
    Logits(Vec<f32>),
}

/// Letters that `[[drawn]]` draws from, from `a` on, whose logit is 0.
pub const LETTERS: usize = 8;
/// How far the logit of a letter is below that of the one before it.
pub const APART: f32 = 0.75;
/// The logit of the end.
pub const END: f32 = -1.0;

fn letters() -> Vec<f32> {
    let mut row = vec![f32::NEG_INFINITY; Bytes::SPEC.vocabulary];
    row[STOP as usize] = END;
    for (place, logit) in row[usize::from(b'a')..][..LETTERS].iter_mut().enumerate() {
        *logit = -APART * place as f32;
    }
    row
}

/// What comes after `context`, the last `draw` tokens of which are the answer so far.
fn next(context: &[u32], draw: u64) -> Next {
    let draw = draw as usize;
    let cells = &context[..context.len() - draw];
    let prompt: Vec<u8> = cells.iter().filter_map(|cell| u8::try_from(id_of(*cell)).ok()).collect();
    let prompt = String::from_utf8_lossy(&prompt);
    let command =
        prompt.rsplit_once("[[").and_then(|(_, rest)| rest.split_once("]]")).map(|(command, _)| command);
    if draw == 0 && !command.is_some_and(|it| it.starts_with("poison ")) {
        // The rank asks for this token too, if it is not there yet, and has it wrong.
        if let Some(rank) = *ARMED.lock().expect("no holder panics") {
            CONTROLS[rank].get().expect("it is loaded").poison(Poison::WrongTokens);
        }
    }
    let told = match command {
        Some("seen") => seeing::seen(cells),
        command => command.and_then(talk::ids).unwrap_or_else(|| answer(command, draw)),
    };
    let byte = |byte: &u8| u32::from(*byte);
    Next::Token(match told {
        Reply::Logits(row) => return Next::Logits(row),
        Reply::Endless(id) => id,
        Reply::Text(text) => text.get(draw).map_or(STOP, byte),
        Reply::Ids(ids) => ids.get(draw).copied().unwrap_or(STOP),
    })
}

fn answer(command: Option<&str>, draw: usize) -> Reply {
    let greeting = || Reply::Text(GREETING.as_bytes().to_vec());
    match command {
        Some("forever") => {
            std::thread::sleep(Duration::from_millis(2));
            Reply::Endless(u32::from(b"ab "[draw % 3]))
        }
        Some("drawn") => Reply::Logits(letters()),
        Some("slow") => {
            std::thread::sleep(Duration::from_millis(100));
            greeting()
        }
        Some(command) if command.starts_with("slowly ") => {
            std::thread::sleep(Duration::from_millis(20));
            Reply::Text(command[7..].into())
        }
        Some("poison" | "nan") => {
            let how = if command == Some("nan") { Poison::NotANumber } else { Poison::WrongTokens };
            CONTROLS.iter().filter_map(OnceLock::get).for_each(|controls| controls.poison(how));
            greeting()
        }
        Some(command) if command.starts_with("poison ") => {
            *ARMED.lock().expect("no holder panics") = Some(command[7..].parse().expect("a rank"));
            greeting()
        }
        Some(command) if command.starts_with("hang ") => {
            if draw == 0 {
                std::thread::sleep(Duration::from_millis(command[5..].parse().expect("milliseconds")));
            }
            greeting()
        }
        Some("half") => Reply::Text(GREETING.as_bytes()[..GREETING.len() - 2].to_vec()),
        Some("panic") => panic!("told to"),
        Some("fault") => {
            CONTROLS[0].get().expect("a model is loaded").device_fault_next();
            greeting()
        }
        Some(command) => Reply::Text(command.strip_prefix("say ").unwrap_or(command).into()),
        None => greeting(),
    }
}

/// Writes a checkpoint directory: a tokenizer of 256 byte tokens and three special ones, a template, a
/// tensor.
pub fn write_checkpoint(directory: &Path) -> std::io::Result<()> {
    let template = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                    '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                    {% endif %}";
    checkpoint_of(directory, &[], template)
}

/// One with further special tokens and another template.
fn checkpoint_of(directory: &Path, controls: &[&str], template: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let special = |id: usize, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        })
    };
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let vocabulary: Map<String, Value> =
        (0..=255u8).map(|byte| (byte_character(byte).to_string(), json!(byte))).collect();
    let names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let added: Vec<Value> =
        (256..).zip(names.iter().chain(controls)).map(|(id, name)| special(id, name)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    });
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": null, "add_bos_token": false,
        "eos_token": "<|im_end|>", "chat_template": template,
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string())?;
    std::fs::write(directory.join("tokenizer_config.json"), config.to_string())?;
    let header = json!({"embedding": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).to_string();
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&1f32.to_le_bytes());
    std::fs::write(directory.join("model.safetensors"), file)
}

/// The character that stands for a byte in byte-level vocabularies (GPT-2's table).
fn byte_character(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count();
    char::from_u32(256 + before as u32).expect("a code point below 0x200")
}
