//! Files that are printed from declarations match what is printed now.

use super::read;
use std::path::Path;

type Print = fn() -> String;

/// Paths and the functions that print them.
const PRINTED: [(&str, Print); 1] = [("templates/cuda/core/step.cuh", monomorph_abi::step::header)];

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
        let (path, print) = PRINTED[0];
        let whole = print();
        assert_eq!(breaches(super::super::planted(&[(path, &whole)]).path()), [""; 0]);
        let root = super::super::planted(&[(path, &whole.replace("int", "long"))]);
        assert!(breaches(root.path())[0].starts_with(path));
    }
}
