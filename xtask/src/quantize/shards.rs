//! Safetensors files in which every tensor has its place before the first is written, so that no tensor is
//! held in memory.

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
    shape: Vec<usize>,
    /// safetensors' name for the type.
    kind: &'static str,
    /// Bytes of one element of that type.
    element: u64,
}

impl Stored {
    /// A tensor of `format` and of this shape, counted in elements; nvfp4 codes are written as bytes.
    pub fn new(name: &str, shape: &[usize], format: Format) -> Stored {
        let (kind, element) = match format {
            Format::F32 => ("F32", 4),
            Format::Bf16 => ("BF16", 2),
            Format::F16 => ("F16", 2),
            Format::Fp8E4m3 => ("F8_E4M3", 1),
            Format::Nvfp4 => ("U8", 1),
            _ => unreachable!("the spec has no GGUF format in safetensors"),
        };
        let mut shape = shape.to_vec();
        if let (Format::Nvfp4, Some(columns)) = (format, shape.last_mut()) {
            *columns /= 2;
        }
        Stored { name: name.to_owned(), shape, kind, element }
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().map(|extent| *extent as u64).product::<u64>() * self.element
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
        let fault = |error: std::io::Error| format!("{}: {error}", path.display());
        // Wide elements first, so that every tensor is aligned to its element size.
        let mut tensors = tensors.to_vec();
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.element));
        // Other readers refuse files that do not name the framework of their tensors.
        let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
        let mut end = 0;
        for tensor in &tensors {
            let start = end;
            end += tensor.bytes();
            let entry = json!({ "dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [start, end] });
            header.insert(tensor.name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string();
        // The data begins at a multiple of 8, like the length field before the header.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let file = File::create_new(&path).map_err(fault)?;
        file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).map_err(fault)?;
        file.write_all_at(header.as_bytes(), 8).map_err(fault)?;
        let mut at = 8 + header.len() as u64;
        file.set_len(at + end).map_err(fault)?;
        for tensor in tensors {
            self.places.insert(tensor.name.clone(), (self.files.len(), at, tensor.bytes()));
            at += tensor.bytes();
        }
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
