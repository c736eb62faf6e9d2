//! How a process's part in a world ends.

/// The end of a process's part in a world. There is no way back: what ended is started again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// It was asked to.
    Stopped,
    /// It never served: the reason.
    Refused(String),
    /// It broke while it served: the reason. Clients are told to try again.
    Broken(String),
}

impl Ended {
    /// The exit code of a process that ends so: as a server's, 4 is a device that failed while it worked.
    pub fn code(&self) -> u8 {
        match self {
            Ended::Stopped => 0,
            Ended::Refused(_) => 1,
            Ended::Broken(_) => 4,
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Stopped => f.write_str("stopped"),
            Ended::Refused(why) | Ended::Broken(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Ended {}
