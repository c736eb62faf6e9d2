//! Files of packed weights: what is kept of a checkpoint is what it was, and files with damage of several
//! kinds at once are opened or refused, with no more memory than a small multiple of them.

use monomorph_abi::packed_file::{Header, PREFIX, Prefix};
use monomorph_formats::Format;
use monomorph_weights::hostile::{Counting, damaged, measured};
use monomorph_weights::test_support::{GgufWriter, Value};
use monomorph_weights::{Checkpoint, Packed, PackedLook, Packing, digest};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that opening claims for each of the file, and for none.
const FOR_EACH_BYTE: usize = 32;
const FOR_NONE: usize = 32 << 10;

fn packed(directory: &Path, from: &Path, wanted: &str) -> Result<PathBuf, String> {
    let checkpoint = Checkpoint::open(from).map_err(|error| error.to_string())?;
    let to = directory.join("a.packed");
    let begin = Packing::begin(&to, &checkpoint, ("model/quant", "a test"), 4, &|name| name == wanted);
    let mut packing = begin.map_err(|error| error.to_string())?;
    packing.put("first", 7, &[1; 5000]).unwrap();
    packing.put(&"é".repeat(300), 8, &[2; 10]).unwrap();
    packing.finish().unwrap();
    Ok(to)
}

fn gguf(directory: &Path) -> PathBuf {
    let path = directory.join("m.gguf");
    let gguf = GgufWriter::new()
        .metadata("general.alignment", Value::U32(32))
        .metadata("tokens", Value::Strs(vec!["a".into(), "b".into()]))
        .tensor("big", &[64, 32], Format::Q4_1, vec![9; 1280])
        .tensor("scale", &[2], Format::F32, vec![3; 8]);
    std::fs::write(&path, gguf.finish()).unwrap();
    path
}

#[test]
fn what_is_kept_of_a_gguf_is_what_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), &gguf(directory.path()), "scale").unwrap();
    let [before, after] =
        [Checkpoint::open(&directory.path().join("m.gguf")), Checkpoint::open_packed(&path)]
            .map(Result::unwrap);
    assert_eq!(after.gguf_metadata().unwrap().strs("tokens").unwrap().unwrap().len(), 2);
    let [before, after_too] = [&before, &after].map(|it| it.tensor("scale").unwrap());
    assert_eq!((before.shape, before.format), (after_too.shape, after_too.format));
    assert_eq!(after_too.bytes.read().unwrap()[..], [3; 8]);
    // What was packed is there as it is asked for, and cannot be read.
    assert!(after.tensor("big").is_err());
    let big = after.expect("big", &[64, 32], Format::Q4_1).unwrap();
    let gone = big.bytes.read().unwrap_err().to_string();
    assert!(gone.contains("a.packed: holds weights as they were packed"), "{gone}");
    assert!(!after.is_made_up());
    let packed = after.packed().unwrap();
    assert_eq!(packed.array_bytes(), 5010);
    (0..2).for_each(|at| packed.check_array(at).unwrap());
    assert_eq!(packed.arrays()[1].name, "é".repeat(80), "cut between letters");
    assert_eq!(
        Packed::look(&path),
        Some(PackedLook { bytes: std::fs::metadata(&path).unwrap().len(), made_up: false })
    );
    assert_eq!(Packed::look(&directory.path().join("m.gguf")), None);
    let refused = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(
        refused.contains("a.packed: holds packed weights, which only servers for CPUs read"),
        "{refused}"
    );
    let refused = Checkpoint::open_packed(&directory.path().join("m.gguf")).unwrap_err().to_string();
    assert!(refused.contains("is no file of packed weights"), "{refused}");
}

#[test]
fn what_is_kept_of_safetensors_has_the_files_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend([1; 8]);
    std::fs::write(directory.path().join("model.safetensors"), file).unwrap();
    std::fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    std::fs::write(directory.path().join("LICENSE"), "none").unwrap();
    let path = packed(directory.path(), directory.path(), "a").unwrap();
    let after = Checkpoint::open_packed(&path).unwrap();
    assert_eq!(after.tensor("a").unwrap().shape, [2]);
    assert_eq!(after.tensor("a").unwrap().bytes.read().unwrap()[..], [1; 8]);
    let beside = after.side_file("tokenizer.json").unwrap();
    assert_eq!((beside.read().unwrap(), beside.path()), (b"{}".to_vec(), &*path.join("tokenizer.json")));
    assert!(after.side_file("LICENSE").is_none() && after.side_file("config.json").is_none());
    // It is replaced by another, and nothing else is.
    packed(directory.path(), directory.path(), "none").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    let refused = packed(directory.path(), directory.path(), "none").unwrap_err();
    assert!(refused.contains("is there already, and is no file of packed weights"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert!(
        std::fs::read_dir(directory.path())
            .unwrap()
            .all(|it| { !it.unwrap().file_name().to_string_lossy().ends_with(".partial") })
    );
}

#[test]
fn a_bit_that_is_another_is_found_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), &gguf(directory.path()), "scale").unwrap();
    let good = std::fs::read(&path).unwrap();
    let header = Checkpoint::open_packed(&path).unwrap().packed().unwrap().header().clone();
    let damaged = directory.path().join("damaged.packed");
    let flip = |at: u64| {
        let mut bytes = good.clone();
        bytes[at as usize] ^= 1;
        std::fs::write(&damaged, bytes).unwrap();
        Checkpoint::open_packed(&damaged).map_err(|error| error.to_string())
    };
    for (name, piece) in header.kept() {
        for at in [piece.place.start, piece.place.end - 1] {
            let refused = flip(at).unwrap_err();
            assert!(
                refused.contains(&format!("damaged.packed: is damaged: its copy of {name}")),
                "{refused}"
            );
        }
    }
    for (index, array) in header.arrays.iter().enumerate() {
        for at in [array.piece.place.start, array.piece.place.end - 1] {
            let opened = flip(at).unwrap();
            let check =
                |index| opened.packed().unwrap().check_array(index).map_err(|error| error.to_string());
            let refused = check(index).unwrap_err();
            assert!(refused.contains(&format!("is damaged: array {index} ({}", array.name)), "{refused}");
            check(1 - index).unwrap();
        }
    }
}

