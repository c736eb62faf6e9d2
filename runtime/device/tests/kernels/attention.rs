//! Attention against brute force: grouped heads, paged blocks in any order, several sequences in a step, any
//! cut of a prompt into steps.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_formats::cached::{Codec, KvFormats, stored};
use monomorph_model::{Output, Step};
use std::path::Path;

/// How a test model attends.
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    adjacent: bool,
    normed: bool,
    scale: f32,
}

/// One sequence's q, k and v rows as the projection left them, and what has been computed of it.
struct Stream {
    qkv: Vec<Vec<f32>>,
    blocks: Vec<u32>,
    done: usize,
    found: Vec<Vec<f32>>,
}

/// What attention makes of a whole sequence, in f64; keys and values are what is read back of the cache.
fn brute_force(
    shape: &Shape,
    qkv: &[Vec<f32>],
    frequencies: &[f32],
    gains: &[f32],
    formats: KvFormats,
) -> Vec<Vec<f64>> {
    let Shape { heads, kv_heads, dim, .. } = *shape;
    let kept = |format, vector: &[f32]| stored(Codec::unscaled(format), dim, vector);
    let turn = |head: &[f32], position: usize| -> Vec<f64> {
        let mut x: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
        if shape.normed {
            let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / dim as f64 + 1e-6).sqrt();
            x.iter_mut().zip(gains).for_each(|(x, gain)| *x *= scale * f64::from(*gain));
        }
        for (i, frequency) in frequencies.iter().enumerate() {
            let (a, b) = if shape.adjacent { (2 * i, 2 * i + 1) } else { (i, i + frequencies.len()) };
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin);
        }
        x
    };
    let head = |row: &[f32], index: usize| row[index * dim..(index + 1) * dim].to_vec();
    let keys: Vec<Vec<Vec<f64>>> = (0..kv_heads)
        .map(|kv| {
            let key = |(p, row): (usize, &Vec<f32>)| {
                let key: Vec<f32> = turn(&head(row, heads + kv), p).iter().map(|x| *x as f32).collect();
                kept(formats.keys, &key).into_iter().map(f64::from).collect()
            };
            qkv.iter().enumerate().map(key).collect()
        })
        .collect();
    let values: Vec<Vec<Vec<f32>>> = (0..kv_heads)
        .map(|kv| {
            let value = |row: &Vec<f32>| kept(formats.values, &head(row, heads + kv_heads + kv));
            qkv.iter().map(value).collect()
        })
        .collect();
    qkv.iter()
        .enumerate()
        .map(|(position, row)| {
            let mut out = Vec::new();
            for h in 0..heads {
                let kv = h / (heads / kv_heads);
                let query = turn(&head(row, h), position);
                let scores: Vec<f64> = keys[kv][..=position]
                    .iter()
                    .map(|key| {
                        f64::from(shape.scale) * key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>()
                    })
                    .collect();
                let largest = scores.iter().fold(f64::MIN, |m, s| m.max(*s));
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let weighted = weights.iter().zip(&values[kv]);
                out.extend((0..dim).map(|d| {
                    weighted.clone().map(|(weight, value)| weight * f64::from(value[d])).sum::<f64>() / total
                }));
            }
            out
        })
        .collect()
}

/// Runs `lengths` sequences to their ends, cut into steps at random (`most` tokens of a sequence at a time),
/// and checks every row. Returns the rows.
fn run<
    E: KvKept,
    P: RotaryPairs + Copy,
    const HEADS: usize,
    const KV_HEADS: usize,
    const DIM: usize,
    const BLOCK: usize,
    const QKV: usize,
    const OUT: usize,
    const HALF: usize,
    const DIMS: usize,
