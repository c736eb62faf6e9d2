//! The store against a map of what was written to it, with a file system that works and with one that fails.
//!
//! Planted, one at a time, and caught here: a checksum that is not compared (both tests of failing disks); a
//! place given out again while a page is in transfer to it, or from it (the walks); a failed write that
//! counts as done (the walk on a failing disk); places that overlap (the walk); a file that keeps its name,
//! and old ones that are not removed (the tests of what is left); a store that works off its queue before it
//! is gone (the slow disk). Less than a page taken for a page: `ring.rs`. Not caught: room that is not looked
//! for before it is claimed, because claiming it fails too.

use monomorph_store::{
    ALIGN, Completion, DiskStore, Fault, Faults, Kind, OpenError, Options, Page, PageError, PageMemory,
    PageSlot,
};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGES: usize = 24;
const OPTIONS: Options = Options { page_bytes: ALIGN, capacity_bytes: (PAGES * ALIGN) as u64, depth: 5 };
const LONG: Duration = Duration::from_secs(20);

/// xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % bound
    }
}

/// A page of which every byte follows from a number.
fn page(number: u64) -> Page {
    let mut page = Page::zeroed(ALIGN);
    let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for chunk in page.bytes_mut().chunks_exact_mut(8) {
        random.below(1);
        chunk.copy_from_slice(&random.0.to_le_bytes());
    }
    page
}

fn quiet(directory: &Path) -> DiskStore {
    DiskStore::open(directory, OPTIONS, |line| println!("{line}")).unwrap()
}

/// Writes a page and waits for it.
fn written(store: &mut DiskStore, number: u64) -> Result<PageSlot, PageError> {
    let place = store.write(page(number), number).map_err(|refused| refused.why)?;
    let done = store.wait(LONG).unwrap();
    assert_eq!((done.tag, done.kind, done.place), (number, Kind::Write, place));
    done.result.map(|()| place)
}

/// Reads a page back and waits for it.
fn read_back(store: &mut DiskStore, place: PageSlot) -> Result<Page, PageError> {
    store.read(place, Page::zeroed(ALIGN), 7).map_err(|refused| refused.why)?;
    let done = store.wait(LONG).unwrap();
    assert_eq!((done.tag, done.kind, done.place), (7, Kind::Read, place));
    done.result.map(|()| done.page)
}

/// A walk's record of a place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Writing(u64),
    Holds(u64),
    Failed,
}

/// A walk of writes, reads and frees in any order; how many reads came back, and how many pages did not.
fn walk(mut store: DiskStore, steps: usize, seed: u64, faulty: bool) -> (usize, usize) {
    let mut random = Random(seed);
    let mut known: HashMap<PageSlot, Known> = HashMap::new();
    // By tag: transfers in flight, and whether their places were freed meanwhile.
    let mut under_way: HashMap<u64, (Kind, PageSlot, u64, bool)> = HashMap::new();
    let (mut reads, mut failures, mut tag) = (0, 0, 0);
    for step in 0..steps {
        tag += 1;
        match random.below(8) {
            0..3 => match store.write(page(tag), tag) {
                Ok(place) => {
                    assert!(
                        known.insert(place, Known::Writing(tag)).is_none(),
                        "{place:?} is given out twice"
                    );
                    let busy = under_way.values().any(|one| one.1 == place);
                    assert!(!busy, "{place:?} is given out while something is on its way there");
                    under_way.insert(tag, (Kind::Write, place, tag, false));
                }
                Err(refused) => {
                    assert!(matches!(refused.why, PageError::Full), "{:?}", refused.why);
                    assert_eq!(store.free_places(), 0);
                }
            },
            3..6 if !known.is_empty() => {
                let place = *known.keys().nth(random.below(known.len() as u64) as usize).unwrap();
                match (store.read(place, page(!tag), tag), known[&place]) {
                    (Ok(()), Known::Holds(number)) => {
                        under_way.insert(tag, (Kind::Read, place, number, false));
                    }
                    (Err(refused), Known::Writing(_) | Known::Failed) => {
                        assert!(matches!(refused.why, PageError::Misused(_)));
                    }
                    (result, known) => panic!("{known:?}: {result:?}"),
                }
            }
            6 if !known.is_empty() => {
                let place = *known.keys().nth(random.below(known.len() as u64) as usize).unwrap();
                known.remove(&place);
                store.free(place);
                under_way.values_mut().filter(|one| one.1 == place).for_each(|one| one.3 = true);
            }
            _ => {
                let all = random.below(4) == 0 || step + 1 == steps;
                while let Some(Completion { tag, kind, place, page: memory, result, .. }) =
                    if all { store.wait(LONG) } else { store.poll() }
                {
                    let (asked, at, number, freed) =
                        under_way.remove(&tag).expect("a completion that was asked for");
                    assert_eq!((asked, at), (kind, place));
                    assert!(faulty || result.is_ok(), "{result:?}");
                    failures += usize::from(result.is_err());
                    match (kind, result) {
                        (Kind::Read, Ok(())) => {
                            assert!(memory.bytes() == page(number).bytes(), "{place:?} holds another page");
                            reads += 1;
                        }
                        (Kind::Write, result) if !freed => {
                            known.insert(
                                place,
                                if result.is_ok() { Known::Holds(number) } else { Known::Failed },
                            );
                        }
                        _ => {}
                    }
                }
            }
        }
        let waited_for: HashSet<PageSlot> = under_way.values().filter(|one| one.3).map(|one| one.1).collect();
        assert_eq!(store.in_flight(), under_way.len());
        assert_eq!(store.free_places() + known.len() + waited_for.len(), PAGES, "a place is lost");
    }
    while store.wait(LONG).is_some() {}
    known.keys().for_each(|place| store.free(*place));
    assert_eq!((store.free_places(), store.in_flight()), (PAGES, 0));
    (reads, failures)
}

