//! Formats of cached keys and values: what is stored of a vector, and what is read back.
//!
//! A vector is one head's key or value of one token. It is cut into groups of [`GROUP`] adjacent elements,
//! each with a scale of its own unless the format is a float. The `turbo` formats store the vector rotated
//! ([`Rotation`]): then its elements are close to Gaussian whatever they were, and few levels serve all.
//!
//! This is the oracle of every kernel that writes or reads a cache: kernels store the same codes and scales,
//! to the bit. Hence thresholds are compared with products that are exact, and sums have an order. Codes are
//! a byte each here; how a block packs them is the layout's affair.

mod rotation;

pub use rotation::{MAX_ROTATED, Rotation, SIGNS};

use crate::{E4M3_MAX, Format, e4m3_to_f32, f32_to_e4m3};

/// Elements that share a scale.
pub const GROUP: usize = 16;

/// Scales that the search tries: the smallest that clips nothing, and those just below it. Clipping the
/// largest element a little is worth finer steps for the others.
const SEARCHED: usize = 4;

/// The format of cached keys, or of cached values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cached {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// E4M3; element = `code * static scale`.
    Fp8,
    /// E2M1 with an E4M3 scale for each group; element = `code * scale * static scale`.
    Nvfp4,
    /// Rotated; E4M3 with a bf16 scale for each group; element = `code * scale`.
    Turbo8,
    /// Rotated; one of 16 levels with an E4M3 scale for each group; element = `level * scale * static scale`.
    Turbo4,
    /// Rotated; one of 8 levels, otherwise as [`Cached::Turbo4`].
    Turbo3,
}

/// Magnitudes by the lower bits of a code; the bit above them is the sign. Each has at most four significant
/// bits, as E4M3 has, so its product with a scale is exact in f16, in bf16 and in f32.
struct Levels {
    magnitudes: &'static [f32],
    /// Midway between neighbours: a code's magnitude is the one with as many thresholds below it.
    thresholds: [f32; 7],
}

impl Levels {
    const fn new(magnitudes: &'static [f32]) -> Levels {
        let (mut thresholds, mut at) = ([f32::INFINITY; 7], 1);
        while at < magnitudes.len() {
            thresholds[at - 1] = (magnitudes[at - 1] + magnitudes[at]) / 2.0;
            at += 1;
        }
        Levels { magnitudes, thresholds }
    }

    const fn top(&self) -> f32 {
        self.magnitudes[self.magnitudes.len() - 1]
    }

    /// The nearest codes at a scale that is positive; between two, the even ones.
    #[inline]
    fn codes(&self, values: &[f32; GROUP], scale: f32) -> [u32; GROUP] {
        let sign = self.magnitudes.len() as u32;
        let mut codes = values.map(|it| if it.is_sign_negative() { sign } else { 0 });
        for (at, threshold) in self.thresholds[..self.magnitudes.len() - 1].iter().enumerate() {
            let threshold = threshold * scale;
            for (code, value) in codes.iter_mut().zip(values) {
                *code += u32::from(is_above(value.abs(), threshold, at));
            }
        }
        codes
    }

    /// The squared errors of a group at each of these scales. Errors are squared and summed in order, each
    /// operation rounded to f32: elements stand side by side until they are summed.
    #[inline]
    fn errors(&self, values: &[f32; GROUP], scales: &[f32; SEARCHED]) -> [f32; SEARCHED] {
        let magnitudes = values.map(f32::abs);
        let mut squares = [[0.0; GROUP]; SEARCHED];
        for (squares, scale) in squares.iter_mut().zip(scales) {
            let mut nearest = [self.magnitudes[0] * scale; GROUP];
            for (at, threshold) in self.thresholds[..self.magnitudes.len() - 1].iter().enumerate() {
                let (threshold, level) = (threshold * scale, self.magnitudes[at + 1] * scale);
                for (nearest, magnitude) in nearest.iter_mut().zip(&magnitudes) {
                    *nearest = if is_above(*magnitude, threshold, at) { level } else { *nearest };
                }
            }
            for ((square, nearest), magnitude) in squares.iter_mut().zip(&nearest).zip(&magnitudes) {
                let off = magnitude - nearest;
                *square = off * off;
            }
        }
        let mut sums = [0.0; SEARCHED];
        for at in 0..GROUP {
            for (sum, squares) in sums.iter_mut().zip(&squares) {
                *sum += squares[at];
            }
        }
        sums
    }

    fn value(&self, code: u8) -> f32 {
        let count = self.magnitudes.len();
        let magnitude = self.magnitudes[usize::from(code) % count];
        if usize::from(code) < count { magnitude } else { -magnitude }
    }
}

