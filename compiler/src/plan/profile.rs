//! The steps that a profiling build times: the phases of each as they run, the rows of times that it takes of
//! them, and their work.

use super::cuda::{CudaPlan, Launch, Program, Regime};
use super::{Cost, Given, Phase, Plan};
use crate::graph::BodyId;
use monomorph_abi::PhaseWork;
use std::collections::BTreeSet;

/// Tokens of the shortest prompt that has figures.
const LEAST_PROMPT: usize = 16;

/// A step whose phases are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledStep {
    /// What it runs.
    pub kind: ProfiledKind,
    /// Its phases as they run, those of layers of one kind once.
    pub phases: Vec<ProfiledPhase>,
}

/// What a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfiledKind {
    /// A token of each of so many sequences.
    Decode(usize),
    /// A prompt of so many tokens.
    Prompt(usize),
}

/// A phase of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledPhase {
    /// Name of its body.
    pub body: String,
    /// Name of the phase; of what samples, of its kernel. Phases that the same launches carry out are named
    /// together.
    pub name: String,
    /// Name of its kind.
    pub kind: &'static str,
    /// How often the step runs it.
    pub times: usize,
    /// Its rows of times: one on a CPU, one for each of its launches on a CUDA device.
    pub rows: Vec<usize>,
    /// What it does each time.
    pub work: PhaseWork,
}

impl Plan {
    /// The steps that a profiling build times, by size: decode steps, then prompts.
    pub fn profiled(&self) -> Vec<ProfiledStep> {
        match &self.cuda {
            None => self.profiled_on_cpu(),
            Some(cuda) => self.profiled_on_cuda(cuda),
        }
    }

    /// The row of times of a phase on a CPU: rows are phases, body by body.
    pub fn profiled_row(&self, body: usize, phase: usize) -> usize {
        self.bodies[..body].iter().map(|body| body.phases.len()).sum::<usize>() + phase
    }

    /// What the rows of times are taken of: phases on a CPU, kernels on a CUDA device.
    pub fn profiled_names(&self) -> Vec<String> {
        match &self.cuda {
            None => self.bodies.iter().flat_map(|it| &it.phases).map(|phase| phase.name.clone()).collect(),
            Some(cuda) => launches(cuda).map(|it| cuda.kernel(it.kernel).name.clone()).collect(),
        }
    }

    fn profiled_on_cpu(&self) -> Vec<ProfiledStep> {
        let step = |kind: ProfiledKind| {
            let phases = self.bodies_in_order().into_iter().flat_map(|(body, times)| {
                let of_body = &self.bodies[body.0];
                of_body.phases.iter().enumerate().map(move |(at, phase)| ProfiledPhase {
                    body: of_body.name.clone(),
                    name: phase.name.clone(),
                    kind: phase.kind.name(),
                    times,
                    rows: vec![self.profiled_row(body.0, at)],
                    work: self.work(phase, kind, None),
                })
            });
            ProfiledStep { kind, phases: phases.collect() }
        };
        let decode = powers(1, self.buckets.sequences).into_iter().map(ProfiledKind::Decode);
        decode.chain(self.prompts()).map(step).collect()
    }

    fn profiled_on_cuda(&self, cuda: &CudaPlan) -> Vec<ProfiledStep> {
        let of = |regime| cuda.programs.iter().filter(move |it| it.regime == regime);
        let decode = of(Regime::Decode).map(|program| ProfiledStep {
            kind: ProfiledKind::Decode(program.sequences),
            phases: self.launched(cuda, &[program], ProfiledKind::Decode(program.sequences)),
        });
        let prompts = self.prompts().filter_map(|kind| {
            let ProfiledKind::Prompt(tokens) = kind else { return None };
            let prefill = of(Regime::Prefill).find(|it| it.rows >= tokens)?;
            let programs = [prefill, of(Regime::Head).next()?];
            Some(ProfiledStep { kind, phases: self.launched(cuda, &programs, kind) })
        });
        decode.chain(prompts).collect()
    }

    /// Prompts of one step that have figures.
    fn prompts(&self) -> impl Iterator<Item = ProfiledKind> {
        powers(LEAST_PROMPT, self.buckets.tokens).into_iter().map(ProfiledKind::Prompt)
    }