#[test]
fn a_walk_reads_what_it_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let store = quiet(directory.path());
    println!("{}", store.how());
    let (reads, failures) = walk(store, 60_000, 1, false);
    assert!(reads > 2_000 && failures == 0, "{reads} reads");
    let store = DiskStore::open_plain(directory.path(), OPTIONS).unwrap();
    assert!(store.how().starts_with("plain"));
    let (reads, _) = walk(store, 60_000, 2, false);
    assert!(reads > 2_000, "{reads} reads");
}

#[test]
fn a_walk_on_a_failing_disk_reads_what_it_wrote_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let mut random = Random(77);
    faults.set(move |_, _| match random.below(30) {
        0 => Some(Fault::Io),
        1 => Some(Fault::NoSpace),
        2 => Some(Fault::Short),
        3 | 4 => Some(Fault::FlippedBit),
        5 | 6 => Some(Fault::Lost),
        _ => None,
    });
    let store = DiskStore::open_with_faults(directory.path(), OPTIONS, &faults, |_| {}).unwrap();
    let (reads, failures) = walk(store, 100_000, 3, true);
    println!("{reads} reads, {failures} failures, {faults:?}");
    assert!(reads > 2_000 && failures > 1_000, "{reads} reads, {failures} failures");
}

#[test]
fn every_fault_is_an_error_and_the_next_page_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let mut store = DiskStore::open_with_faults(directory.path(), OPTIONS, &faults, |_| {}).unwrap();
    let only = |wanted: Kind, fault: Fault| faults.set(move |_, kind| (kind == wanted).then_some(fault));
    for fault in [Fault::Io, Fault::NoSpace, Fault::Short] {
        only(Kind::Write, fault);
        assert!(matches!(written(&mut store, 1), Err(PageError::Io(_))), "{fault:?}");
        faults.clear();
        let place = written(&mut store, 2).unwrap();
        only(Kind::Read, fault);
        assert!(matches!(read_back(&mut store, place), Err(PageError::Io(_))), "{fault:?}");
        faults.clear();
        assert!(read_back(&mut store, place).unwrap().bytes() == page(2).bytes());
    }
    for fault in [Fault::FlippedBit, Fault::Lost] {
        only(Kind::Write, fault);
        let place = written(&mut store, 3).unwrap();
        assert!(matches!(read_back(&mut store, place), Err(PageError::Corrupt)), "{fault:?}");
        faults.clear();
        let place = written(&mut store, 4).unwrap();
        only(Kind::Read, fault);
        assert!(matches!(read_back(&mut store, place), Err(PageError::Corrupt)), "{fault:?}");
        faults.clear();
        assert!(read_back(&mut store, place).unwrap().bytes() == page(4).bytes());
    }
}

