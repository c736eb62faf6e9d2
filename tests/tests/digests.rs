//! What holds for every target that ships. Its crate is planned and emitted once for both:
//!
//! * The emitted Rust dispatches nothing between two tokens (as `no_dispatch.rs` says).
//! * Digests of plan and emitted text are the committed ones. A refactoring of the compiler changes none of
//!   them; any other change shows which targets it affects.
//!
//! One line per build: the target with its options; the report that `explain` prints; the generated Rust; for
//! CUDA targets, the CUDA sources. Builds whose digests differ have their texts written below
//! `target/digests/`, to be compared with those of the previous tree.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::{emit, report, toolchain};
use monomorph_tests::dispatch::{self, Finding, STACK, exempt_emitted};
use monomorph_tests::{check_golden, fixtures, root, shipped};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

/// The text of all files of a kind, each under its path.
fn together<'a>(files: impl IntoIterator<Item = &'a emit::File>) -> String {
    files.into_iter().map(|file| format!("==> {}\n{}\n", file.path.display(), file.text)).collect()
}

/// A build as the tests look at it.
struct Seen {
    name: String,
    /// The line of its digests.
    line: String,
    /// What is dispatched in the emitted Rust, but for what runs at load.
    dispatched: Vec<Finding>,
    /// Whether anything that runs at load needs to be exempt.
    exempt: bool,
    /// Whether its stack has recurrent state, experts, and drafts of its own.
    kinds: [bool; 3],
}

/// The report, the Rust and the CUDA of a target.
fn texts(plan: &Plan, files: &[emit::File]) -> [(&'static str, String); 3] {
    let (cuda, rust): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.path.starts_with("cuda"));
    [("report", report::text(plan)), ("rust", together(rust)), ("cuda", together(cuda))]
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(6).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// Plans and emits a build and looks at it; its texts are written where they are not the `known` ones.
fn see(build: &Target, known: &str) -> Seen {
    let name = build.build();
    let plan = match toolchain::plan(build) {
        Ok(plan) => plan,
        // Sizes that so many ranks cannot share.
        Err(why) if build.ranks > 1 => {
            let line = format!("{name} refused: {why}\n");
            return Seen { name, line, dispatched: Vec::new(), exempt: false, kinds: [false; 3] };
        }
        Err(why) => panic!("{name}: {why}"),
    };
    // This machine's processor must not affect the digest.
    let files = emit::emit(&plan, &[]);
    let texts = texts(&plan, &files);
    let mut line = name.clone();
    for (what, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
        // Writing to a string cannot fail.
        let _ = write!(line, " {what}:{}", digest(text));
    }
    if !known.lines().any(|known| known == line) {
        let directory = root().join("target/digests").join(&name);
        std::fs::create_dir_all(&directory).expect("target is writable");
        for (what, text) in &texts {
            std::fs::write(directory.join(what), text).expect("target is writable");
        }
    }
    let sources = dispatch::emitted(&files);
    let (at_load, dispatched): (Vec<_>, Vec<_>) =
        dispatch::walk(&sources).into_iter().partition(exempt_emitted);
    let stack = sources.iter().find(|source| source.name == STACK).expect("there is a stack");
    let kinds = ["_state", "experts", "draft_"].map(|word| stack.text.contains(word));
    Seen { name, line: line + "\n", dispatched, exempt: !at_load.is_empty(), kinds }
}

/// Every build that ships.
static SEEN: LazyLock<Vec<Seen>> = LazyLock::new(|| {
    let known = std::fs::read_to_string(digests()).unwrap_or_default();
    let builds: Vec<Target> = shipped::builds().collect();
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((at, build)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            builds.get(at).map(|build| (at, build))
        } {
            let it = see(build, &known);
            seen.lock().expect("no worker panics").push((at, it));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut seen = seen.into_inner().expect("no worker panics");
    seen.sort_by_key(|(at, _)| *at);
    assert_eq!(seen.len(), builds.len());
    seen.into_iter().map(|(_, it)| it).collect()
});

fn digests() -> PathBuf {
    fixtures().join("digests.txt")
}

#[test]
fn nothing_changed_for_any_target_that_was_not_to() {
    let all: String = SEEN.iter().map(|it| it.line.as_str()).collect();
    check_golden(&digests(), &all);
}

#[test]
fn no_emitted_crate_dispatches_anything() {
    for it in SEEN.iter() {
        assert_eq!(it.dispatched, [], "{}", it.name);
    }
    // A walk that saw nothing would find nothing.
    let kinds = [0, 1, 2].map(|kind| SEEN.iter().filter(|it| it.kinds[kind]).count());
    assert!(kinds.iter().all(|count| *count > 10), "{kinds:?}");
    assert!(SEEN.iter().any(|it| it.exempt), "nothing that runs at load needs to be exempt");
}
