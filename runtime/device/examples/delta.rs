//! How fast the gated delta-net is on this machine, in the shape of Qwen3.5-35B-A3B (16 key heads, 32 value
//! heads, all 128 wide): `cargo run --release --example delta [THREADS]`, compiled with `RUSTFLAGS="-C
//! target-cpu=native"`. Best of several runs, since other work disturbs single ones.

use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{BlockId, Output, Progress, SequenceStep, Slot, States, Step, Tokens};
use monomorph_weights::Tensor;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 32;
const DIM: usize = 128;
const TAPS: usize = 4;
const OUT: usize = VALUE_HEADS * DIM;
const CHANNELS: usize = 2 * KEY_HEADS * DIM + OUT;
const QKVZ: usize = CHANNELS + OUT;
/// Layers that take turns: more state than caches hold.
const LAYERS: usize = 30;
const SLOTS: usize = 8;
const TOKENS: usize = 512;

type State = RecurrentState<VALUE_HEADS, DIM, DIM, CHANNELS, TAPS>;

/// Numbers that look random, in -1..1.
fn random(count: usize) -> Vec<f32> {
    let mut state = count as u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Seconds of the fastest of `runs` runs, each of which says how long it took.
fn best(runs: usize, mut work: impl FnMut() -> Duration) -> f64 {
    (0..runs).map(|_| work()).min().unwrap_or_default().as_secs_f64()
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let team = Team::new(threads).expect("threads start");
    team.pin_caller();
    let progress = Progress::default();
    let loader = Loader::new(&team, Path::new("random"), &progress);
    let bytes = |count: usize| monomorph_formats::encode(Format::F32, &random(count));
    let (taps, heads, width) = (bytes(CHANNELS * TAPS), bytes(VALUE_HEADS), bytes(DIM));
    fn part<'a>(shape: &'a [usize], bytes: &'a [u8]) -> Part<'a> {
        Part::new(Tensor { name: "random", shape, format: Format::F32, bytes: bytes.into() })
    }
    let convolution = Convolution::<CHANNELS, TAPS>::load(&loader, &[part(&[CHANNELS, 1, TAPS], &taps)])
        .expect("shapes agree");
    let rates = Vector::<VALUE_HEADS>::load(&loader, &[part(&[VALUE_HEADS], &heads)]).expect("shapes agree");
    let norm = RmsNorm::<Plain, DIM>::load(&loader, &part(&[DIM], &width), 1e-6).expect("shapes agree");
    let limits = BatchLimits {
        tokens: TOKENS,
        sequences: SLOTS,
        vocabulary: 1,
        context: 4096,
        block_tokens: 4096,
        blocks: 1,
    };
    let mut batch = Batch::new(limits);
    let state = State::new(LAYERS, States { sequences: SLOTS, snapshots: 0 }).expect("address space");
    let scratch = DeltaScratch::<KEY_HEADS, VALUE_HEADS, DIM, DIM>::new(TOKENS);
    let (mut qkvz, mut ba, out) =
        (Rows::<QKVZ>::new(TOKENS), Rows::<{ 2 * VALUE_HEADS }>::new(TOKENS), Rows::<OUT>::new(TOKENS));
    for row in 0..TOKENS {
        qkvz.row_mut(row).copy_from_slice(&random(QKVZ));
        ba.row_mut(row).copy_from_slice(&random(2 * VALUE_HEADS));
    }
    println!("{threads} threads; {:.2} MiB of state a layer", State::BYTES as f64 / 1_048_576.0);
    // The same traffic without the arithmetic.
    let (mut plain, count) = (vec![1.0f32; LAYERS * State::BYTES / 4], LAYERS * State::BYTES / 4);
    let share = count.div_ceil(threads);
    let seconds = best(40, || {
        let parts: Vec<_> = plain.chunks_mut(share).map(Mutex::new).collect();
        let start = Instant::now();
        team.run(|lane| {
            if let Some(part) = parts.get(lane.index()) {
                part.lock().expect("no lane panics").iter_mut().for_each(|x| *x *= 0.999);
            }
        });
        start.elapsed()
    });
    println!("as much memory, read and written in one pass: {:.1} GB/s", 8.0 * count as f64 / seconds / 1e9);
    for (name, streams, count, runs) in [
        ("decode", 1, 1, 60),
        ("decode", 4, 1, 30),
        ("decode", 8, 1, 30),
        ("prefill", 1, 32, 20),
        ("prefill", 1, 512, 7),
    ] {
        let mut position = 0;
        let seconds = best(runs, || {
            let sequences = (0..streams)
                .map(|slot| SequenceStep {
                    drafts: 0,
                    generated: false,
                    following: None,
                    begins: position == 0,
                    slot: Slot(slot),
                    position,
                    tokens: Tokens::Known(vec![0; count]),
                    blocks: vec![BlockId(0)],
                    output: Output::None,
                })
                .collect();
            position += count;
            batch.fill(&Step { sequences, ..Step::default() }, &Outputs::<0>::default());
            let start = Instant::now();
            team.run(|lane| {
                for layer in 0..LAYERS {
                    delta(
                        lane,
                        &batch,
                        layer,
                        &qkvz,
                        &ba,
                        &convolution,
                        &rates,
                        &rates,
                        &norm,
                        Silu,
                        &state,
                        &scratch,
                        &out,
                    );
                }
            });
            start.elapsed()
        }) / LAYERS as f64;
        let tokens = (streams as usize * count) as f64;
        print!("{name}, {streams} x {count} tokens: {:.0} us a layer, ", seconds * 1e6);
        print!("{:.0} tokens/s a layer; ", tokens / seconds);
        let moved = 2.0 * (streams as usize * State::BYTES) as f64;
        println!("the state is read and written at {:.1} GB/s", moved / seconds / 1e9);
    }
}
