//! Writes what the reference sampler makes of made-up rows, for the test programs of other devices:
//! `cargo run --release --example expected -- FILE`.
//!
//! A case is 272 bytes, little endian: how its row of logits is generated, the parameters, and what is
//! expected. The logits are made of integers and single roundings from the counter-based generator, so that
//! any device can make them again; `logit` below is the definition.

use monomorph_sampling::{
    Conditions, Sampled, Sampling, TokenBias, TokenMask, TokenUse, sample_within, uniform,
};
use std::io::Write;

pub(crate) const VOCABULARIES: [u32; 5] = [97, 1_001, 49_152, 128_256, 262_144];
pub(crate) const CASES: u32 = 128;
/// Bytes of a case.
pub(crate) const RECORD: usize = 272;

/// How a row is made.
#[derive(Clone, Copy)]
struct Row {
    vocabulary: u32,
    kind: u32,
    seed: u64,
    scale: f32,
}

/// The logit of token `id`: four fields of 13 bits, summed, are nearly normal with a deviation of 4,730 /
/// scale.
fn logit(row: Row, id: u32) -> f32 {
    let bits = (uniform(row.seed, u64::from(id)) * (1u64 << 53) as f64) as u64;
    let sum: u64 = (0..4).map(|field| bits >> (13 * field) & 0x1fff).sum();
    let x = (sum as f32 - 16_382.0) * row.scale;
    match (row.kind, bits >> 32) {
        // Many equal values.
        (1, _) => (x * 2.0).floor() * 0.5,
        // Values that are no numbers, infinite below, or zeros of either sign.
        (2, chance) => match chance % 64 {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            3 => 0.0,
            _ => x,
        },
        // All alike.
        (3, _) => row.scale,
        // Few stand out.
        (4, chance) if chance % 4_096 == 0 => x + 12.0,
        // Nothing is possible.
        (5, chance) => {
            if chance % 2 == 0 {
                f32::NAN
            } else {
                f32::NEG_INFINITY
            }
        }
        // A heavy tail.
        (6, _) => x * x * x,
        // Several infinite above.
        (7, chance) if chance % 512 == 0 => f32::INFINITY,
        // Zeros of both signs.
        (8, chance) => {
            if chance % 2 == 0 {
                0.0
            } else {
                -0.0
            }
        }
        _ => x,
    }
}

/// Token uses of a history: ids a fixed stride apart, which no vocabulary here is a multiple of.
fn history(count: u32, offset: u32, vocabulary: u32) -> Vec<TokenUse> {
    (0..count)
        .map(|i| TokenUse {
            id: ((u64::from(offset) + u64::from(i) * 7_919) % u64::from(vocabulary)) as u32,
            generated: i % 4,
        })
        .collect()
}

/// Biases: ids a prime apart that no vocabulary here is a multiple of; some that decide.
fn biases(count: u32, offset: u32, vocabulary: u32) -> Vec<TokenBias> {
    (0..count)
        .map(|i| TokenBias {
            id: ((u64::from(offset) + u64::from(i) * 104_729) % u64::from(vocabulary)) as u32,
            bias: match i % 11 {
                4 => -100.0,
                10 => 100.0,
                _ => ((i % 7) as f32 - 3.0) * 2.5,
            },
        })
        .collect()
}

/// Picks one of `choices` for case `number`, at random.
fn pick<T: Copy>(number: u64, question: u64, choices: &[T]) -> T {
    choices[(uniform(0x5eed, number * 16 + question) * choices.len() as f64) as usize]
}

