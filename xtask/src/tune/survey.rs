//! What is measured of a target: programs as lists of launches, and for each phase the launches of its
//! variants.

use super::kernels::{Pool, Wanted};
use super::variants::{settings, variants};
use monomorph_compiler::plan::cuda::{Argument, CudaPlan, Edge, Extent, Launch, Plane, Program};
use monomorph_compiler::plan::packed::TILE_ROWS;
use monomorph_compiler::plan::{FieldKind, NO_HEADS, Packing, Plan};
use monomorph_compiler::spec::types::{Knobs, NormWeight, PhaseTuning, Settings, Target};
use monomorph_compiler::{graph, passes};
use monomorph_tune::manifest::{
    self, Attention, Body, Entry, ExtentOf, Field, Hardware, Kv, Manifest, Refused, Shape, Unit, Variant,
};
use std::collections::BTreeMap;

/// Gathers a manifest.
pub struct Survey<'a> {
    target: &'a Target,
    plan: Plan,
    knobs: Knobs,
    /// Kernels of everything that is launched.
    pub pool: Pool,
    /// Bytes by name, most of all variants.
    buffers: BTreeMap<String, u64>,
    scratch: BTreeMap<String, (u64, bool)>,
    programs: Vec<manifest::Program>,
}

/// A launch and its kernel, comparable between plans.
type Call = (Wanted, manifest::Launch);

