//! ggml's blocks of small integers, taken apart: decoding multiplies what they hold, and a CPU's kernels keep
//! it in another order.

use crate::Format;
use half::f16;

/// How a format of small integers is built. A block has 32 elements and a scale, or 256 and a scale for each
/// run of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integers {
    /// Bits of a code, from 2 to 6.
    pub bits: usize,
    /// The code of zero, where there are neither minima nor levels.
    pub offset: u8,
    /// Elements that share a scale.
    pub run: usize,
    /// Whether a multiple of a minimum is added to every run.
    pub minima: bool,
    /// What each code of four bits stands for, where that is not its distance from `offset`.
    pub levels: Option<[i8; 16]>,
    /// The largest scale of a run, and the largest factor of a minimum; 1 in blocks of 32.
    pub steps: u8,
}

/// A form without minima and levels, in blocks of 32.
const PLAIN: Integers = Integers { bits: 4, offset: 0, run: 32, minima: false, levels: None, steps: 1 };

/// The levels of iq4_nl and iq4_xs.
const IQ4: Option<[i8; 16]> =
    Some([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);

/// What a block holds. Element `i` is `d * scales[i / run] * (codes[i] - offset) + m * minima[i / run]`, in
/// f32, rounded by the last addition alone; levels stand in place of `codes[i] - offset` where there are
/// some. Beyond a block of 32 everything is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct IntegerBlock {
    /// The factor of the scales.
    pub d: f16,
    /// The factor of the minima, negative where a file's is subtracted.
    pub m: f16,
    /// A code for each element.
    pub codes: [u8; 256],
    /// A scale for each run; 1 in blocks of 32.
    pub scales: [i8; 16],
    /// A factor of the minimum of each run; 1 in blocks of 32.
    pub minima: [u8; 16],
}

impl Format {
    /// How blocks of small integers are built; `None` for other formats, and for those whose kernels have an
    /// order of their own.
    pub const fn integers(self) -> Option<Integers> {
        Some(match self {
            Format::Q4_0 => Integers { offset: 8, ..PLAIN },
            Format::Q5_0 => Integers { bits: 5, offset: 16, ..PLAIN },
            Format::Q5_1 => Integers { bits: 5, minima: true, ..PLAIN },
            Format::Q2K => Integers { bits: 2, run: 16, minima: true, steps: 15, ..PLAIN },
            Format::Q3K => Integers { bits: 3, offset: 4, run: 16, steps: 31, ..PLAIN },
            Format::Q4K => Integers { minima: true, steps: 63, ..PLAIN },
            Format::Q5K => Integers { bits: 5, minima: true, steps: 63, ..PLAIN },
            Format::Q6K => Integers { bits: 6, offset: 32, run: 16, steps: 127, ..PLAIN },
            Format::Iq4Nl => Integers { levels: IQ4, ..PLAIN },
            Format::Iq4Xs => Integers { levels: IQ4, steps: 31, ..PLAIN },
            Format::F32
            | Format::Bf16
            | Format::F16
            | Format::Q8_0
            | Format::Q4_1
            | Format::Fp8E4m3
            | Format::Nvfp4 => return None,
        })
    }
}

impl Integers {
    /// What a code stands for, in scales.
    pub fn factor(self, code: u8) -> f32 {
        f32::from(match self.levels {
            Some(levels) => i16::from(levels[usize::from(code)]),
            None => i16::from(code) - i16::from(self.offset),
        })
    }
}

