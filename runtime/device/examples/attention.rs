//! How fast decode attends over keys and values of each format on this machine, in SmolLM2-135M's shape (9
//! query heads and 3 K/V heads of 64, 30 layers) after 8,191 tokens: `cargo run --release --example attention
//! [THREADS]`, compiled with `RUSTFLAGS="-C target-cpu=native"`. Formats take turns, since other work
//! disturbs single runs: beside the best of each stands the median of what it takes of f16's time in the
//! same turn.

use monomorph_device::cpu::*;
use monomorph_model::{BlockId, Output, SequenceStep, Slot, Step, Tokens};
use std::hint::black_box;
use std::time::Instant;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const OUT: usize = HEADS * DIM;
const QKV: usize = OUT + 2 * KV_HEADS * DIM;
const BLOCK: usize = 16;
/// More keys and values than caches hold.
const LAYERS: usize = 30;
const CONTEXT: usize = 8192;
const BLOCKS: usize = CONTEXT / BLOCK;
const TURNS: usize = 25;

/// Runs one step.
type Run<'a> = Box<dyn FnMut() + 'a>;

/// Makes what runs one step over keys and values of a format.
fn decode<E: KvKept>(team: &Team) -> impl FnMut() + '_ {
    let mut cache = KvCache::<E, KV_HEADS, DIM, BLOCK>::new(&[0; LAYERS], BLOCKS).expect("they fit");
    // Codes and scales whose numbers are ordinary in every format.
    let bytes = KvCache::<E, KV_HEADS, DIM, BLOCK>::block_bytes(LAYERS);
    let block: Vec<u8> = (0..bytes).map(|at| (at * 37 % 101) as u8 % 32 + 32).collect();
    (0..BLOCKS).for_each(|at| assert!(cache.write_block(BlockId(at as u32), &block).is_empty()));
    let limits = BatchLimits {
        tokens: 1,
        sequences: 1,
        vocabulary: 1,
        context: CONTEXT,
        block_tokens: BLOCK,
        blocks: BLOCKS,
    };
    let sequence = SequenceStep {
        drafts: 0,
        generated: false,
        following: None,
        begins: false,
        slot: Slot(0),
        position: CONTEXT - 1,
        tokens: Tokens::Known(vec![0]),
        blocks: (0..BLOCKS).map(|at| BlockId(at as u32)).collect(),
        output: Output::None,
    };
    let mut batch = Batch::new(limits);
    batch.fill(&Step { sequences: vec![sequence], ..Step::default() }, &Outputs::<0>::default());
    let (mut qkv, angles, out) = (Rows::<QKV>::new(1), Rows::<DIM>::new(1), Rows::<OUT>::new(1));
    let scratch = AttentionScratch::<HEADS, KV_HEADS, DIM>::new(team.lanes(), CONTEXT);
    move || {
        qkv.row_mut(0).iter_mut().enumerate().for_each(|(at, x)| *x = (at % 7) as f32 - 3.0);
        let none = &NoNorm;
        team.run(|lane| {
            for layer in 0..LAYERS {
                attention(
                    lane, &batch, layer, &qkv, none, none, &angles, Halves, 0.125, &cache, &scratch, &out,
                );
            }
        });
        black_box(&out);
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let team = Team::new(threads).expect("threads start");
    team.pin_caller();
    let mut formats: [(&str, Run<'_>); 7] = [
        ("f16", Box::new(decode::<f16>(&team))),
        ("bf16", Box::new(decode::<bf16>(&team))),
        ("fp8", Box::new(decode::<Fp8>(&team))),
        ("turbo8", Box::new(decode::<Turbo8>(&team))),
        ("nvfp4", Box::new(decode::<Nvfp4>(&team))),
        ("turbo4", Box::new(decode::<Turbo4>(&team))),
        ("turbo3", Box::new(decode::<Turbo3>(&team))),
    ];
    let mut times = vec![Vec::new(); formats.len()];
    for _ in 0..TURNS {
        for ((_, step), times) in formats.iter_mut().zip(&mut times) {
            let start = Instant::now();
            step();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    for ((name, _), own) in formats.iter().zip(&times) {
        let best = own.iter().copied().fold(f64::MAX, f64::min);
        let beside = own.iter().zip(&times[0]).map(|(own, f16)| own / f16).collect();
        println!("{name:<6} {best:6.2} ms, {:.2} of f16's", median(beside));
    }
}
