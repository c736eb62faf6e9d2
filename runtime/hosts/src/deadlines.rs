//! How long the parts of a world wait for each other.

use std::time::Duration;

/// How long the parts of a world wait for each other. A deadline ends the world; nothing is tried again but
/// the dialling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadlines {
    /// A worker dials for so long, and a head waits for so long until all have arrived.
    pub gather: Duration,
    /// The challenge of one connection.
    pub challenge: Duration,
    /// Each says something at least so often.
    pub heartbeat: Duration,
    /// Who says nothing for so long is gone.
    pub silence: Duration,
    /// Planning memory, joining, the known sum, recording and the canary: each of them.
    pub stage: Duration,
    /// Loading may take as long as it wants, as long as bytes advance: at least once in so long.
    pub stall: Duration,
    /// A command that is answered, such as collecting a step: four times what is predicted for the largest.
    pub step: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            gather: Duration::from_secs(600),
            challenge: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(4),
            stage: Duration::from_secs(120),
            stall: Duration::from_secs(120),
            step: Duration::from_secs(10),
        }
    }
}
