//! How fast the kernels are on this machine: `cargo run --release --example kernels [THREADS]`, compiled with
//! `RUSTFLAGS="-C target-cpu=native"`. Best of several runs, since other work disturbs single ones.

#[path = "kernels/stack.rs"]
mod stack;

use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{BlockId, Output, Progress, SequenceStep, Slot, Step, Tokens};
use monomorph_weights::Tensor;
use stack::Stack;
use std::path::Path;
use std::time::Instant;

/// Weights that look random, in their stored form; scales are kept small so that sums stay finite.
pub struct Weights {
    shape: Vec<usize>,
    format: Format,
    bytes: Vec<u8>,
}

impl Weights {
    /// A tensor of `shape`.
    pub fn new(shape: &[usize], format: Format) -> Weights {
        let count: usize = shape.iter().product();
        let mut state = count as u32;
        let values: Vec<f32> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 0.05
            })
            .collect();
        Weights { shape: shape.into(), format, bytes: monomorph_formats::encode(format, &values) }
    }

    /// As a checkpoint would hand it out.
    pub fn part(&self) -> Part<'_> {
        Part::new(Tensor {
            name: "random",
            shape: &self.shape,
            format: self.format,
            bytes: self.bytes[..].into(),
        })
    }
}

/// Seconds of the fastest of `runs` runs.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs).fold(f64::MAX, |best, _| {
        let start = Instant::now();
        work();
        best.min(start.elapsed().as_secs_f64())
    })
}

/// Rows of a matrix that stays in cache.
const SMALL: usize = 256;

fn product<F: WeightFormat, const ROWS: usize, const COLS: usize>(team: &Team) {
    let progress = Progress::default();
    let loader = Loader::new(team, Path::new("random"), &progress);
    let weights = Weights::new(&[ROWS, COLS], F::FORMAT);
    let pack = || Matrix::<F, ROWS, COLS>::load(&loader, &[weights.part()]).expect("shapes agree");
    let load = best(5, || drop(pack()));
    let matrix = pack();
    let x = Rows::<COLS>::new(128);
    let out = Rows::<ROWS>::new(128);
    let staging = Staging::<F, COLS>::new(team.lanes(), 128);
    let bytes = Matrix::<F, ROWS, COLS>::BYTES as f64;
    print!("{:<5} packed at {:5.2} GB/s;", F::FORMAT.name(), bytes / load / 1e9);
    for rows in [1, 4] {
        let seconds = best(20, || team.run(|lane| linear(lane, rows, &x, &staging, &matrix, Store(&out))));
        print!("  {rows} rows {:5.1} GB/s", bytes / seconds / 1e9);
    }
    // A matrix that stays in the nearest caches, and runs short enough to be left alone.
    let weights = Weights::new(&[SMALL, COLS], F::FORMAT);
    let matrix = Matrix::<F, SMALL, COLS>::load(&loader, &[weights.part()]).expect("shapes agree");
    let out = Rows::<SMALL>::new(128);
    for rows in [1, 2, 4, 8, 12, 120] {
        let seconds = best(100, || team.run(|lane| linear(lane, rows, &x, &staging, &matrix, Store(&out))));
        print!("  {rows} rows {:.0} GMAC/s", (SMALL * COLS * rows) as f64 / seconds / 1e9);
    }
    println!();
}

fn sequence(position: usize, count: usize, first_block: usize, output: Output) -> SequenceStep {
    let blocks = (position + count).div_ceil(stack::BLOCK);
    SequenceStep {
        drafts: 0,
        generated: false,
        following: None,
        begins: position == 0,
        slot: Slot(0),
        position,
        tokens: Tokens::Known((0..count).map(|i| (i * 97 % 49_152) as u32).collect()),
        blocks: (0..blocks).map(|i| BlockId((first_block + i) as u32)).collect(),
        output,
    }
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let team = Team::new(threads).expect("threads start");
    team.pin_caller();
    let barriers = 2000;
    let seconds = best(20, || {
        team.run(|lane| {
            for _ in 0..barriers {
                lane.barrier();
            }
        });
    });
    println!("{threads} threads; a barrier takes {:.0} ns", seconds / f64::from(barriers) * 1e9);
    let seconds = best(200, || team.run(|_| {}));
    println!("an empty run takes {:.0} ns", seconds * 1e9);

    product::<F32, 16_384, 1024>(&team);
    product::<Bf16, 32_768, 1024>(&team);
    product::<F16, 32_768, 1024>(&team);
    product::<Q8_0, 65_536, 1024>(&team);
    product::<Q4_1, 65_536, 1024>(&team);

    let load = Instant::now();
    let mut stack = Stack::random(&team);
    println!(
        "SmolLM2-135M's shape: {:.1} MB of weights, loaded in {:.0} ms at most",
        Stack::WEIGHT_BYTES as f64 / 1e6,
        load.elapsed().as_secs_f64() * 1e3
    );
    let sample = || Output::greedy(0);
    // Long steps are rarely left alone on a busy machine: beside the fastest step stands the sum of each
    // phase's fastest call.
    let mut report = |name: &str, position: usize, streams: usize, count: usize, runs: usize| {
        let blocks = (position + count).div_ceil(stack::BLOCK);
        let sequences = (0..streams).map(|i| sequence(position, count, i * blocks, sample())).collect();
        let step = Step { sequences, ..Step::default() };
        let tokens = (streams * count) as f64;
        let seconds = best(runs, || stack.step(&team, &step));
        let (phases, profile) = stack.profile(&team, &step, runs);
        println!(
            "{name}, {streams} x {count} tokens at position {position}: {:.0} tok/s, {:.0} by phases;{profile} us",
            tokens / seconds,
            tokens / phases
        );
    };
    for (position, streams) in [(96, 1), (96, 2), (96, 4), (96, 8), (2000, 1), (2000, 8)] {
        report("decode", position, streams, 1, 40);
    }
    for (position, count) in [(0, 32), (0, 128), (0, 512), (1536, 512)] {
        report("prefill", position, 1, count, 4);
    }
}
