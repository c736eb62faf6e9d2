//! An opened checkpoint: its files and its tensors.

use crate::channels::{Channels, Counts, WeightsRead};
use crate::declared::Declared;
use crate::entry::{Encoding, Entry};
use crate::file::{Bytes, WeightsFile};
use crate::metadata::Metadata;
use crate::packed::{self, Packed, SideFile};
use crate::{Tensor, WeightsError, gguf, safetensors, split};
use monomorph_formats::Format;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The end of the name of an index of shards.
const INDEX: &str = ".safetensors.index.json";

/// Where the safetensors files of a directory are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Safetensors {
    /// One file holds everything.
    Whole(PathBuf),
    /// An index names the shards beside it.
    Index(PathBuf),
}

impl Safetensors {
    /// What files are called before `.safetensors` by Hugging Face's libraries.
    pub const HUGGING_FACE: &str = "model";
    /// The same in Mistral's own releases.
    pub const MISTRAL: &str = "consolidated";

    /// The files of a directory in either form, that of Hugging Face first; `None` where there are none.
    pub fn of(directory: &Path) -> Option<Safetensors> {
        [Safetensors::HUGGING_FACE, Safetensors::MISTRAL]
            .iter()
            .find_map(|stem| Safetensors::called(directory, stem))
    }

    /// The files of a directory in one form; `None` where there are none.
    pub fn called(directory: &Path, stem: &str) -> Option<Safetensors> {
        let whole = directory.join(format!("{stem}.safetensors"));
        let index = directory.join(format!("{stem}{INDEX}"));
        match (whole.exists(), index.exists()) {
            (true, _) => Some(Safetensors::Whole(whole)),
            (false, true) => Some(Safetensors::Index(index)),
            (false, false) => None,
        }
    }
}

fn is_index(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(INDEX))
}

/// An opened checkpoint: one GGUF file, or the safetensors files of a directory.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    directory: Option<PathBuf>,
    files: Vec<WeightsFile>,
    tensors: Vec<Entry>,
    by_name: HashMap<String, usize>,
    metadata: Option<Metadata>,
    packed: Option<Packed>,
    /// Of made-up weights, and of packed ones.
    declared: Option<Declared>,
    /// What was read of the files.
    counts: Arc<Counts>,
}

