//! What each phase moves and computes.

use super::layout::Layout;
use super::memory::Assignment;
use crate::graph::Rows;
use crate::plan::{BufferId, Cost, Field, FieldKind, PhaseKind, touched_experts};
use crate::spec::types::{Compute, HardwareKind, Target, TensorClass};
use monomorph_abi::kv;
use monomorph_formats::Format;

/// What a phase is given.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Tokens of one sequence.
    pub tokens: usize,
    /// Of these, those whose logits are wanted.
    pub outputs: usize,
    /// Tokens before them.
    pub context: usize,
}

/// Work of a phase.
pub fn cost(
    target: &Target,
    layout: &Layout,
    assignment: &Assignment,
    kind: &PhaseKind,
    given: Given,
) -> Cost {
    let Given { tokens, outputs, context } = given;
    let rows = |buffer: BufferId| match assignment.buffers[buffer.0].rows {
        Rows::Tokens => tokens,
        Rows::Outputs => outputs,
        Rows::Slots(slots) => slots * tokens,
    };
    let (mut read, written) = kind.buffers();
    read.extend(written);
    let activation_bytes =
        read.iter().map(|id| 4 * rows(*id) * assignment.buffers[id.0].width).sum::<usize>();
    let mut cost = Cost { activation_bytes: activation_bytes as f64, boundaries: 1.0, ..Cost::default() };
    match kind {
        PhaseKind::Embed { table, .. } => {
            let FieldKind::Matrix { format, columns, .. } = layout.fields[table.0].kind else { return cost };
            cost.weight_bytes = (tokens * format.bytes(columns).unwrap_or(0)) as f64;
        }
        PhaseKind::Attention { heads, kv_heads, head_dim, .. } => {
            let quant = &target.quant;
            let layout = kv::Layout::cuda(*kv_heads, *head_dim, quant.kv_block, quant.kv_format);
            // Each tile of queries reads the cache once; a step's tokens write it once.
            cost.kv_bytes = ((context + tokens) * layout.token_bytes()) as f64;
            let pairs = tokens * context + tokens * (tokens + 1) / 2;
            let products = (2 * pairs * heads * head_dim) as f64;
            // Decode attention reads the cache past a few queries, outside tensor cores; prefill's is a
            // product.
            match (target.hardware.cuda(), target.quant.compute.classes.get(&TensorClass::Attention)) {
                (Some(_), Some(Compute::F16)) if tokens > 1 => cost.bf16_products = products,
                (Some(_), Some(Compute::F32 | Compute::Int8Block32)) => cost.f64_products = products,
                _ => cost.f32_products = products,
            }
        }
        PhaseKind::DraftEmbed { table, .. } => {
            let FieldKind::Matrix { format, columns, .. } = layout.fields[table.0].kind else { return cost };
            cost.weight_bytes = (tokens * format.bytes(columns).unwrap_or(0)) as f64;
        }
        PhaseKind::Linear { matrix, .. } => product(target, &layout.fields[matrix.0], tokens, &mut cost),
        PhaseKind::Propose { matrix, out, .. } => {
            let FieldKind::Matrix { rows: all, .. } = layout.fields[matrix.0].kind else { return cost };
            let part = assignment.buffers[out.0].width as f64 / all as f64;
            let mut whole = Cost::default();
            product(target, &layout.fields[matrix.0], outputs, &mut whole);
            cost = cost + whole.part(part);
        }
        PhaseKind::Project { matrix, out, .. } => {
            product(target, &layout.fields[matrix.0], rows(*out), &mut cost)
        }
        PhaseKind::Accumulate { matrix, .. } | PhaseKind::Gated { matrix, .. } => {
            product(target, &layout.fields[matrix.0], tokens, &mut cost);
        }
        PhaseKind::ProjectDelta { matrix, gates, .. } => {
            product(target, &layout.fields[matrix.0], tokens, &mut cost);
            product(target, &layout.fields[gates.0], tokens, &mut cost);
        }
        PhaseKind::Delta { shape, .. } => {
            // The matrices are read and written once a sequence, of the window all rows but the newest are
            // read, and that is written; every token decays, predicts, corrects and reads.
            let matrices = shape.value_heads * shape.key_dim * shape.value_dim;
            let window = shape.taps * (2 * shape.key_width() + shape.value_width());
            cost.state_bytes = (4 * (2 * matrices + window)) as f64;
            if target.hardware.cuda().is_none() {
                // One version more behind every draft.
                cost.state_bytes += (4 * matrices * (outputs - 1)) as f64;
            }
            cost.f32_products = (tokens * 3 * shape.value_heads * shape.key_dim * shape.value_dim) as f64;
        }
        PhaseKind::Experts { router, matrix, active, shared, .. } => {
            choosing(target, &layout.fields[router.0], tokens, &mut cost);
            chosen(target, &layout.fields[matrix.0], *active, tokens, &mut cost);
            if let Some(shared) = shared {
                product(target, &layout.fields[shared.matrix.0], tokens, &mut cost);
            }
        }
        PhaseKind::Combine { matrix, active, shared, .. } => {
            chosen(target, &layout.fields[matrix.0], *active, tokens, &mut cost);
            if let Some(shared) = shared {
                product(target, &layout.fields[shared.matrix.0], tokens, &mut cost);
            }
        }
        PhaseKind::Select { .. } => {}
    }
    cost
}

fn product(target: &Target, field: &Field, rows: usize, cost: &mut Cost) {
    let FieldKind::Matrix { format, compute, rows: outputs, columns, .. } = field.kind else { return };
    weights(format, field.matrix_bytes(&target.hardware.kind) as f64, cost);
    multiplied(target, compute, (rows * outputs * columns) as f64, cost);
}

/// The router's product: on a CUDA device f32 sums of unrounded activations, outside tensor cores.
fn choosing(target: &Target, field: &Field, tokens: usize, cost: &mut Cost) {
    if target.hardware.cuda().is_none() {
        return product(target, field, tokens, cost);
    }
    let FieldKind::Matrix { rows, columns, .. } = field.kind else { return };
    cost.weight_bytes += field.matrix_bytes(&target.hardware.kind) as f64;
    cost.f32_products += (tokens * rows * columns) as f64;
}

/// Products with the experts that `tokens` choose, `active` each.
fn chosen(target: &Target, field: &Field, active: usize, tokens: usize, cost: &mut Cost) {
    let FieldKind::Matrix { format, compute, rows, columns, experts: Some(experts), .. } = field.kind else {
        return;
    };
    let each = field.matrix_bytes(&target.hardware.kind) as f64;
    weights(format, touched_experts(experts, active, tokens) * each, cost);
    multiplied(target, compute, (tokens * active * rows * columns) as f64, cost);
}

fn weights(format: Format, bytes: f64, cost: &mut Cost) {
    cost.weight_bytes += bytes;
    if format == Format::Nvfp4 {
        cost.nvfp4_bytes += bytes;
    }
}

fn multiplied(target: &Target, compute: Compute, products: f64, cost: &mut Cost) {
    match (&target.hardware.kind, compute) {
        (_, Compute::F16) => cost.bf16_products += products,
        (HardwareKind::Cuda(_), Compute::F32 | Compute::Int8Block32) => cost.f64_products += products,
        (HardwareKind::Cpu(_), Compute::F32) => cost.f32_products += products,
        (HardwareKind::Cpu(_), Compute::Int8Block32) => cost.int8_products += products,
    }
}
