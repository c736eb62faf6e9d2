//! Writes a file of packed weights: [`monomorph_abi::packed_file`] says what it is.

use crate::file::WeightsFile;
use crate::packed::{Packed, digest};
use crate::{Checkpoint, Tensor, WeightsError};
use monomorph_abi::packed_file::{
    ALIGNMENT, Array, Beside, Header, Kept, LAYOUT, PREFIX, Piece, Prefix, Source,
};
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Files beside safetensors that a server reads, as far as they are there.
pub const BESIDE: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Most bytes of an array's name. Room for the header is claimed before the names are known.
const NAME: usize = 160;

/// Arrays that a tensor becomes at most: the heads of a latent become two.
const ARRAYS: usize = 2;

/// A file of packed weights that is being written, under another name: it gets its own when it is whole, and
/// goes away if it never is.
#[derive(Debug)]
pub struct Packing {
    path: PathBuf,
    /// What it is called meanwhile; `None` once it has its own name.
    partial: Option<PathBuf>,
    file: File,
    header: Header,
    /// Bytes that the header may have.
    room: u64,
    /// Where the next array may begin.
    end: u64,
}

impl Packing {
    /// Begins the file that `path` is to be, with what is read of a checkpoint besides the tensors that are
    /// packed, of which there are at most `tensors`: the header of a GGUF file, tensors whose names are
    /// `wanted`, and files beside them. `build` and `by` are as in [`Header`].
    ///
    /// # Errors
    /// When there is another file at `path` which is none of packed weights, or the file cannot be written.
    pub fn begin(
        path: &Path,
        checkpoint: &Checkpoint,
        (build, by): (&str, &str),
        tensors: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Packing, WeightsError> {
        if path.exists() && Packed::look(path).is_none() {
            let what = "is there already, and is no file of packed weights: name another, or remove it";
            return Err(WeightsError::malformed(path, what));
        }
        let name = path.file_name().ok_or_else(|| WeightsError::malformed(path, "is no name of a file"))?;
        let partial =
            path.with_file_name(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&partial);
        let file = file.map_err(|error| WeightsError::io(&partial, error))?;
        let header =
            Header { layout: LAYOUT, build: build.to_owned(), by: by.to_owned(), ..Header::default() };
        let (path, partial) = (path.to_owned(), Some(partial));
        let mut packing = Packing { path, partial, file, header, room: 0, end: 0 };
        packing.describe(checkpoint, wanted);
        let arrays = ARRAYS * tensors + 1;
        packing.room = (PREFIX + packing.header.encoded_bytes(arrays, arrays * NAME)) as u64;
        packing.end = packing.room;
        packing.keep(checkpoint)?;
        Ok(packing)
    }

    /// Lists what is kept of the checkpoint, without places or digests.
    fn describe(&mut self, checkpoint: &Checkpoint, wanted: &dyn Fn(&str) -> bool) {
        let source = |file: &WeightsFile| {
            let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            Source { name, bytes: file.bytes(), modified: file.stamp().modified }
        };
        self.header.sources = checkpoint.files().iter().map(source).collect();
        self.header.gguf = checkpoint.gguf_metadata().map(|_| Piece::default());
        let beside = BESIDE.into_iter().filter(|name| checkpoint.side_file(name).is_some());
        self.header.beside =
            beside.map(|name| Beside { name: name.to_owned(), ..Beside::default() }).collect();
        let kept = |Tensor { name, shape, format, .. }: Tensor| Kept {
            name: name.to_owned(),
            format: format.name().to_owned(),
            shape: shape.iter().map(|size| *size as u64).collect(),
            piece: Piece::default(),
        };
        self.header.tensors = checkpoint.tensors().filter(|it| wanted(it.name)).map(kept).collect();
    }

    /// Copies what is kept of the checkpoint, in the order of [`Header::kept`].
    fn keep(&mut self, checkpoint: &Checkpoint) -> Result<(), WeightsError> {
        let mut header = std::mem::take(&mut self.header);
        if let (Some(piece), Some(file)) = (&mut header.gguf, checkpoint.files().first()) {
            let mut bytes = vec![0; checkpoint.header_bytes()];
            file.read_at(0, &mut bytes)?;
            *piece = self.append(&bytes)?;
        }
        for beside in &mut header.beside {
            let Some(file) = checkpoint.side_file(&beside.name) else { continue };
            let bytes = file.read().map_err(|error| WeightsError::io(file.path(), error))?;
            beside.piece = self.append(&bytes)?;
        }
        for kept in &mut header.tensors {
            kept.piece = self.append(&checkpoint.tensor(&kept.name)?.bytes.read()?)?;
        }
        self.header = header;
        Ok(())
    }

    /// Writes an array; `name` and `made` are as in [`Array`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&mut self, name: &str, made: u64, bytes: &[u8]) -> Result<(), WeightsError> {
        self.end = self.end.next_multiple_of(ALIGNMENT);
        let piece = self.append(bytes)?;
        let name = name.chars().scan(0, |length, letter| {
            *length += letter.len_utf8();
            (*length <= NAME).then_some(letter)
        });
        self.header.arrays.push(Array { name: name.collect(), made, piece });
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<Piece, WeightsError> {
        let place = self.end..self.end + bytes.len() as u64;
        self.file.write_all_at(bytes, place.start).map_err(|error| self.failed(error))?;
        self.end = place.end;
        Ok(Piece { place, digest: digest(bytes) })
    }

    fn failed(&self, error: std::io::Error) -> WeightsError {
        WeightsError::io(self.partial.as_ref().unwrap_or(&self.path), error)
    }

    /// Writes the header, and gives the file its name. A process that has mapped another file of that name
    /// goes on with it. Returns the file's bytes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> Result<u64, WeightsError> {
        let encoded = self.header.encode();
        let header = (PREFIX + encoded.len()) as u64;
        if header > self.room {
            let what = format!("has a header of {header} bytes, and {} were left for it", self.room);
            return Err(WeightsError::malformed(&self.path, what));
        }
        let made_up = self.header.sources.is_empty();
        let prefix = Prefix { made_up, header, file: self.end, digest: digest(&encoded) };
        let write = || -> std::io::Result<()> {
            // An array without bytes may end it.
            self.file.set_len(self.end)?;
            self.file.write_all_at(&encoded, PREFIX as u64)?;
            self.file.write_all_at(&prefix.encode(), 0)?;
            // Nobody writes to a file that servers map.
            self.file.set_permissions(Permissions::from_mode(0o444))?;
            self.file.sync_all()?;
            self.partial.as_ref().map_or(Ok(()), |partial| std::fs::rename(partial, &self.path))
        };
        write().map_err(|error| self.failed(error))?;
        self.partial = None;
        Ok(self.end)
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // If it cannot be removed either, its name says what it is.
            let _ = std::fs::remove_file(partial);
        }
    }
}
