//! Writing to the terminal. `println!` panics on a closed pipe; a server should not.

use std::fmt::Arguments;
use std::io::Write;

/// Bytes of a GB, as flags and [`bytes`] count them.
pub(crate) const GB: f64 = 1e9;

/// A line to standard output, flushed. A reader that has gone is no error.
pub(crate) fn print(line: Arguments) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A line to standard error.
pub(crate) fn say(line: Arguments) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A byte count for people.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
