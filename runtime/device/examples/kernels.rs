//! How fast the kernels are on this machine: `cargo run --release --example kernels [THREADS]`, compiled with
//! `RUSTFLAGS="-C target-cpu=native"`. Best of several runs, since other work disturbs single ones.

#[path = "kernels/stack.rs"]
mod stack;

use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{BlockId, Output, Progress, SequenceStep, Slot, Step};
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
        Part::new(Tensor { name: "random", shape: &self.shape, format: self.format, bytes: &self.bytes })
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

fn product<F: WeightFormat, const ROWS: usize, const COLS: usize>(team: &Team) {
    let progress = Progress::default();
    let loader = Loader::new(team, Path::new("random"), &progress);
    let weights = Weights::new(&[ROWS, COLS], F::FORMAT);
    let load = Instant::now();
    let matrix = Matrix::<F, ROWS, COLS>::load(&loader, &[weights.part()]).expect("shapes agree");
    let load = load.elapsed().as_secs_f64();
    let x = Rows::<COLS>::new(128);
    let out = Rows::<ROWS>::new(128);
    let staging = Staging::<F, COLS>::new(team.lanes(), 128);
    let bytes = Matrix::<F, ROWS, COLS>::BYTES as f64;
    print!("{:<5} packed at {:5.2} GB/s;", F::FORMAT.name(), bytes / load / 1e9);
    for rows in [1, 2, 4, 8, 128] {
        let seconds =
            best(20, || team.run(|lane| linear(lane, rows, &x, &staging, &matrix, Store(&out))));
        let macs = (ROWS * COLS * rows) as f64 / seconds / 1e9;
        print!("  {rows} rows {:5.1} GB/s {macs:5.0} GMAC/s", bytes / seconds / 1e9);
    }
    println!();
}

fn sequence(position: usize, count: usize, first_block: usize, output: Output) -> SequenceStep {
    let blocks = (position + count).div_ceil(stack::BLOCK);
    SequenceStep {
        slot: Slot(0),
        position,
        tokens: (0..count).map(|i| (i * 97 % 49_152) as u32).collect(),
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
    let sample = || Output::Sample { sampling: Default::default(), draw: 0, history: Vec::new() };
    for (position, streams) in [(96, 1), (96, 2), (96, 4), (96, 8), (2000, 1), (2000, 8)] {
        let sequences = (0..streams).map(|i| sequence(position, 1, i * 130, sample())).collect();
        let step = Step { sequences };
        let seconds = best(60, || stack.step(&team, &step));
        println!(
            "decode, {streams} streams at position {position}: {:.0} tok/s ({:.2} ms, {:.1} GB/s)",
            streams as f64 / seconds,
            seconds * 1e3,
            Stack::WEIGHT_BYTES as f64 / seconds / 1e9
        );
    }
    for (position, count) in [(0, 32), (0, 128), (0, 512), (1536, 512)] {
        let step = Step { sequences: vec![sequence(position, count, 0, sample())] };
        let seconds = best(8, || stack.step(&team, &step));
        println!("prefill of {count} tokens at position {position}: {:.0} tok/s", count as f64 / seconds);
    }
    if let Some(profile) = stack.profile(&team, &Step { sequences: vec![sequence(96, 1, 0, sample())] }) {
        println!("decode, us a phase (all layers): {profile}");
    }
    if let Some(profile) = stack.profile(&team, &Step { sequences: vec![sequence(0, 512, 0, sample())] }) {
        println!("prefill, us a phase (all layers): {profile}");
    }
}
