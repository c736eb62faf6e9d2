//! What the kernel tests share: random numbers, tensors, steps.
#![allow(dead_code, reason = "each test program uses a part")]

use monomorph_device::cpu::Rows;
use monomorph_formats::Format;
use monomorph_model::{BlockId, Output, Progress, SequenceStep, Slot, Tokens};
use monomorph_weights::Tensor;

/// Numbers that look random and are the same in every run (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn vector(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }

    pub fn fill<const N: usize>(&mut self, rows: &mut Rows<N>, count: usize, scale: f32) {
        for row in 0..count {
            rows.row_mut(row).fill_with(|| self.unit() * scale);
        }
    }
}

/// A tensor that owns what [`Tensor`] borrows.
pub struct Owned {
    pub name: String,
    pub shape: Vec<usize>,
    pub format: Format,
    pub bytes: Vec<u8>,
}

impl Owned {
    pub fn new(name: &str, shape: &[usize], format: Format, values: &[f32]) -> Owned {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let bytes = monomorph_formats::encode(format, values);
        Owned { name: name.into(), shape: shape.into(), format, bytes }
    }

    pub fn random(random: &mut Random, name: &str, shape: &[usize], format: Format) -> Owned {
        let values = random.vector(shape.iter().product(), 1.0);
        Owned::new(name, shape, format, &values)
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor { name: &self.name, shape: &self.shape, format: self.format, bytes: self.bytes[..].into() }
    }

    /// What the stored values mean.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        monomorph_formats::decode(self.format, &self.bytes, &mut values);
        values
    }
}

/// `weights [rows, columns] · x` as the precision contract defines it, in f64: activations are rounded to
/// int8 first where the format is quantised.
pub fn product(weights: &Owned, x: &[f32]) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    if weights.format.is_quantised() {
        for block in x.as_chunks_mut::<32>().0 {
            let rounded = monomorph_formats::quantise_block(&block.map(|v| v as f32));
            *block = rounded.values.map(|q| f64::from(rounded.scale) * f64::from(q));
        }
    }
    let values = weights.values();
    values.chunks(x.len()).map(|row| row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

/// Asserts that `found` is `expected` within `tolerance` of the largest magnitude of `expected`.
pub fn close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance * largest, "{what}: element {i} is {found}, expected {expected}");
    }
}

pub fn sequence(position: usize, tokens: Vec<u32>, blocks: &[u32], output: Output) -> SequenceStep {
    let blocks = blocks.iter().map(|block| BlockId(*block)).collect();
    SequenceStep {
        drafts: 0,
        generated: false,
        following: None,
        begins: position == 0,
        slot: Slot(0),
        position,
        tokens: Tokens::Known(tokens),
        blocks,
        output,
    }
}

pub fn progress() -> Progress {
    Progress::default()
}
