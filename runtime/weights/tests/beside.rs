//! A checkpoint whose tensors stand beside another's.
//! Planted: the other's tensors read from the first's files.

use monomorph_formats::Format;
use monomorph_weights::Checkpoint;
use std::path::Path;

/// A checkpoint of one tensor with two numbers.
fn write(directory: &Path, name: &str, numbers: [f32; 2]) -> Checkpoint {
    let header = format!("{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}}}");
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    std::fs::write(directory.join("model.safetensors"), bytes).expect("it is writable");
    Checkpoint::open(directory).expect("it is sound")
}

fn read(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let tensor = checkpoint.expect(name, &[2], Format::F32).expect("it is there");
    tensor.bytes.read().expect("it is readable").into_owned()
}

#[test]
fn tensors_stand_beside_others_under_their_prefix() {
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("temporary directories can be made"));
    let [a, b] = directories.each_ref().map(|it| it.path());
    let both = write(a, "norm.weight", [1.0, 2.0]).with("other.", write(b, "norm.weight", [3.0, 4.0]));
    let both = both.expect("names differ");
    let bytes = |numbers: [f32; 2]| numbers.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(read(&both, "norm.weight"), bytes([1.0, 2.0]));
    assert_eq!(read(&both, "other.norm.weight"), bytes([3.0, 4.0]));
    assert_eq!((both.files().len(), both.path()), (2, a));
    both.refuse_surplus(|name| name == "norm.weight").expect_err("the other's are among them");
    // Under no prefix the name is taken.
    let error = write(a, "norm.weight", [1.0, 2.0]).with("", write(b, "norm.weight", [3.0, 4.0]));
    let error = error.expect_err("two of a name").to_string();
    assert!(error.contains("as a checkpoint beside it does"), "{error}");
    let error =
        write(a, "norm.weight", [1.0, 2.0]).with("other.", Checkpoint::made_up(1)).expect_err("no files");
    assert!(error.to_string().contains("holds no safetensors"), "{error}");
}
