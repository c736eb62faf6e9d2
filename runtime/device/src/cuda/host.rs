//! Pinned host memory, which the copy engines read and write.

use super::driver::check;
use super::fault::Fault;
use super::pointer::Pointer;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

/// Page-locked memory. The device accesses it directly, so a copy does not wait for the host.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned; code that starts a copy does not touch it before the copy's event.
unsafe impl Send for Pinned {}
// SAFETY: shared access is read-only, or page by page through a staging area.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` zeroed bytes.
    pub(crate) fn zeroed(len: usize) -> Result<Pinned, Fault> {
        let mut start: *mut c_void = null_mut();
        let bytes = len.max(1);
        // SAFETY: writes one address; freed in `drop`. Any thread may use it, and kernels may.
        check(&format!("locking {bytes} bytes of the machine's memory"), unsafe {
            sys::cuMemHostAlloc(
                &mut start,
                bytes,
                sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP,
            )
        })?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| Fault::new("the driver locked memory at address 0".to_owned()))?;
        // SAFETY: just allocated, with this size.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(Pinned { start, len })
    }

    /// The memory's address on the device. What kernels write there needs no copy.
    pub(crate) fn address(&self) -> Result<Pointer, Fault> {
        let mut address = 0;
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: writes one address; the memory is the driver's own and alive.
        check("the device's address of locked memory", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut address, start, 0)
        })?;
        Ok(Pointer(address))
    }

    /// The first byte. It is page-aligned where whole pages were claimed.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// All bytes. While a copy is in flight, only bytes it does not touch may be read.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: owned, initialised, of this length.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All bytes, mutably.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: made by `zeroed`, freed once.
        unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
    }
}
