//! The safetensors reader: single files, shards, and files that lie.

use monomorph_formats::Format;
use monomorph_weights::{Checkpoint, WeightsError};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::path::Path;

fn sample() -> Vec<u8> {
    let (a, b, c): (Vec<u8>, Vec<u8>, Vec<u8>) = ((0..24).collect(), vec![5; 8], vec![6; 16]);
    let tensors = [
        ("model.a", TensorView::new(Dtype::F32, vec![2, 3], &a).unwrap()),
        ("model.b", TensorView::new(Dtype::BF16, vec![4], &b).unwrap()),
        ("model.ids", TensorView::new(Dtype::I64, vec![2], &c).unwrap()),
    ];
    serialize(tensors, None).unwrap()
}

/// A file of this header and this much data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn open(bytes: &[u8]) -> Result<Checkpoint, WeightsError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Checkpoint::open(&path)
}

fn refusal(result: Result<Checkpoint, WeightsError>) -> String {
    match result {
        Ok(_) => panic!("a broken checkpoint was opened"),
        Err(WeightsError::Malformed { what, .. }) => what,
        Err(other) => panic!("refused for another reason: {other}"),
    }
}

#[test]
fn a_sound_file_reads_as_written() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.safetensors"), sample()).unwrap();
    std::fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    for path in [directory.path().to_owned(), directory.path().join("model.safetensors")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let a = checkpoint.expect("model.a", &[2, 3], Format::F32).unwrap();
        assert_eq!(a.bytes.read().unwrap()[..], (0..24).collect::<Vec<u8>>());
        assert_eq!(checkpoint.tensor("model.b").unwrap().format, Format::Bf16);
        assert_eq!(checkpoint.unsupported().collect::<Vec<_>>(), [("model.ids", "I64")]);
        assert!(checkpoint.gguf_metadata().is_none());
        let beside = checkpoint.side_file("tokenizer.json").unwrap();
        assert_eq!(beside.path(), directory.path().join("tokenizer.json"));
        assert!(checkpoint.side_file("config.json").is_none());
    }
}

#[test]
fn codes_and_scales_are_read() {
    let bytes: Vec<u8> = (0..64).collect();
    let tensors = [
        ("fp8", TensorView::new(Dtype::F8_E4M3, vec![4, 16], &bytes).unwrap()),
        ("nvfp4", TensorView::new(Dtype::U8, vec![8, 8], &bytes).unwrap()),
        // Rows that are no whole blocks, and bytes that are no matrix.
        ("bytes", TensorView::new(Dtype::U8, vec![16, 4], &bytes).unwrap()),
        ("list", TensorView::new(Dtype::U8, vec![64], &bytes).unwrap()),
        ("scalar", TensorView::new(Dtype::F32, vec![], &[0, 0, 128, 63]).unwrap()),
        ("one", TensorView::new(Dtype::F32, vec![1], &[0, 0, 0, 64]).unwrap()),
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, serialize(tensors, None).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.expect("fp8", &[4, 16], Format::Fp8E4m3).unwrap().bytes.read().unwrap()[..], bytes);
    assert_eq!(checkpoint.expect("nvfp4", &[8, 16], Format::Nvfp4).unwrap().bytes.read().unwrap()[..], bytes);
    let error = checkpoint.expect("nvfp4", &[8, 8], Format::Nvfp4).unwrap_err().to_string();
    assert!(error.contains("should be nvfp4 [8, 8] and is nvfp4 [8, 16]"), "{error}");
    for shape in [&[][..], &[1]] {
        assert_eq!(
            checkpoint.expect("scalar", shape, Format::F32).unwrap().bytes.read().unwrap()[..],
            1f32.to_le_bytes()
        );
        assert_eq!(
            checkpoint.expect("one", shape, Format::F32).unwrap().bytes.read().unwrap()[..],
            2f32.to_le_bytes()
        );
    }
    assert!(checkpoint.expect("one", &[1, 1], Format::F32).is_err());
    let mut unsupported: Vec<_> = checkpoint.unsupported().collect();
    unsupported.sort_unstable();
    assert_eq!(unsupported, [("bytes", "U8"), ("list", "U8")]);
}

