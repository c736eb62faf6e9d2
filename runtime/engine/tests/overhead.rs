//! What the engine adds to a step: measured on a model that does nothing.

use monomorph_engine::scripted::{Drafting, Shape, Small};
use monomorph_engine::{EngineOptions, Request, start};
use monomorph_model::{
    BlockId, LoadError, LoadOptions, Model, ModelSpec, Output, Progress, RowOutput, Step, StepOutput, Ticket,
    Verified, Weights,
};
use monomorph_sampling::Sampled;
use std::marker::PhantomData;

/// Answers every step at once, always with the same token; all its drafts are accepted.
struct Nothing<S>(Vec<RowOutput>, PhantomData<fn() -> S>);

impl<S: Shape> Model for Nothing<S> {
    const SPEC: &'static ModelSpec = S::SPEC;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        Ok(Nothing(Vec::new(), PhantomData))
    }

    fn blocks(&self) -> usize {
        4096
    }

    fn sequences(&self) -> usize {
        S::SPEC.step_sequences
    }

    fn read_block(&mut self, _: BlockId, _: &mut [u8]) {}

    fn write_block(&mut self, _: BlockId, _: &[u8]) {}

    fn submit(&mut self, step: &Step) -> Ticket {
        let token = || Sampled { id: 7, logprob: None, top: Vec::new() };
        let row = |drafts: usize, output: &Output| match output {
            Output::Sample { .. } if Self::DRAFTS == 0 => RowOutput::Sampled(token()),
            Output::Sample { .. } => RowOutput::Verified(Verified {
                sampled: (0..=drafts).map(|_| token()).collect(),
                drafts: vec![7; Self::DRAFTS],
            }),
            Output::None | Output::Logits => RowOutput::None,
        };
        self.0 = step.sequences.iter().map(|sequence| row(sequence.drafts, &sequence.output)).collect();
        Ticket(0)
    }

    fn collect(&mut self, _: Ticket) -> StepOutput {
        StepOutput { rows: std::mem::take(&mut self.0) }
    }
}

/// What steps cost the host, per sequence count and penalty.
fn measure<S: Shape>() {
    let options = EngineOptions::new(4096, 4096, 64);
    let engine = start(Nothing::<S>(Vec::new(), PhantomData), options).unwrap();
    for (sequences, penalty) in [(1, 0.0), (1, 0.5), (16, 0.0)] {
        // The least of several batches: other processes can only add.
        let mut least = f64::INFINITY;
        for _ in 0..12 {
            let before = engine.stats();
            let mut request = Request::new(vec![5; 2000], 500);
            request.sampling.frequency_penalty = penalty;
            let all: Vec<_> = (0..sequences).map(|_| engine.submit(request.clone()).unwrap()).collect();
            for mut generation in all {
                while generation.blocking_recv().is_some() {}
            }
            let after = engine.stats();
            let steps = (after.steps - before.steps) as f64;
            least = least.min((after.host_time - before.host_time).as_secs_f64() * 1e6 / steps);
        }
        let drafts = S::SPEC.drafts();
        println!("{drafts} drafts, {sequences} sequences, penalty {penalty}: {least:.2} µs a step");
        if sequences == 1 {
            assert!(least < 20.0, "{least} µs a step");
        }
    }
}

#[test]
fn a_step_costs_the_host_less_than_twenty_microseconds() {
    measure::<Small>();
}

#[test]
fn a_step_that_verifies_drafts_costs_the_host_less_than_twenty_microseconds() {
    measure::<Drafting<Small, 3>>();
}
