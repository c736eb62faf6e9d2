//! A small GGUF writer for tests: it writes what it is given, valid or not.

use crate::ggml::ggml_number;
use monomorph_formats::Format;

/// A metadata value to write.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    Bools(Vec<bool>),
    F32s(Vec<f32>),
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Str(value.to_owned())
    }
}

/// A GGUF version 3 file under construction.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: impl Into<Value>) -> GgufWriter {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Gives a key that is there another value.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn changed(mut self, key: &str, value: impl Into<Value>) -> GgufWriter {
        let entry = self.metadata.iter_mut().find(|(known, _)| known == key);
        entry.unwrap_or_else(|| panic!("there is no {key}")).1 = value.into();
        self
    }

    /// Leaves a tensor out.
    ///
    /// # Panics
    /// If there is none of that name.
    #[must_use]
    pub fn without(mut self, name: &str) -> GgufWriter {
        let at = self.tensors.iter().position(|(known, ..)| known == name);
        self.tensors.remove(at.unwrap_or_else(|| panic!("there is no {name}")));
        self
    }

    /// Adds a tensor: its shape outermost dimension first, its bytes as stored.
    #[must_use]
    pub fn tensor(self, name: &str, shape: &[usize], format: Format, bytes: Vec<u8>) -> GgufWriter {
        let number = ggml_number(format).unwrap_or_else(|| panic!("GGUF files hold no {format}"));
        self.tensor_of_type(name, shape, number, bytes)
    }

    /// Adds a tensor of any ggml type.
    #[must_use]
    pub fn tensor_of_type(mut self, name: &str, shape: &[usize], number: u32, bytes: Vec<u8>) -> GgufWriter {
        self.tensors.push((name.to_owned(), shape.to_owned(), number, bytes));
        self
    }

    /// The file's bytes, tensor data aligned to 32.
    pub fn finish(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut file, key);
            write_value(&mut file, value);
        }
        let mut offset = 0u64;
        for (name, shape, number, bytes) in &self.tensors {
            string(&mut file, name);
            file.extend((shape.len() as u32).to_le_bytes());
            for extent in shape.iter().rev() {
                file.extend((*extent as u64).to_le_bytes());
            }
            file.extend(number.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset = (offset + bytes.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(bytes);
        }
        file
    }
}

fn string(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

fn array(file: &mut Vec<u8>, kind: u32, count: usize) {
    file.extend(9u32.to_le_bytes());
    file.extend(kind.to_le_bytes());
    file.extend((count as u64).to_le_bytes());
}

fn write_value(file: &mut Vec<u8>, value: &Value) {
    let mut single = |kind: u32, bytes: &[u8]| {
        file.extend(kind.to_le_bytes());
        file.extend(bytes);
    };
    match value {
        Value::U32(value) => single(4, &value.to_le_bytes()),
        Value::I32(value) => single(5, &value.to_le_bytes()),
        Value::F32(value) => single(6, &value.to_le_bytes()),
        Value::Bool(value) => single(7, &[u8::from(*value)]),
        Value::Str(value) => {
            single(8, &[]);
            string(file, value);
        }
        Value::Strs(values) => {
            array(file, 8, values.len());
            for value in values {
                string(file, value);
            }
        }
        Value::I32s(values) => {
            array(file, 5, values.len());
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Value::Bools(values) => {
            array(file, 7, values.len());
            file.extend(values.iter().map(|value| u8::from(*value)));
        }
        Value::F32s(values) => {
            array(file, 6, values.len());
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}