/// Whether the code of a magnitude is above code `at`, behind which the threshold is: between two codes the
/// even one is taken.
#[inline(always)]
fn is_above(magnitude: f32, threshold: f32, at: usize) -> bool {
    if at % 2 == 1 { magnitude >= threshold } else { magnitude > threshold }
}

/// E2M1: a bit of mantissa, and halves below 1.
const NVFP4: Levels = Levels::new(&[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);

/// The levels of a unit Gaussian's optimal quantiser (Lloyd 1982, Max 1960) in 16, times 1.1 and rounded to
/// numbers of E4M3, which costs 0.7 % of its squared error.
const TURBO4: Levels =
    Levels::new(&[9.0 / 64.0, 13.0 / 32.0, 11.0 / 16.0, 1.0, 11.0 / 8.0, 7.0 / 4.0, 9.0 / 4.0, 3.0]);

/// The same in 8, times 1.5; 0.1 %.
const TURBO3: Levels = Levels::new(&[3.0 / 8.0, 9.0 / 8.0, 2.0, 13.0 / 4.0]);

impl Cached {
    /// Every format, in declaration order.
    pub const ALL: [Cached; 8] = [
        Cached::F32,
        Cached::Bf16,
        Cached::F16,
        Cached::Fp8,
        Cached::Nvfp4,
        Cached::Turbo8,
        Cached::Turbo4,
        Cached::Turbo3,
    ];

    /// The name used in TOML files, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Cached::F32 => "f32",
            Cached::Bf16 => "bf16",
            Cached::F16 => "f16",
            Cached::Fp8 => "fp8",
            Cached::Nvfp4 => "nvfp4",
            Cached::Turbo8 => "turbo8",
            Cached::Turbo4 => "turbo4",
            Cached::Turbo3 => "turbo3",
        }
    }

    /// The format with this TOML name.
    pub fn from_name(name: &str) -> Option<Cached> {
        Cached::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Width of a code, without its share of a scale.
    pub const fn code_bits(self) -> usize {
        match self {
            Cached::F32 => 32,
            Cached::Bf16 | Cached::F16 => 16,
            Cached::Fp8 | Cached::Turbo8 => 8,
            Cached::Nvfp4 | Cached::Turbo4 => 4,
            Cached::Turbo3 => 3,
        }
    }

    /// The format of a group's scale.
    pub const fn scales(self) -> Option<Format> {
        match self {
            Cached::F32 | Cached::Bf16 | Cached::F16 | Cached::Fp8 => None,
            Cached::Turbo8 => Some(Format::Bf16),
            Cached::Nvfp4 | Cached::Turbo4 | Cached::Turbo3 => Some(Format::Fp8E4m3),
        }
    }

    /// Bytes of a group's codes and scale.
    pub const fn group_bytes(self) -> usize {
        let scale = match self.scales() {
            Some(format) => format.block_bytes(),
            None => 0,
        };
        GROUP * self.code_bits() / 8 + scale
    }

    /// Whether elements take fewer bits than those of bf16.
    pub const fn is_narrow(self) -> bool {
        self.code_bits() < 16
    }

    /// Whether vectors are stored rotated.
    pub const fn is_rotated(self) -> bool {
        matches!(self, Cached::Turbo8 | Cached::Turbo4 | Cached::Turbo3)
    }

    /// Whether elements are multiplied by a static scale, one for the keys or the values of a layer or of a
    /// head. That of `turbo8` would say nothing that its scales do not.
    pub const fn has_static_scale(self) -> bool {
        matches!(self, Cached::Fp8 | Cached::Nvfp4 | Cached::Turbo4 | Cached::Turbo3)
    }

    /// The levels, for kernels that look them up: by three bits of magnitude and a sign above them, whatever
    /// the width of the format's codes.
    ///
    /// # Panics
    /// If the format has no levels.
    pub const fn signed_levels(self) -> [f32; 16] {
        let Some(levels) = self.levels() else { panic!("the format has no levels") };
        let (mut signed, mut at) = ([0.0; 16], 0);
        while at < 8 {
            let magnitude = levels.magnitudes[at % levels.magnitudes.len()];
            (signed[at], signed[at + 8]) = (magnitude, -magnitude);
            at += 1;
        }
        signed
    }

    /// The magnitudes of codes in order, of a format of levels.
    pub const fn magnitudes(self) -> Option<&'static [f32]> {
        match self.levels() {
            Some(levels) => Some(levels.magnitudes),
            None => None,
        }
    }

    const fn levels(self) -> Option<&'static Levels> {
        match self {
            Cached::Nvfp4 => Some(&NVFP4),
            Cached::Turbo4 => Some(&TURBO4),
            Cached::Turbo3 => Some(&TURBO3),
            Cached::F32 | Cached::Bf16 | Cached::F16 | Cached::Fp8 | Cached::Turbo8 => None,
        }
    }
}

