//! The engine of a verb that ends by itself.

use monomorph_engine::EngineHandle;
use std::ops::Deref;
use std::time::Duration;

/// Stops the engine, and waits until its model is gone, when the verb is done: a process must not end while a
/// thread of it is inside the driver of a device, which is taken down then.
pub(super) struct Ending(pub(super) EngineHandle);

impl Deref for Ending {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.0
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.drain(Duration::ZERO);
        self.0.wait_stopped();
    }
}
