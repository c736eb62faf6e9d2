//! llama.cpp reads the files that goldens are converted to, and computes what the interpreter does.
//!
//! The converter beside the goldens is written after llama.cpp's, and the importer after the same: that
//! neither misread it is known because llama.cpp itself was given these very files
//! (`reference/llama_cpp_logits.py`), which are known by their hashes.

use monomorph_compiler::graph;
use monomorph_compiler::reference::{Cache, Interpreter, Logits};
use monomorph_compiler::spec::types::Target;
use monomorph_formats::Format;
use monomorph_tests::converted::converted;
use monomorph_tests::gguf_files::plain;
use monomorph_tests::goldens::{Golden, golden};
use monomorph_tests::{fixtures, root};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Goldens that llama.cpp loads, by architecture. It does not take biases of Gemma, nor a tied head of
/// MiniMax, nor delta-nets whose heads of keys and of values have other widths.
const READ: [(&str, &str); 14] = [
    ("gemma4", "gemma4-dense"),
    ("gemma4", "gemma4-few"),
    ("llama", "llama-aligned"),
    ("llama", "llama-linear"),
    ("llama", "llama-llama3"),
    ("minimax-m2", "minimax-m2"),
    ("minimax-m2", "minimax-m2-whole"),
    ("mistral3", "llama-grouped"),
    ("nemotron_h_moe", "nemotron-h-mtp"),
    ("nemotron_h_moe", "nemotron-h-nano"),
    ("nemotron_h_moe", "nemotron-h-super"),
    ("qwen3", "qwen3-deep"),
    ("qwen3", "qwen3-multi-query"),
    ("qwen3vlmoe", "qwen3-vl-few"),
];

#[derive(Deserialize)]
struct Fixture {
    files: BTreeMap<String, Read>,
}

#[derive(Deserialize)]
struct Read {
    /// The largest distance of a row of llama.cpp's logits from the interpreter's, as a part of its length.
    apart: f32,
    sha256: String,
}

/// Bounds of what both may be apart: Gemma's embedding is multiplied by a rounded root here, and llama.cpp
/// looks its activation up in a table of f16.
fn bound(architecture: &str) -> f32 {
    if architecture == "gemma4" { 1e-2 } else { 1e-5 }
}

/// The golden's own target, and its file as llama.cpp takes one: without a tokenizer, which goldens lack.
fn files_of(architecture: &str, golden: &Golden, directory: &Path) -> (Target, Vec<u8>) {
    let plain = plain(golden, directory);
    let mut file: GgufWriter = converted(architecture, golden, &plain, Format::F32);
    file = file.metadata("tokenizer.ggml.model", "none");
    if !architecture.starts_with("nemotron") {
        let count = u32::try_from(plain.model.vocabulary).expect("goldens are small");
        file = file.metadata(&format!("{architecture}.vocab_size"), Value::U32(count));
    }
    (plain, file.finish())
}

#[test]
fn llama_cpp_reads_what_goldens_are_converted_to() {
    let bless = std::env::var_os("MONOMORPH_BLESS").is_some();
    let text = std::fs::read_to_string(fixtures().join("gguf_read.json"));
    let known: Option<Fixture> = text.ok().map(|text| serde_json::from_str(&text).expect("it is JSON"));
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let out = root().join("target/gguf-read");
    for (architecture, name) in READ {
        let golden = golden(name);
        let (plain, file) = files_of(architecture, &golden, directory.path());
        if bless {
            std::fs::create_dir_all(&out).expect("the target folder is writable");
            std::fs::write(out.join(format!("{name}.gguf")), &file).expect("it is writable");
            let expected =
                serde_json::json!({ "prompts": golden.prompts, "logits": logits(&plain, &golden) });
            std::fs::write(out.join(format!("{name}.json")), expected.to_string()).expect("it is writable");
            continue;
        }
        let known = known.as_ref().expect("the fixture is there");
        let read = known.files.get(name).unwrap_or_else(|| panic!("llama.cpp does not read {name}"));
        assert!(read.apart <= bound(architecture), "{name}: {:e}", read.apart);
        let found: String = Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect();
        let redo = "run this with MONOMORPH_BLESS=1, then reference/llama_cpp_logits.py";
        assert_eq!(found, read.sha256, "{name} is converted to another file than llama.cpp read: {redo}");
    }
}

/// The interpreter's logits of all prompts.
fn logits(plain: &Target, golden: &Golden) -> Vec<Vec<f32>> {
    let checkpoint =
        Checkpoint::open(&golden.directory.join("f32")).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&plain.model, &plain.quant);
    let interpreter = Interpreter::new(&graph, &plain.quant, &checkpoint).expect("its tensors fit");
    golden
        .prompts
        .iter()
        .map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Logits::All))
        .collect()
}
