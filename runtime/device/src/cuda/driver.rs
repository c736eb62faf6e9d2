//! Safe wrappers of libcuda: each function makes one driver call and checks its result.
//!
//! Handles are plain addresses that the driver owns. A type that creates one destroys it in its `Drop`, and
//! ignores errors there: after a fault every call fails, and the process is about to end.

use super::fault::Fault;
use cudarc::driver::sys;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Turns a driver call's result into an error unless it succeeded.
pub(crate) fn check(what: &str, result: sys::CUresult) -> Result<(), Fault> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(Fault::new(format!("{what}: {}", describe(error)))),
    }
}

/// What a driver call writes through the pointer it is given; `empty` stands there before.
fn output<T>(what: &str, empty: T, call: impl FnOnce(&mut T) -> sys::CUresult) -> Result<T, Fault> {
    let mut out = empty;
    check(what, call(&mut out))?;
    Ok(out)
}

/// The driver's own name and description of an error.
fn describe(error: sys::CUresult) -> String {
    let text = |get: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes the address of a constant string, or leaves null.
        let found = unsafe { get(error, &mut text) } == sys::CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: not null, so it is a string of the driver's, which lives as long as the library.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(words)) => format!("{name} ({words})"),
        _ => format!("CUDA error {}", error as u32),
    }
}

/// Whether libcuda can be opened. Any other call panics where it cannot.
pub(crate) fn is_present() -> bool {
    // SAFETY: opens the library that this machine's driver ships, which runs its initialisers.
    unsafe { sys::is_culib_present() }
}

/// The CUDA version that the driver supports: 1000 * major + 10 * minor.
pub(crate) fn version() -> Result<i32, Fault> {
    // SAFETY: writes one integer; the one call allowed before `cuInit`.
    output("cuDriverGetVersion", 0, |version| unsafe { sys::cuDriverGetVersion(version) })
}

/// Initialises the driver and counts its devices.
pub(crate) fn devices() -> Result<i32, Fault> {
    // SAFETY: no argument but the flags, which must be 0.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    // SAFETY: writes one integer.
    output("cuDeviceGetCount", 0, |count| unsafe { sys::cuDeviceGetCount(count) })
}

/// A device by number, below [`devices`].
pub(crate) fn device(number: i32) -> Result<sys::CUdevice, Fault> {
    // SAFETY: writes one handle, which is an integer.
    output("cuDeviceGet", 0, |device| unsafe { sys::cuDeviceGet(device, number) })
}

pub(crate) fn name(device: sys::CUdevice) -> Result<String, Fault> {
    let mut name = [0; 256];
    // SAFETY: writes at most as many characters as the buffer has, with a final zero.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)
    })?;
    // SAFETY: the driver ended the string within the buffer.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// A device's UUID, as `nvidia-smi -L` prints it.
pub(crate) fn uuid(device: sys::CUdevice) -> Result<String, Fault> {
    let empty = sys::CUuuid_st { bytes: [0; 16] };
    // SAFETY: writes the 16 bytes.
    let uuid = output("cuDeviceGetUuid", empty, |uuid| unsafe { sys::cuDeviceGetUuid_v2(uuid, device) })?;
    let mut text = "GPU-".to_owned();
    for (at, byte) in uuid.bytes.into_iter().enumerate() {
        text.push_str(if [4, 6, 8, 10].contains(&at) { "-" } else { "" });
        // A `c_char` has a sign on some machines and none on others.
        text.push_str(&format!("{:02x}", byte.to_ne_bytes()[0]));
    }
    Ok(text)
}

/// An integer attribute of a device.
pub(crate) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, Fault> {
    // SAFETY: writes one integer.
    output("cuDeviceGetAttribute", 0, |value| unsafe { sys::cuDeviceGetAttribute(value, which, device) })
}

/// Whether kernels of a device can read and write the memory of another.
pub(crate) fn can_reach(device: sys::CUdevice, peer: sys::CUdevice) -> Result<bool, Fault> {
    // SAFETY: writes one integer.
    let can = |can: &mut _| unsafe { sys::cuDeviceCanAccessPeer(can, device, peer) };
    Ok(output("cuDeviceCanAccessPeer", 0, can)? != 0)
}

/// The primary context of a device, which all threads of the process share.
#[derive(Debug)]
pub(crate) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a context is a handle; the driver's functions may be called with it from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opened, and current on the calling thread.
    pub(crate) fn of(device: sys::CUdevice) -> Result<Context, Fault> {
        let context = Context::of_peer(device)?;
        context.enter()?;
        Ok(context)
    }

    /// Opened, and not current.
    pub(crate) fn of_peer(device: sys::CUdevice) -> Result<Context, Fault> {
        // SAFETY: writes one handle; released in `drop`.
        let retain = |handle: &mut _| unsafe { sys::cuDevicePrimaryCtxRetain(handle, device) };
        Ok(Context { device, handle: output("cuDevicePrimaryCtxRetain", null_mut(), retain)? })
    }

    /// Lets work of this context, which is current, reach all memory of another: what was claimed there in
    /// one piece or will be (not managed or virtual memory, which nothing here claims).
    pub(crate) fn reach(&self, peer: &Context) -> Result<(), Fault> {
        // SAFETY: both handles are alive; the flags must be 0.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.handle, 0) } {
            // By a model of this process that was loaded before.
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => check("cuCtxEnablePeerAccess", result),
        }
    }

    /// Makes the context current on the calling thread. Every other call requires that.
    pub(crate) fn enter(&self) -> Result<(), Fault> {
        // SAFETY: the handle is alive while `self` is.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })
    }

    /// Bytes free and bytes in all.
    pub(crate) fn memory(&self) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `of`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// An in-order queue of device work.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) handle: sys::CUstream,
}

