//! What becomes of an error of the device: the process tells everybody and ends.

use monomorph_model::LoadError;

/// An error of the CUDA driver. While a model is loaded it is reported; in a step it ends the process,
/// because nothing the device holds can be trusted any more.
#[derive(Clone, Debug)]
pub struct Fault {
    what: String,
}

impl Fault {
    pub(crate) fn new(what: String) -> Fault {
        Fault { what }
    }

    /// The same error with the place it became known at.
    pub(crate) fn at(self, place: &str) -> Fault {
        Fault { what: format!("{place}: {}", self.what) }
    }

    /// Ends a step: notes the fault for the process's exit code and unwinds to whoever runs the model, who
    /// tells the clients.
    pub(crate) fn raise(self) -> ! {
        let message = format!("the GPU failed: {self}");
        monomorph_model::set_device_fault(&message);
        // Not a panic: there is no mistake in the program to print a place of.
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
