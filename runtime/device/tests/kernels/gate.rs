//! Attention whose results pass a gate, and heads that turn in part: the shapes of gated attention against
//! brute force.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Output, Step};
use std::path::Path;

const EPS: f32 = 1e-6;
const BLOCK: usize = 16;

/// One prompt, all of it: rows `[q | gate | k | v]` before norm and rotation.
struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    frequencies: Vec<f32>,
    q_gains: Vec<f32>,
    k_gains: Vec<f32>,
    rows: Vec<Vec<f32>>,
}

impl Case {
    /// Norm (times one plus the weight) and rotation of the leading dimensions, pairs `(i, i + dims/2)`.
    fn turned(&self, head: &[f32], gains: &[f32], position: usize) -> Vec<f64> {
        let mean = head.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / self.dim as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        let mut x: Vec<f64> =
            head.iter().zip(gains).map(|(x, w)| f64::from(*x) * scale * (1.0 + f64::from(*w))).collect();
        let half = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            (x[i], x[i + half]) = (x[i] * cos - x[i + half] * sin, x[i + half] * cos + x[i] * sin);
        }
        x
    }

    fn expected(&self, scale: f32) -> Vec<Vec<f64>> {
        let Case { heads, kv_heads, dim, .. } = *self;
        let head = |row: usize, index: usize| &self.rows[row][index * dim..(index + 1) * dim];
        let row = |position: usize| {
            let mut out = Vec::new();
            for h in 0..heads {
                let kv = h / (heads / kv_heads);
                let query = self.turned(head(position, h), &self.q_gains, position);
                let weights: Vec<f64> = (0..=position)
                    .map(|p| {
                        let key = self.turned(head(p, 2 * heads + kv), &self.k_gains, p);
                        (f64::from(scale) * key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let value = |p| f64::from(head(p, 2 * heads + kv_heads + kv)[d]);
                    let sum: f64 = weights.iter().enumerate().map(|(p, w)| w * value(p)).sum();
                    let gate = f64::from(head(position, heads + h)[d]);
                    out.push(sum / total / (1.0 + (-gate).exp()));
                }
            }
            out
        };
        (0..self.rows.len()).map(row).collect()
    }
}

/// Runs a prompt of `tokens` tokens, `most` at a time on `lanes` lanes, and returns the rows.
fn run<
    const HEADS: usize,
    const KV_HEADS: usize,
    const DIM: usize,
    const QKV: usize,
    const OUT: usize,
    const HALF: usize,
    const DIMS: usize,
>(
    tokens: usize,
    most: usize,
    lanes: usize,
) -> Vec<Vec<f32>> {
    let mut random = Random(DIM as u64);
    let frequencies: [f32; HALF] = std::array::from_fn(|i| 0.8f32.powi(i as i32));
    let gains = [0, 1].map(|_| Owned::new("gains", &[DIM], Format::F32, &random.vector(DIM, 0.5)));
    let case = Case {
        heads: HEADS,
        kv_heads: KV_HEADS,
        dim: DIM,
        frequencies: frequencies.to_vec(),
        q_gains: gains[0].values(),
        k_gains: gains[1].values(),
        rows: (0..tokens).map(|_| random.vector(QKV, 3.0)).collect(),
    };
    let scale = 0.5 / (DIM as f32).sqrt();
    let (team, progress) = (Team::new(lanes).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let [q_norm, k_norm] = gains
        .each_ref()
        .map(|gains| RmsNorm::<OnePlus, DIM>::load(&loader, &Part::new(gains.tensor()), EPS).unwrap());
    let blocks = tokens.div_ceil(BLOCK);
    let mut batch = Batch::new(BatchLimits {
        tokens: most,
        sequences: 1,
        vocabulary: 1,
        context: tokens,
        block_tokens: BLOCK,
        blocks,
    });
    let cache = KvCache::<f32, KV_HEADS, DIM, BLOCK>::new(&[0], blocks).unwrap();
    let scratch = AttentionScratch::<HEADS, KV_HEADS, DIM>::new(lanes, tokens);
    let (mut qkv, mut out) = (Rows::<QKV>::new(most), Rows::<OUT>::new(most));
    let angles = Rows::<DIMS>::new(most);
    let ids: Vec<u32> = (0..blocks as u32).collect();
    let mut found = Vec::new();
    for (index, rows) in case.rows.chunks(most).enumerate() {
        let step = sequence(index * most, vec![0; rows.len()], &ids, Output::None);
        batch.fill(&Step { sequences: vec![step], ..Step::default() }, &Outputs::<0>::default());
        for (row, values) in rows.iter().enumerate() {
            qkv.row_mut(row).copy_from_slice(values);
            out.row_mut(row).fill(f32::NAN);
        }
        team.run(|lane| {
            rotary_angles(lane, &batch, &frequencies, 1.0, &angles);
            attention(
                lane, &batch, 0, &qkv, &q_norm, &k_norm, &angles, Halves, scale, &cache, &scratch, &out,
            );
        });
        found.extend((0..rows.len()).map(|row| out.row(row).to_vec()));
    }
    for (position, (found, expected)) in found.iter().zip(case.expected(scale)).enumerate() {
        close(found, &expected, 1e-5, &format!("heads of {DIM}, position {position} of {tokens}"));
    }
    found
}

#[test]
fn heads_of_256_that_turn_by_a_quarter() {
    // 16 heads would be a full model's; the grouping is the same with fewer.
    let case = |tokens, most, lanes| run::<8, 1, 256, 4608, 2048, 32, 64>(tokens, most, lanes);
    let whole = case(150, 150, 2);
    assert!(whole == case(150, 1, 2) && whole == case(150, 40, 3) && whole == case(150, 7, 1));
}

#[test]
fn widths_that_fill_no_vector() {
    run::<6, 3, 20, 360, 120, 3, 6>(40, 9, 2);
    run::<1, 1, 12, 48, 12, 6, 12>(20, 20, 1);
}
