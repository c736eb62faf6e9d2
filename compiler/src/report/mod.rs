//! Reports of a plan, as text and as JSON.

pub mod cuda;
pub mod draft;
pub mod host;
mod html;
pub mod step;
mod times;

pub use html::html;
pub use times::Times;

use crate::graph::Rows;
use crate::plan::{Cost, Field, FieldKind, Packing, Phase, Plan, PlanBody, Prediction};
use crate::spec::types::TensorClass;
use serde::Serialize;
use std::fmt::Write;

/// Everything `explain` prints, as one JSON object.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the target, `hardware/model/quant`.
    pub target: String,
    /// Most tokens of a step.
    pub step_tokens: usize,
    /// Most sequences of a step.
    pub step_sequences: usize,
    /// Bytes by purpose.
    pub memory: MemoryReport,
    /// The precision contract.
    pub formats: Vec<FormatReport>,
    /// Bodies and their phases.
    pub bodies: Vec<BodyReport>,
    /// Activation buffers.
    pub buffers: Vec<BufferReport>,
    /// Weights as they are stored in memory.
    pub weights: Vec<WeightReport>,
    /// Parts of the checkpoint that are not built.
    pub not_built: Vec<&'static str>,
    /// Tokens per second of one sequence.
    pub speed: SpeedReport,
    /// Drafting, in a build that drafts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<draft::DraftReport>,
    /// Exchanges between ranks, in a build of several. All other figures are of one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksReport>,
    /// Batch invariance, in a build that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_invariant: Option<BatchInvariantReport>,
    /// Bytes and cost of a decode step, on a CUDA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<step::StepReport>,
    /// Launches and tuning, on a CUDA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<cuda::CudaReport>,
}

/// Bytes by purpose.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    /// Weights after packing.
    pub weights: u64,
    /// Activations, and the kernels' scratch.
    pub scratch: u64,
    /// One K/V block over all layers.
    pub kv_block: u64,
    /// One token of K/V over all layers.
    pub kv_token: u64,
    /// Bits of an element of K/V, scales and exact layers included; `None` for a model without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_bits: Option<f64>,
    /// Tokens whose K/V takes 1e9 bytes, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens_per_gb: Option<u64>,
    /// Recurrent state of one sequence over all layers.
    pub state: u64,
    /// Layers that give back blocks behind a sliding window; the other figures of K/V are without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding: Option<SlidingReport>,
    /// Memory of the host, of all ranks.
    pub host: host::HostReport,
}

/// Layers that give back blocks behind a sliding window.
#[derive(Debug, Serialize)]
pub struct SlidingReport {
    /// The longest of their windows, in tokens.
    pub window: usize,
    /// One block over all of them.
    pub block: u64,
    /// One token over all of them.
    pub token: u64,
}

/// One line of the precision contract.
#[derive(Debug, Serialize)]
pub struct FormatReport {
    /// Tensor class.
    pub class: String,
    /// Stored format.
    pub stored: &'static str,
    /// Compute format.
    pub compute: &'static str,
}

/// A body of the plan.
#[derive(Debug, Serialize)]
pub struct BodyReport {
    /// Name in the graph.
    pub name: String,
    /// Layers that run it; empty outside the layers.
    pub layers: Vec<usize>,
    /// Phases in order.
    pub phases: Vec<PhaseReport>,
}

/// A phase of a body.
#[derive(Debug, Serialize)]
pub struct PhaseReport {
    /// Name, unique in its body.
    pub name: String,
    /// Name of its kind.
    pub kind: &'static str,
    /// Ops it covers.
    pub ops: Vec<&'static str>,
    /// Matrices that would be one, were their formats alike, each with its format: a product each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<String>,
    /// Buffers read.
    pub reads: Vec<String>,
    /// Buffers written.
    pub writes: Vec<String>,
    /// Cost of one token.
    pub decode: CostReport,
    /// Cost of a prompt of 512 tokens.
    pub prefill: CostReport,
}

/// Bytes, operations and time.
#[derive(Debug, Serialize)]
pub struct CostReport {
    /// Weights read, in bytes.
    pub weight_bytes: f64,
    /// Bytes of keys and values.
    pub kv_bytes: f64,
    /// Bytes of recurrent state.
    pub state_bytes: f64,
    /// Activations read and written, in bytes.
    pub activation_bytes: f64,
    /// Floating-point or integer operations, two per multiply-add.
    pub flops: f64,
    /// Predicted time.
    pub microseconds: f64,
}

