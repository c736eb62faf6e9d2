//! Stacks of many CPU targets, compiled at once, without a server around each: what is compared of them is
//! their logits, and most of what compiles takes would be servers.

use crate::{root, server};
use monomorph_compiler::emit;
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::toolchain::{self, BuildError, Levels, Linking, times};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A binary's `main.rs`. It has what a server's crate has but for its other verbs.
const MAIN: &str = "mod spec;
mod stack;

fn main() -> std::process::ExitCode {
    monomorph_server::logits::<stack::Model>(std::env::args_os())
}
";

/// One whose first argument is the verb: `logits` or `pack`.
pub const WITH_PACK: &str = "mod spec;
mod stack;

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().is_some_and(|verb| verb == \"pack\") {
        true => monomorph_server::pack::<stack::Model>(std::env::args_os().skip(1)),
        false => monomorph_server::logits::<stack::Model>(std::env::args_os().skip(1)),
    }
}
";

/// The generic kernels of fifty small models take two thirds less to compile than at the level that ships,
/// which servers of other tests have, and their prompts are short.
const LEVELS: Levels = Levels { generated: 0, ..server::LEVELS };

/// Compiles a crate of this name with a binary for each target, which all have the same hardware, and returns
/// the binaries in that order. Their arguments are those of the verb `logits`.
///
/// # Panics
/// If any step fails.
pub fn build(name: &str, targets: &[Target]) -> Vec<PathBuf> {
    build_with(name, targets, MAIN)
}

/// The same with another `main.rs`, whose arguments are its own, and which has no server unless it is
/// [`WITH_PACK`].
///
/// # Panics
/// If any step fails.
pub fn build_with(name: &str, targets: &[Target], main: &str) -> Vec<PathBuf> {
    compile(name, targets, main).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn compile(name: &str, targets: &[Target], main: &str) -> Result<Vec<PathBuf>, BuildError> {
    let Some(first) = targets.first() else { return Ok(Vec::new()) };
    let (root, package) = (root(), format!("monomorph-stacks-{name}"));
    let directory = root.join("generated/stacks").join(name);
    let binaries = directory.join("src/bin");
    // A server of the same target has the name without the crate's, in the same directory.
    let binary = |target: &Target| format!("{name}-{}", emit::package_name(target));
    forget(&binaries, &targets.iter().map(binary).collect::<Vec<_>>());
    for target in targets {
        assert_eq!(target.hardware.name, first.hardware.name, "{}", target.name());
        let _alone = toolchain::alone(&root, target)?;
        let (written, plan) = toolchain::write_crate(&root, target)?;
        let sources = binaries.join(binary(target));
        for file in ["spec.rs", "stack.rs"] {
            let text = std::fs::read(written.join("src").join(file)).expect("it was just written");
            toolchain::write_if_changed(&sources.join(file), &text)?;
        }
        toolchain::write_if_changed(&sources.join("main.rs"), main.as_bytes())?;
        let manifest = emit::manifest(&plan, &package);
        // A binary without a server need not wait for what servers are made of.
        let serves = [MAIN, WITH_PACK].contains(&main);
        let needed = |line: &&str| serves || !line.starts_with("monomorph-server");
        let lines: Vec<&str> = manifest.lines().filter(needed).collect();
        toolchain::workspace(&root, &directory, &(lines.join("\n") + "\n"))?;
    }
    let start = Instant::now();
    let linking = Linking { levels: LEVELS, ..server::linking(&first.hardware.name) };
    let built = toolchain::compile(&root, first, &directory, &package, &linking)?;
    let built = built.unwrap_or_else(|why| panic!("{name}: {why}"));
    times::note(&root, &format!("{} stacks of {name}", targets.len()), start.elapsed())?;
    Ok(targets.iter().map(|target| built.join(binary(target))).collect())
}

/// Deletes binaries that are no longer among these.
fn forget(binaries: &Path, wanted: &[String]) {
    let Ok(there) = std::fs::read_dir(binaries) else { return };
    for entry in there.map(|entry| entry.expect("directory entries are readable")) {
        if !wanted.iter().any(|it| **it == *entry.file_name()) {
            std::fs::remove_dir_all(entry.path()).expect("it is a directory of this crate");
        }
    }
}
