//! The dump: a file of all requests and their answers, a line of JSON each. It holds what people wrote, so
//! only its owner may read it.

use crate::process::out;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result as IoResult, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that may wait for the disk. A line beyond them is dropped and counted, rather than delaying a
/// request.
const WAITING: usize = 1024;
/// How long shutdown waits for the last lines.
const LAST: Duration = Duration::from_secs(2);

/// Flags of the dump.
#[derive(Clone, Debug, clap::Args)]
pub struct DumpArgs {
    /// Write every request and its answer to this file, a line of JSON each, behind what it holds: for `cargo
    /// xtask replay`. Keys are not in it; what people wrote is.
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

/// Messages to the file's thread.
enum Entry {
    Line(String),
    /// A flush: dropped when everything before it is written.
    Flush(SyncSender<()>),
}

/// The file, written by a thread of its own.
#[derive(Debug)]
pub(crate) struct Dump {
    entries: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
    name: String,
}

impl Dump {
    fn open(path: &Path) -> Result<Dump, String> {
        let cannot = |error: Error| format!("--dump {}: {error}", path.display());
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(cannot)?;
        // An earlier run may have ended within a line.
        let torn = file.metadata().map_err(cannot)?.is_file() && is_torn(path).map_err(cannot)?;
        let (entries, inbox) = sync_channel(WAITING);
        let (name, lost) = (path.display().to_string(), Arc::<AtomicU64>::default());
        let lines = Lines { file, torn, failing: false, lost: Arc::clone(&lost), name: name.clone() };
        std::thread::Builder::new().name("dump".into()).spawn(move || lines.take(&inbox)).map_err(cannot)?;
        Ok(Dump { entries, lost, name })
    }

    /// Queues a line. Never waits.
    pub(crate) fn write(&self, line: &Value) {
        if self.entries.try_send(Entry::Line(format!("{line}\n"))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines lost or torn because the disk was full, failed or was too slow.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits a while for queued lines, and reports what is missing.
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        // The sender is dropped, and nothing sent.
        let waiting = self.entries.try_send(Entry::Flush(done)).is_err()
            || wait.recv_timeout(LAST) == Err(RecvTimeoutError::Timeout);
        let (lost, name) = (self.lost(), &self.name);
        if waiting {
            out::say(format_args!(
                "--dump {name}: lines lost: {lost}, and those that still wait for the disk"
            ));
        } else if lost > 0 {
            out::say(format_args!("--dump {name}: lines lost: {lost}"));
        }
    }
}

/// Whether a file ends within a line.
fn is_torn(path: &Path) -> IoResult<bool> {
    let mut file = File::open(path)?;
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Writes lines, each whole or counted as lost.
struct Lines<W> {
    file: W,
    /// Whether the last write ended within a line.
    torn: bool,
    /// Whether the last line was lost.
    failing: bool,
    lost: Arc<AtomicU64>,
    name: String,
}

impl<W: Write> Lines<W> {
    fn take(mut self, inbox: &Receiver<Entry>) {
        for entry in inbox {
            match entry {
                Entry::Line(line) => self.line(line),
                Entry::Flush(done) => drop(done),
            }
        }
    }

    /// Writes a line, after ending a torn one.
    fn line(&mut self, mut line: String) {
        if self.torn {
            line.insert(0, '\n');
        }
        let (written, result) = write(&mut self.file, line.as_bytes());
        // If only the torn line's end was written, the next line is whole; if nothing was, the torn line
        // stays torn.
        self.torn = if written == 0 { self.torn } else { line.as_bytes()[written - 1] != b'\n' };
        let name = &self.name;
        match &result {
            Ok(()) if self.failing => {
                let lost = self.lost.load(Ordering::Relaxed);
                out::say(format_args!("--dump {name}: lines are written again; lost so far: {lost}"));
            }
            Ok(()) => {}
            Err(error) => {
                // A line that lacks only its line end counts as written.
                if written + 1 < line.len() {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                }
                if !self.failing {
                    out::say(format_args!("--dump {name}: {error}; lines are lost from here on"));
                }
            }
        }
        self.failing = result.is_err();
    }
}

/// Writes `bytes`; returns how many were written.
fn write(file: &mut impl Write, bytes: &[u8]) -> (usize, IoResult<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
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

    /// A disk with room for so many bytes, which it fills before it fails.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
            let taken = bytes.len().min(self.room - self.bytes.len());
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> IoResult<()> {
            Ok(())
        }
    }

    /// Of every size: lines are whole or counted, and what is torn is on a line of its own.
    #[test]
    fn a_full_disk_costs_the_lines_that_it_has_no_room_for() {
        const LINE: &str = "{\"a\":1}\n";
        for room in 0..=5 * LINE.len() {
            let disk = Disk { bytes: Vec::new(), room };
            let mut lines = Lines {
                file: disk,
                torn: false,
                failing: false,
                lost: Arc::default(),
                name: "dump".to_owned(),
            };
            for _ in 0..4 {
                lines.line(LINE.to_owned());
            }
            // Room is made.
            lines.file.room += 1000;
            for _ in 0..2 {
                lines.line(LINE.to_owned());
            }
            let text = String::from_utf8(lines.file.bytes).expect("text");
            let whole = text.lines().filter(|line| *line == LINE.trim_end()).count() as u64;
            let lost = lines.lost.load(Ordering::Relaxed);
            assert_eq!(whole + lost, 6, "room for {room}: {text:?}");
            assert_eq!(
                lost,
                4_u64.saturating_sub(((room + 1) / LINE.len()) as u64),
                "room for {room}: {text:?}"
            );
            let torn = text.lines().filter(|line| *line != LINE.trim_end()).count();
            let cut = room < 4 * LINE.len()
                && !(room + 1).is_multiple_of(LINE.len())
                && !room.is_multiple_of(LINE.len());
            assert_eq!(torn, usize::from(cut), "room for {room}: {text:?}");
        }
    }

    #[test]
    fn a_torn_line_of_before_is_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("dump.jsonl");
        std::fs::write(&path, "{\"number\":0}\n{\"numb").expect("written");
        for number in 1..3 {
            let dump = Dump::open(&path).expect("opens");
            dump.write(&json!({ "number": number }));
            dump.flush();
        }
        let text = std::fs::read_to_string(&path).expect("written");
        assert_eq!(text, "{\"number\":0}\n{\"numb\n{\"number\":1}\n{\"number\":2}\n");
    }

    #[test]
    fn what_has_no_room_at_all_loses_every_line() {
        let dump = Dump::open(Path::new("/dev/full")).expect("opens");
        for _ in 0..3 {
            dump.write(&json!(1));
        }
        dump.flush();
        assert_eq!(dump.lost(), 3);
    }

    #[test]
    fn a_disk_that_is_too_slow_costs_lines_and_no_time() {
        let (entries, inbox) = sync_channel(1);
        let dump = Dump { entries, lost: Arc::default(), name: "dump".to_owned() };
        for _ in 0..3 {
            dump.write(&json!(1));
        }
        assert_eq!(dump.lost(), 2);
        drop(inbox);
        dump.flush();
    }
}
