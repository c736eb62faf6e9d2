//! How fast a layer's experts are on this machine: `cargo run --release --example experts [THREADS]`,
//! compiled with `RUSTFLAGS="-C target-cpu=native"`. 256 experts of 512 by 2048, 8 active: 2 GB of memory.
//! Bytes are those of the experts that were chosen, to be held against the rate that a dense matrix reaches.

use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::Progress;
use monomorph_weights::Tensor;
use std::path::Path;
use std::time::Instant;

const EXPERTS: usize = 256;
const ACTIVE: usize = 8;
const ROUTING: usize = 2 * ACTIVE;
const WIDTH: usize = 512;
const HIDDEN: usize = 2048;
const DENSE: usize = EXPERTS / 4 * WIDTH;
const MOST: usize = 512;

/// Numbers in -1..1 that look random.
struct Random(u32);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
    }
}

/// The best, since other work disturbs single runs.
fn least(times: impl IntoIterator<Item = f64>) -> f64 {
    times.into_iter().fold(f64::MAX, f64::min)
}

/// Seconds that `work` takes.
fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn experts<F: WeightFormat>(team: &Team) {
    let progress = Progress::default();
    let loader = Loader::new(team, Path::new("random"), &progress);
    let mut random = Random(1);
    let values: Vec<f32> = (0..WIDTH * HIDDEN).map(|_| random.next() * 0.05).collect();
    let bytes = monomorph_formats::encode(F::FORMAT, &values);
    let part =
        |shape| Part::new(Tensor { name: "random", shape, format: F::FORMAT, bytes: bytes[..].into() });
    let (wide, tall) = ([part(&[WIDTH, HIDDEN]); EXPERTS], [part(&[HIDDEN, WIDTH]); EXPERTS]);
    let agree = "shapes agree";
    let gated = GatedExperts::<F, EXPERTS, WIDTH, HIDDEN>::load(&loader, &wide, &wide).expect(agree);
    let down = Experts::<F, EXPERTS, HIDDEN, WIDTH>::load(&loader, &tall).expect(agree);
    let gains =
        Tensor { name: "gains", shape: &[HIDDEN], format: Format::F32, bytes: [0; 4 * HIDDEN][..].into() };
    let norm = RmsNorm::<OnePlus, HIDDEN>::load(&loader, &Part::new(gains), 1e-6).expect(agree);
    let lanes = team.lanes();
    let staging = Staging::<F, HIDDEN>::new(lanes, MOST);
    let gated_scratch = ExpertScratch::<F, HIDDEN>::new(lanes, MOST * ACTIVE);
    let down_scratch = ExpertScratch::<F, WIDTH>::new(lanes, MOST * ACTIVE);
    let inner = Rows::<WIDTH>::new(MOST * ACTIVE);
    let products = Rows::<HIDDEN>::new(MOST * ACTIVE);
    let (residual, mut routing) = (Rows::<HIDDEN>::new(MOST), Rows::<ROUTING>::new(MOST));
    let (mut x, mut logits) = (Rows::<HIDDEN>::new(MOST), Rows::<EXPERTS>::new(MOST));
    (0..MOST).for_each(|row| x.row_mut(row).fill_with(|| random.next()));
    // What the machine does at best: one row times one matrix too large for the caches.
    let dense = Matrix::<F, DENSE, HIDDEN>::load(&loader, &wide[..EXPERTS / 4]).expect(agree);
    let out = Rows::<DENSE>::new(1);
    let decode = || team.run(|lane| linear(lane, 1, &x, &staging, &dense, Store(&out)));
    let seconds = least((0..100).map(|_| time(decode)));
    println!(
        "{}: a dense matrix at {:.1} GB/s",
        F::FORMAT,
        Matrix::<F, DENSE, HIDDEN>::BYTES as f64 / seconds / 1e9
    );
    drop(dense);
    for (rows, runs) in [(1, 200), (2, 100), (4, 100), (8, 50), (32, 20), (MOST, 3)] {
        let mut mean = 0.0;
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..runs {
            // Other experts each time, so that no cache holds them.
            (0..rows).for_each(|row| logits.row_mut(row).fill_with(|| random.next()));
            let seconds =
                time(|| team.run(|lane| route::<EXPERTS, _, _>(lane, rows, &logits, true, &routing)));
            times[0].push(seconds);
            let count = chosen(&mut routing, rows) as f64;
            mean += count / f64::from(runs);
            let seconds = time(|| {
                team.run(|lane| {
                    let epilogue = Gated(Silu, &inner);
                    expert_gated(lane, rows, &x, &norm, &staging, &routing, &gated, &gated_scratch, epilogue);
                });
            });
            times[1].push(seconds / count);
            let seconds = time(|| {
                team.run(|lane| {
                    let scratch = &down_scratch;
                    expert_down(lane, rows, &inner, &routing, &down, scratch, &products, NoShared, &residual);
                });
            });
            times[2].push(seconds / count);
        }
        let [route, first, second] = times.map(least);
        let report = |seconds: f64, bytes: usize, products: usize| {
            let macs = (products * WIDTH * HIDDEN * rows * ACTIVE) as f64;
            let (rate, speed) = (bytes as f64 / seconds / 1e9, macs / (seconds * mean) / 1e9);
            format!("{:8.0} us, {rate:5.1} GB/s, {speed:4.0} GMAC/s", seconds * mean * 1e6)
        };
        println!(
            "{rows:4} rows, {mean:5.1} experts: route {:6.1} us; gated {}; down {}",
            route * 1e6,
            report(first, GatedMatrix::<F, WIDTH, HIDDEN>::BYTES, 2),
            report(second, Matrix::<F, HIDDEN, WIDTH>::BYTES, 1),
        );
    }
}

/// How many experts the first `rows` rows chose.
fn chosen(routing: &mut Rows<ROUTING>, rows: usize) -> usize {
    let mut seen = [false; EXPERTS];
    for row in 0..rows {
        routing.row(row)[ACTIVE..].iter().for_each(|id| seen[*id as usize] = true);
    }
    seen.into_iter().filter(|seen| *seen).count()
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let team = Team::new(threads).expect("threads start");
    team.pin_caller();
    println!("{threads} threads");
    experts::<Q8_0>(&team);
    experts::<Bf16>(&team);
}
