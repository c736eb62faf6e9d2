//! Mamba-2 against its definition in f64: odd widths, several sequences in a step, any cut of a prompt into
//! steps, slots that were used before.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Output, SequenceStep, Slot, States, Step};
use std::path::Path;

/// Under the root of the norm.
const EPS: f32 = 1e-5;

/// One sequence's projections, and what has been computed of it.
struct Stream {
    projected: Vec<Vec<f32>>,
    slot: u32,
    done: usize,
    found: Vec<Vec<f32>>,
}

struct Weights {
    convolution: Owned,
    bias: Owned,
    a_log: Owned,
    dt_bias: Owned,
    d: Owned,
    norm: Owned,
}

struct Shape {
    heads: usize,
    head_dim: usize,
    groups: usize,
    state: usize,
    taps: usize,
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The definition, one sequence from its start, in f64.
fn definition(shape: &Shape, weights: &Weights, stream: &Stream) -> Vec<Vec<f64>> {
    let Shape { heads, head_dim, groups, state, taps } = *shape;
    let [convolution, bias, a_log, dt_bias, d, norm] =
        [&weights.convolution, &weights.bias, &weights.a_log, &weights.dt_bias, &weights.d, &weights.norm]
            .map(|it| wide(&it.values()));
    let inner = heads * head_dim;
    let channels = inner + 2 * groups * state;
    let mut states = vec![vec![vec![0.0f64; head_dim]; state]; heads];
    let mut rows = Vec::new();
    for (t, projected) in stream.projected.iter().enumerate() {
        let convolved: Vec<f64> = (0..channels)
            .map(|c| {
                let there = (0..taps).filter(|tap| t + tap + 1 >= taps);
                let input = |tap: usize| f64::from(stream.projected[t + tap + 1 - taps][inner + c]);
                let sum: f64 = there.map(|tap| convolution[c * taps + tap] * input(tap)).sum();
                silu(sum + bias[c])
            })
            .collect();
        let (z, dt) = (wide(&projected[..inner]), wide(&projected[inner + channels..]));
        let mut gated = Vec::new();
        for head in 0..heads {
            let group = head / (heads / groups);
            let x = &convolved[head * head_dim..][..head_dim];
            let b = &convolved[inner + group * state..][..state];
            let c = &convolved[inner + (groups + group) * state..][..state];
            let step = (dt[head] + dt_bias[head]).exp().ln_1p();
            let decay = (-a_log[head].exp() * step).exp();
            let s = &mut states[head];
            for p in 0..head_dim {
                for n in 0..state {
                    s[n][p] = decay * s[n][p] + b[n] * step * x[p];
                }
                let y = (0..state).map(|n| s[n][p] * c[n]).sum::<f64>() + d[head] * x[p];
                gated.push(y * silu(z[head * head_dim + p]));
            }
        }
        let width = inner / groups;
        let scale = |group: &[f64]| {
            let mean = group.iter().map(|x| x * x).sum::<f64>() / width as f64;
            1.0 / (mean + f64::from(EPS)).sqrt()
        };
        let scales: Vec<f64> = gated.chunks_exact(width).map(scale).collect();
        rows.push((0..inner).map(|i| gated[i] * scales[i / width] * norm[i]).collect());
    }
    rows
}

/// Runs all sequences to their ends, cut into steps of up to `most` tokens each at random, and checks every
/// row. A generation of sequences, by their lengths, takes over the slots of the one before. Returns the
/// rows.
fn run<
    const HEADS: usize,
    const HEAD_DIM: usize,
    const GROUPS: usize,
    const STATE: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const PROJECTED: usize,
    const INNER: usize,
>(
    lanes: usize,
    most: usize,
    generations: &[&[usize]],
) -> Vec<Vec<f32>> {
    let shape = Shape { heads: HEADS, head_dim: HEAD_DIM, groups: GROUPS, state: STATE, taps: TAPS };
    let mut data = Random(STATE as u64 * 31 + HEADS as u64);
    let mut cuts = Random((most + lanes) as u64);
    let a_log: Vec<f32> = (0..HEADS).map(|_| data.unit() * 3.0 - 1.5).collect();
    let weights = Weights {
        convolution: Owned::random(&mut data, "convolution", &[CHANNELS, 1, TAPS], Format::Bf16),
        bias: Owned::random(&mut data, "bias", &[CHANNELS], Format::Bf16),
        a_log: Owned::new("a_log", &[HEADS], Format::F32, &a_log),
        dt_bias: Owned::random(&mut data, "dt_bias", &[HEADS], Format::F16),
        d: Owned::random(&mut data, "d", &[HEADS], Format::F32),
        norm: Owned::random(&mut data, "norm", &[INNER], Format::F32),
    };
    let (team, progress) = (Team::new(lanes).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    fn vector<const N: usize>(loader: &Loader, owned: &Owned) -> Vector<N> {
        Vector::load(loader, &[Part::new(owned.tensor())]).unwrap()
    }
    let convolution =
        Convolution::<CHANNELS, TAPS>::load(&loader, &[Part::new(weights.convolution.tensor())]).unwrap();
    let bias = vector::<CHANNELS>(&loader, &weights.bias);
    let [a_log, dt_bias, d] =
        [&weights.a_log, &weights.dt_bias, &weights.d].map(|it| vector::<HEADS>(&loader, it));
    let norm = vector::<INNER>(&loader, &weights.norm);

    let limits =
        BatchLimits { tokens: 128, sequences: 4, vocabulary: 10, context: 512, block_tokens: 512, blocks: 4 };
    let mut batch = Batch::new(limits);
    let states = States { sequences: 4, snapshots: 0 };
    let state = RecurrentState::<HEADS, STATE, HEAD_DIM, CHANNELS, TAPS>::new(3, states).unwrap();
    let scratch = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::new(limits.tokens);
    let mut projected = Rows::<PROJECTED>::new(limits.tokens);
    let mut outs = [Rows::<INNER>::new(limits.tokens), Rows::<INNER>::new(limits.tokens)];
    let mut rows = Vec::new();
    for lengths in generations {
        let stream = |(index, length): (usize, &usize)| Stream {
            projected: (0..*length).map(|_| data.vector(PROJECTED, 1.5)).collect(),
            slot: 3 - index as u32,
            done: 0,
            found: Vec::new(),
        };
        let mut streams: Vec<Stream> = lengths.iter().enumerate().map(stream).collect();
        while streams.iter().any(|stream| stream.done < stream.projected.len()) {
            let (mut step, mut parts, mut row) = (Step::default(), Vec::new(), 0);
            for (index, stream) in streams.iter().enumerate() {
                let left = (stream.projected.len() - stream.done).min(limits.tokens - row);
                // Sequences take turns at random, so that they are at different positions.
                if left == 0 || (streams.len() > 1 && cuts.below(4) == 0) {
                    continue;
                }
                let count = if most >= limits.tokens { left } else { left.min(1 + cuts.below(most)) };
                step.sequences.push(SequenceStep {
                    slot: Slot(stream.slot),
                    ..sequence(stream.done, vec![1; count], &[0], Output::None)
                });
                for of in &stream.projected[stream.done..stream.done + count] {
                    projected.row_mut(row).copy_from_slice(of);
                    row += 1;
                }
                parts.push((index, count));
            }
            batch.fill(&step, &Outputs::<0>::default());
            team.run(|lane| {
                // Two layers on the same inputs, to see that they do not mix.
                for (layer, out) in [(2, &outs[0]), (1, &outs[1])] {
                    mamba2(
                        lane,
                        &batch,
                        layer,
                        &projected,
                        &convolution,
                        &bias,
                        &a_log,
                        &dt_bias,
                        &d,
                        &norm,
                        EPS,
                        &state,
                        &scratch,
                        out,
                    );
                }
            });
            let mut row = 0;
            for (index, count) in parts {
                for _ in 0..count {
                    let found = outs[0].row(row).to_vec();
                    assert!(found == outs[1].row(row), "the layers differ");
                    streams[index].found.push(found);
                    row += 1;
                }
                streams[index].done += count;
            }
        }
        for stream in streams {
            let expected = definition(&shape, &weights, &stream);
            for (position, (found, expected)) in stream.found.iter().zip(&expected).enumerate() {
                close(found, expected, 1e-5, &format!("position {position} of {}", stream.projected.len()));
            }
            rows.extend(stream.found);
        }
    }
    rows
}

#[test]
fn cuts_and_lanes_leave_the_same_bits() {
    let case = |lanes, most| run::<4, 24, 2, 16, 4, 160, 260, 96>(lanes, most, &[&[200]]);
    let whole = case(1, 128);
    assert!(whole == case(2, 1), "token by token");
    assert!(whole == case(3, 7), "odd cuts");
    assert!(whole == case(2, 128), "two lanes");
}

#[test]
fn released_widths() {
    let case = |lanes, most| run::<8, 64, 2, 128, 4, 1024, 1544, 512>(lanes, most, &[&[100, 3], &[30]]);
    assert!(case(2, 128) == case(3, 5));
}

#[test]
fn odd_widths_and_slots_used_before() {
    let generations: &[&[usize]] = &[&[33, 7, 140, 1], &[5, 50, 2], &[1, 1, 1, 40]];
    run::<3, 10, 1, 6, 2, 42, 75, 30>(2, 9, generations);
    run::<5, 6, 5, 10, 4, 130, 165, 30>(3, 33, generations);
    run::<4, 33, 2, 12, 3, 180, 316, 132>(1, 2, generations);
}
