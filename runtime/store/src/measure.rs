//! What a measurement of reads does besides reading: empties the system's cache of a file, and reads a file
//! that is mapped.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsRawFd;

/// Has the system forget what it has cached of a file, as far as it was written to the disk and nobody has
/// mapped it.
///
/// # Errors
/// When the system refuses.
pub fn drop_cached(file: &File) -> io::Result<()> {
    // What was not written yet stays in the cache.
    file.sync_data()?;
    Ok(rustix::fs::fadvise(file, 0, None::<NonZero<u64>>, rustix::fs::Advice::DontNeed)?)
}

/// Maps bytes `at .. at + into.len()` of a file, copies them, and unmaps them. A file that is cut short
/// meanwhile ends the process, as it does of every mapping.
///
/// # Errors
/// When the system does not map them.
pub fn copy_mapped(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
    /// A multiple of which mappings begin at, on all systems there are.
    const GRAIN: u64 = 64 << 10;
    let before = (at % GRAIN) as usize;
    let len = before + into.len();
    let from = libc::off_t::try_from(at - before as u64).map_err(io::Error::other)?;
    // SAFETY: a fresh mapping at an address of the system's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), from)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `len` bytes from `start` on are mapped, and are other memory than `into`.
    unsafe { std::ptr::copy_nonoverlapping(start.cast::<u8>().add(before), into.as_mut_ptr(), into.len()) };
    // SAFETY: exactly what was mapped, once.
    unsafe { libc::munmap(start, len) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// To be caught: the bytes before a mapping's grain not left out.
    #[test]
    fn a_mapping_has_what_the_file_has() {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..200_000).map(|at| (at / 3 % 251) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        for at in [0, 1, 65_535, 65_536, 100_001] {
            let mut found = vec![0; 90_000];
            copy_mapped(&file, at, &mut found).unwrap();
            assert!(found == content[at as usize..][..90_000], "{at}");
            drop_cached(&file).unwrap();
        }
    }
}