    /// Phases of programs that follow each other in a step.
    fn launched(&self, cuda: &CudaPlan, programs: &[&Program], step: ProfiledKind) -> Vec<ProfiledPhase> {
        let mut all = Vec::new();
        for program in programs {
            for (body, times) in self.bodies_in_order() {
                let (of_body, launched) = (&self.bodies[body.0], &program.bodies[body.0]);
                let mut order: Vec<usize> = Vec::new();
                for launch in launched {
                    if !order.contains(&launch.phase) {
                        order.push(launch.phase);
                    }
                }
                all.extend(order.into_iter().map(|at| {
                    let launches = launched.iter().filter(|it| it.phase == at);
                    let rows: Vec<usize> = launches.map(|it| launch_row(cuda, it)).collect();
                    let (mut name, kind) = (of_body.phases[at].name.clone(), of_body.phases[at].kind.name());
                    let mut work = self.work(&of_body.phases[at], step, Some(rows.len()));
                    // Its launches carry out phases behind it that have none.
                    let carried = of_body.phases.iter().enumerate().skip(at + 1);
                    let carried = carried.take_while(|(at, _)| launched.iter().all(|it| it.phase != *at));
                    for (_, phase) in carried {
                        let other = self.work(phase, step, Some(0));
                        if other.bytes > 0.0 || other.products > 0.0 {
                            name = format!("{name} + {}", phase.name);
                            work = together(work, other);
                        }
                    }
                    ProfiledPhase { body: of_body.name.clone(), name, kind, times, rows, work }
                }));
            }
            let overhead = self.target.hardware.boundary_seconds;
            all.extend(program.tail.iter().map(|it| ProfiledPhase {
                body: "sampling".to_owned(),
                name: cuda.kernel(it.kernel).name.clone(),
                kind: "sampling",
                times: 1,
                rows: vec![launch_row(cuda, it)],
                work: PhaseWork { overhead, ..PhaseWork::default() },
            }));
        }
        all
    }

    /// The model's bodies in the order in which they first run, and how often a step runs each.
    fn bodies_in_order(&self) -> Vec<(BodyId, usize)> {
        let times = |body: BodyId| self.schedule.iter().filter(|(run, _)| *run == body).count();
        let mut seen = BTreeSet::new();
        let first = self.schedule.iter().map(|(body, _)| *body).filter(|body| seen.insert(body.0));
        first.map(|body| (body, times(body))).collect()
    }

    /// What a phase does in a step, in so many `launches` on a CUDA device. That of a decode step grows with
    /// the tokens in the cache.
    fn work(&self, phase: &Phase, kind: ProfiledKind, launches: Option<usize>) -> PhaseWork {
        let hardware = &self.target.hardware;
        let given = |tokens, context| Given { tokens, outputs: 1, context };
        let of = |boundaries: f64, cost: Cost| Cost {
            boundaries: launches.map_or(boundaries, |launches| launches as f64),
            ..cost
        };
        let sequences = match kind {
            ProfiledKind::Decode(sequences) => sequences,
            ProfiledKind::Prompt(tokens) => {
                return of(phase.prefill.boundaries, self.cost(phase, given(tokens, 0))).work(hardware);
            }
        };
        let after = |context: usize| {
            let cost = self.of_sequences(&phase.kind, 1, sequences, &self.cost(phase, given(1, context)));
            of(phase.decode.boundaries, cost).work(hardware)
        };
        // It grows evenly up to the end of a window, if it has one.
        let (none, one, longest) = (after(0), after(1), after(self.target.model.context));
        let bytes_each = one.bytes - none.bytes;
        let most = if bytes_each > 0.0 { (longest.bytes - none.bytes) / bytes_each } else { 0.0 };
        PhaseWork { bytes_each, products_each: one.products - none.products, most, ..none }
    }
}

/// The work of two phases that the same launches carry out.
fn together(one: PhaseWork, other: PhaseWork) -> PhaseWork {
    PhaseWork {
        bytes: one.bytes + other.bytes,
        bytes_each: one.bytes_each + other.bytes_each,
        products: one.products + other.products,
        products_each: one.products_each + other.products_each,
        most: one.most.max(other.most),
        decoding: one.decoding + other.decoding,
        overhead: one.overhead + other.overhead,
    }
}

/// The row of times of a launch: rows are launches, program by program.
///
/// # Panics
/// When the plan has no such launch.
pub fn launch_row(cuda: &CudaPlan, launch: &Launch) -> usize {
    launches(cuda).position(|it| std::ptr::eq(it, launch)).expect("a launch of the plan")
}

fn launches(cuda: &CudaPlan) -> impl Iterator<Item = &Launch> {
    cuda.programs.iter().flat_map(Program::launches)
}

/// Powers of two from one to another number, and that.
fn powers(least: usize, most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(least), |it| Some(2 * it)).take_while(|it| *it < most);
    powers.chain([most]).collect()
}
