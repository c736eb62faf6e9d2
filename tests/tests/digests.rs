//! Digests of the plan and the emitted text of every target that ships. A refactoring of the compiler changes
//! none of them; any other change shows which targets it affects.
//!
//! One line per build: the target with its options; the report that `explain` prints; the generated Rust; for
//! CUDA targets, the CUDA sources. Builds whose digests differ have their texts written below
//! `target/digests/`, to be compared with those of the previous tree.

use monomorph_compiler::spec::types::Target;
use monomorph_compiler::toolchain::BuildError;
use monomorph_compiler::{emit, report, toolchain};
use monomorph_tests::{check_golden, fixtures, root, shipped};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The text of all files of a kind, each under its path.
fn together<'a>(files: impl IntoIterator<Item = &'a emit::File>) -> String {
    files.into_iter().map(|file| format!("==> {}\n{}\n", file.path.display(), file.text)).collect()
}

/// The report, the Rust and the CUDA of a target.
fn texts(target: &Target) -> Result<[(&'static str, String); 3], BuildError> {
    let plan = toolchain::plan(target)?;
    // This machine's processor must not affect the digest.
    let files = emit::emit(&plan, &[]);
    let (cuda, rust): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.path.starts_with("cuda"));
    Ok([("report", report::text(&plan)), ("rust", together(rust)), ("cuda", together(cuda))])
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(6).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// A build's line; its texts are written where it is not a known one.
fn line(build: &Target, known: &str) -> String {
    let mut line = build.build();
    let texts = match texts(build) {
        Ok(texts) => texts,
        // Sizes that so many ranks cannot share.
        Err(why) if build.ranks > 1 => return format!("{line} refused: {why}\n"),
        Err(why) => panic!("{line}: {why}"),
    };
    for (what, text) in &texts {
        if !text.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(line, " {what}:{}", digest(text));
        }
    }
    if !known.lines().any(|known| known == line) {
        let directory = root().join("target/digests").join(build.build());
        std::fs::create_dir_all(&directory).expect("target is writable");
        for (what, text) in &texts {
            std::fs::write(directory.join(what), text).expect("target is writable");
        }
    }
    line + "\n"
}

#[test]
fn nothing_changed_for_any_target_that_was_not_to() {
    let path = fixtures().join("digests.txt");
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let builds: Vec<Target> = shipped::builds().collect();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(vec![String::new(); builds.len()]));
    let work = || {
        while let Some((at, build)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            builds.get(at).map(|build| (at, build))
        } {
            let line = line(build, &known);
            lines.lock().expect("no worker panics")[at] = line;
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let all = lines.into_inner().expect("no worker panics").concat();
    check_golden(&path, &all);
}
