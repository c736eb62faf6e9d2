//! How phases report the bytes they move and the products they compute.

use super::{Buffer, BufferId, Cost, Field, FieldId, FieldKind, PhaseKind, Structure};
use crate::graph::Rows;
use crate::spec::types::{Compute, HardwareKind, Target};
use monomorph_formats::Format;

/// Input size of a phase.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Tokens of one sequence.
    pub tokens: usize,
    /// Rows among them that need logits.
    pub outputs: usize,
    /// Earlier tokens of the sequence.
    pub context: usize,
}

/// The work of a phase, summed up.
#[derive(Debug)]
pub struct Work<'a> {
    /// Hardware and model of the plan.
    pub target: &'a Target,
    fields: &'a [Field],
    buffers: &'a [Buffer],
    /// Patches that become one token.
    merged: usize,
    /// Input size of the phase.
    pub given: Given,
    /// Cost so far.
    pub cost: Cost,
}

impl<'a> Work<'a> {
    /// The work of a phase: its activations and boundaries, and what its kind adds.
    pub fn of<P>(kind: &PhaseKind, plan: &'a Structure<P>, given: Given, boundaries: f64) -> Cost {
        let Structure { target, fields, buffers, .. } = plan;
        let merged = plan.tower.as_ref().map_or(1, |tower| tower.merged);
        let mut work = Work { target, fields, buffers, merged, given, cost: Cost::default() };
        let (read, written) = kind.buffers();
        let bytes = |id: &BufferId| 4 * work.rows(*id) * work.width(*id);
        let activations = read.iter().chain(&written).map(bytes).sum::<usize>();
        work.cost = Cost { activation_bytes: activations as f64, boundaries, ..Cost::default() };
        kind.kind().work(&mut work);
        work.cost
    }

    /// Rows of a buffer. A tower's are those of an image of as many tokens.
    pub fn rows(&self, buffer: BufferId) -> usize {
        match self.buffers[buffer.0].rows {
            Rows::Tokens => self.given.tokens,
            Rows::Outputs => self.given.outputs,
            Rows::Slots(slots) => slots * self.given.tokens,
            Rows::Patches => self.merged * self.given.tokens,
            Rows::ImageTokens => self.given.tokens,
        }
    }

    /// Columns of a buffer.
    pub fn width(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0].width
    }

    /// Looks up a field.
    pub fn field(&self, id: FieldId) -> &'a Field {
        &self.fields[id.0]
    }

    /// Counts the read of one matrix row per token.
    pub fn rows_of(&mut self, table: FieldId) {
        let FieldKind::Matrix { format, columns, .. } = self.field(table).kind else { return };
        self.cost.weight_bytes = (self.given.tokens * format.bytes(columns).unwrap_or(0)) as f64;
    }

    /// Counts the product of `rows` rows with a matrix.
    pub fn product(&mut self, matrix: FieldId, rows: usize) {
        let field = self.field(matrix);
        let FieldKind::Matrix { format, compute, rows: outputs, columns, .. } = field.kind else { return };
        self.weights(format, field.matrix_bytes(&self.target.hardware.kind) as f64);
        self.multiplied(compute, (rows * outputs * columns) as f64);
    }

    /// Counts the router's product: on a CUDA device f32 sums of unrounded activations, without tensor cores.
    pub fn routing(&mut self, router: FieldId, tokens: usize) {
        if self.target.hardware.cuda().is_none() {
            return self.product(router, tokens);
        }
        let field = self.field(router);
        let FieldKind::Matrix { rows, columns, .. } = field.kind else { return };
        self.cost.weight_bytes += field.matrix_bytes(&self.target.hardware.kind) as f64;
        self.cost.f32_products += (tokens * rows * columns) as f64;
    }

    /// Counts products with the experts that `tokens` choose, `active` each.
    pub fn chosen(&mut self, matrix: FieldId, active: usize, tokens: usize) {
        let field = self.field(matrix);
        let FieldKind::Matrix { format, compute, rows, columns, experts: Some(held), .. } = field.kind else {
            return;
        };
        let ranks = self.target.ranks;
        let (Some(touched), Some(all)) =
            (field.touched_experts(active, tokens, ranks), field.all_experts(ranks))
        else {
            return;
        };
        let each = field.matrix_bytes(&self.target.hardware.kind) as f64;
        self.weights(format, touched * each);
        self.multiplied(compute, (tokens * active * rows * columns) as f64 * held as f64 / all as f64);
    }

    /// Counts an exchange of `rows` rows of `width` f32 with every other rank.
    pub fn exchange(&mut self, width: usize, rows: usize) {
        self.cost.exchanged_bytes += (4 * width * rows) as f64;
    }

    fn weights(&mut self, format: Format, bytes: f64) {
        self.cost.weight_bytes += bytes;
        if format == Format::Nvfp4 {
            self.cost.nvfp4_bytes += bytes;
        }
    }

    fn multiplied(&mut self, compute: Compute, products: f64) {
        let (cost, many) = (&mut self.cost, compute.quantises(self.given.tokens));
        match (&self.target.hardware.kind, compute) {
            (HardwareKind::Cuda(_), Compute::Fp8) if many => cost.fp8_products += products,
            (HardwareKind::Cuda(_), Compute::F16 | Compute::Fp8) => cost.bf16_products += products,
            (HardwareKind::Cuda(_), Compute::F32 | Compute::Int8Block32) => cost.f64_products += products,
            (HardwareKind::Cpu(_), Compute::Int8Block32) => cost.int8_products += products,
            // Rounded activations are multiplied as f32.
            (HardwareKind::Cpu(_), Compute::F32 | Compute::F16 | Compute::Fp8) => {
                cost.f32_products += products;
            }
        }
    }
}