impl std::fmt::Display for Cached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How keys and values are cached: each in a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvFormats {
    /// Format of keys.
    pub keys: Cached,
    /// Format of values.
    pub values: Cached,
}

impl KvFormats {
    /// Both in one format.
    pub const fn both(format: Cached) -> KvFormats {
        KvFormats { keys: format, values: format }
    }

    /// The formats of this name: `turbo8`, or `turbo8/turbo4` of keys and of values.
    ///
    /// # Errors
    /// When a part is no format, with the names of all.
    pub fn from_name(name: &str) -> Result<KvFormats, String> {
        let one = |name: &str| {
            let known = || Cached::ALL.map(Cached::name).join(", ");
            Cached::from_name(name)
                .ok_or_else(|| format!("{name:?} is no format of keys and values: one of {}", known()))
        };
        match name.split_once('/') {
            None => Ok(KvFormats::both(one(name)?)),
            Some((keys, values)) => Ok(KvFormats { keys: one(keys)?, values: one(values)? }),
        }
    }

    /// As part of a file's name: `turbo8`, or `turbo8-turbo4`.
    pub fn file_name(self) -> String {
        self.same().map_or_else(|| format!("{}-{}", self.keys, self.values), |both| both.name().to_owned())
    }

    /// Whether keys or values take fewer bits than bf16.
    pub const fn is_narrow(self) -> bool {
        self.keys.is_narrow() || self.values.is_narrow()
    }

    /// The format of both, if it is the same.
    pub fn same(self) -> Option<Cached> {
        (self.keys == self.values).then_some(self.keys)
    }
}

impl std::fmt::Display for KvFormats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.same() {
            Some(format) => write!(f, "{format}"),
            None => write!(f, "{} keys, {} values", self.keys, self.values),
        }
    }
}

/// A group as it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Codes, each in the low bits; of a float its own bits.
    pub codes: [u32; GROUP],
    /// Bits of the scale; 0 where the format has none.
    pub scale: u16,
}

/// A format with its static scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    format: Cached,
    scale: f32,
}

impl Codec {
    /// A codec; the static scale is 1 where the format has none. Formats with scales for groups want a power
    /// of two: then the product of the three factors is exact.
    ///
    /// # Errors
    /// When the scale is not positive and finite, or none that the format takes.
    pub fn new(format: Cached, scale: f32) -> Result<Codec, String> {
        let wrong = |why: &str| Err(format!("a static scale of {scale} {why}"));
        if !(scale > 0.0 && scale.is_finite()) {
            return wrong("is not positive and finite");
        }
        if !format.has_static_scale() && scale != 1.0 {
            return wrong(&format!("is none that {format} takes: it has only 1"));
        }
        let is_power = scale.is_normal() && scale.to_bits().trailing_zeros() >= 23;
        if format.levels().is_some() && !is_power {
            return wrong(&format!("is no power of two, which {format} wants"));
        }
        Ok(Codec { format, scale })
    }

    /// A codec with a static scale of 1, which serves every format.
    pub const fn unscaled(format: Cached) -> Codec {
        Codec { format, scale: 1.0 }
    }

    /// What it encodes to.
    pub fn format(&self) -> Cached {
        self.format
    }

    /// The static scale.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Itself, where the format is a constant of the caller: then the compiler knows it too.
    ///
    /// # Panics
    /// If it has another format.
    #[inline(always)]
    #[must_use]
    pub fn known(self, format: Cached) -> Codec {
        assert!(self.format == format, "the codec of the caller's format");
        Codec { format, scale: self.scale }
    }

    /// Stores a group, which is rotated already where the format wants it.
    #[inline]
    pub fn encode(&self, values: &[f32; GROUP]) -> Group {
        let plain = |codes| Group { codes, scale: 0 };
        match self.format {
            Cached::F32 => plain(values.map(f32::to_bits)),
            Cached::Bf16 => plain(values.map(|it| half::bf16::from_f32(it).to_bits().into())),
            Cached::F16 => plain(values.map(|it| half::f16::from_f32(it).to_bits().into())),
            Cached::Fp8 => plain(values.map(|it| number(it / self.scale).into())),
            Cached::Turbo8 => {
                let scale = half::bf16::from_f32(largest(values) / E4M3_MAX);
                let by = scale.to_f32();
                let code = |it: f32| if by > 0.0 { number(it / by).into() } else { 0 };
                Group { codes: values.map(code), scale: scale.to_bits() }
            }
            Cached::Nvfp4 | Cached::Turbo4 | Cached::Turbo3 => {
                let levels = self.format.levels().expect("a format of levels");
                let scale = self.searched(levels, values);
                let by = e4m3_to_f32(scale) * self.scale;
                let codes = if scale > 0 { levels.codes(values, by) } else { [0; GROUP] };
                Group { codes, scale: scale.into() }
            }
        }
    }

