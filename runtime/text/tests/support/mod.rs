//! A tiny tokenizer for tests: all bytes, a few merges, three control tokens.

use monomorph_text::Tokenizer;
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};

/// The characters that stand for the 256 bytes, in order of the bytes.
pub fn byte_characters() -> Vec<String> {
    let mut next = 0x100;
    (0..=255u32)
        .map(|byte| {
            let code = match byte {
                0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => byte,
                _ => {
                    next += 1;
                    next - 1
                }
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// A GGUF file with the vocabulary: ids 0, 1, 2 are `<s>`, `</s>`, `<|end|>`; byte b is id 3 + b; then `he`,
/// `ll`, `hell`, `hello`, `Ġhello`, and `<think>` that anybody may write.
pub fn vocabulary() -> GgufWriter {
    let mut tokens: Vec<String> = ["<s>", "</s>", "<|end|>"].map(str::to_owned).to_vec();
    tokens.extend(byte_characters());
    tokens.extend(["he", "ll", "hell", "hello", "Ġhello", "<think>"].map(str::to_owned));
    let mut types = vec![1; tokens.len()];
    types[..3].fill(3);
    *types.last_mut().unwrap() = 4;
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"].map(str::to_owned).to_vec();
    GgufWriter::new()
        .metadata("tokenizer.ggml.model", "gpt2")
        .metadata("tokenizer.ggml.pre", "smollm")
        .metadata("tokenizer.ggml.tokens", Value::Strs(tokens))
        .metadata("tokenizer.ggml.token_type", Value::I32s(types))
        .metadata("tokenizer.ggml.merges", Value::Strs(merges))
        .metadata("tokenizer.ggml.bos_token_id", Value::U32(0))
        .metadata("tokenizer.ggml.eos_token_id", Value::U32(1))
        .metadata("tokenizer.ggml.eot_token_id", Value::U32(2))
        .metadata("tokenizer.ggml.add_bos_token", Value::Bool(true))
}

/// Writes a file and opens it; the mapping outlives the file's name.
pub fn open(file: &GgufWriter) -> Checkpoint {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vocabulary.gguf");
    std::fs::write(&path, file.finish()).unwrap();
    Checkpoint::open(&path).unwrap()
}

/// The tokenizer of a file.
pub fn tokenizer(file: GgufWriter) -> Tokenizer {
    Tokenizer::from_checkpoint(&open(&file)).unwrap()
}