/// An activation buffer.
#[derive(Debug, Serialize)]
pub struct BufferReport {
    /// Field name in the generated struct.
    pub name: String,
    /// `tokens` or `outputs`.
    pub rows: String,
    /// Columns per row.
    pub width: usize,
    /// Bytes at the largest step.
    pub bytes: u64,
}

/// A weight field.
#[derive(Debug, Serialize)]
pub struct WeightReport {
    /// Field name in the generated struct.
    pub name: String,
    /// Number of instances.
    pub instances: usize,
    /// The checkpoint's tensors it consists of.
    pub tensors: Vec<String>,
    /// Rows and columns.
    pub shape: Vec<usize>,
    /// Stored format.
    pub format: &'static str,
    /// `stacked`, `gated` or `vector`.
    pub packing: &'static str,
    /// Bytes of all instances.
    pub bytes: u64,
}

/// What ranks exchange.
#[derive(Debug, Serialize)]
pub struct RanksReport {
    /// Number of ranks.
    pub ranks: usize,
    /// Whether each holds whole experts.
    pub whole_experts: bool,
    /// Exchanges of a decode step.
    pub exchanges: usize,
    /// Bytes that a rank sends to each of the others in a step of one token.
    pub decode_bytes: f64,
    /// The same, in a prompt of [`Prediction::PREFILL_TOKENS`] tokens.
    pub prefill_bytes: f64,
    /// Predicted microseconds of a decode step's exchanges, with their launches.
    pub decode_microseconds: f64,
    /// The same, of that prompt's.
    pub prefill_microseconds: f64,
    /// Predicted microseconds of a whole step of a rank, exchanges included.
    pub rank_decode_microseconds: f64,
    /// The same, of that prompt.
    pub rank_prefill_microseconds: f64,
    /// Each exchange of the step.
    pub each: Vec<ExchangeReport>,
}

/// An exchange between ranks.
#[derive(Debug, Serialize)]
pub struct ExchangeReport {
    /// Body and phase.
    pub name: String,
    /// How often a step does it.
    pub times: usize,
    /// Bytes that a rank sends to each other one, in a step of one token.
    pub decode_bytes: f64,
    /// Predicted microseconds of that, its launch included.
    pub decode_microseconds: f64,
    /// Bytes in a prompt of [`Prediction::PREFILL_TOKENS`] tokens.
    pub prefill_bytes: f64,
    /// Predicted microseconds of these.
    pub prefill_microseconds: f64,
}

/// Batch invariance of a build.
#[derive(Debug, Serialize)]
pub struct BatchInvariantReport {
    /// Sequences of its one decode program.
    pub sequences: usize,
    /// Chunk alignment in tokens.
    pub chunk_alignment: usize,
}

/// Tokens per second.
#[derive(Debug, Serialize)]
pub struct SpeedReport {
    /// Decode limit: bytes over bandwidth.
    pub limit_decode: f64,
    /// Predicted decode: sum over phases.
    pub predicted_decode: f64,
    /// Prefill limit: products at full rate, or bytes over bandwidth.
    pub limit_prefill: f64,
    /// Predicted prefill: sum over phases.
    pub predicted_prefill: f64,
}

