//! What the programs of a CUDA target exchange between ranks.

use super::Plan;
use super::cuda::{CudaPlan, Launch, Program, Regime};
use crate::graph::BodyId;
use monomorph_abi::world::{Exchanged, Traffic};
use std::collections::BTreeSet;

/// Exchanges of each kind of program, with the values that a rank sends of a row to each other rank. All
/// programs of a kind exchange the same of a row, and decode programs what prefill and head do, also where
/// their kernels sum what they compute.
pub fn traffic(plan: &Plan, cuda: &CudaPlan) -> Traffic {
    let of = |regime| {
        let program = cuda.programs.iter().find(|program| program.regime == regime);
        program.map_or(Exchanged::NONE, |program| of_program(plan, program))
    };
    Traffic {
        layers: of(Regime::Prefill),
        head: of(Regime::Head),
        learn: of(Regime::Learn),
        drafts: of(Regime::Draft),
    }
}

/// What one run of a program exchanges whose sums are launches of their own.
fn of_program(plan: &Plan, program: &Program) -> Exchanged {
    let layers = |body: BodyId| plan.bodies[body.0].layers.len().max(1);
    let bodies = program.bodies.iter().enumerate().map(|(at, launches)| (BodyId(at), launches));
    let passes = program.passes.iter().map(|(body, launches)| (*body, launches));
    let runs = bodies.chain(passes).map(|(body, launches)| of_run(plan, body, launches, layers(body)));
    runs.fold(Exchanged::NONE, |sum, run| Exchanged {
        exchanges: sum.exchanges + run.exchanges,
        row_values: sum.row_values + run.row_values,
    })
}

fn of_run(plan: &Plan, body: BodyId, launches: &[Launch], times: usize) -> Exchanged {
    // A phase that sends may be several launches, of which one does.
    let phases: BTreeSet<usize> = launches.iter().map(|launch| launch.phase).collect();
    let phases = phases.into_iter().map(|at| &plan.bodies[body.0].phases[at]);
    let widths: Vec<usize> = phases.filter_map(|phase| phase.kind.sends(plan)).collect();
    Exchanged {
        exchanges: (times * widths.len()) as u64,
        row_values: (times * widths.iter().sum::<usize>()) as u64,
    }
}
