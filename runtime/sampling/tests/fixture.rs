//! The file that other devices' samplers are tested with is what the reference sampler makes today.

#[path = "../examples/expected.rs"]
#[allow(dead_code)]
mod expected;

#[test]
fn fixture_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/cuda/sampling.bin");
    let fixture = std::fs::read(path).unwrap();
    assert_eq!(fixture.len(), expected::VOCABULARIES.len() * expected::CASES as usize * expected::RECORD);
    // All cases of the small vocabularies, the first two of the others.
    for (number, record) in fixture.chunks(expected::RECORD).enumerate() {
        let (group, within) = (number / expected::CASES as usize, number % expected::CASES as usize);
        if group < 2 || within < 2 {
            let made = expected::case(number as u64, expected::VOCABULARIES[group]);
            assert!(record == made, "case {number}: write the file again with `--example expected`");
        }
    }
}
