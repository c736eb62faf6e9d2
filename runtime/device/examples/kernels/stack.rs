//! A layer stack of SmolLM2-135M's shape with random weights, written as the compiler emits it.

use super::Weights;
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Progress, Step};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Tokens of a K/V block.
pub const BLOCK: usize = 16;
const LAYERS: usize = 30;
const TOKENS: usize = 512;
const OUTPUTS: usize = 16;
const CONTEXT: usize = 4096;
const BLOCKS: usize = 1200;
const PHASES: [&str; 8] = ["embed+angles", "qkv", "attention", "o", "gate/up", "down", "gather", "head"];

struct Layer {
    norm: RmsNorm<Plain, 576>,
    qkv: Matrix<Q4_1, 960, 576>,
    o: Matrix<Q4_1, 576, 576>,
    ffn_norm: RmsNorm<Plain, 576>,
    gate_up: GatedMatrix<Q4_1, 1536, 576>,
    down: Matrix<Q4_1, 576, 1536>,
}

/// Weights, cache and buffers of a whole model.
pub struct Stack {
    embedding: Matrix<Q8_0, 49_152, 576>,
    layers: Vec<Layer>,
    norm: RmsNorm<Plain, 576>,
    frequencies: [f32; 32],
    cache: KvCache<bf16, 3, 64, BLOCK>,
    batch: Batch,
    x: Rows<576>,
    qkv: Rows<960>,
    attended: Rows<576>,
    wide: Rows<1536>,
    outputs: Rows<576>,
    logits: Rows<49_152>,
    angles: Rows<64>,
    staged_576: Staging<Q4_1, 576>,
    staged_1536: Staging<Q4_1, 1536>,
    staged_head: Staging<Q8_0, 576>,
    scratch: AttentionScratch<9, 3, 64>,
    times: [AtomicU64; PHASES.len()],
}

impl Stack {
    /// Bytes a decoded token reads.
    pub const WEIGHT_BYTES: usize = LAYERS
        * (Matrix::<Q4_1, 960, 576>::BYTES
            + Matrix::<Q4_1, 576, 576>::BYTES
            + GatedMatrix::<Q4_1, 1536, 576>::BYTES
            + Matrix::<Q4_1, 576, 1536>::BYTES)
        + Matrix::<Q8_0, 49_152, 576>::BYTES;

    /// With random weights.
    pub fn random(team: &Team) -> Stack {
        let progress = Progress::default();
        let loader = Loader::new(team, Path::new("random"), &progress);
        let q4 = |rows, columns| Weights::new(&[rows, columns], Format::Q4_1);
        let (qkv, o, gate, up, down) =
            (q4(960, 576), q4(576, 576), q4(1536, 576), q4(1536, 576), q4(576, 1536));
        let norm = Weights::new(&[576], Format::F32);
        let embedding = Weights::new(&[49_152, 576], Format::Q8_0);
        let agree = "shapes agree";
        let layers = (0..LAYERS)
            .map(|_| Layer {
                norm: RmsNorm::load(&loader, &norm.part(), 1e-5).expect(agree),
                qkv: Matrix::load(&loader, &[qkv.part()]).expect(agree),
                o: Matrix::load(&loader, &[o.part()]).expect(agree),
                ffn_norm: RmsNorm::load(&loader, &norm.part(), 1e-5).expect(agree),
                gate_up: GatedMatrix::load(&loader, &[gate.part()], &[up.part()]).expect(agree),
                down: Matrix::load(&loader, &[down.part()]).expect(agree),
            })
            .collect();
        let lanes = team.lanes();
        Stack {
            embedding: Matrix::load(&loader, &[embedding.part()]).expect(agree),
            layers,
            norm: RmsNorm::load(&loader, &norm.part(), 1e-5).expect(agree),
            frequencies: std::array::from_fn(|i| 10_000f32.powf(-(i as f32) / 32.0)),
            cache: KvCache::new(&[0; LAYERS], BLOCKS).expect("the address space holds the cache"),
            batch: Batch::new(BatchLimits {
                tokens: TOKENS,
                sequences: OUTPUTS,
                vocabulary: 49_152,
                context: CONTEXT,
                block_tokens: BLOCK,
                blocks: BLOCKS,
            }),
            x: Rows::new(TOKENS),
            qkv: Rows::new(TOKENS),
            attended: Rows::new(TOKENS),
            wide: Rows::new(TOKENS),
            outputs: Rows::new(OUTPUTS),
            logits: Rows::new(OUTPUTS),
            angles: Rows::new(TOKENS),
            staged_576: Staging::new(lanes, TOKENS),
            staged_1536: Staging::new(lanes, TOKENS),
            staged_head: Staging::new(lanes, OUTPUTS),
            scratch: AttentionScratch::new(lanes, CONTEXT),
            times: Default::default(),
        }
    }

