//! The GGUF reader on sound, broken and hostile files.

use monomorph_formats::Format;
use monomorph_weights::test_support::{GgufWriter, Value};
use monomorph_weights::{Checkpoint, MetadataType, WeightsError};
use proptest::prelude::*;
use std::path::PathBuf;

fn sample() -> GgufWriter {
    GgufWriter::new()
        .metadata("general.architecture", "llama")
        .metadata("a.count", Value::U32(7))
        .metadata("a.negative", Value::I32(-3))
        .metadata("a.theta", Value::F32(0.5))
        .metadata("a.flag", Value::Bool(true))
        .metadata("tokens", Value::Strs(vec!["a".into(), "".into(), "héé".into()]))
        .metadata("types", Value::I32s(vec![1, -2, 3]))
        .metadata("scores", Value::F32s(vec![0.25, -1.0]))
        .tensor("embedding", &[2, 3], Format::F32, (0..24).collect())
        .tensor("block.0.q", &[3, 32], Format::Q4_1, vec![9; 60])
        .tensor_of_type("block.0.k", &[2, 256], 18, vec![1; 196])
        .tensor("norm", &[5], Format::Bf16, vec![7; 10])
}

fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

fn open(bytes: &[u8]) -> Result<Checkpoint, WeightsError> {
    let (_directory, path) = write(bytes);
    Checkpoint::open(&path)
}

/// The error of opening, without the path.
fn refusal(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("a broken file was opened"),
        Err(WeightsError::Malformed { what, .. }) => what,
        Err(other) => panic!("refused for another reason: {other}"),
    }
}

/// The sample file with `old` replaced by `new` (of the same length) where it first occurs.
fn patched(old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let mut bytes = sample().finish();
    let at = bytes.windows(old.len()).position(|window| window == old).expect("nothing to patch");
    bytes[at..at + old.len()].copy_from_slice(new);
    bytes
}

/// What follows a tensor's name in the tensor table: dimensions, extents, type and offset.
fn tensor_row(name: &str, extents: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut row = name.as_bytes().to_vec();
    row.extend((extents.len() as u32).to_le_bytes());
    row.extend(extents.iter().flat_map(|extent| extent.to_le_bytes()));
    row.extend(kind.to_le_bytes());
    row.extend(offset.to_le_bytes());
    row
}

