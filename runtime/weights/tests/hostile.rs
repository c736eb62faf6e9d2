//! Checkpoints with damage of several kinds at once: opened or refused, and never with more memory than a
//! small multiple of the file.
//!
//! Planted, and caught here: counts in a GGUF file are believed up to a million
//! (`a_damaged_file_is_read_or_refused`, `no_count_claims_memory`).

use monomorph_formats::Format;
use monomorph_weights::hostile::{Counting, damaged, measured};
use monomorph_weights::test_support::{GgufWriter, Value};
use monomorph_weights::{Checkpoint, WeightsError};
use proptest::prelude::*;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that reading claims for each of the file, and for none.
const FOR_EACH_BYTE: usize = 32;
const FOR_NONE: usize = 32 << 10;

fn gguf() -> Vec<u8> {
    GgufWriter::new()
        .metadata("general.architecture", "llama")
        .metadata("general.alignment", Value::U32(32))
        .metadata("a.theta", Value::F32(0.5))
        .metadata("a.flag", Value::Bool(true))
        .metadata("tokens", Value::Strs(vec!["a".into(), "".into(), "héé".into()]))
        .metadata("types", Value::I32s(vec![1, -2, 3]))
        .metadata("scores", Value::F32s(vec![0.25, -1.0]))
        .tensor("embedding", &[2, 3], Format::F32, (0..24).collect())
        .tensor("block.0.q", &[3, 32], Format::Q4_1, vec![9; 60])
        .tensor_of_type("block.0.k", &[1, 256], 14, vec![1; 210])
        .tensor("norm", &[5], Format::Bf16, vec![7; 10])
        .finish()
}

fn safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[2,4],"data_offsets":[32,40]},"d":{"dtype":"I64","shape":[],"data_offsets":[40,48]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(0..48u8);
    file
}

const INDEX: &str = r#"{"metadata":{"total_size":48},"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors","d":"one.safetensors"}}"#;

/// Opens it and reads all there is, as a loader does.
fn read(path: &Path) -> Result<usize, WeightsError> {
    let checkpoint = Checkpoint::open(path)?;
    if let Some(metadata) = checkpoint.gguf_metadata() {
        // Each is there, or not, or of another type; what matters is that none of them fails otherwise.
        for key in
            ["general.architecture", "general.alignment", "a.theta", "a.flag", "tokens", "types", "scores"]
        {
            let _ = (metadata.str(key), metadata.u32(key), metadata.f32(key), metadata.bool(key));
            let _ = (metadata.strs(key), metadata.i32s(key), metadata.f32s(key));
        }
    }
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    checkpoint.tensors().map(|tensor| Ok(sum(&tensor.bytes.read()?))).sum()
}

fn check(directory: &Path, opened: &Path, bytes: usize) -> Result<(), TestCaseError> {
    let (_, claimed) = measured(|| read(opened));
    let most = FOR_NONE + FOR_EACH_BYTE * bytes;
    prop_assert!(claimed <= most, "{}: {claimed} bytes claimed for {bytes}", directory.display());
    Ok(())
}

fn damage() -> impl Strategy<Value = Vec<[u32; 3]>> {
    prop::collection::vec(any::<[u32; 3]>(), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_read_or_refused(damage in damage(), kind in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let (name, whole) = if kind { ("a.gguf", gguf()) } else { ("a.safetensors", safetensors()) };
        let (path, bytes) = (directory.path().join(name), damaged(&whole, &damage));
        std::fs::write(&path, &bytes).unwrap();
        check(directory.path(), &path, bytes.len())?;
    }

    #[test]
    fn a_damaged_index_is_read_or_refused(damage in damage(), shard in prop::option::of(Just([[4u32, 100, 5]]))) {
        let directory = tempfile::tempdir().unwrap();
        let index = damaged(INDEX.as_bytes(), &damage);
        let file = shard.map_or_else(safetensors, |it| damaged(&safetensors(), &it));
        std::fs::write(directory.path().join("model.safetensors.index.json"), &index).unwrap();
        std::fs::write(directory.path().join("one.safetensors"), &file).unwrap();
        check(directory.path(), directory.path(), index.len() + file.len())?;
    }
}

/// Counts that the file is far too short for, at every place where eight bytes may be one.
#[test]
fn no_count_claims_memory() {
    for (name, whole) in [("a.gguf", gguf()), ("a.safetensors", safetensors())] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        for at in 0..whole.len().saturating_sub(8) {
            for count in [1u64 << 20, 1 << 28, 1 << 40, u64::MAX] {
                let mut bytes = whole.clone();
                bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
                std::fs::write(&path, &bytes).unwrap();
                check(directory.path(), &path, bytes.len())
                    .unwrap_or_else(|error| panic!("{count} at {at}: {error}"));
            }
        }
    }
}

#[test]
fn what_has_no_damage_is_read() {
    let directory = tempfile::tempdir().unwrap();
    for (name, whole) in [
        ("a.gguf", gguf()),
        ("one.safetensors", safetensors()),
        ("model.safetensors.index.json", INDEX.into()),
    ] {
        std::fs::write(directory.path().join(name), whole).unwrap();
    }
    read(&directory.path().join("a.gguf")).unwrap();
    read(&directory.path().join("one.safetensors")).unwrap();
    std::fs::remove_file(directory.path().join("a.gguf")).unwrap();
    read(directory.path()).unwrap();
}
