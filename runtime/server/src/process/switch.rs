//! Flags that turn something on or off.

/// The value of such a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// The feature is enabled.
    On,
    /// The feature is disabled.
    Off,
}
