//! Numeric formats: the stored bits of a tensor, and their values in f32.
//!
//! A format has a name, a block (the smallest group of elements that is decoded together) and a number of
//! bytes per block. `decode` and `encode` define its meaning and are the oracle for every kernel. The blocks
//! of GGUF's formats contain their own scales. fp8-e4m3 and nvfp4 tensors are bare codes: their scales are
//! separate tensors, *companions*, which [`ScaleForm`] lists and applies, and [`quantise`] makes.

mod activation;
mod block;
pub mod cached;
mod dot;
mod halves;
mod integers;
mod quantise;
mod rates;
mod scales;
mod small_float;

pub use activation::{
    ACTIVATION_BLOCK, E4M3_GROUP, QuantisedBlock, e4m3_scale, quantise_block, through_e4m3,
};

pub use block::{decode, encode};
pub use dot::dot;
pub use halves::{encode_halves, half_scale, through_halves};
pub use integers::{IntegerBlock, Integers};
pub use quantise::{QUANTISED_MIN, Quantised, QuantisedRows, Quantiser, magnitude, quantise};
pub use rates::logarithms_of_rates;
pub use scales::{FP8_BLOCK, NVFP4_BLOCK, ScaleForm};
pub use small_float::{E2M1, E2M1_MAX, E4M3_MAX, e2m1_to_f32, e4m3_to_f32, f32_to_e2m1, f32_to_e4m3};

/// The storage format of a tensor's elements.
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
    /// As q4_1, but element = `d * (q - 8)`.
    Q4_0,
    /// As q4_0 with codes of five bits: after `d` four bytes of fifth bits, of element `i` bit `i`; element =
    /// `d * (q - 16)`.
    Q5_0,
    /// As q4_1 with codes of five bits, as q5_0 has them.
    Q5_1,
    /// 256 elements: f16 `d` and `m`, 12 bytes of a scale and a minimum of six bits for every 32 elements,
    /// 128 bytes of nibbles (of each 64 elements the first 32 low); element = `d * scale * q - m * minimum`.
    Q4K,
    /// As q4_k with codes of five bits: 32 bytes of fifth bits before the nibbles.
    Q5K,
    /// 256 elements: 128 bytes of nibbles, 64 of two higher bits, 16 signed bytes, a scale for every 16
    /// elements, f16 `d`; element = `d * scale * (q - 32)`.
    Q6K,
    /// 256 elements: 16 bytes with a scale (low) and a minimum of four bits for every 16 elements, 64 bytes
    /// of codes of two bits, f16 `d` and `m`; element = `d * scale * q - m * minimum`.
    Q2K,
    /// 256 elements: 32 bytes of third bits, 64 of two lower ones, 12 bytes of scales of six bits for every
    /// 16 elements, f16 `d`; element = `d * (scale - 32) * (q - 4)`.
    Q3K,
    /// As q4_0, but codes stand for levels: element = `d * level[q]`.
    Iq4Nl,
    /// 256 elements: f16 `d`, 6 bytes of scales of six bits for every 32 elements, 128 bytes of nibbles (of
    /// each 32 elements the first 16 low); element = `d * (scale - 32) * level[q]`.
    Iq4Xs,
    /// One 8-bit float (E4M3, no infinities) per element, to be multiplied by the scales of a [`ScaleForm`].
    Fp8E4m3,
    /// 16 elements: 8 bytes of 4-bit floats (E2M1), the even element of each pair in the low nibble, to be
    /// multiplied by the scales of a [`ScaleForm`].
    Nvfp4,
}

impl Format {
    /// Every format, in declaration order.
    pub const ALL: [Format; 17] = [
        Format::F32,
        Format::Bf16,
        Format::F16,
        Format::Q8_0,
        Format::Q4_1,
        Format::Q4_0,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Q2K,
        Format::Q3K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Fp8E4m3,
        Format::Nvfp4,
    ];