impl<'a> Survey<'a> {
    /// Of a target cut by the hardware's defaults.
    ///
    /// # Errors
    /// When it cannot be planned.
    pub fn new(target: &'a Target, knobs: Knobs) -> Result<Survey<'a>, String> {
        let plan = plan(target)?;
        let (pool, programs) = (Pool::default(), Vec::new());
        Ok(Survey { target, plan, knobs, pool, buffers: BTreeMap::new(), scratch: BTreeMap::new(), programs })
    }

    /// The target's plan with the defaults.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Adds the program of a bucket (prefill at `None`) with the variants of its phases.
    ///
    /// # Errors
    /// When the target has no such program.
    pub fn program(&mut self, bucket: Option<usize>, wanted: impl Fn(&str) -> bool) -> Result<(), String> {
        let plan = self.plan.clone();
        let name = bucket.map_or("prefill".to_owned(), |rows| format!("decode_{rows}"));
        let program =
            program(&plan, &name).ok_or_else(|| format!("{} has no program `{name}`", self.target.name()))?;
        let mut phases: Vec<&str> = Vec::new();
        for (body, launches) in program.bodies.iter().enumerate() {
            for launch in launches {
                let phase = plan.bodies[body].phases[launch.phase].name.as_str();
                if !phases.contains(&phase) && wanted(phase) {
                    phases.push(phase);
                }
            }
        }
        self.take_memory(&plan);
        let bodies = (0..program.bodies.len()).map(|body| self.body(&plan, program, body)).collect();
        let tail = program.tail.iter().map(|it| self.pooled(program, call(&plan, it))).collect();
        let units = phases.into_iter().filter_map(|phase| self.unit(&plan, program, bucket, phase)).collect();
        let (rows, decode) = (program.rows, bucket.is_some());
        let bucket = bucket.map_or("prefill".to_owned(), |rows| rows.to_string());
        self.programs.push(manifest::Program { name, bucket, rows, decode, bodies, tail, units });
        Ok(())
    }

    /// A body's launches with the phase of each.
    fn body(&mut self, plan: &Plan, program: &Program, body: usize) -> Vec<Entry> {
        let launches = program.bodies[body].iter();
        launches.map(|it| Entry { phase: it.phase, launch: self.pooled(program, call(plan, it)) }).collect()
    }

    /// A phase's variants; `None` where it has nothing to tune.
    fn unit(&mut self, plan: &Plan, program: &Program, bucket: Option<usize>, phase: &str) -> Option<Unit> {
        let places: Vec<(usize, usize)> = plan
            .bodies
            .iter()
            .enumerate()
            .flat_map(|(body, it)| {
                let named = it.phases.iter().enumerate().filter(|(_, it)| it.name == phase);
                named.map(move |(at, _)| (body, at)).collect::<Vec<_>>()
            })
            .filter(|(body, _)| !program.bodies[*body].is_empty())
            .collect();
        let (body, at) = places[0];
        let (phases, launches) = (&plan.bodies[body].phases, &program.bodies[body]);
        let kernel = |launch: &Launch| Some(plan.cuda.as_ref()?.kernel(launch.kernel).signature);
        let mut own = launches.iter().filter(|launch| launch.phase == at);
        let cut = own.find_map(|launch| phases[at].kind.cut(kernel(launch)?))?;
        let base = calls(plan, program, &places);
        let (mut seen, mut found, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for knobs in variants(cut, program.rows, self.knobs, self.target.hardware.cuda()?) {
            let settings = settings(knobs, self.knobs);
            match self.variant(program, bucket, phase, &places, &settings, &base.1) {
                Err(why) => refused.push(Refused { settings, why }),
                // It compiles to the same kernels as another.
                Ok(launches) if seen.contains(&nameless(&launches)) => {}
                Ok(launches) => {
                    let pooled = launches
                        .iter()
                        .map(|place| place.iter().map(|it| self.pooled(program, it.clone())).collect())
                        .collect();
                    seen.push(nameless(&launches));
                    found.push(Variant { settings, launches: pooled });
                }
            }
        }
        // A launch may do the next phase's work too, which then has none: both products of a mixture, where
        // their rings fit side by side.
        let next = phases.get(at + 1).filter(|_| launches.iter().all(|launch| launch.phase != at + 1));
        let in_place = phases[at].kind.adds() || next.is_some_and(|next| next.kind.adds());
        let phase = phase.to_owned();
        Some(Unit { phase, places, in_place, refused, variants: found })
    }

    /// The launches of a phase with some settings, by place.
    fn variant(
        &mut self,
        program: &Program,
        bucket: Option<usize>,
        phase: &str,
        places: &[(usize, usize)],
        settings: &Settings,
        others: &[Call],
    ) -> Result<Vec<Vec<Call>>, String> {
        let mut target = self.target.clone();
        let tuning = target.tuning.as_mut().expect("the caller tunes CUDA hardware");
        let buckets = BTreeMap::from([(bucket, settings.clone())]);
        tuning.phases.insert(phase.to_owned(), PhaseTuning { buckets, ..PhaseTuning::default() });
        let plan = plan(&target)?;
        let program = self::program(&plan, &program.name).expect("the same programs");
        let (launches, rest) = calls(&plan, program, places);
        if rest != others {
            return Err("it changes other phases' kernels too".to_owned());
        }
        self.take_memory(&plan);
        Ok(launches)
    }

    fn pooled(&mut self, program: &Program, (kernel, launch): Call) -> manifest::Launch {
        manifest::Launch { kernel: self.pool.add(&kernel, program.regime), ..launch }
    }

    fn take_memory(&mut self, plan: &Plan) {
        for (buffer, bytes) in plan.sizes() {
            let known = self.buffers.entry(buffer.name.clone()).or_default();
            *known = bytes.max(*known);
        }
        for scratch in plan.cuda.iter().flat_map(|cuda| &cuda.scratch) {
            let known = self.scratch.entry(scratch.name.clone()).or_default();
            *known = (scratch.bytes.max(known.0), scratch.zeroed);
        }
    }

    /// Everything the tuner has to know but the kernels, which are compiled once all of them are known.
    pub fn manifest(&mut self, command: String, trace: bool) -> Manifest {
        let plan = self.plan.clone();
        let (cuda, quant) = (plan.cuda.as_ref().expect("a CUDA target"), &plan.target.quant);
        let fields = (0..plan.fields.len())
            .map(|at| {
                let (field, fill) = (&plan.fields[at], wanted(cuda, cuda.fills[at]));
                let fill = self.pool.add(&fill, monomorph_compiler::plan::cuda::Regime::Prefill);
                let shape = match &field.kind {
                    FieldKind::Matrix { rows, columns, packing, experts, .. } => {
                        let planes = field.planes().expect("a matrix has planes");
                        let gated = *packing == Packing::Gated;
                        let rows = if gated { rows / 2 } else { *rows };
                        // Experts stand one behind the other: one long matrix, but for rows that tiles are
                        // padded with.
                        let (rows, all) = match experts {
                            Some(experts) => (rows.next_multiple_of(TILE_ROWS) * experts, *experts as u64),
                            None => (rows, 1),
                        };
                        let [codes, scales, row_scales] =
                            [planes.codes, planes.scales, planes.row_scales].map(|bytes| all * bytes);
                        Shape::Matrix { rows, columns: *columns, gated, codes, scales, row_scales }
                    }
                    FieldKind::Convolution { channels, taps, .. } => {
                        Shape::Vector { length: channels * taps, centre: 0.0 }
                    }
                    FieldKind::Heads { .. } => unreachable!("{NO_HEADS}"),
                    FieldKind::Vector { length, .. } => Shape::Vector { length: *length, centre: 0.0 },
                    FieldKind::Norm { length, form, .. } => {
                        let centre = if *form == NormWeight::Plain { 1.0 } else { 0.0 };
                        Shape::Vector { length: *length, centre }
                    }
                };
                Field { name: field.name.clone(), instances: plan.instances(field), fill, shape }
            })
            .collect();
        let bodies = plan
            .bodies
            .iter()
            .map(|body| {
                let attention = plan.kv_layout(body).zip(body.frequencies()).map(|(layout, frequencies)| {
                    let block_bytes = layout.block_bytes() as u64;
                    Attention {
                        inverse: frequencies.inverse.clone(),
                        factor: frequencies.factor,
                        block_bytes,
                        ahead_bytes: layout.ahead_bytes() as u64,
                        static_scales: layout.static_scale_bytes() / size_of::<f32>(),
                    }
                });
                // Bytes of one slot, by part.
                let state = plan.state(body).map(|state| {
                    state
                        .parts
                        .iter()
                        .map(|part| (part.name.to_string(), part.bytes as u64))
                        .collect::<BTreeMap<_, _>>()
                });
                let (name, layers) = (body.name.clone(), body.layers.len());
                let first = plan.first_matrix(body).map(|it| it.0);
                Body { name, layers, attention, state, first }
            })
            .collect();
        let card = plan.target.hardware.cuda().expect("a CUDA target");
        Manifest {
            target: plan.target.name(),
            command,
            card: Hardware {
                architecture: card.architecture.clone(),
                capability: card.capability,
                multiprocessors: card.multiprocessors,
                l2_bytes: card.l2_bytes,
            },
            max_sequences: plan.buckets.sequences,
            kv: Kv { block_tokens: quant.kv_block, format: quant.kv_formats.to_string() },
            fields,
            buffers: self.buffers.clone(),
            scratch: self.scratch.iter().map(|(name, (bytes, _))| (name.clone(), *bytes)).collect(),
            bodies,
            schedule: plan.places().map(|(body, layer)| (body.0, layer)).collect(),
            programs: self.programs.clone(),
            kernels: Vec::new(),
            trace,
        }
    }
}

fn plan(target: &Target) -> Result<Plan, String> {
    passes::assemble::plan(target, &graph::build(&target.model, &target.quant))
        .map_err(|error| error.to_string())
}

fn program<'p>(plan: &'p Plan, name: &str) -> Option<&'p Program> {
    plan.cuda.as_ref()?.programs.iter().find(|program| program.name == name)
}

