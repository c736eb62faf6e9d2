//! The CUDA release that machine code is compiled with, and what it asks of a machine.

/// The release, as `nvcc --version` says it.
pub const RELEASE: &str = "13.0";

/// The same, as a driver counts: 1000 * major + 10 * minor. A driver for an older one cannot run the code.
pub const VERSION: i32 = 13_000;

/// The first branch of drivers for that release.
pub const LEAST_DRIVER: u32 = 580;