>(
    pairs: P,
    adjacent: bool,
    normed: bool,
    lanes: usize,
    lengths: &[usize],
    most: usize,
    tolerance: f64,
) -> Vec<Vec<f32>> {
    let shape = Shape {
        heads: HEADS,
        kv_heads: KV_HEADS,
        dim: DIM,
        adjacent,
        normed,
        scale: 1.3 / (DIM as f32).sqrt(),
    };
    let mut data = Random(DIM as u64);
    let mut cuts = Random(most as u64 + lanes as u64);
    let frequencies: [f32; HALF] = std::array::from_fn(|i| 0.7f32.powi(i as i32 * 3));
    let gains = Owned::new("gains", &[DIM], Format::F32, &data.vector(DIM, 1.5));
    let blocks_needed: usize = lengths.iter().map(|n| n.div_ceil(BLOCK)).sum();
    // Blocks in no order, and some unused.
    let mut ids: Vec<u32> = (0..blocks_needed as u32 + 3).collect();
    for i in (1..ids.len()).rev() {
        ids.swap(i, cuts.below(i + 1));
    }
    let mut streams: Vec<Stream> = lengths
        .iter()
        .map(|n| Stream {
            qkv: (0..*n).map(|_| data.vector(QKV, 1.0)).collect(),
            blocks: ids.split_off(ids.len() - n.div_ceil(BLOCK)),
            done: 0,
            found: Vec::new(),
        })
        .collect();

    let (team, progress) = (Team::new(lanes).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let norm = RmsNorm::<Plain, DIM>::load(&loader, &Part::new(gains.tensor()), 1e-6).unwrap();
    let limits = BatchLimits {
        tokens: 512,
        sequences: 8,
        vocabulary: 10,
        context: 4096,
        block_tokens: BLOCK,
        blocks: blocks_needed + 3,
    };
    let mut batch = Batch::new(limits);
    let cache = KvCache::<E, KV_HEADS, DIM, BLOCK>::new(&[0, 1, 2], limits.blocks).unwrap();
    let scratch = AttentionScratch::<HEADS, KV_HEADS, DIM>::new(lanes, 4096);
    let (mut qkv, mut out) = (Rows::<QKV>::new(512), Rows::<OUT>::new(512));
    let angles = Rows::<DIMS>::new(512);
    while streams.iter().any(|stream| stream.done < stream.qkv.len()) {
        let mut step = Step::default();
        let mut parts = Vec::new();
        let mut row = 0;
        for (index, stream) in streams.iter().enumerate() {
            let left = (stream.qkv.len() - stream.done).min(512 - row);
            // Sequences take turns at random, so that they are at different positions.
            if left == 0 || (streams.len() > 1 && cuts.below(4) == 0) {
                continue;
            }
            let count = left.min(1 + cuts.below(most));
            let end = stream.done + count;
            step.sequences.push(sequence(
                stream.done,
                vec![1; count],
                &stream.blocks[..end.div_ceil(BLOCK)],
                Output::None,
            ));
            for position in stream.done..end {
                qkv.row_mut(row).copy_from_slice(&stream.qkv[position]);
                row += 1;
            }
            parts.push((index, count));
        }
        batch.fill(&step, &Outputs::<0>::default());
        team.run(|lane| {
            rotary_angles(lane, &batch, &frequencies, 1.0, &angles);
            // Another layer, to see that layers do not mix.
            if normed {
                attention(
                    lane,
                    &batch,
                    2,
                    &qkv,
                    &norm,
                    &norm,
                    &angles,
                    pairs,
                    shape.scale,
                    &cache,
                    &scratch,
                    &out,
                );
            } else {
                attention(
                    lane,
                    &batch,
                    2,
                    &qkv,
                    &NoNorm,
                    &NoNorm,
                    &angles,
                    pairs,
                    shape.scale,
                    &cache,
                    &scratch,
                    &out,
                );
            }
        });
        let mut row = 0;
        for (index, count) in parts {
            for _ in 0..count {
                streams[index].found.push(out.row(row).to_vec());
                row += 1;
            }
            streams[index].done += count;
        }
    }
    for stream in &streams {
        let expected = brute_force(&shape, &stream.qkv, &frequencies, &gains.values(), E::FORMATS);
        for (position, (found, expected)) in stream.found.iter().zip(&expected).enumerate() {
            close(found, expected, tolerance, &format!("position {position} of {}", stream.qkv.len()));
        }
    }
    streams.into_iter().flat_map(|stream| stream.found).collect()
}

#[test]
fn grouped_heads_in_one_step_and_token_by_token() {
    let case = |lanes, most| {
        run::<f32, _, 9, 3, 64, 16, 960, 576, 32, 64>(Halves, false, false, lanes, &[300], most, 1e-5)
    };
    let whole = case(2, 512);
    // The same bits however the prompt is cut and the work shared.
    assert!(whole == case(2, 1) && whole == case(1, 40) && whole == case(3, 7));
}

#[test]
fn rounding_caches_and_large_blocks() {
    // A key that lies at the edge of two roundings may fall either way.
    run::<bf16, _, 4, 4, 32, 48, 384, 128, 16, 32>(Halves, false, false, 2, &[150, 20], 64, 4e-3);
    run::<f16, _, 6, 2, 80, 32, 800, 480, 20, 40>(Adjacent, true, false, 2, &[140], 50, 1e-3);
}

/// Keys and values kept as `E`: heads that share keys, blocks that segments cut, prompts cut in any way.
fn kept_as<E: KvKept>() {
    // Keys as they are given, so that all codes are the oracle's.
    let case = |lanes, most| {
        run::<E, _, 6, 2, 64, 48, 640, 384, 0, 0>(Halves, false, false, lanes, &[200, 20], most, 2e-5)
    };
    let whole = case(2, 512);
    // The same bits however the prompt is cut: a row attends to what is stored, of its own step too.
    assert!(whole == case(3, 1) && whole == case(1, 33), "{}", E::FORMATS);
    // A key that lies at the edge of two codes may fall either way.
    run::<E, _, 2, 1, 256, 16, 1024, 512, 32, 64>(Adjacent, true, true, 2, &[140], 50, 4e-3);
}

#[test]
fn narrow_keys_and_values_are_what_the_oracle_stores() {
    kept_as::<Fp8>();
    kept_as::<Nvfp4>();
    kept_as::<Turbo8>();
    kept_as::<Turbo4>();
    kept_as::<Turbo3>();
    kept_as::<(Turbo8, Turbo4)>();
    kept_as::<(bf16, Turbo3)>();
}

#[test]
fn odd_widths_norms_and_many_sequences() {
    run::<f32, _, 5, 5, 20, 16, 300, 100, 5, 10>(Adjacent, true, true, 2, &[33, 7, 140, 1, 64], 9, 1e-5);
    run::<f32, _, 3, 1, 12, 32, 60, 36, 6, 12>(Halves, false, true, 3, &[5, 270], 33, 1e-5);
    run::<f32, _, 14, 2, 40, 16, 720, 560, 20, 40>(Halves, false, false, 2, &[200, 1], 200, 1e-5);
    run::<f32, _, 1, 1, 128, 64, 384, 128, 64, 128>(Halves, false, false, 2, &[129, 3], 3, 1e-5);
}

#[test]
fn long_contexts_are_split_over_lanes() {
    let case =
        |lanes| run::<f32, _, 4, 1, 16, 16, 96, 64, 8, 16>(Halves, false, false, lanes, &[1500], 500, 1e-5);
    let split = case(4);
    assert!(split == case(1));
}

#[test]
#[should_panic(expected = "blocks that the cache does not have")]
fn a_cache_smaller_than_the_batch_admits_is_refused() {
    let team = Team::new(1).unwrap();
    let limits =
        BatchLimits { tokens: 1, sequences: 1, vocabulary: 1, context: 16, block_tokens: 16, blocks: 2 };
    let mut batch = Batch::new(limits);
    batch.fill(
        &Step { sequences: vec![sequence(0, vec![0], &[1], Output::None)], ..Step::default() },
        &Outputs::<0>::default(),
    );
    let cache = KvCache::<f32, 1, 16, 16>::new(&[0], 1).unwrap();
    let (qkv, out, angles) = (Rows::<48>::new(1), Rows::<16>::new(1), Rows::<16>::new(1));
    let scratch = AttentionScratch::<1, 1, 16>::new(1, 16);
    team.run(|lane| {
        attention(lane, &batch, 0, &qkv, &NoNorm, &NoNorm, &angles, Halves, 1.0, &cache, &scratch, &out)
    });
}