// SAFETY: a stream is a handle that any thread may use.
unsafe impl Send for Stream {}
// SAFETY: the driver serialises calls that name one stream.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new() -> Result<Stream, Fault> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle; destroyed in `drop`.
        let create = |handle: &mut _| unsafe { sys::cuStreamCreate(handle, flags) };
        Ok(Stream { handle: output("cuStreamCreate", null_mut(), create)? })
    }

    /// Waits until all work in the stream is done.
    pub(crate) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the handle is alive while `self` is.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) })
    }

    /// Makes later work of this stream wait for an event of another.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), Fault> {
        // SAFETY: both handles are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) })
    }

    /// Copies bytes to the device. Returns at once if `from` is pinned.
    ///
    /// # Safety
    /// The destination range lies in the arena. If `from` is pinned, it is not written before the copy has
    /// happened.
    pub(crate) unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        if from.is_empty() {
            return Ok(());
        }
        let start = from.as_ptr().cast::<c_void>();
        // SAFETY: the source is a live slice; the caller vouches for the destination.
        check("a copy to the device", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, start, from.len(), self.handle)
        })
    }

    /// Copies bytes to the host. Returns at once if `to` is pinned.
    ///
    /// # Safety
    /// The source range lies in the arena. If `to` is pinned, it is not read before the copy has happened; if
    /// not, the copy has happened once this returns and the stream has been waited for.
    pub(crate) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        if to.is_empty() {
            return Ok(());
        }
        let start = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: the destination is a live slice; the caller vouches for the source.
        check("a copy from the device", unsafe {
            sys::cuMemcpyDtoHAsync_v2(start, from, to.len(), self.handle)
        })
    }

    /// Copies bytes within the device.
    ///
    /// # Safety
    /// Both ranges lie in the arena and do not overlap.
    pub(crate) unsafe fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), Fault> {
        // SAFETY: by the caller's promise.
        check("a copy on the device", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.handle)
        })
    }

    /// Zeroes a range.
    ///
    /// # Safety
    /// The range lies in the arena.
    pub(crate) unsafe fn clear(&self, at: u64, bytes: u64) -> Result<(), Fault> {
        // SAFETY: by the caller's promise.
        unsafe { self.set(at, 0, bytes) }
    }

    /// Sets every byte of a range.
    ///
    /// # Safety
    /// As of [`Stream::clear`].
    pub(crate) unsafe fn set(&self, at: u64, byte: u8, bytes: u64) -> Result<(), Fault> {
        // SAFETY: by the caller's promise.
        check("clearing memory", unsafe { sys::cuMemsetD8Async(at, byte, bytes as usize, self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { sys::cuStreamDestroy_v2(self.handle) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    handle: sys::CUevent,
}

// SAFETY: an event is a handle that any thread may use.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new() -> Result<Event, Fault> {
        Event::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// A mark that knows its time.
    pub(crate) fn timed() -> Result<Event, Fault> {
        Event::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(flags: sys::CUevent_flags) -> Result<Event, Fault> {
        // SAFETY: writes one handle; destroyed in `drop`.
        let create = |handle: &mut _| unsafe { sys::cuEventCreate(handle, flags as u32) };
        Ok(Event { handle: output("cuEventCreate", null_mut(), create)? })
    }

    /// Marks the end of the work that `stream` has been given so far.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both handles are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle) })
    }

    /// Waits for the last mark; returns at once if there is none.
    pub(crate) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the handle is alive.
        check("waiting for the device", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// Whether the last mark has been passed, without waiting for it.
    pub(crate) fn has_passed(&self) -> Result<bool, Fault> {
        // SAFETY: the handle is alive.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("waiting for the device", result).map(|()| true),
        }
    }

    /// Milliseconds from this mark to another. Both are [timed](Event::timed) and have been passed.
    pub(crate) fn until(&self, end: &Event) -> Result<f32, Fault> {
        // SAFETY: writes one number; both handles are alive.
        output("reading a time", 0.0, |ms| unsafe { sys::cuEventElapsedTime_v2(ms, self.handle, end.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// Device memory, allocated in one piece.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Claim {
    pub(crate) fn new(bytes: u64) -> Result<Claim, Fault> {
        let what = format!("claiming {bytes} bytes of the device");
        // SAFETY: writes one address; freed in `drop`.
        let start = output(&what, 0, |start| unsafe { sys::cuMemAlloc_v2(start, bytes as usize) })?;
        Ok(Claim { start, bytes })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe { sys::cuMemFree_v2(self.start) };
    }
}