/// Low nibbles, then high ones.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Two bits of every code: 32 elements share a byte's place in 128 of them.
fn twos(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

impl IntegerBlock {
    /// Takes a block of a format of small integers apart.
    ///
    /// # Panics
    /// If it is not one block of such a format.
    pub fn new(format: Format, block: &[u8]) -> IntegerBlock {
        assert_eq!(block.len(), format.block_bytes(), "a block of {format}");
        let mut it = IntegerBlock {
            d: half_at(block, 0),
            m: f16::ZERO,
            codes: [0; 256],
            scales: [0; 16],
            minima: [0; 16],
        };
        match format {
            Format::Q4_0 | Format::Iq4Nl => nibbles(&block[2..], &mut it.codes[..32]),
            Format::Q5_0 | Format::Q5_1 => {
                let at = if format == Format::Q5_1 { 4 } else { 2 };
                nibbles(&block[at + 4..], &mut it.codes[..32]);
                for (i, code) in it.codes[..32].iter_mut().enumerate() {
                    *code |= (block[at + i / 8] >> (i % 8) & 1) << 4;
                }
            }
            Format::Q4K | Format::Q5K => {
                for i in 0..4 {
                    let [a, b, c] = [4, 8, 12].map(|at| block[at + i]);
                    (it.scales[i], it.scales[4 + i]) = ((a & 63) as i8, ((c & 15) | (a >> 2 & 0x30)) as i8);
                    (it.minima[i], it.minima[4 + i]) = (b & 63, (c >> 4) | (b >> 2 & 0x30));
                }
                let codes = if format == Format::Q5K { 48 } else { 16 };
                for (bytes, codes) in block[codes..].chunks(32).zip(it.codes.chunks_mut(64)) {
                    nibbles(bytes, codes);
                }
                if format == Format::Q5K {
                    for (i, code) in it.codes.iter_mut().enumerate() {
                        *code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
                    }
                }
            }
            Format::Q2K => {
                it.codes = std::array::from_fn(|i| twos(&block[16..], i));
                for (i, byte) in block[..16].iter().enumerate() {
                    (it.scales[i], it.minima[i]) = ((byte & 15) as i8, byte >> 4);
                }
                it.d = half_at(block, 80);
            }
            Format::Q3K => {
                let third = |i: usize| block[i % 32] >> (i / 32) & 1;
                it.codes = std::array::from_fn(|i| twos(&block[32..], i) | third(i) << 2);
                let scales = &block[96..];
                it.scales = std::array::from_fn(|i| {
                    let (low, high) =
                        (scales[i % 8] >> (4 * (i / 8)) & 15, scales[8 + i % 4] >> (2 * (i / 4)) & 3);
                    (low | high << 4) as i8 - 32
                });
                it.d = half_at(block, 108);
            }
            Format::Iq4Xs => {
                for (bytes, codes) in block[8..].chunks(16).zip(it.codes.chunks_mut(32)) {
                    nibbles(bytes, codes);
                }
                for i in 0..8 {
                    let (low, high) =
                        (block[4 + i / 2] >> (4 * (i % 2)) & 15, block[2 + i / 4] >> (2 * (i % 4)) & 3);
                    it.scales[i] = (low | high << 4) as i8 - 32;
                }
            }
            Format::Q6K => {
                for (codes, nibble) in it.codes.chunks_mut(128).zip(block.chunks(64)) {
                    nibbles(nibble, codes);
                }
                for (i, code) in it.codes.iter_mut().enumerate() {
                    *code |= twos(&block[128..], i) << 4;
                }
                it.scales.iter_mut().zip(&block[192..]).for_each(|(scale, byte)| *scale = *byte as i8);
                it.d = half_at(block, 208);
            }
            _ => panic!("{format} is no format of small integers"),
        }
        match format {
            Format::Q5_1 => it.m = half_at(block, 2),
            Format::Q4K | Format::Q5K => it.m = -half_at(block, 2),
            Format::Q2K => it.m = -half_at(block, 82),
            _ => {}
        }
        if format.block_elements() == 32 {
            (it.scales[0], it.minima[0]) = (1, 1);
        }
        it
    }

    /// The values of the elements, as many as the block has.
    pub fn decode(&self, form: Integers, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (i, out) in out.iter_mut().enumerate() {
            let product = d * f32::from(self.scales[i / form.run]) * form.factor(self.codes[i]);
            *out = if form.minima { product + m * f32::from(self.minima[i / form.run]) } else { product };
        }
    }

    /// The nearest codes of some values, a block of `format`, under scales that suit them: the usual ones,
    /// not those of least error.
    pub fn encode(format: Format, values: &[f32]) -> Vec<u8> {
        let form = format.integers().unwrap_or_else(|| panic!("{format} is no format of small integers"));
        let most = (1u32 << form.bits) - 1;
        // The number of each run that is farthest from zero, and what is added to it.
        let farthest = |run: &[f32]| run.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let least = |run: &[f32]| run.iter().fold(0.0f32, |m, v| m.min(*v));
        let scale = |run: &[f32]| match form.minima {
            true => (run.iter().fold(0.0f32, |m, v| m.max(*v)) - least(run)) / most as f32,
            false => farthest(run) / form.factor(0),
        };
        let scales: Vec<f32> = values.chunks(form.run).map(scale).collect();
        let minima: Vec<f32> =
            values.chunks(form.run).map(|run| if form.minima { least(run) } else { 0.0 }).collect();
        let largest = |of: &[f32]| of.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let step = |value: f32, step: f32| if step == 0.0 { 0.0 } else { (value / step).round_ties_even() };
        let mut it = IntegerBlock {
            d: f16::from_f32(scales[0]),
            m: f16::from_f32(minima[0]),
            codes: [0; 256],
            scales: [1; 16],
            minima: [1; 16],
        };
        if values.len() == 256 {
            let steps = f32::from(form.steps);
            it.d = f16::from_f32(largest(&scales) / steps);
            it.m = f16::from_f32(-largest(&minima) / steps);
            let (d, m) = (it.d.to_f32(), it.m.to_f32());
            for (to, scale) in it.scales.iter_mut().zip(&scales) {
                *to = step(*scale, d).clamp(-steps, steps) as i8;
            }
            for (to, least) in it.minima.iter_mut().zip(&minima) {
                *to = step(*least, m).clamp(0.0, steps) as u8;
            }
        }
        let (d, m) = (it.d.to_f32(), it.m.to_f32());
        for (i, value) in values.iter().enumerate() {
            let least = if form.minima { m * f32::from(it.minima[i / form.run]) } else { 0.0 };
            let scale = d * f32::from(it.scales[i / form.run]);
            it.codes[i] = match form.levels {
                None => {
                    let code = step(value - least, scale) + f32::from(form.offset);
                    code.clamp(0.0, most as f32) as u8
                }
                Some(levels) => {
                    let factor = if scale == 0.0 { 0.0 } else { value / scale };
                    let above =
                        levels.windows(2).filter(|it| factor > (f32::from(it[0]) + f32::from(it[1])) / 2.0);
                    above.count() as u8
                }
            };
        }
        it.bytes(format)
    }

    /// The block as a file has it.
    fn bytes(&self, format: Format) -> Vec<u8> {
        let pair = |low: u8, high: u8| (low & 15) | (high & 15) << 4;
        let low = |codes: &[u8]| -> Vec<u8> {
            let (low, high) = codes.split_at(codes.len() / 2);
            low.iter().zip(high).map(|(low, high)| pair(*low, *high)).collect()
        };
        let (d, m) = (self.d.to_le_bytes(), self.m.to_le_bytes());
        let fifth = |i: usize| self.codes[i] >> 4 & 1;
        // Two bits of every code, and the scales with 32 added.
        let twos = |shift: usize| -> Vec<u8> {
            let byte = |at: usize| -> u8 {
                (0..4).map(|b| (self.codes[at / 32 * 128 + 32 * b + at % 32] >> shift & 3) << (2 * b)).sum()
            };
            (0..64).map(byte).collect()
        };
        let six = |i: usize| (self.scales[i] + 32) as u8;
        match format {
            Format::Q4_0 | Format::Iq4Nl => [&d[..], &low(&self.codes[..32])].concat(),
            Format::Q5_0 | Format::Q5_1 => {
                let high = (0..4).map(|byte| (0..8).map(|bit| fifth(8 * byte + bit) << bit).sum());
                let high: Vec<u8> = high.collect();
                let m = if format == Format::Q5_1 { &m[..] } else { &[] };
                [&d[..], m, &high, &low(&self.codes[..32])].concat()
            }
            Format::Q4K | Format::Q5K => {
                let (scales, minima) = (self.scales.map(|scale| scale as u8), self.minima);
                let first = |of: &[u8], i: usize| (of[i] & 63) | (of[4 + i] >> 4) << 6;
                let mut packed: Vec<u8> = (0..4).map(|i| first(&scales, i)).collect();
                packed.extend((0..4).map(|i| first(&minima, i)));
                packed.extend((0..4).map(|i| pair(scales[4 + i], minima[4 + i])));
                let high = |l: usize| (0..8).map(|b| fifth(32 * b + l) << b).sum();
                let high: Vec<u8> = if format == Format::Q5K { (0..32).map(high).collect() } else { vec![] };
                let codes: Vec<u8> = self.codes.chunks(64).flat_map(low).collect();
                [&d[..], &(-self.m).to_le_bytes(), &packed, &high, &codes].concat()
            }
            Format::Q6K => {
                let codes: Vec<u8> = self.codes.chunks(128).flat_map(low).collect();
                let scales = self.scales.map(|scale| scale as u8);
                [&codes[..], &twos(4), &scales, &d].concat()
            }
            Format::Q2K => {
                let scales: [u8; 16] = std::array::from_fn(|i| pair(self.scales[i] as u8, self.minima[i]));
                [&scales[..], &twos(0), &d, &(-self.m).to_le_bytes()].concat()
            }
            Format::Q3K => {
                let high = |l: usize| (0..8).map(|b| (self.codes[32 * b + l] >> 2 & 1) << b).sum();
                let high: [u8; 32] = std::array::from_fn(high);
                let low: [u8; 8] = std::array::from_fn(|i| pair(six(i), six(8 + i)));
                let top: [u8; 4] =
                    std::array::from_fn(|i| (0..4).map(|b| (six(4 * b + i) >> 4) << (2 * b)).sum());
                [&high[..], &twos(0), &low, &top, &d].concat()
            }
            Format::Iq4Xs => {
                let top: [u8; 2] =
                    std::array::from_fn(|i| (0..4).map(|b| (six(4 * i + b) >> 4) << (2 * b)).sum());
                let bottom: [u8; 4] = std::array::from_fn(|i| pair(six(2 * i), six(2 * i + 1)));
                let codes: Vec<u8> = self.codes.chunks(32).flat_map(low).collect();
                [&d[..], &top, &bottom, &codes].concat()
            }
            _ => unreachable!("a format of small integers"),
        }
    }
}
