//! A file mapped into memory: read-only, and shared with all who map it.
//!
//! A slice of a mapping is only as constant as the file. Cut short, or on a disk that fails, its pages are
//! SIGBUS; written over, they change under the slice, which Rust does not allow. Nothing that a process can
//! do prevents either, so the promise is the file's: one of packed weights is written under another name,
//! loses its permissions to be written to, and is renamed. Of the first, the process says which file it was
//! before it ends (docs/adr/0055).

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;

/// The whole of a file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that nobody writes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file of `len` bytes, of which there is at least one. Pages become resident when first touched.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn of(file: &File, len: usize) -> std::io::Result<Mapping> {
        pages::map(file, len).map(|start| Mapping { start, len })
    }

    /// From now on a page of it that cannot be read ends the process with [`EXIT_DEVICE_FAULT`] and a line
    /// that names the file. One mapping of a process has that.
    ///
    /// [`EXIT_DEVICE_FAULT`]: monomorph_model::EXIT_DEVICE_FAULT
    pub(crate) fn name_if_lost(&self, path: &Path) {
        lost::watch(self.start, self.len, path);
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped from `start` on for as long as `self` lives, readable, and written by nobody: see
        // above.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        lost::forget(self.start);
        pages::unmap(self.start, self.len);
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({})", self.len)
    }
}

#[cfg(target_os = "linux")]
mod lost {
    //! The handler of SIGBUS.

    use monomorph_model::EXIT_DEVICE_FAULT;
    use std::path::Path;
    use std::ptr::{NonNull, null_mut};
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    use std::sync::{Mutex, OnceLock, PoisonError};

    /// Where the mapping that is watched begins and ends; 0 and 0 where none is.
    static RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    /// What is said of it. Never freed: the handler may be reading it.
    static LINE: AtomicPtr<String> = AtomicPtr::new(null_mut());
    /// What was done with the signal before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
    /// Held by who changes these.
    static CHANGES: Mutex<()> = Mutex::new(());

    pub(super) fn watch(start: NonNull<u8>, len: usize, path: &Path) {
        let _alone = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!(
            "error: {}: packed weights cannot be read any more: the file was cut short, or its disk fails\n",
            path.display()
        );
        LINE.store(Box::leak(Box::new(line)), Ordering::Release);
        RANGE[1].store(start.as_ptr() as usize + len, Ordering::Release);
        RANGE[0].store(start.as_ptr() as usize, Ordering::Release);
        BEFORE.get_or_init(install);
    }

    pub(super) fn forget(start: NonNull<u8>) {
        let _alone = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        if RANGE[0].load(Ordering::Acquire) == start.as_ptr() as usize {
            RANGE.iter().for_each(|end| end.store(0, Ordering::Release));
        }
    }

    /// Installs the handler, and returns what was there.
    fn install() -> libc::sigaction {
        // SAFETY: a structure of plain numbers and a function's address, for which zeros are values: no
        // flags, no signals.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are valid for the call, and the handler calls nothing that a handler must
        // not.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
        before
    }

    /// Calls only what a handler may call: loads of atomics, `write`, `_exit` and `sigaction`.
    extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid structure, and this signal's has an address.
        let at = unsafe { (*info).si_addr() } as usize;
        let [start, end] = [0, 1].map(|side: usize| RANGE[side].load(Ordering::Acquire));
        let line = LINE.load(Ordering::Acquire);
        if (start..end).contains(&at) && !line.is_null() {
            // SAFETY: never freed, and not changed since it was stored.
            let line = unsafe { &*line };
            // SAFETY: the bytes are there; a failed write has nobody to be told. `_exit` ends the process.
            unsafe {
                libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
                libc::_exit(EXIT_DEVICE_FAULT.into());
            }
        }
        if let Some(before) = BEFORE.get() {
            // The faulting instruction is run again, and its signal goes where it went before.
            // SAFETY: what the system returned when the handler was installed.
            unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod lost {
    //! Other systems end the process without a word.

    use std::path::Path;
    use std::ptr::NonNull;

    pub(super) fn watch(_: NonNull<u8>, _: usize, _: &Path) {}

    pub(super) fn forget(_: NonNull<u8>) {}
}

mod pages {
    use std::fs::File;
    use std::io::{Error, Result};
    use std::os::fd::AsRawFd;
    use std::ptr::NonNull;

    pub(super) fn map(file: &File, len: usize) -> Result<NonNull<u8>> {
        // SAFETY: a fresh mapping at an address of the system's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::other("mapped at address zero"))?;
        advise_large(start, len);
        Ok(start)
    }

    /// Large pages where the file system has them. Others go without.
    #[cfg(target_os = "linux")]
    fn advise_large(start: NonNull<u8>, len: usize) {
        // SAFETY: the range is our own mapping; the advice changes no contents.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_large(_: NonNull<u8>, _: usize) {}

    pub(super) fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: exactly what `map` returned, unmapped once.
        unsafe { libc::munmap(start.as_ptr().cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_mapping_is_the_file_and_stays_it_when_its_name_goes_to_another() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let mapping = Mapping::of(file.as_file(), 10_000).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::rename(other.path(), file.path()).unwrap();
        assert_eq!(mapping.bytes(), [7; 10_000]);
        assert!(Mapping::of(file.as_file(), 0).is_err(), "the system maps no empty range");
    }
}
