//! What a thread reads of tensors: a few windows into them, or the pieces of what it announced.

use crate::WeightsError;
use crate::ahead::Ahead;
use crate::file::{Bytes, Location, WeightsFile, only_packed};
use std::ops::Range;

/// Bytes per read: few system calls, and little memory for each reading thread.
const WINDOW: usize = 256 << 10;
/// Tensors that a thread reads in alternation: codes and scales of several parts of a matrix.
const WINDOWS: usize = 8;

/// A thread's read buffers for the tensors it is going through, so that a row does not cost a system call.
///
/// Of reads that were [announced](Windows::announce), pieces are in flight before they are asked for, where
/// files are read directly.
#[derive(Debug, Default)]
pub struct Windows<'a> {
    windows: Vec<Window<'a>>,
    next: usize,
    ahead: Option<Ahead<'a>>,
    /// What was made up last.
    made_up: Vec<u8>,
}

#[derive(Debug)]
struct Window<'a> {
    file: &'a WeightsFile,
    /// Offset of the tensor in the file.
    tensor: u64,
    /// Offset of the window in the tensor.
    start: usize,
    bytes: Vec<u8>,
}

impl<'a> Windows<'a> {
    /// Says what will be read, in the order in which it will; it follows what was announced before. What is
    /// read otherwise is right and slower.
    pub fn announce(&mut self, reads: impl IntoIterator<Item = (Bytes<'a>, Range<usize>)>) {
        let of_files = reads.into_iter().filter_map(|(of, range)| match of.0 {
            Location::File { file, start, .. } if file.direct().is_some() => {
                Some((file, start + range.start as u64..start + range.end as u64))
            }
            _ => None,
        });
        let mut of_files = of_files.peekable();
        let Some((file, _)) = of_files.peek() else { return };
        if self.ahead.is_none()
            && let Some(direct) = file.direct()
        {
            match Ahead::new(direct) {
                Ok(ahead) => self.ahead = Some(ahead),
                Err(error) => file.counts().fall_back(format!("a thread has no io_uring: {error}")),
            }
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.announce(of_files);
        }
    }

    /// A range of a tensor's bytes.
    ///
    /// # Errors
    /// When the file cannot be read, or has become too short.
    ///
    /// # Panics
    /// When the range exceeds the tensor.
    pub fn read(&mut self, of: Bytes<'a>, range: Range<usize>) -> Result<&[u8], WeightsError> {
        assert!(range.start <= range.end && range.end <= of.len(), "{range:?} of {} bytes", of.len());
        let (file, tensor, len) = match of.0 {
            Location::Memory(bytes) => return Ok(&bytes[range]),
            Location::File { file, start, len } => (file, start, len),
            Location::MadeUp { it, start, .. } => {
                self.made_up.resize(range.len(), 0);
                it.fill(start + range.start, &mut self.made_up);
                return Ok(&self.made_up);
            }
            Location::Packed { path, .. } => return Err(only_packed(path)),
        };
        let place = tensor + range.start as u64..tensor + range.end as u64;
        let is_ready = self.ahead.as_mut().map_or(Ok(false), |ahead| ahead.prepare(file, &place))?;
        if is_ready {
            return Ok(self.ahead.as_mut().expect("it is ready there").bytes(file, place));
        }
        let known = self.windows.iter().position(|it| std::ptr::eq(it.file, file) && it.tensor == tensor);
        let at = known.unwrap_or_else(|| self.claim(file, tensor));
        let window = &mut self.windows[at];
        if range.start < window.start || range.end > window.start + window.bytes.len() {
            let end = range.end.max(len.min(range.start + WINDOW));
            window.start = range.start;
            window.bytes.resize(end - range.start, 0);
            if let Err(error) = file.read_at(tensor + range.start as u64, &mut window.bytes) {
                // Its contents are undefined now.
                window.bytes.clear();
                return Err(error);
            }
        }
        Ok(&window.bytes[range.start - window.start..range.end - window.start])
    }

    /// An empty window for a tensor: a new one, or the one claimed longest ago.
    fn claim(&mut self, file: &'a WeightsFile, tensor: u64) -> usize {
        if self.windows.len() < WINDOWS {
            self.windows.push(Window { file, tensor, start: 0, bytes: Vec::new() });
            return self.windows.len() - 1;
        }
        let at = self.next;
        self.next = (at + 1) % WINDOWS;
        let window = &mut self.windows[at];
        (window.file, window.tensor, window.start) = (file, tensor, 0);
        window.bytes.clear();
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_give_what_the_file_holds_in_any_order() {
        let content: Vec<u8> = (0..3 * WINDOW + 77).map(|at| (at * 31 % 251) as u8).collect();
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), &content).unwrap();
        let file = WeightsFile::open(named.path()).unwrap();
        let mut windows = Windows::default();
        // More tensors than windows, in alternation, forwards and backwards.
        for step in [1usize, 7, 40_009] {
            for turn in 0..200 {
                let tensor = turn % (WINDOWS + 3);
                let begin = tensor * 1000;
                let bytes = Bytes::of_file(&file, begin..content.len());
                let first = (turn * step * 97) % (bytes.len() - 500);
                let range = first..first + 500;
                let found = windows.read(bytes, range.clone()).unwrap();
                assert!(found == &content[begin + range.start..begin + range.end], "{tensor}: {range:?}");
            }
        }
        let all = Bytes::of_file(&file, 5..content.len());
        assert_eq!(windows.read(all, 0..all.len()).unwrap(), &content[5..], "more than a window at a time");
        assert_eq!(&*all.slice(3..10).read().unwrap(), &content[8..15]);
        assert_eq!(Windows::default().read(content[..].into(), 3..5).unwrap(), &content[3..5]);
    }

