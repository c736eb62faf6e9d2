//! NCCL's library: the functions that are used of it, found by name.

use super::super::fault::Fault;
use libloading::Library as File;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Names that it is looked for by.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Oldest version that is taken, as the library counts.
const OLDEST: c_int = 22_800;
/// Oldest version that is good between hosts: 2.28.9 hung where two hosts replayed graphs.
const OLDEST_BETWEEN_HOSTS: c_int = 23_004;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclFloat32`.
const FLOAT32: c_int = 7;
/// Bytes of a collective's name.
const NAME_BYTES: usize = 128;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; NAME_BYTES]);

/// `ncclComm_t`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle(*mut c_void);

// SAFETY: NCCL ties a communicator to a device, not to a thread; one thread at a time uses it.
unsafe impl Send for Handle {}

type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRank = unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> c_int;
type CommGetAsyncError = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type AllGather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type GetLastError = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// The functions that are used. A communicator is never destroyed: it lives as long as the process, as the
/// graphs that hold its kernels do.
#[derive(Debug)]
pub(crate) struct Library {
    version: c_int,
    get_unique_id: GetUniqueId,
    comm_init_rank: CommInitRank,
    comm_get_async_error: CommGetAsyncError,
    all_gather: AllGather,
    get_error_string: GetErrorString,
    get_last_error: GetLastError,
}

/// The process's one library.
static OPENED: OnceLock<Result<Library, String>> = OnceLock::new();

impl Library {
    /// Opens the library: this file, or the first of its usual names. It stays open; later calls find the
    /// same.
    ///
    /// # Errors
    /// What was tried, and why each failed; or that it is too old.
    pub(crate) fn open(file: Option<&Path>) -> Result<&'static Library, String> {
        OPENED.get_or_init(|| Library::load(file)).as_ref().map_err(Clone::clone)
    }

    /// The library that is open.
    ///
    /// # Errors
    /// When none is.
    pub(crate) fn opened() -> Result<&'static Library, String> {
        match OPENED.get() {
            Some(opened) => opened.as_ref().map_err(Clone::clone),
            None => Err("NCCL was not opened".to_owned()),
        }
    }

    fn load(file: Option<&Path>) -> Result<Library, String> {
        let names = file.map_or(NAMES.map(PathBuf::from).to_vec(), |file| vec![file.to_owned()]);
        let mut tried = Vec::new();
        for name in &names {
            // SAFETY: NCCL, whose initialisers may run at any time.
            match unsafe { File::new(name) } {
                // It is never closed: its threads live as long as the process.
                Ok(file) => return Library::of(Box::leak(Box::new(file)), name),
                Err(error) => tried.push(format!("{}: {}", name.display(), reason(&error))),
            }
        }
        let remedy = match file {
            Some(_) => "--nccl names NCCL's library, libnccl.so.2",
            None => "install it, or name its file with --nccl",
        };
        Err(format!(
            "NCCL cannot be opened, by which processes exchange values ({}); {remedy}",
            tried.join("; ")
        ))
    }

    fn of(file: &'static File, name: &Path) -> Result<Library, String> {
        let missing = |symbol: &str, error: &libloading::Error| {
            format!("{} has no {symbol}, as NCCL's library has: {}", name.display(), reason(error))
        };
        macro_rules! function {
            ($symbol:literal as $kind:ty) => {{
                // SAFETY: the function of this name, of the type that nccl.h declares.
                let found = unsafe { file.get::<$kind>($symbol) };
                *found.map_err(|error| missing($symbol, &error))?
            }};
        }
        let get_version = function!("ncclGetVersion" as GetVersion);
        let mut version = 0;
        // SAFETY: writes one integer.
        if unsafe { get_version(&mut version) } != SUCCESS || version < OLDEST {
            let [found, oldest] = [version, OLDEST].map(text);
            return Err(format!("{} is NCCL {found}, and {oldest} is the oldest that works", name.display()));
        }
        Ok(Library {
            version,
            get_unique_id: function!("ncclGetUniqueId" as GetUniqueId),
            comm_init_rank: function!("ncclCommInitRank" as CommInitRank),
            comm_get_async_error: function!("ncclCommGetAsyncError" as CommGetAsyncError),
            all_gather: function!("ncclAllGather" as AllGather),
            get_error_string: function!("ncclGetErrorString" as GetErrorString),
            get_last_error: function!("ncclGetLastError" as GetLastError),
        })
    }

    /// Its version, such as 2.30.7.
    pub(crate) fn version(&self) -> String {
        text(self.version)
    }

    /// A warning about its version between hosts, if there is one to give.
    pub(crate) fn warning(&self) -> Option<String> {
        let [found, good] = [self.version, OLDEST_BETWEEN_HOSTS].map(text);
        let old = self.version < OLDEST_BETWEEN_HOSTS;
        old.then(|| format!("warning: NCCL {found} may hang between hosts; {good} and later do not"))
    }

    /// A name for a collective, which all ranks join it by.
    ///
    /// # Errors
    /// NCCL's own.
    pub(crate) fn name(&self) -> Result<Vec<u8>, String> {
        let mut id = UniqueId([0; NAME_BYTES]);
        // SAFETY: writes the id.
        self.check("naming a collective", unsafe { (self.get_unique_id)(&mut id) }, None)?;
        Ok(id.0.to_vec())
    }

    /// Joins the collective of this name on the device of the context that the thread has entered, and waits
    /// for all ranks.
    ///
    /// # Errors
    /// NCCL's own, or when that is no name.
    pub(super) fn join(&self, name: &[u8], rank: usize, ranks: usize) -> Result<Handle, String> {
        let mut id = UniqueId([0; NAME_BYTES]);
        if name.len() != NAME_BYTES {
            return Err(format!("the head names a collective in {} bytes, not {NAME_BYTES}", name.len()));
        }
        id.0.copy_from_slice(name);
        let [rank, ranks] = [rank, ranks].map(|number| c_int::try_from(number).unwrap_or(c_int::MAX));
        let mut handle = null_mut();
        // SAFETY: writes one handle.
        let joined = unsafe { (self.comm_init_rank)(&mut handle, ranks, id, rank) };
        self.check("joining the collective", joined, None)?;
        Ok(Handle(handle))
    }

    /// Gathers `count` f32 of every rank behind each other, in the order of ranks, as work of a stream.
    ///
    /// # Safety
    /// `from` has so many values and `to` as many of every rank, in the memory of the communicator's device,
    /// for as long as the work or a graph that it was recorded in lives. The stream is of that device.
    pub(super) unsafe fn all_gather(
        &self,
        (from, to): (u64, u64),
        count: usize,
        at: Handle,
        stream: *mut c_void,
    ) -> Result<(), Fault> {
        // SAFETY: the caller vouches for the addresses and the stream; the handle was joined.
        let told = unsafe {
            (self.all_gather)(from as *const c_void, to as *mut c_void, count, FLOAT32, at.0, stream)
        };
        self.check("gathering from all ranks", told, Some(at)).map_err(Fault::new)
    }

    /// What went wrong behind the calls, if something did: a connection to another host that broke.
    pub(super) fn broken(&self, at: Handle) -> Result<(), Fault> {
        let mut state = SUCCESS;
        // SAFETY: writes one integer; the handle was joined.
        let asked = unsafe { (self.comm_get_async_error)(at.0, &mut state) };
        let state = if asked == SUCCESS && state == IN_PROGRESS { SUCCESS } else { asked.max(state) };
        self.check("exchanging with other ranks", state, Some(at)).map_err(Fault::new)
    }

    fn check(&self, what: &str, result: c_int, at: Option<Handle>) -> Result<(), String> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: NCCL's own constant string.
        let short = words(unsafe { (self.get_error_string)(result) });
        // SAFETY: NCCL's own string of this handle, or of the last call without one.
        let long = words(unsafe { (self.get_last_error)(at.map_or(null_mut(), |at| at.0)) });
        Err(match long.is_empty() {
            true => format!("{what}: NCCL: {short}"),
            false => format!("{what}: NCCL: {short} ({long})"),
        })
    }
}

/// A version as NCCL counts: 2.30.7 is 23007.
fn text(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so it is a string of NCCL's, which lives until its next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().replace('\n', " ")
}

/// The loader's own words.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_is_named() {
        let error = Library::load(Some(Path::new("/nowhere/libnccl.so.2"))).expect_err("there is none");
        assert!(error.contains("/nowhere/libnccl.so.2: ") && error.contains("--nccl"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn another_library_is_refused_by_the_function_it_lacks() {
        let error = Library::load(Some(Path::new("libc.so.6"))).expect_err("it is not NCCL");
        assert!(error.contains("libc.so.6 has no ncclGetVersion"), "{error}");
    }

    #[test]
    fn a_version_reads_as_nccl_prints_it() {
        assert_eq!([22_809, 23_004, 23_012].map(text), ["2.28.9", "2.30.4", "2.30.12"]);
    }
}
