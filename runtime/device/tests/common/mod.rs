//! What the kernel tests share: random numbers, tensors, steps.
#![allow(dead_code, reason = "each test program uses a part")]

use monomorph_device::cpu::{
    Bf16, Decoded, F16, F32, Fp8Block128, Fp8Tensor, InE4m3, InF16, Iq4Nl, Iq4Xs, Nvfp4Groups, Part, Q2K,
    Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Rows, WeightFormat,
};
use monomorph_formats::{Format, ScaleForm};
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

/// A tensor that owns what [`Tensor`] borrows, and the scales beside it.
pub struct Owned {
    pub name: String,
    pub shape: Vec<usize>,
    pub format: Format,
    pub bytes: Vec<u8>,
    pub scales: Option<(ScaleForm, Vec<Owned>)>,
}

impl Owned {
    pub fn new(name: &str, shape: &[usize], format: Format, values: &[f32]) -> Owned {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let bytes = monomorph_formats::encode(format, values);
        Owned { name: name.into(), shape: shape.into(), format, bytes, scales: None }
    }

    pub fn random(random: &mut Random, name: &str, shape: &[usize], format: Format) -> Owned {
        let values = random.vector(shape.iter().product(), 1.0);
        Owned::new(name, shape, format, &values)
    }

    /// As [`Self::random`], for products with `F`: a matrix with the scales of that format beside it. Each
    /// row, and each run of columns, has numbers of another size.
    pub fn of<F: WeightFormat>(random: &mut Random, name: &str, shape: &[usize; 2]) -> Owned {
        let Some(form) = F::SCALES else { return Owned::random(random, name, shape, F::FORMAT) };
        let mut values = random.vector(shape.iter().product(), 1.0);
        for (at, value) in values.iter_mut().enumerate() {
            let (row, column) = (at / shape[1], at % shape[1]);
            *value *= 0.5 + ((row / 3 + column / 16) % 7) as f32;
        }
        Owned::scaled(name, shape, form, &values)
    }

    /// A matrix of codes with scales of this form beside it.
    pub fn scaled(name: &str, shape: &[usize; 2], form: ScaleForm, values: &[f32]) -> Owned {
        let quantised = monomorph_formats::quantise(form, Format::F32, values, shape[1]);
        let companions = form.companions(shape[0], shape[1]).into_iter().zip(&quantised.scales);
        let scales = companions.enumerate().map(|(index, ((suffix, shape), values))| {
            let of_groups = form.codes() == Format::Nvfp4 && index == 0;
            let format = if of_groups { Format::Fp8E4m3 } else { Format::F32 };
            Owned::new(&format!("{name}.{suffix}"), &shape, format, values)
        });
        let scales = scales.collect();
        Owned {
            name: name.into(),
            shape: shape.to_vec(),
            format: form.codes(),
            bytes: quantised.codes,
            scales: Some((form, scales)),
        }
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor { name: &self.name, shape: &self.shape, format: self.format, bytes: self.bytes[..].into() }
    }

    /// The tensors that hold its scales.
    pub fn companions(&self) -> Vec<Tensor<'_>> {
        self.scales.iter().flat_map(|(_, companions)| companions.iter().map(Owned::tensor)).collect()
    }

    /// The tensor with its scales, which are [`Self::companions`].
    pub fn part<'a>(&'a self, companions: &'a [Tensor<'a>]) -> Part<'a> {
        let part = Part::new(self.tensor());
        self.scales.as_ref().map_or(part, |(form, _)| part.scaled(*form, companions))
    }

    /// What the stored values mean.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        monomorph_formats::decode(self.format, &self.bytes, &mut values);
        if let Some((form, companions)) = &self.scales {
            let scales: Vec<Vec<f32>> = companions.iter().map(Owned::values).collect();
            form.apply(&mut values, self.shape[1], &scales);
        }
        values
    }
}

/// How a kernel rounds what it multiplies, as the precision contract has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    Nothing,
    ToInt8,
    ToF16,
    ToE4m3,
}

/// A format, and what its products round.
pub trait Rounded: WeightFormat {
    const ROUNDS: Rounds;
}

macro_rules! rounds {
    ($rounds:ident: $($format:ident),*) => {
        $(impl Rounded for $format {
            const ROUNDS: Rounds = Rounds::$rounds;
        })*
    };
}
rounds!(Nothing: F32, Bf16, F16, Fp8Tensor, Fp8Block128, Nvfp4Groups);
rounds!(ToInt8: Q8_0, Q4_1, Q4_0, Q5_0, Q5_1, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs);

impl<D: Decoded> Rounded for InF16<D> {
    const ROUNDS: Rounds = Rounds::ToF16;
}

impl<D: Decoded> Rounded for InE4m3<D> {
    const ROUNDS: Rounds = Rounds::ToE4m3;
}

impl Rounds {
    /// How far a row of sums may be from the exact ones, as a part of their largest. Rounding is a step
    /// function: where the last bit of what is rounded falls on a step, one activation moves by a step.
    pub fn tolerance(self, exact: f64) -> f64 {
        match self {
            Rounds::Nothing => exact,
            Rounds::ToF16 => 5e-4,
            Rounds::ToInt8 => 4e-3,
            Rounds::ToE4m3 => 3e-2,
        }
    }

    fn activations(self, x: &[f32]) -> Vec<f32> {
        match self {
            Rounds::Nothing => x.to_vec(),
            Rounds::ToF16 => monomorph_formats::through_halves(x),
            Rounds::ToE4m3 => monomorph_formats::through_e4m3(x),
            Rounds::ToInt8 => {
                let blocks = x.as_chunks::<32>().0.iter().map(monomorph_formats::quantise_block);
                blocks.flat_map(|block| block.values.map(|q| block.scale * f32::from(q))).collect()
            }
        }
    }
}

/// `weights [rows, columns] · x` as the precision contract defines it, in f64.
pub fn product(weights: &Owned, rounds: Rounds, x: &[f32]) -> Vec<f64> {
    let (columns, x) = (x.len(), rounds.activations(x));
    let rounded = |row: &[f32]| match rounds {
        Rounds::ToF16 if weights.scales.is_none() => monomorph_formats::through_halves(row),
        _ => row.to_vec(),
    };
    let dot = |row: Vec<f32>| row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
    weights.values().chunks(columns).map(|row| dot(rounded(row))).collect()
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