    /// The name used in TOML files, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::Q8_0 => "q8_0",
            Format::Q4_1 => "q4_1",
            Format::Q4_0 => "q4_0",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Q2K => "q2_k",
            Format::Q3K => "q3_k",
            Format::Iq4Nl => "iq4_nl",
            Format::Iq4Xs => "iq4_xs",
            Format::Fp8E4m3 => "fp8-e4m3",
            Format::Nvfp4 => "nvfp4",
        }
    }

    /// The format with this TOML name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Elements per block.
    pub const fn block_elements(self) -> usize {
        match self {
            Format::F32 | Format::Bf16 | Format::F16 | Format::Fp8E4m3 => 1,
            Format::Q8_0 | Format::Q4_1 | Format::Q4_0 | Format::Q5_0 | Format::Q5_1 | Format::Iq4Nl => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => 256,
            Format::Nvfp4 => NVFP4_BLOCK,
        }
    }

    /// Bytes per block, without companions.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::Bf16 | Format::F16 => 2,
            Format::Q8_0 => 34,
            Format::Q4_1 => 20,
            Format::Q4_0 => 18,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Iq4Nl => 18,
            Format::Iq4Xs => 136,
            Format::Fp8E4m3 => 1,
            Format::Nvfp4 => NVFP4_BLOCK / 2,
        }
    }

    /// Bytes of `elements` elements, without companions; `None` if they do not fill whole blocks or the count
    /// overflows.
    pub const fn bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether every element of these whole blocks is finite. Codes with companion scales are only checked
    /// for NaN; their scales must be checked separately.
    pub fn is_finite(self, bytes: &[u8]) -> bool {
        // Infinities and NaN have all exponent bits set.
        let f32s = |bytes: &[u8]| bytes.chunks_exact(4).all(|it| it[3] & 0x7f != 0x7f || it[2] & 0x80 == 0);
        let bf16s = |bytes: &[u8]| bytes.chunks_exact(2).all(|it| it[1] & 0x7f != 0x7f || it[0] & 0x80 == 0);
        let f16s = |bytes: &[u8]| bytes.chunks_exact(2).all(|it| it[1] & 0x7c != 0x7c);
        match self {
            Format::F32 => f32s(bytes),
            Format::Bf16 => bf16s(bytes),
            Format::F16 => f16s(bytes),
            Format::Q8_0 => bytes.chunks_exact(34).all(|block| f16s(&block[..2])),
            Format::Q4_1 => bytes.chunks_exact(20).all(|block| f16s(&block[..4])),
            Format::Q4_0 => bytes.chunks_exact(18).all(|block| f16s(&block[..2])),
            Format::Q5_0 => bytes.chunks_exact(22).all(|block| f16s(&block[..2])),
            Format::Q5_1 => bytes.chunks_exact(24).all(|block| f16s(&block[..4])),
            Format::Q4K => bytes.chunks_exact(144).all(|block| f16s(&block[..4])),
            Format::Q5K => bytes.chunks_exact(176).all(|block| f16s(&block[..4])),
            Format::Q6K => bytes.chunks_exact(210).all(|block| f16s(&block[208..])),
            Format::Q2K => bytes.chunks_exact(84).all(|block| f16s(&block[80..])),
            Format::Q3K => bytes.chunks_exact(110).all(|block| f16s(&block[108..])),
            Format::Iq4Nl => bytes.chunks_exact(18).all(|block| f16s(&block[..2])),
            Format::Iq4Xs => bytes.chunks_exact(136).all(|block| f16s(&block[..2])),
            Format::Fp8E4m3 => bytes.iter().all(|code| code & 0x7f != 0x7f),
            Format::Nvfp4 => true,
        }
    }

    /// Whether elements are codes that need a scale, in the block or in a companion.
    pub const fn is_quantised(self) -> bool {
        self.has_companions() || self.block_elements() > 1
    }

    /// Whether the scales are in tensors of their own: see [`ScaleForm`].
    pub const fn has_companions(self) -> bool {
        matches!(self, Format::Fp8E4m3 | Format::Nvfp4)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