/// Collects the report of a plan.
pub fn report(plan: &Plan) -> Report {
    let quant = &plan.target.quant;
    let drafter = plan.target.drafter();
    let of_drafter = drafter.map(|it| (TensorClass::Draft.name(), it.stored, it.compute));
    let formats = quant.formats(plan.draft_layer().is_some()).into_iter().chain(of_drafter);
    let [limit_decode, predicted_decode, limit_prefill, predicted_prefill] = plan.prediction.rates();
    Report {
        target: plan.target.name(),
        step_tokens: plan.buckets.tokens,
        step_sequences: plan.buckets.sequences,
        memory: MemoryReport {
            weights: plan.memory.weights,
            scratch: plan.memory.scratch,
            kv_block: plan.memory.kv_block,
            kv_token: plan.memory.kv_block / quant.kv_block as u64,
            kv_bits: kv_bits(plan),
            kv_tokens_per_gb: 1_000_000_000u64
                .checked_div(plan.memory.kv_block)
                .map(|blocks| blocks * quant.kv_block as u64),
            sliding: plan.sliding().map(|(window, block)| SlidingReport {
                window,
                block,
                token: block / quant.kv_block as u64,
            }),
            state: plan.memory.state,
            host: host::report(plan),
        },
        formats: formats
            .map(|(class, format, compute)| FormatReport {
                class: class.to_owned(),
                stored: format.name(),
                compute: compute.name(),
            })
            .collect(),
        bodies: plan.bodies.iter().map(|body| self::body(plan, body)).collect(),
        buffers: plan.sizes().map(buffer).collect(),
        weights: plan.fields.iter().map(|field| weight(plan, field)).collect(),
        not_built: (plan.draft_layer().is_none() && plan.target.quant.has_draft())
            .then_some("draft head (`--draft mtp` builds it)")
            .into_iter()
            .collect(),
        speed: SpeedReport { limit_decode, predicted_decode, limit_prefill, predicted_prefill },
        draft: draft::report(plan),
        ranks: ranks(plan),
        batch_invariant: plan.cuda.as_ref().zip(plan.target.batch_invariant).map(|(cuda, it)| {
            BatchInvariantReport { sequences: it.sequences, chunk_alignment: cuda.chunk_alignment }
        }),
        step: step::report(plan),
        cuda: cuda::report(plan),
    }
}

/// Bits of an element of keys and values.
fn kv_bits(plan: &Plan) -> Option<f64> {
    let elements = plan.kv_elements() * plan.target.quant.kv_block;
    (elements > 0).then(|| 8.0 * plan.memory.kv_block as f64 / elements as f64)
}

fn ranks(plan: &Plan) -> Option<RanksReport> {
    let phases = || plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
    let exchanges = || phases().filter(|phase| phase.kind.sends(plan).is_some());
    let microseconds = |cost: &Cost| 1e6 * cost.predicted(&plan.target.hardware);
    let bodies = plan.bodies.iter().enumerate();
    let each = bodies.flat_map(|(at, body)| {
        let times = plan.schedule.iter().filter(|(run, _)| run.0 == at).count();
        let phases = body.phases.iter().filter(move |phase| times > 0 && phase.kind.sends(plan).is_some());
        phases.map(move |phase| ExchangeReport {
            name: format!("{}.{}", body.name, phase.name),
            times,
            decode_bytes: phase.decode.exchanged_bytes,
            decode_microseconds: microseconds(&phase.decode),
            prefill_bytes: phase.prefill.exchanged_bytes,
            prefill_microseconds: microseconds(&phase.prefill),
        })
    });
    (plan.target.ranks > 1).then(|| RanksReport {
        ranks: plan.target.ranks,
        whole_experts: plan.target.whole_experts,
        exchanges: exchanges().count(),
        decode_bytes: exchanges().map(|phase| phase.decode.exchanged_bytes).sum(),
        prefill_bytes: exchanges().map(|phase| phase.prefill.exchanged_bytes).sum(),
        decode_microseconds: exchanges().map(|phase| microseconds(&phase.decode)).sum(),
        prefill_microseconds: exchanges().map(|phase| microseconds(&phase.prefill)).sum(),
        rank_decode_microseconds: phases().map(|phase| microseconds(&phase.decode)).sum(),
        rank_prefill_microseconds: phases().map(|phase| microseconds(&phase.prefill)).sum(),
        each: each.collect(),
    })
}

fn body(plan: &Plan, body: &PlanBody) -> BodyReport {
    let phase = |phase: &Phase| {
        let (reads, writes) = phase.kind.buffers();
        let cost = |cost: &Cost| CostReport {
            weight_bytes: cost.weight_bytes,
            kv_bytes: cost.kv_bytes,
            state_bytes: cost.state_bytes,
            activation_bytes: cost.activation_bytes,
            flops: cost.flops(),
            microseconds: 1e6 * cost.predicted(&plan.target.hardware),
        };
        PhaseReport {
            name: phase.name.clone(),
            kind: phase.kind.name(),
            ops: phase.ops.clone(),
            apart: phase.kind.kind().apart().into_iter().map(|id| stored(plan.field(id))).collect(),
            reads: reads.iter().map(|id| plan.buffer(*id).name.clone()).collect(),
            writes: writes.iter().map(|id| plan.buffer(*id).name.clone()).collect(),
            decode: cost(&phase.decode),
            prefill: cost(&phase.prefill),
        }
    };
    BodyReport {
        name: body.name.clone(),
        layers: body.layers.clone(),
        phases: body.phases.iter().map(phase).collect(),
    }
}