impl Checkpoint {
    /// Opens a `.gguf` file, a `.safetensors` file, an index of shards, or a directory. It holds
    /// `model.safetensors`, or else `consolidated.safetensors` (or an index of that name and its shards),
    /// beside `tokenizer.json` and friends; or exactly one `.gguf` file. Of one in parts, any part is all of
    /// it, and so is a directory of its parts.
    ///
    /// # Errors
    /// When nothing readable is there, or a file is malformed.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        let kind = std::fs::metadata(path).map_err(|error| WeightsError::io(path, error))?;
        if kind.is_dir() {
            return Checkpoint::open_directory(path);
        }
        if is_index(path) {
            return Checkpoint::open_shards(path.parent().unwrap_or(Path::new("")), path);
        }
        let file = WeightsFile::open(path)?;
        // The content decides, not the name: a hub cache names its files by digest.
        let beginning = file.beginning(9)?;
        if packed::is_one(&beginning) {
            let what = "holds packed weights, which only servers for CPUs read (`--weights`)";
            return Err(WeightsError::malformed(path, what));
        }
        if beginning.starts_with(&gguf::MAGIC) || extension(path) == Some("gguf") {
            return Checkpoint::open_gguf(path, file);
        }
        if extension(path) == Some("safetensors") || beginning.get(8) == Some(&b'{') {
            let tensors = safetensors::read(&file, 0)?;
            return Checkpoint::assemble(path, path.parent(), vec![file], tensors, None);
        }
        Err(WeightsError::malformed(path, "is neither a GGUF nor a safetensors file"))
    }

    /// Opens a checkpoint for its tokenizer and templates: as [`Checkpoint::open`], but a directory need not
    /// contain weights.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], for the weights that there are.
    pub fn open_text(path: &Path) -> Result<Checkpoint, WeightsError> {
        if ["tokenizer.json", "tekken.json"].iter().any(|name| path.join(name).is_file()) {
            return Checkpoint::assemble(path, Some(path), Vec::new(), Vec::new(), None);
        }
        Checkpoint::open(path)
    }

    /// Opens a file of packed weights, with the texts that it keeps of what it was packed from. Its tensors
    /// are those that are [asked for](Checkpoint::expect): whether arrays were made of them is for their
    /// digests to say.
    ///
    /// # Errors
    /// When nothing readable is there, or the file is not whole, or of another version.
    pub fn open_packed(path: &Path) -> Result<Checkpoint, WeightsError> {
        let packed = Packed::open(path)?;
        let metadata = packed.gguf().map(|file| gguf::read(&file, 0)).transpose()?;
        let (files, tensors) = (vec![packed.weights_file()], packed.tensors()?);
        let metadata = metadata.map(|(metadata, _)| metadata);
        let checkpoint = Checkpoint::assemble(path, None, files, tensors, metadata)?;
        // Nothing is read of what is made up: the seed does not matter.
        let declared = if packed.is_made_up() { Declared::made_up(0) } else { Declared::default() };
        Ok(Checkpoint { packed: Some(packed), declared: Some(declared), ..checkpoint })
    }

    /// Made-up weights: whatever tensor is asked for is there. Equal seeds give equal ones.
    pub fn made_up(seed: u64) -> Checkpoint {
        Checkpoint {
            path: PathBuf::from("made-up weights"),
            directory: None,
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            metadata: None,
            packed: None,
            declared: Some(Declared::made_up(seed)),
            counts: Arc::default(),
        }
    }

    /// The checkpoint with the tensors of another, which are called `prefix` and their own names here.
    ///
    /// # Errors
    /// When the other has no safetensors, or this one has a tensor of such a name.
    pub fn with(mut self, prefix: &str, other: Checkpoint) -> Result<Checkpoint, WeightsError> {
        if other.metadata.is_some() || other.packed.is_some() || other.declared.is_some() {
            return Err(other.mismatch("holds no safetensors, and only those stand beside others".to_owned()));
        }
        let first = self.files.len();
        for entry in other.tensors {
            let name = format!("{prefix}{}", entry.name);
            if self.by_name.insert(name.clone(), self.tensors.len()).is_some() {
                return Err(self.mismatch(format!("holds a tensor `{name}`, as a checkpoint beside it does")));
            }
            self.tensors.push(Entry { name, file: first + entry.file, ..entry });
        }
        self.files.extend(other.files);
        Ok(self)
    }

    fn open_gguf(path: &Path, file: WeightsFile) -> Result<Checkpoint, WeightsError> {
        let (metadata, tensors) = gguf::read(&file, 0)?;
        match metadata.u32("split.count")? {
            Some(count @ 2..) => Checkpoint::open_parts(path, split::parts(file.path(), count)?),
            _ => Checkpoint::assemble(path, None, vec![file], tensors, Some(metadata)),
        }
    }

    /// Opens the parts of a GGUF file.
    fn open_parts(path: &Path, parts: Vec<PathBuf>) -> Result<Checkpoint, WeightsError> {
        let (mut files, mut tensors, mut first) = (Vec::new(), Vec::new(), None);
        let count = parts.len();
        for (number, part) in parts.iter().enumerate() {
            if !part.exists() {
                let what = format!("is part {} of {count}, and missing", number + 1);
                return Err(WeightsError::malformed(part, what));
            }
            let file = WeightsFile::open(part)?;
            let (metadata, found) = gguf::read(&file, number)?;
            let said = (metadata.u32("split.no")?, metadata.u32("split.count")?);
            let wanted = (Some(number as u32), Some(count as u32));
            if said != wanted {
                let what = format!("has `split.no` and `split.count` {said:?}: its name wants {wanted:?}");
                return Err(WeightsError::malformed(part, what));
            }
            first = first.or(Some(metadata));
            files.push(file);
            tensors.extend(found);
        }
        if let Some(all) = first.as_ref().map_or(Ok(None), |it| it.u32("split.tensors.count"))?
            && all as usize != tensors.len()
        {
            let what = format!("says that there are {all} tensors, and its parts have {}", tensors.len());
            return Err(WeightsError::malformed(path, what));
        }
        Checkpoint::assemble(path, None, files, tensors, first)
    }

    fn open_directory(path: &Path) -> Result<Checkpoint, WeightsError> {
        match Safetensors::of(path) {
            Some(Safetensors::Whole(single)) => {
                let file = WeightsFile::open(&single)?;
                let tensors = safetensors::read(&file, 0)?;
                return Checkpoint::assemble(path, Some(path), vec![file], tensors, None);
            }
            Some(Safetensors::Index(index)) => return Checkpoint::open_shards(path, &index),
            None => {}
        }
        let mut ggufs = Vec::new();
        for file in std::fs::read_dir(path).map_err(|error| WeightsError::io(path, error))? {
            let file = file.map_err(|error| WeightsError::io(path, error))?.path();
            if extension(&file) == Some("gguf") {
                ggufs.push(file);
            }
        }
        match (split::only_gguf(&ggufs), &ggufs[..]) {
            (Some(one), _) => Checkpoint::open_gguf(path, WeightsFile::open(one)?),
            (None, []) => Err(WeightsError::malformed(
                path,
                "holds neither model.safetensors nor consolidated.safetensors, nor an index of either \
                 (.safetensors.index.json), nor a .gguf file",
            )),
            (None, several) => Err(WeightsError::malformed(
                path,
                format!("holds {} .gguf files; name the one to read", several.len()),
            )),
        }
    }

    fn open_shards(path: &Path, index: &Path) -> Result<Checkpoint, WeightsError> {
        let mut files = Vec::new();
        let mut tensors: Vec<Entry> = Vec::new();
        for (shard, expected) in safetensors::read_index(index)? {
            let file = path.join(&shard);
            if !file.exists() {
                return Err(WeightsError::malformed(
                    index,
                    format!("names the shard `{shard}`, which is missing"),
                ));
            }
            let file = WeightsFile::open(&file)?;
            let found = safetensors::read(&file, files.len())?;
            for name in &expected {
                if !found.iter().any(|tensor| tensor.name == *name) {
                    return Err(WeightsError::malformed(
                        index,
                        format!("puts tensor `{name}` into `{shard}`, which does not hold it"),
                    ));
                }
            }
            files.push(file);
            tensors.extend(found);
        }
        Checkpoint::assemble(path, Some(path), files, tensors, None)
    }

    fn assemble(
        path: &Path,
        directory: Option<&Path>,
        files: Vec<WeightsFile>,
        tensors: Vec<Entry>,
        metadata: Option<Metadata>,
    ) -> Result<Checkpoint, WeightsError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), index).is_some() {
                return Err(WeightsError::malformed(
                    path,
                    format!("tensor `{}` is in more than one shard", tensor.name),
                ));
            }
        }
        let directory = directory.map(Path::to_owned);
        let path = path.to_owned();
        Ok(Checkpoint {
            path,
            directory,
            files,
            tensors,
            by_name,
            metadata,
            packed: None,
            declared: None,
            counts: Arc::default(),
        })
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of `tokenizer.json`, `config.json` and similar files; `None` for a GGUF file, which
    /// contains them itself.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// What was packed, of a file of packed weights.
    pub fn packed(&self) -> Option<&Packed> {
        self.packed.as_ref()
    }

    /// Whether weights are made up, packed or not.
    pub fn is_made_up(&self) -> bool {
        self.declared.as_ref().is_some_and(Declared::is_made_up)
    }

    /// A file beside the weights, if it exists; of a file of packed weights, one that was beside them.
    pub fn side_file(&self, name: &str) -> Option<SideFile<'_>> {
        if let Some(packed) = &self.packed {
            return packed.beside(name);
        }
        let path = self.directory.as_ref()?.join(name);
        path.is_file().then(|| SideFile::at(path))
    }

    /// The metadata of a GGUF file; `None` for safetensors.
    pub fn gguf_metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// Every tensor in a known format, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.iter().filter_map(|entry| self.view(entry))
    }

    /// The tensors in unknown formats: their names, and the file's names for the formats.
    pub fn unsupported(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tensors.iter().filter_map(|entry| match &entry.encoding {
            Encoding::Known(_) => None,
            Encoding::Unsupported(kind) => Some((entry.name.as_str(), kind.as_str())),
        })
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// [`WeightsError::Mismatch`] if there is none, naming the closest match, or if its format is not
    /// supported, naming the format.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, WeightsError> {
        let entry = self.entry(name)?;
        self.view(entry)
            .ok_or_else(|| self.mismatch(format!("tensor `{name}` is stored as {}", entry.encoding)))
    }

    /// The tensor with this name, which must have this shape (outermost dimension first) and format. Files
    /// write a scalar's shape as `[]` or `[1]`; either matches the other. In GGUF files no dimension of one
    /// matters: those of a convolution or of a matrix of one row are left out; and a vector may stand in
    /// rows. Of packed weights, and of made-up ones, it is as it is asked for.
    ///
    /// # Errors
    /// [`WeightsError::Mismatch`] naming the tensor, what was expected and what was found.
    pub fn expect(&self, name: &str, shape: &[usize], format: Format) -> Result<Tensor<'_>, WeightsError> {
        if let Some(declared) = &self.declared {
            return declared.tensor(&self.path, name, shape, format);
        }
        let entry = self.entry(name)?;
        let same = if self.metadata.is_some() { same_in_gguf } else { same_shape };
        match self.view(entry) {
            Some(tensor) if same(tensor.shape, shape) && tensor.format == format => Ok(tensor),
            _ => Err(self.mismatch(format!(
                "tensor `{name}` should be {format} {shape:?} and is {} {:?}",
                entry.encoding, entry.shape
            ))),
        }
    }

    /// Refuses tensors that the model does not use: a checkpoint with an extra layer belongs to another
    /// model.
    ///
    /// # Errors
    /// [`WeightsError::Mismatch`] naming the first few tensors for which `known` is false.
    pub fn refuse_surplus(&self, known: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        const NAMED: usize = 5;
        let surplus: Vec<&Entry> = self.tensors.iter().filter(|entry| !known(&entry.name)).collect();
        if surplus.is_empty() {
            return Ok(());
        }
        let mut named: Vec<String> = surplus
            .iter()
            .take(NAMED)
            .map(|entry| format!("`{}` ({} {:?})", entry.name, entry.encoding, entry.shape))
            .collect();
        if surplus.len() > NAMED {
            named.push(format!("and {} more", surplus.len() - NAMED));
        }
        Err(self.mismatch(format!("holds tensors this server was not compiled for: {}", named.join(", "))))
    }

    /// The files of the checkpoint.
    pub fn files(&self) -> &[WeightsFile] {
        &self.files
    }

    /// Has tensors read past the system's cache, through io_uring, with several pieces in flight a thread, as
    /// far as the cache does not have them; where one file cannot be, all are read through the cache, and
    /// [`WeightsRead::why_plain`] says why. Packed weights are mapped, and stay so.
    #[must_use]
    pub fn read_directly(self) -> Checkpoint {
        self.read_with(Channels::of_rings())
    }

    pub(crate) fn read_with(mut self, channels: Channels) -> Checkpoint {
        if self.packed.is_some() {
            return self;
        }
        let (channels, counts) = (Arc::new(channels), Arc::new(Counts::default()));
        let opened = self.files.iter_mut().try_for_each(|file| file.read_directly(&channels, &counts));
        if let Err(why) = opened {
            counts.fall_back(why);
            self.files.iter_mut().for_each(|file| file.read_plainly(&counts));
        }
        Checkpoint { counts, ..self }
    }

    /// Has tensors read through the system's cache, for a reason that [`WeightsRead::why_plain`] repeats.
    #[must_use]
    pub fn read_plainly(mut self, why: &str) -> Checkpoint {
        let counts = Arc::new(Counts::default());
        counts.fall_back(why.to_owned());
        self.files.iter_mut().for_each(|file| file.read_plainly(&counts));
        Checkpoint { counts, ..self }
    }

    /// What was read since it was said how, and how.
    pub fn reading(&self) -> WeightsRead {
        self.counts.reading()
    }

    /// Refuses files that were modified since they were opened. Called after everything has been read.
    ///
    /// # Errors
    /// Names the first such file.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(WeightsFile::check_unchanged)
    }

    /// Bytes of the first file in front of its first tensor.
    pub(crate) fn header_bytes(&self) -> usize {
        let first = self.tensors.iter().filter(|entry| entry.file == 0).map(|entry| entry.bytes.start).min();
        let all = self.files.first().map_or(0, WeightsFile::bytes);
        first.unwrap_or(usize::try_from(all).unwrap_or(usize::MAX))
    }

    fn entry(&self, name: &str) -> Result<&Entry, WeightsError> {
        match self.by_name.get(name) {
            Some(&index) => Ok(&self.tensors[index]),
            None => Err(self.mismatch(match self.nearest(name) {
                Some(nearest) => format!("tensor `{name}` is missing; the nearest name is `{nearest}`"),
                None => format!("tensor `{name}` is missing; the checkpoint holds none"),
            })),
        }
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        self.tensors
            .iter()
            .map(|entry| entry.name.as_str())
            // The distance costs the product of both lengths, and a file may contain names of any length.
            .filter(|candidate| candidate.len() <= 4 * name.len().max(16))
            .min_by_key(|candidate| strsim::levenshtein(candidate, name))
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> Option<Tensor<'a>> {
        let Encoding::Known(format) = entry.encoding else { return None };
        let bytes = Bytes::of_file(&self.files[entry.file], entry.bytes.clone());
        Some(Tensor { name: &entry.name, shape: &entry.shape, format, bytes })
    }

    fn mismatch(&self, what: String) -> WeightsError {
        WeightsError::mismatch(&self.path, what)
    }
}

fn same_shape(a: &[usize], b: &[usize]) -> bool {
    let scalar = |shape: &[usize]| matches!(shape, [] | [1]);
    a == b || scalar(a) && scalar(b)
}

/// Whether a tensor of a GGUF file, which leaves dimensions of one out, or writes them, has the wanted
/// shape. A vector may stand in rows: the numbers are the same, in the same order.
fn same_in_gguf(found: &[usize], wanted: &[usize]) -> bool {
    let long = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    let all = || found.iter().try_fold(1, |all: usize, size| all.checked_mul(*size));
    match long(wanted)[..] {
        [numbers] => all() == Some(numbers),
        _ => long(found) == long(wanted),
    }
}

fn extension(path: &Path) -> Option<&str> {
    path.extension()?.to_str()
}
