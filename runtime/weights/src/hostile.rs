//! Support for tests of readers: damaged files, and the memory that reading them takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// An allocator that counts each thread's allocations; a test binary installs it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

thread_local! {
    /// Bytes allocated and not freed by this thread. Another thread may free its memory.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The largest value so far.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // At a thread's end the counters are gone, and are no longer read.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // During reallocation, both exist.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work`; returns its result and the most bytes that it held at a time on this thread, beyond those
/// already allocated.
///
/// # Panics
/// When [`Counting`] is not the binary's allocator, because nothing would be measured.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    PEAK.set(LIVE.get());
    drop(std::hint::black_box(vec![0u8; 4096]));
    assert!(PEAK.get() >= LIVE.get() + 4096, "memory is not counted in this binary");
    let before = LIVE.get();
    PEAK.set(before);
    let done = work();
    (done, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Numbers that readers mishandle, as lengths and as offsets.
const EXTREMES: [u64; 14] = [
    0,
    1,
    7,
    31,
    255,
    1 << 16,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    (1 << 61) - 1,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// A damaged copy of a file. The three numbers of each damage select what, where and how.
pub fn damaged(bytes: &[u8], damage: &[[u32; 3]]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for [what, at, how] in damage {
        let (at, how) = (*at as usize % bytes.len().max(1), *how as usize);
        let extreme = EXTREMES[how % EXTREMES.len()].to_le_bytes();
        let end = |length: usize| (at + length).min(bytes.len());
        match what % 8 {
            0 | 1 => {
                let end = end(8);
                bytes[at..end].copy_from_slice(&extreme[..end - at]);
            }
            2 => {
                let end = end(4);
                bytes[at..end].copy_from_slice(&extreme[..end - at]);
            }
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (how % 8);
                }
            }
            4 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = how as u8;
                }
            }
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..end(how % 40))),
            _ => {
                let again = bytes[at..end(how % 40)].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}