/// The launches of the phases at `places`, and all others.
fn calls(plan: &Plan, program: &Program, places: &[(usize, usize)]) -> (Vec<Vec<Call>>, Vec<Call>) {
    let mut inside = vec![Vec::new(); places.len()];
    let mut outside: Vec<Call> = program.tail.iter().map(|it| call(plan, it)).collect();
    for (body, launches) in program.bodies.iter().enumerate() {
        for launch in launches {
            match places.iter().position(|place| *place == (body, launch.phase)) {
                Some(place) => inside[place].push(call(plan, launch)),
                None => outside.push(call(plan, launch)),
            }
        }
    }
    outside.iter_mut().for_each(|(kernel, _)| *kernel = kernel.nameless());
    (inside, outside)
}

/// A kernel of a plan, as the runtime loads it.
fn wanted(cuda: &CudaPlan, place: (usize, usize)) -> Wanted {
    Wanted { kernel: cuda.kernel(place).clone(), shared_part: cuda.modules[place.0].shared_part }
}

/// Calls that compare as what they launch: names follow the order in which programs were planned.
fn nameless(places: &[Vec<Call>]) -> Vec<Vec<Call>> {
    let of = |calls: &Vec<Call>| {
        calls.iter().map(|(kernel, launch)| (kernel.nameless(), launch.clone())).collect()
    };
    places.iter().map(of).collect()
}

fn call(plan: &Plan, launch: &Launch) -> Call {
    let cuda = plan.cuda.as_ref().expect("a CUDA target");
    let grid = launch.grid.map(|extent| match extent {
        Extent::Fixed(blocks) => (ExtentOf::Fixed, blocks),
        Extent::Tokens(each) => (ExtentOf::Tokens, each),
        Extent::Sequences(each) => (ExtentOf::Sequences, each),
        Extent::Outputs(each) => (ExtentOf::Outputs, each),
    });
    use manifest::Argument as Said;
    let argument = |argument: &Argument| match argument {
        Argument::Step => Said::Step,
        Argument::Pass(pass) => Said::Pass(*pass),
        Argument::Tokens => Said::Tokens,
        Argument::Images => unreachable!("builds that are tuned have no vision tower"),
        Argument::SampledIds => Said::SampledIds,
        Argument::Ids(at) => Said::Ids(*at),
        Argument::DraftedOut(row) => Said::Drafted(*row),
        Argument::Held => Said::Held,
        Argument::History => Said::History,
        Argument::SampledOut => Said::Sampled,
        Argument::Buffer(id) => Said::Buffer(plan.buffer(*id).name.clone()),
        Argument::Field(id, plane) => {
            let plane = match plane {
                Plane::Codes => manifest::Plane::Codes,
                Plane::Scales => manifest::Plane::Scales,
                Plane::RowScales => manifest::Plane::RowScales,
            };
            Said::Field(id.0, plane)
        }
        Argument::Cache(body) => Said::Cache(body.0),
        Argument::State(body, part) => Said::State(body.0, part.to_string()),
        Argument::Following(Edge::Begin) => Said::Following(0),
        Argument::Following(Edge::End) => Said::Following(1),
        Argument::Rotary(body) => Said::Rotary(body.0),
        Argument::Scratch(at) => Said::Scratch(cuda.scratch[*at].name.clone()),
        Argument::Null => Said::Null,
    };
    let arguments = launch.arguments.iter().map(argument).collect();
    // Its number is known once the kernel is among those that are compiled.
    (wanted(cuda, launch.kernel), manifest::Launch { kernel: 0, grid, arguments })
}