    /// Reads a group back, still rotated.
    pub fn decode(&self, group: &Group) -> [f32; GROUP] {
        let byte = |code: u32| code as u8;
        match self.format {
            Cached::F32 => group.codes.map(f32::from_bits),
            Cached::Bf16 => group.codes.map(|it| half::bf16::from_bits(it as u16).to_f32()),
            Cached::F16 => group.codes.map(|it| half::f16::from_bits(it as u16).to_f32()),
            Cached::Fp8 => group.codes.map(|it| e4m3_to_f32(byte(it)) * self.scale),
            Cached::Turbo8 => {
                let scale = half::bf16::from_bits(group.scale).to_f32();
                group.codes.map(|it| e4m3_to_f32(byte(it)) * scale)
            }
            Cached::Nvfp4 | Cached::Turbo4 | Cached::Turbo3 => {
                let levels = self.format.levels().expect("a format of levels");
                let scale = e4m3_to_f32(group.scale as u8) * self.scale;
                group.codes.map(|it| levels.value(byte(it)) * scale)
            }
        }
    }

    /// The E4M3 scale of least squared error among those searched, the larger of two alike; 0 for zeros.
    #[inline]
    fn searched(&self, levels: &Levels, values: &[f32; GROUP]) -> u8 {
        let largest = largest(values);
        if largest == 0.0 {
            return 0;
        }
        let exact = largest / (levels.top() * self.scale);
        let nearest = f32_to_e4m3(exact);
        let covers = e4m3_to_f32(nearest) >= exact;
        // 0x7e is the largest, 0x7f not a number.
        let first = if covers { nearest.max(1) } else { (nearest + 1).min(0x7e) };
        let scales: [u8; SEARCHED] = std::array::from_fn(|at| first.saturating_sub(at as u8).max(1));
        let errors = levels.errors(values, &scales.map(|scale| e4m3_to_f32(scale) * self.scale));
        let mut best = 0;
        for at in 1..SEARCHED {
            if errors[at] < errors[best] {
                best = at;
            }
        }
        scales[best]
    }
}

/// What is read back of vectors after they were stored, and rotated back where they were rotated: the rows
/// that attention attends to. Vectors stand one behind the other; the last group of each is filled with
/// zeros.
///
/// # Panics
/// If a vector of such a width cannot be rotated and the format wants it.
pub fn stored(codec: Codec, width: usize, vectors: &[f32]) -> Vec<f32> {
    let rotation = codec.format.is_rotated().then(|| Rotation::new(width).expect("the spec was checked"));
    let mut out = vectors.to_vec();
    for vector in out.chunks_exact_mut(width) {
        if let Some(rotation) = rotation {
            rotation.apply(vector);
        }
        for part in vector.chunks_mut(GROUP) {
            let mut group = [0.0; GROUP];
            group[..part.len()].copy_from_slice(part);
            let group = codec.decode(&codec.encode(&group));
            part.copy_from_slice(&group[..part.len()]);
        }
        if let Some(rotation) = rotation {
            rotation.undo(vector);
        }
    }
    out
}

/// The static scale of a format for vectors whose largest magnitude was `largest` where it was measured: the
/// smallest power of two with which four times as much still has a code. Steps of floats and of scales are
/// relative, so the room costs nothing. 1 for zeros and where a format has no static scale.
pub fn static_scale(format: Cached, largest: f32) -> f32 {
    if largest == 0.0 || !format.has_static_scale() {
        return 1.0;
    }
    let top = format.levels().map_or(1.0, Levels::top) * E4M3_MAX;
    let exact = f64::from(largest) * 4.0 / f64::from(top);
    // Exact powers stay themselves.
    2f64.powi(exact.log2().ceil() as i32).clamp(f32::MIN_POSITIVE.into(), 2f64.powi(100)) as f32
}

/// The E4M3 of a value, 448 of NaN: what is kept is always a number, so kernels need not know the codes that
/// are none.
#[inline(always)]
fn number(value: f32) -> u8 {
    f32_to_e4m3(value.min(E4M3_MAX))
}

fn largest(values: &[f32; GROUP]) -> f32 {
    values.iter().fold(0.0, |largest: f32, it| largest.max(it.abs()))
}
