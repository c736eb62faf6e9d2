//! What is asked of the system's allocator, where that is glibc's.

/// Arenas of a server. By default there are eight a processor, each of which keeps what threads that come and
/// go have freed in it: after five minutes of grammars by chance that was 260 MiB on two processors. With
/// four giving it back changed nothing.
pub(crate) const ARENAS: i32 = 4;

/// Has all threads share so many arenas. To be called before there is a second thread.
pub(crate) fn share(arenas: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator's.
    unsafe {
        // It cannot fail for a number above 0.
        libc::mallopt(libc::M_ARENA_MAX, arenas);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = arenas;
}

/// Asks the allocator to give back what it keeps of freed memory. Takes some milliseconds for each GiB.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time by any thread; it touches freed memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that are allocated in all arenas together; 0 where the allocator does not say.
pub(crate) fn allocated() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it may be called at any time by any thread, and only counts.
        let info = unsafe { libc::mallinfo2() };
        info.uordblks + info.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    #[test]
    fn what_is_allocated_is_counted() {
        // Other tests allocate beside this one, but not as much.
        const BYTES: usize = 1 << 30;
        let before = super::allocated();
        let large = vec![0u8; BYTES];
        assert!(super::allocated() > before + BYTES / 2);
        drop(large);
        assert!(super::allocated() < before + BYTES / 2);
    }
}
