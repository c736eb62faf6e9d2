//! Attention over latents against its definition, in which keys and values of every head are made.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, Codec, stored};
use monomorph_model::{Output, Step};
use std::path::Path;

const HEADS: usize = 3;
const KEY: usize = 10;
const ROTATED: usize = 6;
const VALUE: usize = 19;
/// Latents of two widths: an odd one, and one that all formats take.
const ODD: usize = 20;
const EVEN: usize = 32;
const BLOCK: usize = 16;
const Q: usize = HEADS * (KEY + ROTATED);
const OUT: usize = HEADS * VALUE;

const EPS: f32 = 1e-6;
const SCALE: f32 = 0.4;
const FREQUENCIES: [f32; ROTATED / 2] = [1.0, 0.3, 0.05];
/// Keys as they are given.
const NONE: [f32; ROTATED / 2] = [0.0; 3];
const GROWTH: QueryScale = QueryScale { growth: 0.3, original: 40 };

/// A sequence: what projections give of each token, and the weights.
struct Case<const LATENT: usize> {
    frequencies: [f32; ROTATED / 2],
    gains: Owned,
    made: Owned,
    q: Vec<Vec<f32>>,
    kv: Vec<Vec<f32>>,
}

fn case<const LATENT: usize>(tokens: usize, format: Format) -> Case<LATENT> {
    let mut random = Random(tokens as u64);
    Case {
        frequencies: FREQUENCIES,
        gains: Owned::random(&mut random, "norm", &[LATENT], Format::F32),
        made: Owned::random(&mut random, "kv", &[HEADS * (KEY + VALUE), LATENT], format),
        q: (0..tokens).map(|_| random.vector(Q, 1.0)).collect(),
        kv: (0..tokens).map(|_| random.vector(LATENT + ROTATED, 1.0)).collect(),
    }
}

