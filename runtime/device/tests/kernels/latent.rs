//! Attention over latents against its definition, in which keys and values of every head are made.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Output, Step};
use std::path::Path;

const HEADS: usize = 3;
const KEY: usize = 10;
const ROTATED: usize = 6;
const VALUE: usize = 19;
const LATENT: usize = 20;
const WIDTH: usize = LATENT + ROTATED;
const BLOCK: usize = 16;
const Q: usize = HEADS * (KEY + ROTATED);
const QUERIES: usize = HEADS * WIDTH;
const CONTEXTS: usize = HEADS * LATENT;
const OUT: usize = HEADS * VALUE;

const EPS: f32 = 1e-6;
const SCALE: f32 = 0.4;
const FREQUENCIES: [f32; ROTATED / 2] = [1.0, 0.3, 0.05];
const GROWTH: QueryScale = QueryScale { growth: 0.3, original: 40 };

/// A sequence: what projections give of each token, and the weights.
struct Case {
    gains: Owned,
    made: Owned,
    q: Vec<Vec<f32>>,
    kv: Vec<Vec<f32>>,
}

fn case(tokens: usize, format: Format) -> Case {
    let mut random = Random(tokens as u64);
    Case {
        gains: Owned::random(&mut random, "norm", &[LATENT], Format::F32),
        made: Owned::random(&mut random, "kv", &[HEADS * (KEY + VALUE), LATENT], format),
        q: (0..tokens).map(|_| random.vector(Q, 1.0)).collect(),
        kv: (0..tokens).map(|_| random.vector(WIDTH, 1.0)).collect(),
    }
}

/// Rotates adjacent pairs.
fn turned(x: &[f32], position: usize) -> Vec<f64> {
    let pair = |(pair, frequency): (&[f32], &f32)| {
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let [a, b] = [pair[0], pair[1]].map(f64::from);
        [a * cos - b * sin, b * cos + a * sin]
    };
    x.chunks_exact(2).zip(&FREQUENCIES).flat_map(pair).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

impl Case {
    /// A token's normed latent.
    fn latent(&self, position: usize) -> Vec<f64> {
        let latent = &wide(&self.kv[position])[..LATENT];
        let scale = 1.0 / (dot(latent, latent) / LATENT as f64 + f64::from(EPS)).sqrt();
        latent.iter().zip(self.gains.values()).map(|(x, gain)| x * scale * f64::from(gain)).collect()
    }

    fn expected(&self, position: usize) -> Vec<f64> {
        let made = self.made.values();
        let rows: Vec<Vec<f64>> = made.chunks_exact(LATENT).map(wide).collect();
        let times = |rows: &[Vec<f64>], x: &[f64]| rows.iter().map(|row| dot(row, x)).collect::<Vec<_>>();
        let grown = 1.0 + f64::from(GROWTH.growth) * ((position / GROWTH.original as usize) as f64).ln_1p();
        let mut out = Vec::new();
        for head in 0..HEADS {
            let (keys, values) = rows[head * (KEY + VALUE)..][..KEY + VALUE].split_at(KEY);
            let q = wide(&self.q[position][head * KEY..][..KEY]);
            let q_rotated = turned(&self.q[position][HEADS * KEY + head * ROTATED..][..ROTATED], position);
            let score = |p: usize| {
                let shared = turned(&self.kv[p][LATENT..], p);
                let score = dot(&q, &times(keys, &self.latent(p))) + dot(&q_rotated, &shared);
                (f64::from(SCALE) * grown * score).exp()
            };
            let weights: Vec<f64> = (0..=position).map(score).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; VALUE];
            for (p, weight) in weights.iter().enumerate() {
                let value = times(values, &self.latent(p));
                sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight / total * x);
            }
            out.extend(sum);
        }
        out
    }

    /// The results of every token, fed at most `most` at a time to a team of `lanes`.
    fn found<F>(&self, lanes: usize, most: usize) -> Vec<Vec<f32>>
    where
        F: WeightFormat + WeightFormat<Input<KEY> = Rows<KEY>> + WeightFormat<Input<LATENT> = Rows<LATENT>>,
    {
        let team = Team::new(lanes).unwrap();
        let progress = progress();
        let loader = Loader::new(&team, Path::new("test"), &progress);
        let norm = RmsNorm::<Plain, LATENT>::load(&loader, &Part::new(self.gains.tensor()), EPS).unwrap();
        let heads =
            LatentHeads::<F, HEADS, KEY, VALUE, LATENT>::load(&loader, &[Part::new(self.made.tensor())])
                .unwrap();
        let tokens = self.q.len();
        let blocks = tokens.div_ceil(BLOCK);
        let limits = BatchLimits {
            tokens: 512,
            sequences: 1,
            vocabulary: 10,
            context: 1024,
            block_tokens: BLOCK,
            blocks,
        };
        let mut batch = Batch::new(limits);
        let cache = LatentCache::<f32, WIDTH, BLOCK>::new(&[0], blocks).unwrap();
        let scratch = LatentScratch::<HEADS, KEY, WIDTH, LATENT, QUERIES, CONTEXTS>::new(lanes, 1024, 512);
        let (mut q, mut kv) = (Rows::<Q>::new(512), Rows::<WIDTH>::new(512));
        let (mut out, angles) = (Rows::<OUT>::new(512), Rows::<ROTATED>::new(512));
        let ids: Vec<u32> = (0..blocks as u32).rev().collect();
        let (mut done, mut found) = (0, Vec::new());
        while done < tokens {
            let count = most.min(tokens - done);
            let known = &ids[..(done + count).div_ceil(BLOCK)];
            let step = sequence(done, vec![1; count], known, Output::None);
            (0..count).for_each(|row| {
                q.row_mut(row).copy_from_slice(&self.q[done + row]);
                kv.row_mut(row).copy_from_slice(&self.kv[done + row]);
            });
            batch.fill(&Step { sequences: vec![step], ..Step::default() }, &Outputs::<0>::default());
            team.run(|lane| {
                rotary_angles(lane, &batch, &FREQUENCIES, 1.0, &angles);
                latent_attention(
                    lane,
                    &batch,
                    0,
                    &q,
                    &kv,
                    &norm,
                    &angles,
                    Adjacent,
                    (GROWTH, SCALE),
                    &heads,
                    &cache,
                    &scratch,
                    &out,
                );
            });
            found.extend((0..count).map(|row| out.row(row).to_vec()));
            done += count;
        }
        found
    }
}

#[test]
fn absorbed_matrices_give_what_made_keys_and_values_give() {
    let case = case(300, Format::F32);
    let found = case.found::<F32>(2, 512);
    for position in [0, 1, 15, 16, 39, 40, 63, 127, 128, 129, 255, 299] {
        close(&found[position], &case.expected(position), 2e-5, &format!("position {position}"));
    }
}

#[test]
fn a_row_depends_neither_on_cuts_nor_on_lanes() {
    let case = case(150, Format::F32);
    let whole = case.found::<F32>(2, 512);
    for (lanes, most) in [(1, 512), (3, 40), (2, 7), (4, 1)] {
        assert!(whole == case.found::<F32>(lanes, most), "{lanes} lanes, {most} at a time");
    }
}

#[test]
fn halves_are_read_as_they_are_stored() {
    for format in [Format::Bf16, Format::F16] {
        let case = case(40, format);
        let found =
            if format == Format::Bf16 { case.found::<Bf16>(2, 512) } else { case.found::<F16>(2, 512) };
        for position in [0, 17, 39] {
            close(
                &found[position],
                &case.expected(position),
                2e-5,
                &format!("{format}, position {position}"),
            );
        }
    }
}