#[test]
fn a_slow_disk_does_not_make_its_user_wait() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let mut store: DiskStore =
        DiskStore::open_with_faults(directory.path(), OPTIONS, &faults, |_| {}).unwrap();
    faults.set(|_, _| Some(Fault::Slow(Duration::from_secs(1))));
    let began = Instant::now();
    store.write(page(1), 1).unwrap();
    store.write(page(2), 2).unwrap();
    assert!(store.poll().is_none());
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    assert!(store.wait(Duration::from_millis(1)).is_none());
    assert!(store.wait(LONG).is_some() && store.wait(LONG).is_some() && store.wait(LONG).is_none());
    for number in 3..PAGES as u64 {
        store.write(page(number), number).unwrap();
    }
    let began = Instant::now();
    drop(store);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn a_dropped_store_ends_what_is_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..50 {
        let mut store = quiet(directory.path());
        for number in 0..PAGES as u64 {
            store.write(page(number), number).unwrap();
        }
        drop(store);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_directory_is_empty_while_a_store_is_used_and_old_files_are_cleared_away() {
    let directory = tempfile::tempdir().unwrap();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    std::fs::write(directory.path().join("monomorph-1-0.pages"), "of a process that was killed").unwrap();
    std::fs::write(directory.path().join("letter.txt"), "somebody's").unwrap();
    let mut living = quiet(directory.path());
    assert_eq!(names(), ["letter.txt"]);
    let place = written(&mut living, 5).unwrap();
    // Another one in the same directory takes nothing from the first.
    let other = quiet(directory.path());
    assert!(read_back(&mut living, place).unwrap().bytes() == page(5).bytes());
    drop((living, other));
    assert_eq!(names(), ["letter.txt"]);
}

/// Not a test of its own: what [`a_killed_process_leaves_nothing`] kills.
#[test]
#[ignore = "it waits to be killed"]
fn a_process_to_kill() {
    let mut store = quiet(Path::new(&std::env::var_os("STORE_DIRECTORY").unwrap()));
    written(&mut store, 1).unwrap();
    println!("ready");
    std::thread::sleep(LONG);
}

#[test]
fn a_killed_process_leaves_nothing() {
    use std::io::{BufRead, BufReader};
    let directory = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "a_process_to_kill"])
        .env("STORE_DIRECTORY", directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = |directory: &Path, options| {
        DiskStore::<Page>::open(directory, options, |_| {}).map(|_| ()).unwrap_err()
    };
    let at = directory.path();
    for page_bytes in [0, 1000, 2 << 30] {
        assert!(matches!(refusal(at, Options { page_bytes, ..OPTIONS }), OpenError::PageSize { .. }));
    }
    for capacity_bytes in [0, 4095, u64::MAX] {
        assert!(matches!(refusal(at, Options { capacity_bytes, ..OPTIONS }), OpenError::Capacity { .. }));
    }
    let too_much = refusal(at, Options { capacity_bytes: 1 << 43, ..OPTIONS });
    assert!(matches!(too_much, OpenError::Space { .. }), "{too_much}");
    let missing = refusal(&at.join("nowhere"), OPTIONS);
    assert!(missing.to_string().contains("nowhere"), "{missing}");
    std::fs::write(at.join("file"), "").unwrap();
    assert!(matches!(refusal(&at.join("file"), OPTIONS), OpenError::Io { .. }));
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 1, "nothing stays of what was refused");

    let mut store = quiet(at);
    let refused = store.write(Page::zeroed(2 * ALIGN), 0).unwrap_err();
    assert!(matches!(refused.why, PageError::Misused(_)));
    let place = written(&mut store, 1).unwrap();
    store.free(place);
    store.free(place);
    assert_eq!(store.free_places(), PAGES);
    assert!(matches!(read_back(&mut store, place), Err(PageError::Misused(_))));
}
