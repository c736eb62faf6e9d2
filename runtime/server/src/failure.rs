//! Why a verb ended, and what the process's exit code says of it.

use monomorph_model::{LoadError, device_fault};
use std::process::ExitCode;

/// Exit code of a server whose hardware is not there, or not what it was compiled for.
pub const EXIT_WRONG_HARDWARE: u8 = 3;
/// Exit code of a server whose device failed while it worked.
pub const EXIT_DEVICE_FAULT: u8 = 4;

/// A message for whoever started the server, and an exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// One line or a few.
    pub message: String,
    /// 1, [`EXIT_WRONG_HARDWARE`] or [`EXIT_DEVICE_FAULT`].
    pub code: u8,
}

impl Failure {
    /// The process's exit code. A fault of the device counts, whatever words it reached us in.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if device_fault().is_some() { EXIT_DEVICE_FAULT } else { self.code })
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure { message, code: 1 }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let code = if matches!(error, LoadError::Hardware(_)) { EXIT_WRONG_HARDWARE } else { 1 };
        Failure { message: error.to_string(), code }
    }
}
