//! Texts that are made to cost: for every way in which models cut theirs, in every size up to that of the
//! largest body. Time and memory grow with the text, and by no power of it.

use monomorph_text::{Special, Tokenizer};
use monomorph_weights::Checkpoint;
use monomorph_weights::hostile::{Counting, measured};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "support/mod.rs"]
#[allow(dead_code)]
mod support;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest body that a server takes, if not told otherwise, in bytes.
const LARGEST: usize = 4 << 20;
/// The longest that is tried here.
const LONGEST: usize = LARGEST / 128;
/// How long one may take, unoptimised and beside other tests.
const PATIENCE: Duration = Duration::from_secs(10);

/// Words of GPT-2, Llama 3, Qwen and Mistral, as their tokenizers have them.
const WORDS: [(&str, &str); 4] = [
    ("gpt2", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    (
        "llama3",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "qwen",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "tekken",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// A tokenizer of bytes and a few merges, that cuts texts in one of the ways.
fn tokenizer(normalizer: &Value, pre_tokenizer: &Value, pieces: bool) -> Tokenizer {
    let mut vocabulary = Map::new();
    let bytes: Vec<String> = if pieces {
        (0..=255u32)
            .map(|byte| format!("<0x{byte:02X}>"))
            .chain(["▁", "h", "e", "l"].map(str::to_owned))
            .collect()
    } else {
        support::byte_characters()
    };
    let names = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(str::to_owned).into_iter();
    let merged = ["he", "ll", "hell"].map(str::to_owned);
    for (id, token) in (0u32..).zip(names.chain(bytes).chain(merged)) {
        vocabulary.insert(token, json!(id));
    }
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false});
    let decoder = if pieces {
        json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]})
    } else {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
    };
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<s>"), added(1, "</s>"), added(2, "<|im_start|>"), added(3, "<|im_end|>")],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder,
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"], "byte_fallback": pieces,
            "unk_token": null, "ignore_merges": false, "fuse_unk": pieces,
        },
    });
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), &file);
    let checkpoint = Checkpoint::open_text(directory.path()).expect("a checkpoint");
    Tokenizer::from_checkpoint(&checkpoint).expect("a tokenizer")
}

fn write(directory: &Path, tokenizer: &Value) {
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    std::fs::write(directory.join("tokenizer_config.json"), r#"{"eos_token":"</s>"}"#).expect("written");
    let head = format!("{:64}", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
    let weights = [&64u64.to_le_bytes()[..], head.as_bytes(), &[0; 4]].concat();
    std::fs::write(directory.join("model.safetensors"), weights).expect("written");
}

fn tokenizers() -> Vec<(String, Tokenizer)> {
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let mut all = Vec::new();
    for (name, words) in WORDS {
        let split =
            json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
        let both = json!({"type": "Sequence", "pretokenizers": [split, level]});
        let normalizer = if name == "qwen" { json!({"type": "NFC"}) } else { Value::Null };
        all.push((name.to_owned(), tokenizer(&normalizer, &both, false)));
    }
    let own =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    all.push(("byte level".to_owned(), tokenizer(&Value::Null, &own, false)));
    // As Llama 2 and Gemma: a text is one word.
    let spaces = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    all.push(("pieces".to_owned(), tokenizer(&spaces, &Value::Null, true)));
    all
}

/// What texts are made of, over and over, and what ends them.
const TEXTS: [(&str, &str, &str); 24] = [
    ("one letter", "x", ""),
    ("letters of a merge", "hell", ""),
    ("half of a merge", "he", ""),
    ("accents behind one letter", "\u{301}", ""),
    ("accents out of order", "\u{315}\u{300}\u{5ae}\u{62e}\u{301}", ""),
    ("letters and accents", "e\u{301}\u{323}", ""),
    ("Hangul in parts", "\u{1112}\u{1161}\u{11ab}", ""),
    ("what grows when it is composed", "\u{fdfa}\u{1d160}", ""),
    ("spaces", " ", ""),
    ("spaces and a letter", " ", "x"),
    ("lines", "\n", ""),
    ("spaces and a line", " ", "\n"),
    ("spaces and lines", " \n", "x"),
    ("tabs and returns", "\t\r", "."),
    ("digits", "7", ""),
    ("marks", "!", ""),
    ("marks and spaces", " !", ""),
    ("words of a letter", "a ", ""),
    ("letters and digits", "a1", ""),
    ("apostrophes", "'", "s"),
    ("control tokens", "<|im_end|>", ""),
    ("half control tokens", "<|im_end|", ""),
    ("emoji in families", "👩\u{200d}👩\u{200d}👧", ""),
    ("what shows nothing", "\0\u{feff}\u{200b}\u{202e}", ""),
];

fn text(unit: &str, end: &str, bytes: usize) -> String {
    unit.repeat(bytes / unit.len()) + end
}

/// Seconds and bytes that a text takes.
fn cost(tokenizer: &Tokenizer, text: &str, special: Special) -> (Duration, usize) {
    let began = Instant::now();
    let (ids, claimed) = measured(|| tokenizer.encode(text, special));
    let took = began.elapsed();
    let ids = ids.unwrap_or_else(|error| panic!("{error}"));
    assert!(!ids.is_empty() || text.is_empty());
    (took, claimed)
}

/// Most bytes that cutting a text claims for each of its own, and for none.
const FOR_EACH_BYTE: usize = 600;
const FOR_NONE: usize = 1 << 20;

#[test]
fn time_and_memory_grow_with_the_text() {
    let (mut inputs, mut most, mut longest) = (0, 0, Duration::ZERO);
    for (name, tokenizer) in tokenizers() {
        for (what, unit, end) in TEXTS {
            for bytes in [LARGEST / 4096, LONGEST] {
                // How control tokens are taken is one matter, and length another.
                let specials = [Special::Parse, Special::Plain];
                for special in &specials[..if bytes == LONGEST { 1 } else { 2 }] {
                    let text = text(unit, end, bytes);
                    let (took, claimed) = cost(&tokenizer, &text, *special);
                    assert!(took < PATIENCE, "{name}, {bytes} bytes of {what}: {took:?}");
                    let bound = FOR_NONE + FOR_EACH_BYTE * text.len();
                    assert!(claimed < bound, "{name}, {bytes} bytes of {what}: {claimed} bytes claimed");
                    inputs += 1;
                    if bytes == LONGEST {
                        most = most.max(claimed / text.len());
                        longest = longest.max(took);
                    }
                }
            }
        }
    }
    println!(
        "{inputs} texts; at most {most} bytes for each of a text's, and {longest:.1?} for {} KiB",
        LONGEST >> 10
    );
}
