//! The gated delta-net against its definition in f64: odd widths, several sequences in a step, any cut of a
//! prompt into steps, slots that were used before.

mod definition;

use crate::common::{Owned, Random, close, progress, sequence};
use definition::{NORM_EPS, Shape, Stream, Weights, definition};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Output, SequenceStep, Slot, SnapshotId, StateCopy, StatePlace, States, Step};
use std::path::Path;

/// How a test goes through its sequences.
struct Course<'a> {
    lanes: usize,
    /// Lengths of the sequences of each generation; a generation takes over the slots of the one before.
    generations: &'a [&'a [usize]],
    /// Most tokens of a sequence in a step.
    most: usize,
}

/// Runs all sequences to their ends, cut into steps at random, and checks every row. Returns the rows.
fn run<
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const QKVZ: usize,
    const BA: usize,
    const OUT: usize,
>(
    course: &Course,
) -> Vec<Vec<f32>> {
    let shape = Shape {
        key_heads: KEY_HEADS,
        value_heads: VALUE_HEADS,
        key_dim: KEY_DIM,
        value_dim: VALUE_DIM,
        taps: TAPS,
    };
    let mut data = Random(KEY_DIM as u64 * 31 + VALUE_HEADS as u64);
    let mut cuts = Random((course.most + course.lanes) as u64);
    // Decays from hardly any to nearly all.
    let a_log: Vec<f32> = (0..VALUE_HEADS).map(|_| data.unit() * 3.0 - 1.5).collect();
    let weights = Weights {
        convolution: Owned::random(&mut data, "convolution", &[CHANNELS, 1, TAPS], Format::Bf16),
        a_log: Owned::new("a_log", &[VALUE_HEADS], Format::F32, &a_log),
        dt_bias: Owned::random(&mut data, "dt_bias", &[VALUE_HEADS], Format::F16),
        norm: Owned::random(&mut data, "norm", &[VALUE_DIM], Format::F32),
    };
    let (team, progress) = (Team::new(course.lanes).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let part = |owned: &'_ Owned| Vector::<VALUE_HEADS>::load(&loader, &[Part::new(owned.tensor())]).unwrap();
    let (a_log, dt_bias) = (part(&weights.a_log), part(&weights.dt_bias));
    let convolution =
        Convolution::<CHANNELS, TAPS>::load(&loader, &[Part::new(weights.convolution.tensor())]).unwrap();
    let norm =
        RmsNorm::<Plain, VALUE_DIM>::load(&loader, &Part::new(weights.norm.tensor()), NORM_EPS).unwrap();

    let limits =
        BatchLimits { tokens: 256, sequences: 6, vocabulary: 10, context: 512, block_tokens: 512, blocks: 6 };
    let mut batch = Batch::new(limits);
    let mut state = RecurrentState::<VALUE_HEADS, KEY_DIM, VALUE_DIM, CHANNELS, TAPS>::new(
        3,
        States { sequences: 6, snapshots: 2 },
    )
    .unwrap();
    let scratch = DeltaScratch::<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM>::new(limits.tokens);
    let (mut qkvz, mut ba) = (Rows::<QKVZ>::new(limits.tokens), Rows::<BA>::new(limits.tokens));
    let mut outs = [Rows::<OUT>::new(limits.tokens), Rows::<OUT>::new(limits.tokens)];
    let mut rows = Vec::new();
    for lengths in course.generations {
        let mut streams: Vec<Stream> = lengths
            .iter()
            .enumerate()
            .map(|(index, length)| Stream {
                qkvz: (0..*length).map(|_| data.vector(QKVZ, 1.5)).collect(),
                ba: (0..*length).map(|_| data.vector(BA, 4.0)).collect(),
                slot: 5 - index as u32,
                done: 0,
                found: Vec::new(),
            })
            .collect();
        while streams.iter().any(|stream| stream.done < stream.qkvz.len()) {
            // Two change places now and then, by way of a snapshot: a copy is all there is of a sequence.
            if streams.len() > 1 && cuts.below(3) == 0 {
                let (one, other) = (cuts.below(streams.len() - 1), streams.len() - 1);
                let [a, b] = [one, other].map(|at| StatePlace::Slot(Slot(streams[at].slot)));
                let saved = StatePlace::Snapshot(SnapshotId(1));
                for (from, to) in [(a, saved), (b, a), (saved, b)] {
                    state.copy(&StateCopy { from, to });
                }
                let slot = streams[one].slot;
                streams[one].slot = streams[other].slot;
                streams[other].slot = slot;
            }
            let mut step = Step::default();
            let mut parts = Vec::new();
            let mut row = 0;
            for (index, stream) in streams.iter().enumerate() {
                let left = (stream.qkvz.len() - stream.done).min(limits.tokens - row);
                // Sequences take turns at random, so that they are at different positions.
                if left == 0 || (streams.len() > 1 && cuts.below(4) == 0) {
                    continue;
                }
                let count =
                    if course.most >= limits.tokens { left } else { left.min(1 + cuts.below(course.most)) };
                step.sequences.push(SequenceStep {
                    slot: Slot(stream.slot),
                    ..sequence(stream.done, vec![1; count], &[0], Output::None)
                });
                for position in stream.done..stream.done + count {
                    qkvz.row_mut(row).copy_from_slice(&stream.qkvz[position]);
                    ba.row_mut(row).copy_from_slice(&stream.ba[position]);
                    row += 1;
                }
                parts.push((index, count));
            }
            batch.fill(&step, &Outputs::<0>::default());
            team.run(|lane| {
                // Two layers on the same inputs, to see that they do not mix.
                for (layer, out) in [(2, &outs[0]), (1, &outs[1])] {
                    delta(
                        lane,
                        &batch,
                        layer,
                        &qkvz,
                        &ba,
                        &convolution,
                        &a_log,
                        &dt_bias,
                        &norm,
                        Silu,
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
            let expected = definition(shape, &weights, &stream);
            for (position, (found, expected)) in stream.found.iter().zip(&expected).enumerate() {
                close(found, expected, 1e-5, &format!("position {position} of {}", stream.qkvz.len()));
            }
            rows.extend(stream.found);
        }
    }
    rows
}

#[test]
fn cuts_and_lanes_leave_the_same_bits() {
    let case = |lanes, most| {
        run::<2, 4, 16, 24, 4, 160, 256, 8, 96>(&Course { lanes, generations: &[&[200]], most })
    };
    let whole = case(1, 256);
    assert!(whole == case(2, 1), "token by token");
    assert!(whole == case(3, 7), "odd cuts");
    assert!(whole == case(1, 40), "large cuts");
    assert!(whole == case(2, 256), "two lanes");
}

#[test]
fn neighbours_leave_the_same_bits() {
    let case =
        |generations| run::<3, 3, 10, 40, 3, 180, 300, 6, 120>(&Course { lanes: 2, generations, most: 9 });
    // The data of the first stream are drawn first.
    let alone = case(&[&[60]]);
    assert!(alone == case(&[&[60, 9, 1, 33, 100]])[..60]);
}

#[test]
fn released_widths() {
    let case = |lanes, most| {
        run::<1, 2, 128, 128, 4, 512, 768, 4, 256>(&Course { lanes, generations: &[&[200, 3], &[30]], most })
    };
    assert!(case(2, 256) == case(3, 5));
}

#[test]
fn odd_widths_and_slots_used_before() {
    let generations: &[&[usize]] = &[&[33, 7, 140, 1, 64, 20], &[5, 50, 2], &[1, 1, 1, 40]];
    let course = |lanes, most| Course { lanes, generations, most };
    run::<1, 3, 6, 10, 2, 42, 72, 6, 30>(&course(2, 9));
    run::<5, 5, 10, 6, 4, 130, 160, 10, 30>(&course(3, 33));
    run::<1, 4, 16, 33, 3, 164, 296, 8, 132>(&course(1, 2));
    run::<3, 6, 6, 5, 4, 66, 96, 12, 30>(&course(2, 20));
    run::<1, 20, 6, 4, 4, 92, 172, 40, 80>(&course(2, 60));
}

#[test]
fn convolutions_may_lie_in_parts_and_bad_ones_are_refused() {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let mut random = Random(1);
    let keys = Owned::random(&mut random, "keys", &[24, 3], Format::F32);
    let values = Owned::random(&mut random, "values", &[8, 1, 3], Format::F16);
    let load = |parts: &[Part]| Convolution::<32, 3>::load(&loader, parts);
    let whole = Owned::new("whole", &[32, 1, 3], Format::F32, &[keys.values(), values.values()].concat());
    let parts = load(&[Part::new(keys.tensor()), Part::new(values.tensor())]).unwrap();
    assert_eq!(format!("{parts:?}"), format!("{:?}", load(&[Part::new(whole.tensor())]).unwrap()));

    let wide = Owned::random(&mut random, "wide", &[32, 1, 4], Format::F32);
    let flat = Owned::random(&mut random, "flat", &[96], Format::F32);
    let quantised = Owned::random(&mut random, "quantised", &[32, 1, 3], Format::Q8_0);
    let mut short = Owned::random(&mut random, "short", &[32, 1, 3], Format::F32);
    short.bytes.pop();
    for (parts, message) in [
        (vec![Part::new(wide.tensor())], "wide: expected shape [_, 1, 3], found [32, 1, 4]"),
        (vec![Part::new(flat.tensor())], "flat: expected shape [_, 1, 3], found [96]"),
        (vec![Part::new(quantised.tensor())], "quantised: expected a float format"),
        (vec![Part::new(short.tensor())], "383 bytes"),
        (vec![Part::interleaved(whole.tensor(), 8)], "no rotary order"),
        (vec![Part::new(keys.tensor())], "expected 32 channels, found 24"),
        (vec![Part::new(keys.tensor()); 2], "keys + keys: expected 32 channels, found 48"),
    ] {
        let error = load(&parts).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("checkpoint"), "{error:?} lacks {message:?}");
    }
}

/// Calls the phase for a step over `sequences` with room for fewer slots, tokens or layers than it may ask
/// for.
fn call(slots: usize, capacity: usize, layer: usize, sequences: &[u32]) {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let ones = Owned::new("ones", &[4], Format::F32, &[1.0; 4]);
    let one = Owned::new("one", &[1], Format::F32, &[1.0]);
    let taps = Owned::new("taps", &[12, 2], Format::F32, &[1.0; 24]);
    let vector = Vector::<1>::load(&loader, &[Part::new(one.tensor())]).unwrap();
    let norm = RmsNorm::<Plain, 4>::load(&loader, &Part::new(ones.tensor()), NORM_EPS).unwrap();
    let convolution = Convolution::<12, 2>::load(&loader, &[Part::new(taps.tensor())]).unwrap();
    let limits =
        BatchLimits { tokens: 2, sequences: 2, vocabulary: 10, context: 16, block_tokens: 16, blocks: 2 };
    let mut batch = Batch::new(limits);
    let sequences = sequences
        .iter()
        .map(|slot| SequenceStep { slot: Slot(*slot), ..sequence(0, vec![1], &[0], Output::None) })
        .collect();
    batch.fill(&Step { sequences, ..Step::default() }, &Outputs::<0>::default());
    let state = RecurrentState::<1, 4, 4, 12, 2>::new(1, States { sequences: slots, snapshots: 0 }).unwrap();
    let scratch = DeltaScratch::<1, 1, 4, 4>::new(capacity);
    let (qkvz, ba, out) = (Rows::<16>::new(2), Rows::<2>::new(2), Rows::<4>::new(2));
    team.run(|lane| {
        delta(
            lane,
            &batch,
            layer,
            &qkvz,
            &ba,
            &convolution,
            &vector,
            &vector,
            &norm,
            Silu,
            &state,
            &scratch,
            &out,
        );
    });
}

#[test]
fn steps_within_the_room_are_taken() {
    call(2, 2, 0, &[0, 1]);
}

#[test]
#[should_panic(expected = "slots that the state does not have")]
fn too_few_slots_are_refused() {
    call(1, 2, 0, &[0]);
}

#[test]
#[should_panic(expected = "more tokens than the scratch has room for")]
fn a_small_scratch_is_refused() {
    call(2, 1, 0, &[0]);
}

#[test]
#[should_panic(expected = "no layer 1")]
fn a_layer_too_many_is_refused() {
    call(2, 2, 1, &[0]);
}

#[test]
#[should_panic(expected = "have the same slot")]
fn a_slot_used_twice_is_refused() {
    call(2, 2, 0, &[1, 1]);
}

#[test]
fn states_beyond_the_address_space_are_refused() {
    let error =
        RecurrentState::<32, 128, 128, 8192, 4>::new(30, States { sequences: usize::MAX / 64, snapshots: 1 })
            .unwrap_err()
            .to_string();
    assert!(error.contains("recurrent state"), "{error}");
}
