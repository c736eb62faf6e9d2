//! The launches of a CUDA target and the tuning of its kernels, as text and as JSON.

use crate::graph::BodyId;
use crate::plan::cuda::{Constant, CudaPlan, Extent, Launch, Program, Regime};
use crate::plan::{Cost, Phase, Plan, Prediction};
use crate::spec::types::{Knobs, Provenance, Tuning};
use serde::Serialize;
use std::collections::BTreeMap;

/// The part of `explain` that only a CUDA target has.
#[derive(Debug, Serialize)]
pub struct CudaReport {
    /// Architecture, such as `sm_90a`.
    pub architecture: String,
    /// Source of the tuning.
    pub tuning: TuningReport,
    /// Device memory besides weights, K/V and activation buffers.
    pub scratch: Vec<ScratchReport>,
    /// Tokens of a layer whose narrow keys and values are widened at a time, of the layers that have room for
    /// fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub widened_tokens: Option<u64>,
    /// Decode by bucket, prefill, head.
    pub programs: Vec<ProgramReport>,
}

/// Tuning of the kernels.
#[derive(Debug, Serialize)]
pub struct TuningReport {
    /// `HARDWARE.toml`'s defaults, or a tuning file with the card, day and command of its measurement.
    pub provenance: String,
    /// Knobs of phases without settings of their own.
    pub knobs: Vec<(&'static str, u32)>,
    /// Phases with settings, as `phase` or `phase.bucket`, and those settings.
    pub phases: Vec<(String, BTreeMap<String, u32>)>,
}

/// Scratch memory of kernels.
#[derive(Debug, Serialize)]
pub struct ScratchReport {
    /// Field name in the generated stack.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A program of launches.
#[derive(Debug, Serialize)]
pub struct ProgramReport {
    /// Name, such as `decode_1`.
    pub name: String,
    /// Launches of one run, over all layers.
    pub launches: usize,
    /// Predicted microseconds of one run, as in its table.
    pub microseconds: f64,
    /// Each kind of launch once.
    pub kernels: Vec<LaunchReport>,
}

/// A kernel launch.
#[derive(Debug, Serialize)]
pub struct LaunchReport {
    /// `module.kernel`.
    pub kernel: String,
    /// The function template it instantiates.
    pub template: &'static str,
    /// Grid: numbers, or T, S, O (tokens, sequences, outputs of the step) over rows per block.
    pub grid: [String; 3],
    /// Threads per block.
    pub block: u32,
    /// Blocks per cluster.
    pub cluster: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Collects the report.
pub fn report(plan: &Plan) -> Option<CudaReport> {
    let (cuda, card) = (plan.cuda.as_ref()?, plan.target.hardware.cuda()?);
    let scratch = cuda.scratch.iter().map(|it| ScratchReport { name: it.name.clone(), bytes: it.bytes });
    Some(CudaReport {
        architecture: card.architecture.clone(),
        tuning: tuning(plan.target.tuning.as_ref()?),
        scratch: scratch.collect(),
        widened_tokens: widened_tokens(plan, cuda),
        programs: cuda.programs.iter().map(|program| self::program(plan, cuda, program)).collect(),
    })
}

/// Tokens that the areas of widened keys and values have room for, the fewest.
fn widened_tokens(plan: &Plan, cuda: &CudaPlan) -> Option<u64> {
    let constants = cuda.modules.iter().flat_map(|module| &module.kernels).flat_map(|it| &it.constants);
    let blocks = constants.filter_map(|(name, constant)| match constant {
        Constant::Integer(blocks) if *name == "WIDENED_BLOCKS" => u64::try_from(*blocks).ok(),
        _ => None,
    });
    blocks.min().map(|blocks| blocks * plan.target.quant.kv_block as u64)
}

fn tuning(tuning: &Tuning) -> TuningReport {
    let provenance = match &tuning.provenance {
        Provenance::Defaults => "defaults of HARDWARE.toml".to_owned(),
        Provenance::Measured { file, card, date, command } => {
            format!("{}: {card}, {date}, by `{command}`", file.display())
        }
    };
    let mut knobs: Knobs = tuning.knobs;
    let knobs = Knobs::KEYS.map(|(key, ..)| (key, knobs.get_mut(key).map_or(0, |knob| *knob)));
    let mut phases = Vec::new();
    for (name, phase) in &tuning.phases {
        phases.extend((!phase.all.is_empty()).then(|| (name.clone(), phase.all.clone())));
        phases.extend(phase.buckets.iter().map(|(bucket, settings)| {
            let bucket = bucket.map_or("prefill".to_owned(), |rows| rows.to_string());
            (format!("{name}.{bucket}"), settings.clone())
        }));
    }
    TuningReport { provenance, knobs: knobs.into(), phases }
}

fn program(plan: &Plan, cuda: &CudaPlan, program: &Program) -> ProgramReport {
    let runs = plan.schedule.iter().map(|(body, _)| program.bodies[body.0].len());
    let bodies = plan.schedule.iter().filter(|(body, _)| !program.bodies[body.0].is_empty());
    let phases =
        bodies.flat_map(|(body, _)| (0..plan.bodies[body.0].phases.len()).map(|phase| (body.0, phase)));
    // A pass through the model's layers runs each body once per layer of it.
    let layers = |body: &BodyId| plan.bodies[body.0].layers.len().max(1);
    let of_passes = program.passes.iter().flat_map(|(body, launches)| {
        let phases = (0..layers(body)).flat_map(|_| 0..plan.bodies[body.0].phases.len());
        phases.map(move |phase| cost(plan, program, body.0, phase, launches))
    });
    let costs =
        phases.map(|(body, phase)| cost(plan, program, body, phase, &program.bodies[body])).chain(of_passes);
    let tail = program.tail.len() as f64 * plan.target.hardware.boundary_seconds;
    let seconds = tail + costs.map(|cost| cost.predicted(&plan.target.hardware)).sum::<f64>();
    let launch = |launch: &Launch| {
        let kernel = cuda.kernel(launch.kernel);
        LaunchReport {
            kernel: format!("{}.{}", cuda.modules[launch.kernel.0].name, kernel.name),
            template: kernel.function(),
            grid: launch.grid.map(extent),
            block: kernel.block,
            cluster: kernel.cluster,
            shared: kernel.shared,
        }
    };
    ProgramReport {
        name: program.name.clone(),
        launches: runs.sum::<usize>()
            + program.tail.len()
            + program.passes.iter().map(|(body, launches)| layers(body) * launches.len()).sum::<usize>(),
        microseconds: 1e6 * seconds,
        kernels: program.launches().map(launch).collect(),
    }
}

/// The report as text: tuning, scratch, and one program for each regime.
pub fn text(plan: &Plan) -> Vec<String> {
    let (Some(cuda), Some(report)) = (&plan.cuda, report(plan)) else { return Vec::new() };
    let mut lines =
        vec![format!("kernels for {}, cut by the {}", report.architecture, report.tuning.provenance)];
    lines.extend(report.tuning.knobs.iter().map(|(key, value)| format!("  {key:<28} {value:>8}")));
    for (phase, settings) in &report.tuning.phases {
        lines.push(format!("  {phase}"));
        lines.extend(settings.iter().map(|(key, value)| format!("    {key:<26} {value:>8}")));
    }
    lines.push(String::new());
    lines.push("scratch                         bytes".to_owned());
    lines.extend(report.scratch.iter().map(|it| format!("{:<26} {:>10}", it.name, it.bytes)));
    lines.extend(report.widened_tokens.map(|tokens| {
        format!(
            "prompts widen keys and values of {tokens} tokens, one layer at a time; attention decodes those of more itself"
        )
    }));
    lines.push(String::new());
    lines.push("program       launches         us".to_owned());
    lines.extend(
        report
            .programs
            .iter()
            .map(|it| format!("{:<12} {:>9} {:>10.1}", it.name, it.launches, it.microseconds)),
    );
    // One program for each way to launch is enough: the smallest and the largest bucket, prefill, head.
    let mut decode = cuda.programs.iter().filter(|program| program.regime == Regime::Decode);
    let shown = decode.next().into_iter().chain(decode.next_back());
    // For draft passes, the smallest bucket.
    let mut passes = cuda.programs.iter().filter(|program| program.regime == Regime::Draft);
    let rest = cuda.programs.iter().filter(|it| !matches!(it.regime, Regime::Decode | Regime::Draft));
    for program in shown.chain(rest).chain(passes.next()) {
        lines.push(String::new());
        lines.extend(program_table(plan, cuda, program));
    }
    lines
}

/// A program's launches: geometry, bytes and predicted time.
pub fn program_table(plan: &Plan, cuda: &CudaPlan, program: &Program) -> Vec<String> {
    let hardware = &plan.target.hardware;
    let mut lines =
        vec![format!("Program `{}` of `{}`: {}", program.name, plan.target.name(), purpose(program))];
    lines.push(String::new());
    lines.push(format!(
        "{:<34} {:<18} {:>6} {:>8} {:>8} | {:>12} {:>9} {:>9} {:>8}",
        "kernel (module of another program)",
        "grid",
        "block",
        "cluster",
        "shared B",
        "weights B",
        "context B",
        "acts B",
        "us"
    ));
    let body_lines = |lines: &mut Vec<String>, index: usize, launches: &[Launch]| {
        let body = &plan.bodies[index];
        let layers =
            if body.layers.is_empty() { String::new() } else { format!(", {} layers", body.layers.len()) };
        lines.push(format!("{}{layers}", body.name));
        let mut previous = None;
        for launch in launches {
            // The phase's figures appear with its first launch.
            let first = previous.replace(launch.phase) != Some(launch.phase);
            let figures = first.then(|| {
                let cost = cost(plan, program, index, launch.phase, launches);
                format!(
                    "{:>12.0} {:>9.0} {:>9.0} {:>8.2}",
                    cost.weight_bytes,
                    cost.kv_bytes + cost.state_bytes,
                    cost.activation_bytes,
                    1e6 * cost.predicted(hardware)
                )
            });
            lines.push(format!(
                "  {} | {}",
                launch_columns(cuda, program, launch),
                figures.unwrap_or_default()
            ));
        }
    };
    for (index, launches) in program.bodies.iter().enumerate().filter(|(_, launches)| !launches.is_empty()) {
        body_lines(&mut lines, index, launches);
    }
    for launch in &program.tail {
        lines.push(format!("  {} |", launch_columns(cuda, program, launch)));
    }
    for (body, launches) in &program.passes {
        body_lines(&mut lines, body.0, launches);
    }
    lines.push(String::new());
    lines.push(
        "Shared memory is the dynamic part; the map of each kind stands in its header, and registers in cubins/report.json."
            .to_owned(),
    );
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn purpose(program: &Program) -> String {
    let (rows, context) = (program.rows, Prediction::DECODE_CONTEXT);
    match program.regime {
        Regime::Decode if program.tokens > 1 => format!(
            "a token and {} drafts each of up to {} sequences, figures for them after {context} tokens each",
            program.tokens - 1,
            program.sequences
        ),
        Regime::Decode if rows == 1 => {
            format!("one token of one sequence, figures for it after {context} tokens")
        }
        Regime::Decode => format!(
            "one token each of up to {rows} sequences, figures for {rows} after {context} tokens each"
        ),
        Regime::Prefill => {
            let prompt = rows.min(Prediction::PREFILL_TOKENS);
            format!("up to {rows} tokens of any sequences, figures for one prompt of {prompt}")
        }
        Regime::Head => {
            format!("logits and sampling of up to {rows} rows after a prefill, figures for one row")
        }
        Regime::Learn => format!(
            "which sequences are drafted for, and what a draft head learns from up to {rows} tokens, figures for one prompt of {}",
            Prediction::PREFILL_TOKENS
        ),
        Regime::See => format!(
            "a vision tower over up to {rows} patches of one image, figures for one of {} tokens",
            Prediction::PREFILL_TOKENS
        ),
        Regime::Draft => {
            format!("drafts for up to {} sequences, figures for all of them", program.sequences)
        }
    }
}

/// A phase's work in a program, with its number of launches among those of its body.
fn cost(plan: &Plan, program: &Program, body: usize, phase: usize, launches: &[Launch]) -> Cost {
    let costs = &plan.bodies[body].phases[phase];
    let (Phase { decode, verify, prefill, .. }, kind) = (costs, &costs.kind);
    let (sequences, fed) = (program.sequences, program.tokens);
    let cost = match program.regime {
        Regime::Decode if fed == 1 => plan.of_sequences(kind, 1, sequences, decode),
        Regime::Decode => plan.of_sequences(kind, fed, sequences, verify),
        Regime::Draft => plan.of_sequences(kind, 1, sequences, decode),
        Regime::Prefill if program.rows < Prediction::PREFILL_TOKENS => {
            plan.of_sequences(kind, 1, program.rows, decode)
        }
        Regime::Prefill | Regime::Head | Regime::Learn | Regime::See => *prefill,
    };
    let launches = launches.iter().filter(|launch| launch.phase == phase).count();
    Cost { boundaries: launches as f64, ..cost }
}

fn launch_columns(cuda: &CudaPlan, program: &Program, launch: &Launch) -> String {
    let kernel = cuda.kernel(launch.kernel);
    let module = &cuda.modules[launch.kernel.0].name;
    let name =
        if *module == program.name { kernel.name.clone() } else { format!("{} ({module})", kernel.name) };
    let grid = launch.grid.map(extent).join(" x ");
    format!("{name:<32} {grid:<18} {:>6} {:>8} {:>8}", kernel.block, kernel.cluster, kernel.shared)
}

fn extent(extent: Extent) -> String {
    let of = |what: &str, each: u32| if each == 1 { what.to_owned() } else { format!("{what}/{each}") };
    match extent {
        Extent::Fixed(blocks) => blocks.to_string(),
        Extent::Tokens(each) => of("T", each),
        Extent::Sequences(each) => of("S", each),
        Extent::Outputs(each) => of("O", each),
    }
}