/// The record of one case; `number` chooses everything but the vocabulary.
pub(crate) fn case(number: u64, vocabulary: u32) -> Vec<u8> {
    let row = Row {
        vocabulary,
        kind: pick(number, 0, &[0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]),
        seed: number + 1,
        scale: pick(number, 1, &[1e-5, 2e-4, 6.34e-4, 6.34e-4, 1.5e-3]),
    };
    let sampling = Sampling {
        temperature: pick(number, 2, &[0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 2.0, 1e-20]),
        top_k: pick(number, 3, &[0, 0, 1, 2, 20, 50, 64, 1_000, vocabulary - 1, vocabulary, u32::MAX]),
        top_p: pick(number, 4, &[1.0, 1.0, 1e-6, 0.3, 0.5, 0.8, 0.95, 0.999_999]),
        top_n_sigma: pick(number, 13, &[0.0, 0.0, 0.0, 0.5, 1.0, 3.0]),
        min_p: pick(number, 5, &[0.0, 0.0, 0.0, 0.02, 0.3, 1.0]),
        repetition_penalty: pick(number, 6, &[1.0, 1.0, 1.0, 1.3, 0.8]),
        presence_penalty: pick(number, 7, &[0.0, 0.0, 1.5, -0.5]),
        frequency_penalty: pick(number, 8, &[0.0, 0.0, 0.4, -0.3]),
        seed: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        top_logprobs: pick(number, 9, &[None, None, None, Some(0), Some(1), Some(5), Some(20)]),
        // No device follows the entropy.
        ..Sampling::GREEDY
    };
    sampling.validate().unwrap_or_else(|(field, reason)| panic!("case {number}: {field} {reason}"));
    let draw = number * 3;
    let used = pick(number, 10, &[0, 0, 1, 40, 90]) * if vocabulary > 90_000 { 20 } else { 1 };
    let offset = pick(number, 11, &[0, 5, 77]);
    // Of every `stride` ids `width` may be chosen; 0 is any.
    let [stride, width] = pick(number, 12, &[[0; 2], [0; 2], [2, 1], [65, 60], [64, 3], [40, 1]]);
    let allows = |id: &u32| (id + offset) % stride < width;
    let mask = (stride > 0).then(|| TokenMask::of(vocabulary as usize, (0..vocabulary).filter(allows)));
    let mut logits: Vec<f32> = (0..vocabulary).map(|id| logit(row, id)).collect();
    let history = history(used, offset, vocabulary);
    let biased = pick(number, 14, &[0, 0, 0, 3, 40, 90]);
    let biases = biases(biased, offset + 3, vocabulary);
    let conditions = Conditions { history: &history, biases: &biases, mask: mask.as_ref() };
    let expected = sample_within(&mut logits, &sampling, draw, &conditions);
    encode(row, &sampling, draw, [used, offset], [stride, width], biased, &expected)
}

fn encode(
    row: Row,
    sampling: &Sampling,
    draw: u64,
    [used, offset]: [u32; 2],
    mask: [u32; 2],
    biased: u32,
    expected: &Sampled,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD);
    bytes.extend(row.seed.to_le_bytes());
    bytes.extend(sampling.seed.to_le_bytes());
    bytes.extend(draw.to_le_bytes());
    for word in [row.vocabulary, row.kind, used, offset, sampling.top_k] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(sampling.top_logprobs.map_or(-1, i32::from).to_le_bytes());
    for value in [
        row.scale,
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    ] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(expected.id.to_le_bytes());
    bytes.extend(expected.logprob.unwrap_or(0.0).to_le_bytes());
    bytes.extend((expected.top.len() as u32).to_le_bytes());
    let mut top = expected.top.clone();
    top.resize(20, (0, 0.0));
    bytes.extend(top.iter().flat_map(|(id, _)| id.to_le_bytes()));
    bytes.extend(top.iter().flat_map(|(_, logprob)| logprob.to_le_bytes()));
    bytes.extend(mask.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(sampling.top_n_sigma.to_le_bytes());
    bytes.extend([biased, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    assert_eq!(bytes.len(), RECORD);
    bytes
}

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).expect("usage: expected FILE");
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for (group, vocabulary) in VOCABULARIES.into_iter().enumerate() {
        for within in 0..CASES {
            file.write_all(&case(group as u64 * u64::from(CASES) + u64::from(within), vocabulary))?;
        }
    }
    file.flush()
}
