//! How long one row of a vocabulary takes: `cargo run --release --example speed`.

use monomorph_sampling::{Sampling, sample};
use std::time::Instant;

fn main() {
    let row: Vec<f32> =
        (0..49_152u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1.2e6 - 8.0).collect();
    let peaked: Vec<f32> = row.iter().map(|x| x * 3.0).collect();
    let base = Sampling { temperature: 0.8, ..Sampling::default() };
    for (name, sampling) in [
        ("greedy", Sampling::default()),
        ("temperature", base.clone()),
        ("top_k 40", Sampling { top_k: 40, ..base.clone() }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..base.clone() }),
        ("top_k 40, top_p 0.95", Sampling { top_k: 40, top_p: 0.95, ..base.clone() }),
        ("greedy, 5 logprobs", Sampling { top_logprobs: Some(5), ..Sampling::default() }),
    ] {
        for (shape, row) in [("flat", &row), ("peaked", &peaked)] {
            let mut times: Vec<f64> = (0..200)
                .map(|draw| {
                    let mut row = row.clone();
                    let start = Instant::now();
                    std::hint::black_box(sample(&mut row, &sampling, draw, &[]));
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!("{name:22} {shape:7} {:8.1} us", times[times.len() / 2]);
        }
    }
}
