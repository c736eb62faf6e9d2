//! Files that targets are read from.

/// A file that a target was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFile {
    /// Its path below the targets directory.
    pub name: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}
