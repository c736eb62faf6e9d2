//! A log of the time each build step took, one line each, to see where the time of many builds goes.

use super::BuildError;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Path of the log below the workspace's root.
fn file(root: &Path) -> PathBuf {
    root.join("target/servers/times.tsv")
}

/// Appends a line. Time spent waiting for another build of the same directory counts.
///
/// # Errors
/// When the file cannot be written.
pub fn note(root: &Path, what: &str, took: Duration) -> Result<(), BuildError> {
    let path = file(root);
    let io = |error| BuildError::Io(path.clone(), error);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(io)?;
    let mut lines = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
    // A single write, so that lines of several processes do not mix.
    lines.write_all(format!("{:.2}\t{what}\n", took.as_secs_f64()).as_bytes()).map_err(io)
}

/// Deletes the log.
pub fn clear(root: &Path) {
    // A missing log is fine too.
    let _ = std::fs::remove_file(file(root));
}

/// Work of one name: its number of runs and their total time.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Name of the work.
    pub what: String,
    /// Number of runs.
    pub times: usize,
    /// Seconds of all runs together.
    pub seconds: f64,
}

/// Work logged since [`clear`], the longest first.
pub fn noted(root: &Path) -> Vec<Work> {
    sums(&std::fs::read_to_string(file(root)).unwrap_or_default())
}

fn sums(lines: &str) -> Vec<Work> {
    let mut by_name = BTreeMap::<&str, (usize, f64)>::new();
    for (seconds, what) in lines.lines().filter_map(|line| line.split_once('\t')) {
        let (times, sum) = by_name.entry(what).or_default();
        *times += 1;
        *sum += seconds.parse::<f64>().unwrap_or_default();
    }
    let work = |(what, (times, seconds)): (&str, _)| Work { what: what.to_owned(), times, seconds };
    let mut work: Vec<Work> = by_name.into_iter().map(work).collect();
    work.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    work
}

#[cfg(test)]
mod tests {
    use super::{Work, clear, note, noted};
    use std::time::Duration;

    #[test]
    fn what_was_done_twice_is_one_line_and_the_longest_comes_first() {
        let root = tempfile::tempdir().expect("there is room");
        for (what, seconds) in [("server a", 1), ("server b", 5), ("server a", 2)] {
            note(root.path(), what, Duration::from_secs(seconds)).unwrap_or_else(|why| panic!("{why}"));
        }
        let work = |what: &str, times, seconds| Work { what: what.to_owned(), times, seconds };
        assert_eq!(noted(root.path()), [work("server b", 1, 5.0), work("server a", 2, 3.0)]);
        clear(root.path());
        assert_eq!(noted(root.path()), []);
    }
}
