//! A process-wide flag: the device has failed.

use std::sync::OnceLock;

/// Exit code of a process whose device failed at run time.
pub const EXIT_DEVICE_FAULT: u8 = 4;

static FAULT: OnceLock<String> = OnceLock::new();

/// Notes that the device failed in a step. Nothing it holds can be trusted any more, so the process must tell
/// its clients and exit. The first fault is the one reported.
pub fn set_device_fault(what: &str) {
    // A second fault follows from the first.
    let _ = FAULT.set(what.to_owned());
}

/// The first fault, if there was one.
pub fn device_fault() -> Option<&'static str> {
    FAULT.get().map(String::as_str)
}
