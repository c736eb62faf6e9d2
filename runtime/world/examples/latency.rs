//! Times what a world of several ranks adds to a step: `latency [STEPS]`. Its ranks compute nothing.

use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_model::{
    BlockId, Figures, HardwareSpec, HostGuard, LoadError, LoadOptions, Model, ModelSpec, Output, Progress,
    Protocol, SequenceStep, Slot, StatesWanted, Step, StepOutput, Ticket, Tokens, Weights,
};
use monomorph_world::{Rank, Seat, World};
use std::time::{Duration, Instant};

const SPEC: ModelSpec = ModelSpec {
    target: "none/latency/none",
    model: "latency",
    specs: &[],
    commit: None,
    hardware: HardwareSpec { name: "none", features: &[], cuda: None },
    hidden: 0,
    layers: 0,
    vocabulary: 0,
    context: 0,
    block_tokens: 16,
    block_bytes: 0,
    state_bytes: 0,
    step_tokens: 0,
    step_sequences: 0,
    kv_formats: KvFormats::both(Cached::F32),
    kv_exact_layers: 0,
    kv_scales: None,
    kv_elements: 0,
    formats: &[],
    tensors: &[],
    unused: &[],
    files: &[],
    canaries: &[],
    weight_bytes: 0,
    scratch_bytes: 0,
    protocol: Protocol { stop_ids: &[], chat_template: None, tools: None, reasoning: None },
    sampling: &[],
    figures: Figures {
        limit_decode: 0.0,
        limit_prefill: 0.0,
        predicted_decode: 0.0,
        predicted_prefill: 0.0,
        copy_bandwidth: 0.0,
    },
    draft: None,
    batch_invariant: None,
};

/// A rank of `N` whose steps take no time.
struct Idle<const N: usize>(u64);

impl<const N: usize> Rank for Idle<N> {
    fn load_rank(_: &Weights, _: &LoadOptions, _: &Progress, _: Seat) -> Result<Self, LoadError> {
        Ok(Idle(0))
    }
}

impl<const N: usize> Model for Idle<N> {
    const SPEC: &'static ModelSpec = &SPEC;
    const RANKS: usize = N;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        Ok(Idle(0))
    }

    fn blocks(&self) -> usize {
        0
    }

    fn sequences(&self) -> usize {
        0
    }

    fn read_block(&mut self, _: BlockId, _: &mut [u8]) {}

    fn write_block(&mut self, _: BlockId, _: &[u8]) {}

    fn submit(&mut self, step: &Step) -> Ticket {
        self.0 += step.sequences.len().min(1) as u64;
        Ticket(self.0)
    }

    fn collect(&mut self, _: Ticket) -> StepOutput {
        StepOutput::default()
    }
}

/// Microseconds a step, the median and the worst of a hundred, where the host takes `pause` between two.
fn time(model: &mut impl Model, steps: usize, pause: Duration) -> (f64, f64) {
    let row = |slot| SequenceStep {
        slot: Slot(slot),
        position: 0,
        begins: false,
        tokens: Tokens::Sampled,
        drafts: 0,
        generated: false,
        following: None,
        blocks: vec![BlockId(0); 512],
        output: Output::greedy(0),
    };
    let step = Step { sequences: (0..128).map(row).collect(), ..Step::default() };
    let mut times: Vec<f64> = (0..steps)
        .map(|_| {
            let paused = Instant::now();
            while paused.elapsed() < pause {
                std::hint::spin_loop();
            }
            let begun = Instant::now();
            let ticket = model.submit(&step);
            model.collect(ticket);
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[steps / 2], times[steps * 99 / 100])
}

fn world<const N: usize>(steps: usize) {
    let options = LoadOptions {
        blocks: None,
        context: 0,
        shorter: false,
        states: StatesWanted::default(),
        offload: None,
        memory_fraction: 1.0,
        guard: HostGuard { bytes: 0, available: || u64::MAX },
        threads: 1,
        report: |_| {},
        ordinals: Vec::new(),
        process: None,
        kv_calibration: Vec::new(),
    };
    let mut world = World::<Idle<N>>::load(&Weights::Dummy { seed: 0 }, &options, &Progress::default())
        .expect("idle ranks load");
    for pause in [0, 100, 2000].map(Duration::from_micros) {
        let (median, worst) = time(&mut world, steps, pause);
        println!(
            "{N} ranks, {pause:?} between steps: submit and collect take {median:.1} us, at most {worst:.1} of 99 %"
        );
    }
}

fn main() {
    let steps = std::env::args().nth(1).map_or(2000, |steps| steps.parse().expect("a number of steps"));
    world::<1>(steps);
    world::<2>(steps);
    world::<4>(steps);
    world::<8>(steps);
}
