//! The engine of a verb that ends by itself.

use monomorph_engine::EngineHandle;
use std::ops::Deref;
use std::time::Duration;

/// Stops the engine on drop and waits until its model is gone: a process must not exit while one of its
/// threads is inside a device driver.
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
