//! Why a verb failed, and the process's exit code.

pub use monomorph_model::EXIT_DEVICE_FAULT;
use monomorph_model::{LoadError, device_fault};
use std::process::ExitCode;

/// Exit code when the hardware that the server was compiled for is missing.
pub const EXIT_WRONG_HARDWARE: u8 = 3;

/// Exit code of a watched server whose engine is dead or wrong, or hangs.
pub const EXIT_UNWELL: u8 = 5;

/// A message for the terminal, and an exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// One line or a few.
    pub message: String,
    /// 1, [`EXIT_WRONG_HARDWARE`], [`EXIT_DEVICE_FAULT`] or [`EXIT_UNWELL`]; of a supervisor its server's.
    pub code: u8,
}

impl Failure {
    /// The process's exit code. A device fault takes precedence, however it was reported.
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
        let mut cause = &error;
        while let LoadError::Rank { error, .. } = cause {
            cause = error;
        }
        let code = if matches!(cause, LoadError::Hardware(_)) { EXIT_WRONG_HARDWARE } else { 1 };
        Failure { message: error.to_string(), code }
    }
}
