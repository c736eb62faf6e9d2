//! The one thing about a device that the whole process has to know: that it failed.

use std::sync::OnceLock;

static FAULT: OnceLock<String> = OnceLock::new();

/// Notes that the device failed in a step. Nothing it holds can be trusted, so the process is to tell its
/// clients and end; the first fault is the one reported.
pub fn set_device_fault(what: &str) {
    // A second fault follows from the first.
    let _ = FAULT.set(what.to_owned());
}

/// What failed, if anything did.
pub fn device_fault() -> Option<&'static str> {
    FAULT.get().map(String::as_str)
}
