//! Files that are printed from declarations match what is printed now.

use super::read;
use std::path::Path;

type Print = fn() -> String;

/// Paths and the functions that print them.
const PRINTED: [(&str, Print); 7] = [
    ("templates/cuda/core/step.cuh", monomorph_abi::step::header),
    ("templates/cuda/core/fill_shape.cuh", monomorph_abi::fill::header),
    ("templates/cuda/core/packed.cuh", monomorph_abi::packed::header),
    ("templates/cuda/exchange/world.cuh", monomorph_abi::world::header),
    ("templates/cuda/attention/levels.cuh", monomorph_abi::kv::header),
    ("templates/cuda/attention/sliding.cuh", monomorph_abi::sliding::header),
    ("templates/cuda/vision/images.cuh", monomorph_abi::images::header),
];

pub fn breaches(root: &Path) -> Vec<String> {
    let current = |(path, print): &(&str, Print)| match read(&root.join(path)) {
        Ok(text) if text == print() => None,
        Ok(_) => Some(format!("{path}: it is not what is printed now; `cargo xtask test --bless` prints it")),
        Err(why) => Some(why),
    };
    PRINTED.iter().filter_map(current).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_by_hand_is_named() {
        let whole = PRINTED.map(|(path, print)| (path, print()));
        let mut files = whole.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(breaches(super::super::planted(&files).path()), [""; 0]);
        let changed = files[0].1.replace("int", "long");
        files[0].1 = &changed;
        let root = super::super::planted(&files);
        assert_eq!(breaches(root.path()).len(), 1);
        assert!(breaches(root.path())[0].starts_with(files[0].0));
    }
}
