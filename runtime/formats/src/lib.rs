//! Numeric formats: the bits a tensor is stored in, and what they mean in f32.
//!
//! A format is a name, a block (how many elements share their scales) and a byte
//! count a block; `decode` and `encode` define its meaning and are the oracle for every kernel.

mod activation;
mod block;

pub use activation::{ACTIVATION_BLOCK, QuantisedBlock, quantise_block};
pub use block::{decode, encode};

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// IEEE 754 binary32, little endian.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// 32 elements: an f16 scale `d`, then 32 signed bytes `q`; element = `d * q`.
    Q8_0,
    /// 32 elements: f16 scale `d`, f16 minimum `m`, 16 bytes of nibbles `q` (low nibbles are elements
    /// 0..16, high nibbles 16..32); element = `d * q + m`.
    Q4_1,
}

impl Format {
    /// Every format, in declaration order.
    pub const ALL: [Format; 5] = [Format::F32, Format::Bf16, Format::F16, Format::Q8_0, Format::Q4_1];

    /// The name used in TOML files, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::Q8_0 => "q8_0",
            Format::Q4_1 => "q4_1",
        }
    }

    /// The format with this TOML name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Elements that share one block.
    pub const fn block_elements(self) -> usize {
        match self {
            Format::F32 | Format::Bf16 | Format::F16 => 1,
            Format::Q8_0 | Format::Q4_1 => 32,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::Bf16 | Format::F16 => 2,
            Format::Q8_0 => 34,
            Format::Q4_1 => 20,
        }
    }

    /// Bytes of `elements` elements; `None` if they do not fill whole blocks or the count overflows.
    pub const fn bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether a block carries a scale of its own (so matrix products run on int8 activations).
    pub const fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