    /// One forward step; the logits stay in their buffer.
    pub fn step(&mut self, team: &Team, step: &Step) {
        self.batch.fill(step, &Outputs::<0>::default());
        team.run(|lane| self.forward(lane, |_| {}));
    }

    /// Microseconds a step spends in each phase when nothing else runs: the fastest call of each phase in
    /// `steps` steps, times its calls. Other work on the machine seldom disturbs every one of them.
    pub fn profile(&mut self, team: &Team, step: &Step, steps: usize) -> (f64, String) {
        self.batch.fill(step, &Outputs::<0>::default());
        self.times.iter().for_each(|time| time.store(u64::MAX, Ordering::Relaxed));
        for _ in 0..steps {
            team.run(|lane| {
                let last = std::cell::Cell::new(Instant::now());
                self.forward(lane, |phase| {
                    let now = Instant::now();
                    if lane.index() == 0 {
                        let nanoseconds = (now - last.get()).as_nanos() as u64;
                        self.times[phase].fetch_min(nanoseconds, Ordering::Relaxed);
                    }
                    last.set(now);
                });
            });
        }
        let mut total = 0.0;
        let mut text = String::new();
        for (index, (name, time)) in PHASES.iter().zip(&self.times).enumerate() {
            let calls = if (1..6).contains(&index) { LAYERS } else { 1 };
            let microseconds = time.load(Ordering::Relaxed) as f64 * 1e-3 * calls as f64;
            total += microseconds;
            text += &format!(" {name} {microseconds:.0}");
        }
        (total * 1e-6, text)
    }

    fn forward(&self, lane: &Lane, ended: impl Fn(usize)) {
        let rows = self.batch.tokens();
        embed(lane, &self.batch, &self.embedding, &self.x);
        rotary_angles(lane, &self.batch, &self.frequencies, 1.0, &self.angles);
        ended(0);
        for (index, layer) in self.layers.iter().enumerate() {
            norm_linear(lane, rows, &self.x, &layer.norm, &self.staged_576, &layer.qkv, Store(&self.qkv));
            ended(1);
            attention(
                lane,
                &self.batch,
                index,
                &self.qkv,
                &NoNorm,
                &NoNorm,
                &self.angles,
                Halves,
                0.125,
                &self.cache,
                &self.scratch,
                &self.attended,
            );
            ended(2);
            linear(lane, rows, &self.attended, &self.staged_576, &layer.o, Add(&self.x));
            ended(3);
            let gated = Gated(Silu, &self.wide);
            norm_gated(lane, rows, &self.x, &layer.ffn_norm, &self.staged_576, &layer.gate_up, gated);
            ended(4);
            linear(lane, rows, &self.wide, &self.staged_1536, &layer.down, Add(&self.x));
            ended(5);
        }
        let outputs = self.batch.outputs();
        gather(lane, outputs, &self.x, &self.outputs);
        ended(6);
        let store = Store(&self.logits);
        norm_linear(
            lane,
            outputs.len(),
            &self.outputs,
            &self.norm,
            &self.staged_head,
            &self.embedding,
            store,
        );
        ended(7);
    }
}
