//! What the engine adds to a step: measured on a model that does nothing.

use monomorph_engine::scripted::{Shape, Small};
use monomorph_engine::{EngineOptions, Request, start};
use monomorph_model::{
    LoadError, LoadOptions, Model, ModelSpec, Output, Progress, RowOutput, Step, StepOutput, Ticket, Weights,
};
use monomorph_sampling::Sampled;

/// Answers every step at once.
struct Nothing(Vec<RowOutput>);

impl Model for Nothing {
    const SPEC: &'static ModelSpec = Small::SPEC;

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        Ok(Nothing(Vec::new()))
    }

    fn blocks(&self) -> usize {
        4096
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        let row = |output: &Output| match output {
            Output::Sample { .. } => RowOutput::Sampled(Sampled { id: 7, logprob: None, top: Vec::new() }),
            Output::None | Output::Logits => RowOutput::None,
        };
        self.0 = step.sequences.iter().map(|sequence| row(&sequence.output)).collect();
        Ticket(0)
    }

    fn collect(&mut self, _: Ticket) -> StepOutput {
        StepOutput { rows: std::mem::take(&mut self.0) }
    }
}

#[test]
fn a_step_costs_the_host_less_than_twenty_microseconds() {
    let options = EngineOptions { blocks: 4096, context: 4096, max_waiting: 64 };
    let engine = start(Nothing(Vec::new()), options).unwrap();
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
        println!("{sequences} sequences, penalty {penalty}: {least:.2} µs a step");
        if sequences == 1 {
            assert!(least < 20.0, "{least} µs a step");
        }
    }
}
