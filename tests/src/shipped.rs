//! Every build that ships.

use crate::root;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::standing::{self, Standing};

/// The builds of every shipped target that waits for no block: the plain build and its variants.
///
/// # Panics
/// If a target cannot be read.
pub fn builds() -> impl Iterator<Item = Target> {
    let search = [root().join("targets")];
    let listed = standing::list(&search).unwrap_or_else(|error| panic!("{error}"));
    let builds = listed.into_iter().filter(|it| !matches!(it.standing, Standing::Waiting { .. }));
    builds.flat_map(move |it| {
        let target = spec::load(&search, &it.target).unwrap_or_else(|error| panic!("{error}"));
        let variants = spec::variants(&target);
        std::iter::once(target).chain(variants).collect::<Vec<_>>()
    })
}