/// Rotates adjacent pairs.
fn turned(x: &[f32], frequencies: &[f32], position: usize) -> Vec<f64> {
    let pair = |(pair, frequency): (&[f32], &f32)| {
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let [a, b] = [pair[0], pair[1]].map(f64::from);
        [a * cos - b * sin, b * cos + a * sin]
    };
    x.chunks_exact(2).zip(frequencies).flat_map(pair).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

impl<const LATENT: usize> Case<LATENT> {
    fn norm(&self) -> RmsNorm<Plain, LATENT> {
        let (team, progress) = (Team::new(1).unwrap(), progress());
        let loader = Loader::new(&team, Path::new("test"), &progress);
        RmsNorm::load(&loader, &Part::new(self.gains.tensor()), EPS).unwrap()
    }

    /// What is read back of each token: its normed latent, and its rotated key.
    fn kept(&self, format: Cached) -> Vec<[Vec<f64>; 2]> {
        let norm = self.norm();
        let read = |format, x: &[f32]| wide(&stored(Codec::unscaled(format), x.len(), x));
        let each = self.kv.iter().enumerate().map(|(position, kv)| {
            let key = turned(&kv[LATENT..], &self.frequencies, position);
            if !format.is_narrow() {
                let latent = &wide(kv)[..LATENT];
                let scale = 1.0 / (dot(latent, latent) / LATENT as f64 + f64::from(EPS)).sqrt();
                let gains = self.gains.values();
                return [
                    latent.iter().zip(gains).map(|(x, gain)| x * scale * f64::from(gain)).collect(),
                    key,
                ];
            }
            // By the same norm, so that all codes are the oracle's.
            let mut latent: [f32; LATENT] = kv[..LATENT].try_into().unwrap();
            HeadNorm::normalise(&norm, &mut latent);
            let key: Vec<f32> = key.into_iter().map(|x| x as f32).collect();
            [read(format, &latent), read(Cached::Bf16, &key)]
        });
        each.collect()
    }

    fn expected(&self, kept: &[[Vec<f64>; 2]], position: usize) -> Vec<f64> {
        let made = self.made.values();
        let rows: Vec<Vec<f64>> = made.chunks_exact(LATENT).map(wide).collect();
        let times = |rows: &[Vec<f64>], x: &[f64]| rows.iter().map(|row| dot(row, x)).collect::<Vec<_>>();
        let grown = 1.0 + f64::from(GROWTH.growth) * ((position / GROWTH.original as usize) as f64).ln_1p();
        let mut out = Vec::new();
        for head in 0..HEADS {
            let (keys, values) = rows[head * (KEY + VALUE)..][..KEY + VALUE].split_at(KEY);
            let q = wide(&self.q[position][head * KEY..][..KEY]);
            let q_rotated = &self.q[position][HEADS * KEY + head * ROTATED..][..ROTATED];
            let q_rotated = turned(q_rotated, &self.frequencies, position);
            let score = |p: usize| {
                let [latent, shared] = &kept[p];
                let score = dot(&q, &times(keys, latent)) + dot(&q_rotated, shared);
                (f64::from(SCALE) * grown * score).exp()
            };
            let weights: Vec<f64> = (0..=position).map(score).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; VALUE];
            for (p, weight) in weights.iter().enumerate() {
                let value = times(values, &kept[p][0]);
                sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight / total * x);
            }
            out.extend(sum);
        }
        out
    }

    /// The results of every token, fed at most `most` at a time to a team of `lanes`.
    fn found<F, E, const WIDTH: usize, const QUERIES: usize, const CONTEXTS: usize>(
        &self,
        lanes: usize,
        most: usize,
    ) -> Vec<Vec<f32>>
    where
        E: KvKept,
        F: WeightFormat + WeightFormat<Input<KEY> = Rows<KEY>> + WeightFormat<Input<LATENT> = Rows<LATENT>>,
    {
        let team = Team::new(lanes).unwrap();
        let progress = progress();
        let loader = Loader::new(&team, Path::new("test"), &progress);
        let norm = self.norm();
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
        let cache = LatentCache::<E, LATENT, WIDTH, BLOCK>::new(&[0], blocks).unwrap();
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
                rotary_angles(lane, &batch, &self.frequencies, 1.0, &angles);
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

/// [`Case::found`] for latents of [`ODD`] and [`EVEN`].
macro_rules! found {
    ($case:expr, $latent:expr, $format:ty, $kept:ty, $lanes:expr, $most:expr) => {
        $case.found::<
                                                                            $format,
                                                                            $kept,
                                                                            { $latent + ROTATED },
                                                                            { HEADS * ($latent + ROTATED) },
                                                                            { HEADS * $latent },
                                                                        >($lanes, $most)
    };
}

#[test]
fn absorbed_matrices_give_what_made_keys_and_values_give() {
    let case = case::<ODD>(300, Format::F32);
    let (found, kept) = (found!(case, ODD, F32, f32, 2, 512), case.kept(Cached::F32));
    for position in [0, 1, 15, 16, 39, 40, 63, 127, 128, 129, 255, 299] {
        close(&found[position], &case.expected(&kept, position), 2e-5, &format!("position {position}"));
    }
}

#[test]
fn a_row_depends_neither_on_cuts_nor_on_lanes() {
    let case = case::<ODD>(150, Format::F32);
    let whole = found!(case, ODD, F32, f32, 2, 512);
    for (lanes, most) in [(1, 512), (3, 40), (2, 7), (4, 1)] {
        assert!(whole == found!(case, ODD, F32, f32, lanes, most), "{lanes} lanes, {most} at a time");
    }
}

/// Latents kept as `E`: the oracle's codes, with rotated keys as bf16 beside them, however a prompt is cut.
fn kept_as<E: KvKept>() {
    let format = E::FORMATS.keys;
    let mut case = case::<EVEN>(150, Format::F32);
    // A rotated key that lies at the edge of two roundings may fall either way.
    for (frequencies, tolerance) in [(NONE, 2e-5), (FREQUENCIES, 4e-3)] {
        case.frequencies = frequencies;
        let (whole, kept) = (found!(case, EVEN, F32, E, 2, 512), case.kept(format));
        for position in [0, 1, 15, 16, 39, 63, 64, 128, 149] {
            let expected = case.expected(&kept, position);
            close(&whole[position], &expected, tolerance, &format!("{format}, position {position}"));
        }
        for (lanes, most) in [(3, 40), (2, 1)] {
            assert!(whole == found!(case, EVEN, F32, E, lanes, most), "{format}, {most} at a time");
        }
    }
}

#[test]
fn narrow_latents_are_what_the_oracle_stores() {
    kept_as::<Fp8>();
    kept_as::<Nvfp4>();
    kept_as::<Turbo8>();
    kept_as::<Turbo4>();
    kept_as::<Turbo3>();
    let odd = case::<ODD>(40, Format::F32);
    let (found, kept) = (found!(odd, ODD, F32, Fp8, 2, 512), odd.kept(Cached::Fp8));
    close(&found[39], &odd.expected(&kept, 39), 4e-3, "fp8 of 20");
}

#[test]
fn halves_are_read_as_they_are_stored() {
    for format in [Format::Bf16, Format::F16] {
        let case = case::<ODD>(40, format);
        let found = match format {
            Format::Bf16 => found!(case, ODD, Bf16, f32, 2, 512),
            _ => found!(case, ODD, F16, f32, 2, 512),
        };
        let kept = case.kept(Cached::F32);
        for position in [0, 17, 39] {
            let expected = case.expected(&kept, position);
            close(&found[position], &expected, 2e-5, &format!("{format}, position {position}"));
        }
    }
}
