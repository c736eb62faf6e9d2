//! A file of all requests and what they were answered, a line of JSON each. It holds what people wrote: nobody else may read it.

use crate::out;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that may wait for the disk. Beyond them a line is lost, and counted, rather than a request held up.
const WAITING: usize = 1024;
/// How long the end of the server waits for the last lines.
const LAST: Duration = Duration::from_secs(2);

/// Flags of the dump.
#[derive(Clone, Debug, clap::Args)]
pub struct DumpArgs {
    /// Write every request and its answer to this file, a line of JSON each, behind what it holds: for `cargo xtask replay`. Keys are
    /// not in it; what people wrote is.
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
}

impl DumpArgs {
    /// Opens the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn open(&self) -> Result<Option<Dump>, String> {
        self.dump.as_deref().map(Dump::open).transpose()
    }
}

/// What goes to the file's thread.
enum Entry {
    Line(String),
    /// Everything before this is to be written; then this is dropped.
    Flush(SyncSender<()>),
}

/// The file, written by a thread of its own.
#[derive(Debug)]
pub(crate) struct Dump {
    entries: SyncSender<Entry>,
    lost: AtomicU64,
}

impl Dump {
    fn open(path: &Path) -> Result<Dump, String> {
        let cannot = |error: std::io::Error| format!("--dump {}: {error}", path.display());
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(cannot)?;
        let (entries, inbox) = sync_channel(WAITING);
        let name = path.display().to_string();
        std::thread::Builder::new()
            .name("dump".into())
            .spawn(move || write(file, &name, &inbox))
            .map_err(cannot)?;
        Ok(Dump { entries, lost: AtomicU64::new(0) })
    }

    /// Hands a line over. Never waits.
    pub(crate) fn write(&self, line: &Value) {
        if self.entries.try_send(Entry::Line(format!("{line}\n"))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that are in no file, because the disk was too slow.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits for what was handed over before, for a while.
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            // Whether it is dropped or the time is over: there is nothing more to wait for.
            let _ = wait.recv_timeout(LAST);
        }
    }
}

fn write(mut file: File, name: &str, inbox: &Receiver<Entry>) {
    let mut failed = false;
    for entry in inbox {
        match entry {
            Entry::Line(line) => {
                if let Err(error) = file.write_all(line.as_bytes()) {
                    if !failed {
                        out::say(format_args!("--dump {name}: {error}; lines are missing from here on"));
                    }
                    failed = true;
                }
            }
            Entry::Flush(done) => drop(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_go_behind_what_is_there_and_are_their_owners_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("dump.jsonl");
        for number in 0..2 {
            let dump = Dump::open(&path).expect("opens");
            dump.write(&json!({ "number": number, "text": "a\nb" }));
            dump.flush();
            assert_eq!(dump.lost(), 0);
        }
        let text = std::fs::read_to_string(&path).expect("written");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines, [json!({"number": 0, "text": "a\nb"}), json!({"number": 1, "text": "a\nb"})]);
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let error = Dump::open(directory.path()).expect_err("a directory");
        assert!(error.starts_with("--dump "), "{error}");
    }

    #[test]
    fn a_disk_that_is_too_slow_costs_lines_and_no_time() {
        let (entries, inbox) = sync_channel(1);
        let dump = Dump { entries, lost: AtomicU64::new(0) };
        for _ in 0..3 {
            dump.write(&json!(1));
        }
        assert_eq!(dump.lost(), 2);
        drop(inbox);
        dump.flush();
    }
}
