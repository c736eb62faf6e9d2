//! Stores on a file system in memory.

use monomorph_store::{DiskStore, Options, Page, PageMemory};
use std::path::Path;
use std::time::Duration;

#[test]
fn a_file_system_in_memory_works_too() {
    // Linux's; where there is none there is nothing to see.
    let Ok(directory) = tempfile::tempdir_in(Path::new("/dev/shm")) else { return };
    let options = Options { page_bytes: 8192, capacity_bytes: 1 << 20, depth: 4 };
    let mut store = DiskStore::open(directory.path(), options, |line| println!("{line}")).unwrap();
    println!("{}", store.how());
    let mut page = Page::zeroed(8192);
    page.bytes_mut().fill(42);
    let place = store.write(page, 1).unwrap();
    store.wait(Duration::from_secs(20)).unwrap().result.unwrap();
    store.read(place, Page::zeroed(8192), 2).unwrap();
    let done = store.wait(Duration::from_secs(20)).unwrap();
    assert!(done.result.is_ok() && done.page.bytes().iter().all(|byte| *byte == 42));
}