#[test]
fn made_up_weights_are_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.packed");
    let begin = Packing::begin(&path, &Checkpoint::made_up(7), ("model/quant", "a test"), 4, &|_| true);
    begin.unwrap().finish().unwrap();
    assert!(Packed::look(&path).unwrap().made_up);
    let after = Checkpoint::open_packed(&path).unwrap();
    assert!(after.is_made_up() && after.packed().unwrap().header().sources.is_empty());
    assert_eq!(after.static_scales("any", 3).unwrap(), [1.0; 3]);
}

/// With the digest that it should have, so that what is behind it is looked at.
fn with_digest(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return bytes };
    let Ok(prefix) = Prefix::decode(prefix, bytes.len() as u64) else { return bytes };
    let sum = digest(&bytes[PREFIX..prefix.header as usize]);
    bytes[..PREFIX].copy_from_slice(&Prefix { digest: sum, ..prefix }.encode());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_damage_claims_memory(damage in prop::collection::vec(any::<[u32; 3]>(), 1..5), whole: bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = packed(directory.path(), &gguf(directory.path()), "scale").unwrap();
        let good = std::fs::read(&path).unwrap();
        let prefix = Prefix::decode(good.first_chunk().unwrap(), good.len() as u64).unwrap();
        // In the header, where it is dense.
        let header = damaged(&good[..prefix.header as usize], &damage);
        let mut bytes = header;
        bytes.extend(&good[prefix.header as usize..]);
        if whole {
            bytes = with_digest(bytes);
        }
        let path = directory.path().join("damaged.packed");
        std::fs::write(&path, &bytes).unwrap();
        let (opened, claimed) = measured(|| Checkpoint::open_packed(&path));
        prop_assert!(claimed <= FOR_EACH_BYTE * bytes.len() + FOR_NONE, "{claimed} of {}", bytes.len());
        if let Ok(checkpoint) = opened {
            let packed = checkpoint.packed().unwrap();
            for at in 0..packed.arrays().len() {
                let _ = packed.check_array(at);
            }
        }
    }
}

#[test]
fn a_header_that_says_too_much_claims_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), &gguf(directory.path()), "scale").unwrap();
    let good = std::fs::read(&path).unwrap();
    let prefix = Prefix::decode(good.first_chunk().unwrap(), good.len() as u64).unwrap();
    let header = Header::decode(&good[PREFIX..prefix.header as usize], &prefix).unwrap();
    let refused = |change: &dyn Fn(&mut Header)| {
        let mut header = header.clone();
        change(&mut header);
        let mut bytes = good.clone();
        bytes[PREFIX..prefix.header as usize].copy_from_slice(&header.encode());
        let path = directory.path().join("damaged.packed");
        std::fs::write(&path, with_digest(bytes)).unwrap();
        let (opened, claimed) = measured(|| Checkpoint::open_packed(&path));
        assert!(claimed < 256 << 10, "{claimed} bytes");
        opened.unwrap_err().to_string()
    };
    let far = u64::MAX - 4095..u64::MAX;
    assert!(refused(&|it| it.arrays[0].piece.place = far.clone()).contains("array 0 (first) lies at"));
    assert!(refused(&|it| it.arrays[1].piece.place = it.arrays[0].piece.place.clone()).contains("lies at"));
    let gguf = |it: &mut Header, by: u64| {
        let piece = it.gguf.as_mut().unwrap();
        piece.place.end = piece.place.end.wrapping_sub(by);
    };
    assert!(
        refused(&|it| gguf(it, it.gguf.as_ref().unwrap().place.end + 1))
            .contains("the header of GGUF lies at")
    );
    let words = refused(&|it| gguf(it, 40));
    assert!(words.contains("damaged.packed"), "{words}");
    // A checkpoint's file of any size is believed; a tensor that its bytes are not is not.
    assert!(refused(&|it| it.tensors[0].shape = vec![3]).contains("keeps tensor `scale` at"));
    assert!(refused(&|it| it.tensors[0].shape = vec![u64::MAX]).contains("which is no f32 ["));
    assert!(refused(&|it| it.tensors[0].format = "g32".into()).contains("which is no g32 [2]"));
}
