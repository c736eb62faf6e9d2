//! Token ids against llama.cpp's, of a small vocabulary of Gemma 4's kind (gemma.py): pairs of characters,
//! and bytes for characters that are no tokens.

use monomorph_text::{Special, TextError, Tokenizer};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    text: String,
    /// With control tokens parsed.
    ids: Vec<u32>,
    /// Without, where that differs.
    plain: Option<Vec<u32>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("gemma.json")).unwrap()
}

fn read(file: &GgufWriter) -> Result<Tokenizer, TextError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vocabulary.gguf");
    std::fs::write(&path, file.finish()).unwrap();
    Tokenizer::from_checkpoint(&Checkpoint::open(&path).unwrap())
}

fn vocabulary(golden: &Golden) -> GgufWriter {
    GgufWriter::new()
        .metadata("tokenizer.ggml.model", "gemma4")
        .metadata("tokenizer.ggml.tokens", Value::Strs(golden.tokens.clone()))
        .metadata("tokenizer.ggml.token_type", Value::I32s(golden.types.clone()))
        .metadata("tokenizer.ggml.merges", Value::Strs(golden.merges.clone()))
        .metadata("tokenizer.ggml.bos_token_id", Value::U32(2))
        .metadata("tokenizer.ggml.eos_token_id", Value::U32(5))
        .metadata("tokenizer.ggml.add_space_prefix", Value::Bool(false))
}

#[test]
fn ids_equal_llama_cpp() {
    let golden = golden();
    let tokenizer = read(&vocabulary(&golden)).unwrap();
    let mut wrong = 0;
    for row in &golden.rows {
        let plain = row.plain.as_ref().unwrap_or(&row.ids);
        for (special, expected) in [(Special::Parse, &row.ids), (Special::Plain, plain)] {
            let found = tokenizer.encode(&row.text, special).unwrap();
            if found != *expected {
                wrong += 1;
                eprintln!("{special:?} {:?}\n  expected {expected:?}\n  found    {found:?}", row.text);
            }
        }
    }
    assert_eq!(wrong, 0, "{wrong} encodings differ from llama.cpp's");
}

#[test]
fn text_comes_back_and_control_tokens_are_known() {
    let golden = golden();
    let tokenizer = read(&vocabulary(&golden)).unwrap();
    for Row { text, .. } in &golden.rows {
        // The character that stands for a space is one.
        let decoded = tokenizer.decode(&tokenizer.encode(text, Special::Plain).unwrap());
        assert_eq!(decoded, text.replace('\u{2581}', " "));
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_ids()), (Some(2), Some(5), &[5][..]));
    // Prompts begin with one, whether the file says so or not.
    assert_eq!(tokenizer.encode_prompt("the").unwrap()[0], 2);
    assert!(tokenizer.is_special(5) && !tokenizer.is_special(6));
    let byte = golden.tokens.iter().position(|token| token == "<0xE7>").unwrap() as u32;
    assert_eq!(tokenizer.token_bytes(byte), Some(&[0xE7][..]));
}

#[test]
fn tokenizers_of_other_kinds_are_refused_by_name() {
    let file = GgufWriter::new().metadata("tokenizer.ggml.model", "t5");
    let error = read(&file).unwrap_err().to_string();
    let wanted =
        "has a tokenizer of kind `t5`; `gpt2` (byte-level BPE) and `gemma4` are the ones that are read";
    assert!(error.contains(wanted), "{error}");
}
