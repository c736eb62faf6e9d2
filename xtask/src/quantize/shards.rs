//! Files in which every tensor has its place before the first is written, so that no tensor is held in
//! memory; those of safetensors are laid out here.

use monomorph_formats::Format;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A tensor as a file describes it.
#[derive(Clone, Debug)]
pub struct Stored {
    name: String,
    /// In elements.
    shape: Vec<usize>,
    format: Format,
}

impl Stored {
    /// A tensor of `format` and of this shape, counted in elements.
    pub fn new(name: &str, shape: &[usize], format: Format) -> Stored {
        Stored { name: name.to_owned(), shape: shape.to_vec(), format }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Its size; the shape fills whole blocks, as the spec has checked.
    pub fn bytes(&self) -> u64 {
        let elements = self.shape.iter().map(|extent| *extent as u64).product::<u64>();
        elements / self.format.block_elements() as u64 * self.format.block_bytes() as u64
    }

    /// safetensors' name for the type, bytes of one element of it, and the shape in these: nvfp4 codes are
    /// written as bytes.
    fn in_safetensors(&self) -> (&'static str, u64, Vec<usize>) {
        let (kind, element) = match self.format {
            Format::F32 => ("F32", 4),
            Format::Bf16 => ("BF16", 2),
            Format::F16 => ("F16", 2),
            Format::Fp8E4m3 => ("F8_E4M3", 1),
            Format::Nvfp4 => ("U8", 1),
            _ => unreachable!("the spec has no GGUF format in safetensors"),
        };
        let mut shape = self.shape.clone();
        if let (Format::Nvfp4, Some(columns)) = (self.format, shape.last_mut()) {
            *columns /= 2;
        }
        (kind, element, shape)
    }
}

/// The files being written.
pub struct Shards {
    files: Vec<(PathBuf, File)>,
    /// By tensor: its file, offset and length.
    places: BTreeMap<String, (usize, u64, u64)>,
}

impl Shards {
    /// Lays out `groups` of tensors in files of at most `limit` bytes of data, and each group in a single
    /// file if it fits. Writes their headers, and an index for several files.
    pub fn create(directory: &Path, groups: &[Vec<Stored>], limit: u64) -> Result<Shards, String> {
        let mut contents: Vec<Vec<&Stored>> = vec![Vec::new()];
        let mut filled = 0;
        for group in groups {
            let bytes: u64 = group.iter().map(Stored::bytes).sum();
            if filled > 0 && filled + bytes > limit {
                contents.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            contents.last_mut().expect("there is one from the start").extend(group);
        }
        let mut shards = Shards { files: Vec::new(), places: BTreeMap::new() };
        let (mut weight_map, mut total) = (Map::new(), 0);
        for (index, tensors) in contents.iter().enumerate() {
            let name = match contents.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            weight_map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
            total += tensors.iter().map(|tensor| tensor.bytes()).sum::<u64>();
            shards.add(directory.join(name), tensors)?;
        }
        if contents.len() > 1 {
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
            let path = directory.join("model.safetensors.index.json");
            std::fs::write(&path, format!("{index:#}\n"))
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: PathBuf, tensors: &[&Stored]) -> Result<(), String> {
        // Wide elements first, so that every tensor is aligned to its element size.
        let mut tensors = tensors.to_vec();
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.in_safetensors().1));
        // Other readers refuse files that do not name the framework of their tensors.
        let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
        let (mut places, mut end) = (Vec::new(), 0);
        for tensor in &tensors {
            let (start, (kind, _, shape)) = (end, tensor.in_safetensors());
            end += tensor.bytes();
            let entry = json!({ "dtype": kind, "shape": shape, "data_offsets": [start, end] });
            header.insert(tensor.name.clone(), entry);
            places.push((tensor.name.clone(), start, tensor.bytes()));
        }
        let mut header = Value::Object(header).to_string();
        // The data begins at a multiple of 8, like the length field before the header.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let header = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        self.file(path, &header, places, end)
    }

    /// A single file: its header, and tensors with their offsets behind it and their lengths, in `bytes`.
    pub fn one(
        path: PathBuf,
        header: &[u8],
        places: Vec<(String, u64, u64)>,
        bytes: u64,
    ) -> Result<Shards, String> {
        let mut shards = Shards { files: Vec::new(), places: BTreeMap::new() };
        shards.file(path, header, places, bytes)?;
        Ok(shards)
    }

    fn file(
        &mut self,
        path: PathBuf,
        header: &[u8],
        places: Vec<(String, u64, u64)>,
        bytes: u64,
    ) -> Result<(), String> {
        let fault = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::create_new(&path).map_err(fault)?;
        file.write_all_at(header, 0).map_err(fault)?;
        let start = header.len() as u64;
        file.set_len(start + bytes).map_err(fault)?;
        let index = self.files.len();
        self.places.extend(places.into_iter().map(|(name, at, length)| (name, (index, start + at, length))));
        self.files.push((path, file));
        Ok(())
    }

    /// Writes bytes of the tensor `name` from its offset `at` on.
    ///
    /// # Panics
    /// If there is no such tensor, or the bytes do not fit.
    pub fn write(&self, name: &str, at: u64, bytes: &[u8]) -> Result<(), String> {
        let (file, start, length) = self.places[name];
        assert!(at + bytes.len() as u64 <= length, "{name}: {} bytes at {at} of {length}", bytes.len());
        let (path, file) = &self.files[file];
        file.write_all_at(bytes, start + at).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Syncs everything to disk: only then does an error for lack of space appear.
    pub fn finish(self) -> Result<(), String> {
        self.files.iter().try_for_each(|(path, file)| {
            file.sync_all().map_err(|error| format!("{}: {error}", path.display()))
        })
    }
}
