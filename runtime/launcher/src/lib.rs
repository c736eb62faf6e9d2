//! Prebuilt servers on a machine without a compiler: what a release holds, what this machine is, which of its
//! servers run here, and how one gets here.

pub mod index;
pub mod install;
pub mod machine;
pub mod needs;
pub mod place;
pub mod start;
pub mod wheel;

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..100_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}