#[test]
fn a_sound_file_reads_as_written() {
    let checkpoint = open(&sample().finish()).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    assert_eq!(
        tensors.iter().map(|tensor| tensor.name).collect::<Vec<_>>(),
        ["embedding", "block.0.q", "norm"]
    );
    let embedding = checkpoint.expect("embedding", &[2, 3], Format::F32).unwrap();
    assert_eq!(embedding.bytes.read().unwrap()[..], (0..24).collect::<Vec<u8>>());
    let q = checkpoint.tensor("block.0.q").unwrap();
    assert_eq!((q.shape, q.format), (&[3, 32][..], Format::Q4_1));
    assert_eq!(q.bytes.read().unwrap()[..], [9; 60]);
    assert_eq!(checkpoint.unsupported().collect::<Vec<_>>(), [("block.0.k", "IQ3_XXS (ggml type 18)")]);

    checkpoint.check_unchanged().unwrap();
    assert_eq!(checkpoint.tensor("norm").unwrap().bytes.read().unwrap()[..], [7; 10]);

    let metadata = checkpoint.gguf_metadata().unwrap();
    assert_eq!(metadata.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(metadata.u32("a.count").unwrap(), Some(7));
    assert_eq!(metadata.f32("a.theta").unwrap(), Some(0.5));
    assert_eq!(metadata.bool("a.flag").unwrap(), Some(true));
    assert_eq!(metadata.strs("tokens").unwrap(), Some(vec!["a", "", "héé"]));
    assert_eq!(metadata.i32s("types").unwrap(), Some(vec![1, -2, 3]));
    assert_eq!(metadata.f32s("scores").unwrap(), Some(vec![0.25, -1.0]));
    assert_eq!(metadata.u32("absent").unwrap(), None);
    assert_eq!(metadata.kind("tokens"), Some(MetadataType::Array));
    assert_eq!(metadata.keys().count(), 8);
    let error = metadata.u32("a.negative").unwrap_err().to_string();
    assert!(error.contains("`a.negative` is -3, which is not a u32"), "{error}");
    let error = metadata.strs("types").unwrap_err().to_string();
    assert!(error.contains("`types` should be array of string and is array of i32"), "{error}");
}

#[test]
fn a_mismatch_names_what_was_expected_and_found() {
    let checkpoint = open(&sample().finish()).unwrap();
    let mismatch = |result: Result<monomorph_weights::Tensor, WeightsError>| match result {
        Err(WeightsError::Mismatch { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        mismatch(checkpoint.tensor("block.0.qq")),
        "tensor `block.0.qq` is missing; the nearest name is `block.0.q`"
    );
    assert_eq!(
        mismatch(checkpoint.expect("norm", &[6], Format::F32)),
        "tensor `norm` should be f32 [6] and is bf16 [5]"
    );
    // Converters leave dimensions of one out, or write them.
    assert!(checkpoint.expect("norm", &[1, 5], Format::Bf16).is_ok());
    assert!(checkpoint.expect("norm", &[5, 1, 1], Format::Bf16).is_ok());
    assert_eq!(
        mismatch(checkpoint.expect("norm", &[1, 6], Format::Bf16)),
        "tensor `norm` should be bf16 [1, 6] and is bf16 [5]"
    );
    // A vector may stand in rows.
    let rows = GgufWriter::new().tensor("groups", &[2, 3], Format::F32, vec![0; 24]);
    let rows = open(&rows.finish()).unwrap();
    assert!(rows.expect("groups", &[6], Format::F32).is_ok());
    assert_eq!(
        mismatch(rows.expect("groups", &[3, 2], Format::F32)),
        "tensor `groups` should be f32 [3, 2] and is f32 [2, 3]"
    );
    assert_eq!(
        mismatch(rows.expect("groups", &[5], Format::F32)),
        "tensor `groups` should be f32 [5] and is f32 [2, 3]"
    );
    assert_eq!(
        mismatch(checkpoint.tensor("block.0.k")),
        "tensor `block.0.k` is stored as IQ3_XXS (ggml type 18), which is not supported"
    );
    assert!(checkpoint.refuse_surplus(|_| true).is_ok());
    let error =
        checkpoint.refuse_surplus(|name| name != "norm" && name != "block.0.k").unwrap_err().to_string();
    assert!(error.contains("`block.0.k`") && error.contains("`norm` (bf16 [5])"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let whole = sample().finish();
    let (_directory, path) = write(&whole);
    assert!(Checkpoint::open(&path).is_ok());
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Checkpoint::open(&path).expect_err(&format!("{length} of {} bytes", whole.len()));
        assert!(matches!(error, WeightsError::Malformed { .. }), "{length}: {error}");
    }
}

#[test]
fn hostile_files_are_refused_by_name() {
    let huge = u64::MAX.to_le_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (patched(b"GGUF", b"GGML"), "does not begin with `GGUF`"),
        (patched(b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03"), "big-endian"),
        (patched(b"GGUF\x03\0\0\0", b"GGUF\x01\0\0\0"), "version 1"),
        (
            patched(b"GGUF\x03\0\0\0\x04\0\0\0\0\0\0\0", &[b"GGUF\x03\0\0\0", &huge[..]].concat()),
            "tensor count",
        ),
        (patched(b"\x08\0\0\0\0\0\0\0\x14\0", b"\xff\xff\0\0\0\0\0\0\x14\0"), "metadata count is 65535"),
        (patched(b"\x07\0\0\0\0\0\0\0a.count", &[&huge[..], b"a.count"].concat()), "key of metadata entry 1"),
        (patched(b"a.count\x04", b"a.count\x63"), "`a.count` has the unknown type 99"),
        (patched(b"a.flag\x07\0\0\0\x01", b"a.flag\x07\0\0\0\x02"), "`a.flag` is a bool of value 2"),
        (patched(b"types\x09\0\0\0\x05", b"types\x09\0\0\0\x09"), "`types` is an array of arrays"),
        (
            patched(
                b"types\x09\0\0\0\x05\0\0\0\x03\0\0\0\0\0\0\0",
                &[b"types\x09\0\0\0\x05\0\0\0", &huge[..]].concat(),
            ),
            "length of metadata `types`",
        ),
        (patched("h\u{e9}\u{e9}".as_bytes(), b"h\xff\xff\xff\xff"), "`tokens` is not UTF-8"),
        (patched(b"a.theta", b"a.count"), "metadata `a.count` occurs twice"),
        (patched(b"norm\x01", b"norm\x05"), "`norm` has 5 dimensions"),
        (patched(&tensor_row("norm", &[5], 30, 320), &tensor_row("norm", &[5], 30, 321)), "offset 321"),
        (
            patched(&tensor_row("norm", &[5], 30, 320), &tensor_row("norm", &[5], 30, 1 << 40)),
            "`norm` lies at bytes",
        ),
        (patched(&tensor_row("norm", &[5], 30, 320), &tensor_row("norm", &[5], 30, 32)), "overlap at byte"),
        (
            patched(&tensor_row("norm", &[5], 30, 320), &tensor_row("norm", &[1 << 63], 30, 320)),
            "larger than memory can be",
        ),
        (
            patched(&tensor_row("block.0.q", &[32, 3], 3, 32), &tensor_row("block.0.q", &[31, 3], 3, 32)),
            "rows of 31 elements",
        ),
        (patched(b"block.0.k", b"block.0.q"), "tensor `block.0.q` occurs twice"),
        (sample().metadata("general.alignment", Value::U32(48)).finish(), "`general.alignment` is 48"),
        (sample().metadata("general.alignment", Value::U32(0)).finish(), "`general.alignment` is 0"),
        (sample().metadata("split.count", Value::U32(3)).finish(), "is one of 3 parts, which are found by"),
        (b"GGUF".to_vec(), "ends inside version"),
        (b"hello, this is a text file".to_vec(), "does not begin with `GGUF`"),
    ];
    for (bytes, expected) in cases {
        let what = refusal(&bytes);
        assert!(what.contains(expected), "expected {expected:?} in {what:?}");
    }
}

#[test]
fn a_type_nobody_knows_is_an_error_only_when_asked_for() {
    let file = sample().tensor_of_type("strange", &[4], 77, vec![0; 4]).finish();
    let checkpoint = open(&file).unwrap();
    let error = checkpoint.tensor("strange").unwrap_err().to_string();
    assert!(error.contains("`strange` is stored as ggml type 77, which is not supported"), "{error}");
    assert!(checkpoint.tensor("norm").is_ok());
}

#[test]
fn empty_missing_and_irregular_files() {
    assert_eq!(refusal(b""), "the file is empty");
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Checkpoint::open(&directory.path().join("no.gguf")), Err(WeightsError::Io { .. })));
    let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("holds neither model.safetensors"), "{error}");
    std::fs::write(directory.path().join("one.gguf"), sample().finish()).unwrap();
    assert_eq!(Checkpoint::open(directory.path()).unwrap().tensors().count(), 3);
    std::fs::write(directory.path().join("two.gguf"), sample().finish()).unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("2 .gguf files"), "{error}");
}

/// Everything a caller can read, so that a panic anywhere shows.
fn read_all(checkpoint: &Checkpoint) -> usize {
    let mut bytes = 0;
    for tensor in checkpoint.tensors() {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.format.bytes(elements), Some(tensor.bytes.len()));
        bytes += tensor.bytes.len();
    }
    if let Some(metadata) = checkpoint.gguf_metadata() {
        for key in metadata.keys() {
            let _ = (metadata.str(key), metadata.u32(key), metadata.f32(key), metadata.bool(key));
            let _ = (metadata.strs(key), metadata.i32s(key), metadata.f32s(key));
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4)) {
        let mut bytes = sample().finish();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Ok(checkpoint) = open(&bytes) {
            prop_assert!(read_all(&checkpoint) <= bytes.len());
        }
    }

    #[test]
    fn any_bytes_after_the_magic_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        if let Ok(checkpoint) = open(&bytes) {
            read_all(&checkpoint);
        }
    }
}