    /// Backends that read plainly, and fail as they are told to.
    mod faults {
        use monomorph_store::{PageMemory, Read, Reads};
        use std::io;
        use std::os::unix::fs::FileExt;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) enum Fault {
            Io,
            Short(usize),
        }

        /// Completes the newest read first.
        pub(super) struct Faulty {
            pub(super) fault: Option<(usize, Fault)>,
            pub(super) begun: Arc<AtomicUsize>,
            pub(super) most: Arc<AtomicUsize>,
            pub(super) reads: Vec<(usize, Read)>,
        }

        impl Reads for Faulty {
            fn begin(&mut self, read: Read) {
                self.reads.push((self.begun.fetch_add(1, Ordering::Relaxed), read));
                self.most.fetch_max(self.reads.len(), Ordering::Relaxed);
            }

            fn in_flight(&self) -> usize {
                self.reads.len()
            }

            fn finish(&mut self, done: &mut Vec<(Read, io::Result<usize>)>) {
                let Some((number, mut read)) = self.reads.pop() else { return };
                let fault = self.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
                let most = match fault {
                    Some(Fault::Io) => {
                        return done.push((read, Err(io::Error::from_raw_os_error(libc::EIO))));
                    }
                    Some(Fault::Short(bytes)) => bytes,
                    None => read.len,
                };
                let (len, at) = (read.len, read.at);
                let result = read.file.read_at(&mut read.page.bytes_mut()[..len], at);
                read.page.bytes_mut()[most..].fill(0xee);
                done.push((read, result.map(|bytes| bytes.min(most))));
            }
        }
    }

    use crate::Checkpoint;
    use crate::channels::{BUFFERS, Channels};
    use crate::pieces::PIECE;
    use faults::{Fault, Faulty};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A checkpoint of two tensors that begin and end anywhere, whose file is in nobody's cache, and its
    /// tensors' bytes.
    struct Stored {
        _directory: tempfile::TempDir,
        path: PathBuf,
        bytes: [Vec<u8>; 2],
    }

    const LENGTHS: [usize; 2] = [9 * PIECE as usize + 1235, 5 * PIECE as usize - 5];

    fn stored(directory: tempfile::TempDir) -> Stored {
        let path = directory.path().join("model.safetensors");
        let make = |seed: usize, len| (0..len).map(|at: usize| ((at / 5 + seed) * 31 % 253) as u8).collect();
        let bytes: [Vec<u8>; 2] = [make(1, LENGTHS[0]), make(77, LENGTHS[1])];
        let [one, two] = LENGTHS.map(|len| len / 4 * 4);
        let tensor = |from, len| {
            format!("{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{from},{}]}}", len / 4, from + len)
        };
        let header = format!("{{\"a\":{},\"b\":{}}}", tensor(0, one), tensor(one, two));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(&bytes[0][..one]);
        file.extend(&bytes[1][..two]);
        std::fs::write(&path, file).unwrap();
        monomorph_store::drop_cached(&std::fs::File::open(&path).unwrap()).unwrap();
        Stored { _directory: directory, path, bytes }
    }

    /// On a disk: temporary directories may be in memory, which has no direct reads.
    fn on_disk() -> Stored {
        stored(tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap())
    }

    /// Reads both tensors in rows in turn, as packing does, after announcing that.
    fn read_all(checkpoint: &Checkpoint, bytes: &[Vec<u8>; 2], row: usize) -> Result<(), WeightsError> {
        let tensors = ["a", "b"].map(|name| checkpoint.tensor(name).unwrap().bytes);
        let reads = || {
            (0..tensors[0].len().div_ceil(row)).flat_map(|at| {
                [0, 1].into_iter().filter_map(move |it| {
                    let end = tensors[it].len().min((at + 1) * row);
                    (at * row < end).then_some((it, at * row..end))
                })
            })
        };
        let mut windows = Windows::default();
        windows.announce(reads().map(|(it, range)| (tensors[it], range)));
        for (it, range) in reads() {
            assert!(
                windows.read(tensors[it], range.clone())? == &bytes[it][range.clone()],
                "{it}: {range:?}"
            );
        }
        Ok(())
    }

    /// To be caught: a straddling read of its first piece alone; the offset in the piece forgotten; a piece
    /// given up one read too early.
    #[test]
    fn what_was_announced_is_read_directly_and_is_what_the_file_holds() {
        let it = on_disk();
        for row in [1000, 4096, 70_000, PIECE as usize, 3 * PIECE as usize + 17] {
            let checkpoint = Checkpoint::open(&it.path).unwrap().read_directly();
            read_all(&checkpoint, &it.bytes, row).unwrap();
            let read = checkpoint.reading();
            if read.why_plain.is_some() {
                // A system without io_uring or direct reads says so, and reads the same.
                assert!(read.direct == 0 && read.plain > 0, "{read:?}");
                continue;
            }
            // Nothing but what was announced, and of that at most a block more at each end of a piece.
            let all = LENGTHS.iter().sum::<usize>() as u64;
            assert!(read.direct >= all - 8 && read.direct <= all + all / 8, "{row}: {read:?}");
            assert_eq!((read.cached, read.plain), (0, 0), "{row}");
        }
    }

    /// To be caught: cached pieces read directly.
    #[test]
    fn what_is_cached_is_taken_from_the_cache() {
        let it = on_disk();
        std::fs::read(&it.path).unwrap();
        let checkpoint = Checkpoint::open(&it.path).unwrap().read_directly();
        read_all(&checkpoint, &it.bytes, 5000).unwrap();
        let read = checkpoint.reading();
        assert!(read.direct == 0 && read.cached + read.plain >= LENGTHS[0] as u64, "{read:?}");
    }

    /// A backend in place of io_uring, of which one read fails; how many were begun, and how many at once.
    fn faulty(fault: Option<(usize, Fault)>) -> (Channels, [Arc<AtomicUsize>; 2]) {
        let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let [begun, most] = counts.clone();
        let make = move || -> std::io::Result<Box<dyn monomorph_store::Reads>> {
            let (begun, most) = (Arc::clone(&begun), Arc::clone(&most));
            Ok(Box::new(Faulty { fault, begun, most, reads: Vec::new() }))
        };
        (Channels::with(make), counts)
    }

    /// To be caught: an error taken for a short read; the rest of a short read not read.
    #[test]
    fn a_read_that_fails_is_an_error_with_file_and_offset_and_a_short_one_is_completed() {
        let it = on_disk();
        // The first read of all tries whether the file can be read directly.
        for fault in [None, Some((3, Fault::Short(0))), Some((3, Fault::Short(777))), Some((3, Fault::Io))] {
            let (channels, [begun, most]) = faulty(fault);
            let checkpoint = Checkpoint::open(&it.path).unwrap().read_with(channels);
            if checkpoint.reading().why_plain.is_some() {
                return;
            }
            let result = read_all(&checkpoint, &it.bytes, 4000);
            assert!(most.load(Ordering::Relaxed) > BUFFERS / 2, "several are in flight");
            assert!(begun.load(Ordering::Relaxed) > 3);
            match fault {
                Some((_, Fault::Io)) => {
                    let words = result.expect_err("a read failed").to_string();
                    assert!(
                        words.contains("model.safetensors: bytes ") && words.contains("os error 5"),
                        "{words}"
                    );
                }
                _ => result.unwrap(),
            }
            // What was in flight is back, and another thread reads with it.
            if fault.is_none_or(|(_, fault)| fault != Fault::Io) {
                monomorph_store::drop_cached(checkpoint.files()[0].file()).unwrap();
                read_all(&checkpoint, &it.bytes, 9000).unwrap();
            }
        }
    }

    /// To be caught: the end of the file taken for what is there.
    #[test]
    fn a_file_that_is_cut_short_while_it_is_read_directly_is_an_error_with_the_bytes() {
        let it = on_disk();
        let checkpoint = Checkpoint::open(&it.path).unwrap().read_directly();
        std::fs::OpenOptions::new().write(true).open(&it.path).unwrap().set_len(3 * PIECE + 100).unwrap();
        let words = read_all(&checkpoint, &it.bytes, 4000).expect_err("it is short").to_string();
        assert!(words.contains("model.safetensors: was cut short while it was read: bytes "), "{words}");
    }

    /// To be caught: the reason dropped.
    #[test]
    fn a_system_without_rings_reads_plainly_and_says_why() {
        let it = on_disk();
        let forbidden = || Err(std::io::Error::from_raw_os_error(libc::EPERM));
        let checkpoint = Checkpoint::open(&it.path).unwrap().read_with(Channels::with(forbidden));
        read_all(&checkpoint, &it.bytes, 4000).unwrap();
        let read = checkpoint.reading();
        let why = read.why_plain.clone().expect("there is a reason");
        assert!(why.contains("there is no io_uring: ") || why.contains("cannot be opened"), "{why}");
        assert!(read.direct == 0 && read.plain > LENGTHS[0] as u64, "{read:?}");
        let checkpoint = Checkpoint::open(&it.path).unwrap().read_plainly("--no-fast-load");
        read_all(&checkpoint, &it.bytes, 4000).unwrap();
        assert_eq!(checkpoint.reading().why_plain.as_deref(), Some("--no-fast-load"));
    }

    /// To be caught: reads in flight not waited for, so that their buffers were missing.
    #[test]
    fn who_stops_early_waits_for_what_is_in_flight() {
        let it = on_disk();
        let (channels, [begun, _]) = faulty(None);
        let checkpoint = Checkpoint::open(&it.path).unwrap().read_with(channels);
        if checkpoint.reading().why_plain.is_some() {
            return;
        }
        let tensor = checkpoint.tensor("a").unwrap().bytes;
        for _ in 0..3 {
            let mut windows = Windows::default();
            windows.announce((0..1000).map(|row| (tensor, row * 1000..(row + 1) * 1000)));
            assert_eq!(windows.read(tensor, 0..1000).unwrap(), &it.bytes[0][..1000]);
        }
        let before = begun.load(Ordering::Relaxed);
        read_all(&checkpoint, &it.bytes, 4000).unwrap();
        assert!(before >= 3 && begun.load(Ordering::Relaxed) > before + 10);
        let free = checkpoint.files()[0].direct().unwrap().channels.take().unwrap().free.len();
        assert_eq!(free, BUFFERS, "no buffer is lost");
    }
}