/// A matrix with its format.
fn stored(field: &Field) -> String {
    let FieldKind::Matrix { format, .. } = field.kind else { unreachable!("a product has a matrix") };
    format!("{} in {format}", field.name)
}

fn buffer((buffer, bytes): (&crate::plan::Buffer, u64)) -> BufferReport {
    let rows = match buffer.rows {
        Rows::Tokens => "tokens".to_owned(),
        Rows::Outputs => "outputs".to_owned(),
        Rows::Slots(slots) => format!("{slots} x tokens"),
        Rows::Patches => "patches".to_owned(),
        Rows::ImageTokens => "image tokens".to_owned(),
    };
    BufferReport { name: buffer.name.clone(), rows, width: buffer.width, bytes }
}

fn weight(plan: &Plan, field: &Field) -> WeightReport {
    let (shape, format, packing) = match field.kind {
        FieldKind::Vector { format, length } => (vec![length], format, "vector"),
        FieldKind::Norm { format, length, .. } => (vec![length], format, "norm"),
        FieldKind::Convolution { format, channels, taps } => (vec![channels, taps], format, "convolution"),
        FieldKind::Heads { format, heads, key_dim, value_dim, latent } => {
            (vec![heads, key_dim + value_dim, latent], format, "heads")
        }
        FieldKind::Matrix { format, rows, columns, packing, experts, .. } => {
            let packing = match packing {
                Packing::Stacked => "stacked",
                Packing::Gated => "gated",
            };
            (experts.into_iter().chain([rows, columns]).collect(), format, packing)
        }
    };
    WeightReport {
        name: field.name.clone(),
        instances: plan.instances(field),
        tensors: field.parts.iter().map(|part| part.file.name.clone()).collect(),
        shape,
        format: format.name(),
        packing,
        bytes: field.bytes(&plan.target.hardware.kind) * plan.instances(field) as u64,
    }
}