/// Part `number` of `count`, with the tensor `t<number>`.
fn part(number: u32, count: u32) -> GgufWriter {
    GgufWriter::new()
        .metadata("split.no", Value::U32(number))
        .metadata("split.count", Value::U32(count))
        .metadata("split.tensors.count", Value::I32(count as i32))
        .tensor(&format!("t{number}"), &[2], Format::F32, vec![number as u8; 8])
}

#[test]
fn any_part_of_a_split_file_is_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = |number: u32| directory.path().join(format!("a-b-{:05}-of-00003.gguf", number + 1));
    let write = |number: u32, part: &GgufWriter| std::fs::write(place(number), part.finish()).unwrap();
    (0..3).for_each(|number| write(number, &part(number, 3).metadata("general.name", "it")));
    for path in [place(0), place(2), directory.path().to_owned()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.files().len(), 3);
        assert_eq!(checkpoint.gguf_metadata().unwrap().u32("split.no").unwrap(), Some(0));
        for number in 0..3 {
            let tensor = checkpoint.tensor(&format!("t{number}")).unwrap();
            assert_eq!(&*tensor.bytes.read().unwrap(), &[number as u8; 8]);
        }
    }
    let refused = |wanted: &str| {
        let error = Checkpoint::open(&place(0)).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
    };
    write(1, &part(2, 3));
    refused("has `split.no` and `split.count` (Some(2), Some(3)): its name wants (Some(1), Some(3))");
    write(1, &part(1, 3).tensor("t0", &[1], Format::F32, vec![0; 4]));
    refused("says that there are 3 tensors, and its parts have 4");
    std::fs::remove_file(place(1)).unwrap();
    refused("is part 2 of 3, and missing");
    std::fs::write(directory.path().join("other.gguf"), part(0, 2).finish()).unwrap();
    let error = Checkpoint::open(&directory.path().join("other.gguf")).err().unwrap().to_string();
    assert!(error.contains("is one of 2 parts, which are found by names like"), "{error}");
}

#[test]
fn arrays_of_unsigned_numbers_are_stored_in_two_ways() {
    let file = GgufWriter::new()
        .metadata("signed", Value::I32s(vec![3, 0, 7]))
        .metadata("negative", Value::I32s(vec![3, -2]))
        .metadata("floats", Value::F32s(vec![1.0]));
    let checkpoint = open(&file.finish()).unwrap();
    let metadata = checkpoint.gguf_metadata().unwrap();
    assert_eq!(metadata.u32s("signed").unwrap(), Some(vec![3, 0, 7]));
    assert_eq!(metadata.u32s("absent").unwrap(), None);
    let error = metadata.u32s("negative").unwrap_err().to_string();
    assert!(error.contains("metadata `negative` has -2, which is not a u32"), "{error}");
    let error = metadata.u32s("floats").unwrap_err().to_string();
    assert!(error.contains("metadata `floats` should be array of u32 and is array of f32"), "{error}");
}
