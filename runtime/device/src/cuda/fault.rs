//! Device errors: the process tells its clients and ends.

use monomorph_model::LoadError;

/// An error of the CUDA driver. While a model loads, it is reported. In a step, it ends the process: the
/// contents of the device's memory can no longer be trusted.
#[derive(Clone, Debug)]
pub struct Fault {
    what: String,
}

impl Fault {
    pub(crate) fn new(what: String) -> Fault {
        Fault { what }
    }

    /// The same error with the place where it surfaced.
    pub(crate) fn at(self, place: &str) -> Fault {
        Fault { what: format!("{place}: {}", self.what) }
    }

    /// Ends a step: records the fault for the process's exit code and unwinds to the forward thread, which
    /// tells the clients.
    pub(crate) fn raise(self) -> ! {
        let message = format!("the GPU failed: {self}");
        monomorph_model::set_device_fault(&message);
        // Not a panic: there is no program error whose place to print.
        std::panic::resume_unwind(Box::new(message))
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for LoadError {
    fn from(fault: Fault) -> LoadError {
        LoadError::Device(fault.what)
    }
}