/// The report as text.
pub fn text(plan: &Plan) -> String {
    let report = report(plan);
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments| {
        writeln!(out, "{text}").expect("writing to a string does not fail");
    };
    line(format_args!("{}", plan.target.build()));
    line(format_args!(""));
    if let Some(it) = &report.ranks {
        line(format_args!(
            "one of {} ranks{}; it sends each other {:.0} bytes of a token in {} exchanges, {:.1} us of \
             the step, and {:.1} MB of a prompt of {}, {:.0} us",
            it.ranks,
            match it.whole_experts {
                true => " with whole experts: all figures are of the one that holds most of the chosen",
                false => ": all figures are of one",
            },
            it.decode_bytes,
            it.exchanges,
            it.decode_microseconds,
            it.prefill_bytes / 1e6,
            Prediction::PREFILL_TOKENS,
            it.prefill_microseconds
        ));
        line(format_args!(""));
        let prompt = format!("prompt of {}", Prediction::PREFILL_TOKENS);
        line(format_args!(
            "{:<34} {:>5} {:>9} {:>8} | {prompt:>13} B {:>9}",
            "exchange", "times", "token B", "us", "us"
        ));
        for it in &it.each {
            line(format_args!(
                "{:<34} {:>5} {:>9.0} {:>8.2} | {:>15.0} {:>9.1}",
                it.name,
                it.times,
                it.decode_bytes,
                it.decode_microseconds,
                it.prefill_bytes,
                it.prefill_microseconds
            ));
        }
        line(format_args!(
            "{:<34} {:>5} {:>9} {:>8.1} | {:>15} {:>9.1}",
            "every rank, a whole step", "", "", it.rank_decode_microseconds, "", it.rank_prefill_microseconds
        ));
        line(format_args!(""));
    }
    line(format_args!("class        stored   compute"));
    for it in &report.formats {
        line(format_args!("{:<12} {:<8} {}", it.class, it.stored, it.compute));
    }
    let exact = match plan.kv_exact_layers() {
        0 => String::new(),
        layers => format!(" (bf16 in {layers} layers)"),
    };
    line(format_args!("{:<12} {:<8} f32{exact}", "k/v", plan.target.quant.kv_formats.to_string()));
    line(format_args!(""));
    if let Some(BatchInvariantReport { sequences, chunk_alignment }) = report.batch_invariant {
        line(format_args!(
            "the size of a batch changes no bit: one program decodes {sequences} sequences, one prefills, prompts are cut at \
             multiples of {chunk_alignment}"
        ));
        line(format_args!(""));
    }
    for part in &report.not_built {
        line(format_args!("{part}: not built"));
        line(format_args!(""));
    }
    line(format_args!("memory       {:>12}  weights", report.memory.weights));
    line(format_args!(
        "             {:>12}  activations, {} tokens a step",
        report.memory.scratch, report.step_tokens
    ));
    let of_kv = match (report.memory.kv_bits, report.memory.kv_tokens_per_gb) {
        (Some(bits), Some(tokens)) => format!(": {bits:.3} bits an element, {tokens} tokens in 1 GB"),
        _ => String::new(),
    };
    line(format_args!("             {:>12}  keys and values, each token{of_kv}", report.memory.kv_token));
    if let Some(SlidingReport { window, token, .. }) = report.memory.sliding {
        line(format_args!(
            "             {token:>12}  of layers with a window, each of the last {window} tokens"
        ));
    }
    if report.memory.state > 0 {
        line(format_args!("             {:>12}  recurrent state, each sequence", report.memory.state));
    }
    line(format_args!(
        "             {:>12}  of the host at most, of {} that a container has to have",
        report.memory.host.taken, report.memory.host.container
    ));
    for body in &report.bodies {
        line(format_args!(""));
        for row in phase_table(body) {
            line(format_args!("{row}"));
        }
    }
    line(format_args!(""));
    line(format_args!("weight                     instances       bytes  packing  shape, format, tensors"));
    for it in &report.weights {
        let shape = it.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        line(format_args!(
            "{:<26} {:>9} {:>11}  {:<8} {shape} {} {}",
            it.name,
            it.instances,
            it.bytes,
            it.packing,
            it.format,
            it.tensors.join(" + ")
        ));
    }
    line(format_args!(""));
    line(format_args!("buffer                          bytes  rows"));
    for it in &report.buffers {
        line(format_args!("{:<26} {:>10}  {} x {}", it.name, it.bytes, it.rows, it.width));
    }
    for part in [cuda::text(plan), step::text(plan)].into_iter().filter(|part| !part.is_empty()) {
        line(format_args!("\n{}", part.join("\n")));
    }
    let speed = &report.speed;
    line(format_args!(""));
    line(format_args!("tokens a second            limit  predicted"));
    line(format_args!("decode, 96 before     {:>10.1} {:>10.1}", speed.limit_decode, speed.predicted_decode));
    line(format_args!(
        "prefill of 512        {:>10.1} {:>10.1}",
        speed.limit_prefill, speed.predicted_prefill
    ));
    for text in report.draft.iter().flat_map(draft::text) {
        line(format_args!("{text}"));
    }
    out
}

/// One body's phases as aligned rows; also the header of the emitted file.
pub fn phase_table(body: &BodyReport) -> Vec<String> {
    let layers = match body.layers.len() {
        0 => String::new(),
        count => format!(", {count} layers"),
    };
    let mut rows = vec![
        format!("{}{layers}", body.name),
        format!(
            "  {:<3} {:<20} {:>11} {:>9} {:>9} | {:>12} {:>9}  {}",
            "#", "phase", "weights B", "K/V B", "us", "prefill MAC", "us", "ops"
        ),
    ];
    rows.extend(body.phases.iter().enumerate().flat_map(|(i, phase)| {
        let apart = (!phase.apart.is_empty())
            .then(|| format!("      products apart, for their formats differ: {}", phase.apart.join(", ")));
        let row = format!(
            "  {:<3} {:<20} {:>11.0} {:>9.0} {:>9.2} | {:>12.3e} {:>9.1}  {}",
            i + 1,
            phase.name,
            phase.decode.weight_bytes,
            phase.decode.kv_bytes,
            phase.decode.microseconds,
            phase.prefill.flops / 2.0,
            phase.prefill.microseconds,
            phase.ops.join(" + "),
        );
        [row].into_iter().chain(apart)
    }));
    rows
}