#[test]
fn every_truncation_is_refused() {
    let whole = sample();
    for length in 0..whole.len() {
        assert!(open(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
    assert!(open(&whole).is_ok());
}

#[test]
fn lying_headers_are_refused_by_name() {
    let cases = [
        (file("[]", 0), "the header is wrong"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}"#, 4), "`a` has offsets 0..8"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4), "`a` has offsets 4..0"),
        (file(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4), "invalid shape"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 9), "not fully covered"),
        (file(r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#, 4), "F33"),
        (
            file(r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}"#, 4),
            "overflow",
        ),
        (
            file(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
                4,
            ),
            "`a` occurs twice",
        ),
        (
            file(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
                4,
            ),
            "invalid offset",
        ),
        (u64::MAX.to_le_bytes().to_vec(), "the header is said to be"),
    ];
    for (bytes, expected) in cases {
        let what = refusal(open(&bytes));
        assert!(what.contains(expected), "expected {expected:?} in {what:?}");
    }
}

fn shards(directory: &Path, index: &str) -> Result<Checkpoint, WeightsError> {
    std::fs::write(directory.join("model.safetensors.index.json"), index).unwrap();
    Checkpoint::open(directory)
}

/// Mistral's own releases call their files otherwise; where both forms are there, an index is named.
#[test]
fn consolidated_files_are_read_where_there_are_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let one = |name: &str, byte: u8| {
        serialize([(name, TensorView::new(Dtype::F16, vec![2], &[byte; 4]).unwrap())], None).unwrap()
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let names = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.directory(), Some(directory.path()));
        checkpoint.tensors().map(|tensor| tensor.name.to_owned()).collect::<Vec<_>>()
    };
    write("consolidated-00001-of-00002.safetensors", &one("a", 1));
    write("consolidated-00002-of-00002.safetensors", &one("b", 2));
    let index = r#"{"weight_map":{"a":"consolidated-00001-of-00002.safetensors","b":"consolidated-00002-of-00002.safetensors"}}"#;
    let index = write("consolidated.safetensors.index.json", index.as_bytes());
    assert_eq!(names(directory.path()), ["a", "b"]);
    write("consolidated.safetensors", &one("c", 3));
    assert_eq!(names(directory.path()), ["c"]);
    write("model.safetensors", &one("d", 4));
    assert_eq!(names(directory.path()), ["d"]);
    assert_eq!(names(&index), ["a", "b"]);
}

#[test]
fn shards_are_read_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let one = |name: &str, byte: u8| {
        serialize([(name, TensorView::new(Dtype::F16, vec![2], &[byte; 4]).unwrap())], None).unwrap()
    };
    std::fs::write(directory.path().join("1.safetensors"), one("a", 1)).unwrap();
    std::fs::write(directory.path().join("2.safetensors"), one("b", 2)).unwrap();
    std::fs::write(directory.path().join("3.safetensors"), one("a", 3)).unwrap();

    let sound = r#"{"metadata":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
    let checkpoint = shards(directory.path(), sound).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().bytes.read().unwrap()[..], [1; 4]);
    assert_eq!(checkpoint.tensor("b").unwrap().bytes.read().unwrap()[..], [2; 4]);

    for (index, expected) in [
        (r#"{"weight_map":{"a":"../1.safetensors"}}"#, "`../1.safetensors`, which is not a file name"),
        (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "`/etc/passwd`, which is not a file name"),
        (r#"{"weight_map":{"a":".."}}"#, "`..`, which is not a file name"),
        (r#"{"weight_map":{"a":"./1.safetensors"}}"#, "which is not a file name"),
        (r#"{"weight_map":{"a":"9.safetensors"}}"#, "the shard `9.safetensors`, which is missing"),
        (r#"{"weight_map":{"c":"1.safetensors"}}"#, "puts tensor `c` into `1.safetensors`"),
        (
            r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"}}"#,
            "puts tensor `c`",
        ),
        (r#"{"weight_map":{}}"#, "names no tensors"),
        (r#"{"weight":{}}"#, "is not a safetensors index"),
        ("nonsense", "is not a safetensors index"),
    ] {
        let what = refusal(shards(directory.path(), index));
        assert!(what.contains(expected), "expected {expected:?} in {what:?}");
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |file: &str, names: &[&str]| {
        let tensors =
            names.iter().map(|&name| (name, TensorView::new(Dtype::F16, vec![2], &[1; 4]).unwrap()));
        std::fs::write(directory.path().join(file), serialize(tensors, None).unwrap()).unwrap();
    };
    write("1.safetensors", &["a"]);
    write("2.safetensors", &["a", "b"]);
    let index = r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
    assert_eq!(refusal(shards(directory.path(), index)), "tensor `a` is in more than one shard");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4)) {
        let mut bytes = sample();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Ok(checkpoint) = open(&bytes) {
            for tensor in checkpoint.tensors() {
                prop_assert_eq!(tensor.format.bytes(tensor.shape.iter().product()), Some(tensor.bytes.len()));
            }
        }
    }

    /// Offsets and extents near the ends of the number range.
    #[test]
    fn extreme_numbers_never_panic(numbers in proptest::collection::vec(
        prop_oneof![0u64..20, (u64::MAX - 20)..=u64::MAX, ((1u64 << 61) - 4)..((1 << 61) + 4)], 6)) {
        let header = format!(
            r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}}"#,
            numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
        );
        let _ = open(&file(&header, 16));
    }
}

#[test]
fn static_scales_are_one_for_all_heads_or_one_for_each() {
    let floats = |values: &[f32]| values.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let (one, two) = (floats(&[0.25]), floats(&[0.5, 3.0]));
    let bad = [0.0, -1.0, f32::INFINITY, f32::NAN].map(|bad| floats(&[1.0, bad]));
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let mut tensors = vec![
        ("scalar".to_owned(), view(&[], &one)),
        ("one".to_owned(), view(&[1], &one)),
        ("each".to_owned(), view(&[2, 1, 1], &two)),
        ("half".to_owned(), TensorView::new(Dtype::BF16, vec![1], &[0x80, 0x3e]).unwrap()),
        ("codes".to_owned(), TensorView::new(Dtype::F8_E4M3, vec![1], &[56]).unwrap()),
    ];
    tensors.extend(bad.iter().enumerate().map(|(at, bytes)| (format!("bad.{at}"), view(&[2], bytes))));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, serialize(tensors, None).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for name in ["scalar", "one", "half"] {
        assert_eq!(checkpoint.static_scales(name, 3).unwrap(), [0.25; 3], "{name}");
    }
    assert_eq!(checkpoint.static_scales("each", 2).unwrap(), [0.5, 3.0]);
    let refused = |name: &str, heads| {
        let error = checkpoint.static_scales(name, heads).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        error
    };
    assert!(refused("each", 3).ends_with(
        "tensor `each` should be 1 static scale or 3, one a head, in floats, and is f32 [2, 1, 1]"
    ));
    assert!(refused("codes", 1).ends_with("in floats, and is fp8-e4m3 [1]"));
    assert!(refused("none", 1).contains("tensor `none` is missing"));
    for (at, scale) in ["0", "-1", "inf", "NaN"].into_iter().enumerate() {
        let error = refused(&format!("bad.{at}"), 2);
        assert!(error.contains(&format!("a static scale of {scale} for head 1:")), "{error}");
    }
}
