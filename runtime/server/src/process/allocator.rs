//! Tuning of glibc's allocator; other allocators are left alone.

/// Arenas of a server. The default is eight per processor, and each keeps what short-lived threads freed in
/// it: 260 MiB on two processors after five minutes of random grammars. With four arenas trimming made no
/// difference.
pub(crate) const ARENAS: i32 = 4;

/// Makes all threads share so many arenas. Call it before there is a second thread.
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

/// Returns freed memory to the system. Takes some milliseconds per GiB.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time by any thread; it touches freed memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes allocated in all arenas; 0 with another allocator.
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
