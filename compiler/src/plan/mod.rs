//! What runs, in which order, over which bytes: everything an emitter needs, and no decision left to it.

mod cost;
pub mod cuda;
pub mod packed;

pub use cost::{Cost, Prediction};

use crate::graph::{BodyId, Graph, RotaryFrequencies, Rows, WeightId};
use crate::passes::buckets::Buckets;
use crate::spec::types::{Activation, Compute, HardwareKind, NormWeight, Scales, Target, TensorClass};
use monomorph_formats::{Format, ScaleForm};

/// Index into [`Plan::fields`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldId(pub usize);

/// Index into [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// A planned forward pass for one target.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was planned for.
    pub target: Target,
    /// What a step may carry.
    pub buckets: Buckets,
    /// Activations.
    pub buffers: Vec<Buffer>,
    /// Weights as they stand in memory.
    pub fields: Vec<Field>,
    /// The distinct pieces.
    pub bodies: Vec<PlanBody>,
    /// Their order: body, and layer where it has one.
    pub schedule: Vec<(BodyId, Option<usize>)>,
    /// Bytes by purpose.
    pub memory: Memory,
    /// What HARDWARE.toml's figures say it should do.
    pub prediction: Prediction,
    /// The launches, where the hardware is a CUDA device.
    pub cuda: Option<cuda::CudaPlan>,
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Weights after packing.
    pub weights: u64,
    /// Activation buffers at the largest step, and what kernels work in.
    pub scratch: u64,
    /// One K/V block over all layers.
    pub kv_block: u64,
}

/// A buffer of f32 activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Field name in the generated struct.
    pub name: String,
    /// Number of rows.
    pub rows: Rows,
    /// Most rows any step gives it; 0 where no kernel touches it.
    pub most: usize,
    /// Columns.
    pub width: usize,
}

impl Buffer {
    /// Bytes at the largest step.
    pub fn bytes(&self) -> u64 {
        4 * (self.most * self.width) as u64
    }
}

/// A weight as it stands in memory: a field of a generated struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name there.
    pub name: String,
    /// The body whose layers each have one; `None` exists once.
    pub owner: Option<BodyId>,
    /// Shape and format.
    pub kind: FieldKind,
    /// The tensors it is made of, in order.
    pub parts: Vec<Part>,
}

/// Shape and format of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldKind {
    /// A matrix of products.
    Matrix {
        /// Stored format, unchanged by packing.
        format: Format,
        /// What an fp8 matrix's scales belong to.
        scales: Option<ScaleForm>,
        /// What activations are rounded to.
        compute: Compute,
        /// Outputs, all parts together.
        rows: usize,
        /// Inputs.
        columns: usize,
        /// How parts stand beside each other.
        packing: Packing,
    },
    /// A vector, kept in f32.
    Vector {
        /// Format in the file.
        format: Format,
        /// Elements.
        length: usize,
    },
    /// The weights of a norm, kept in f32.
    Norm {
        /// Format in the file.
        format: Format,
        /// Elements.
        length: usize,
        /// Added to the mean square.
        eps: f32,
        /// How the weight enters.
        form: NormWeight,
    },
}

/// How the parts of a matrix stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One below the other.
    Stacked,
    /// Gate and up in alternating tiles (of 16 rows on a CPU, of 8 on a CUDA device), so that one core holds both
    /// halves of a product.
    Gated,
}

/// A tensor that becomes (part of) a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The model's name, `{layer}` included.
    pub weight: String,
    /// Its class.
    pub class: TensorClass,
    /// Rows (or elements of a vector).
    pub rows: usize,
    /// Columns; 1 for a vector.
    pub columns: usize,
    /// Width of the heads that a rotary op turns: files may permute the rows of these.
    pub rotary_head_dim: Option<usize>,
    /// The scales its codes are multiplied by, where they stand in tensors of their own.
    pub scales: Option<Scales>,
}

impl Part {
    pub(crate) fn new(graph: &Graph, id: WeightId) -> Part {
        let weight = &graph.weights[id.0];
        Part {
            weight: weight.name.clone(),
            class: weight.class,
            rows: weight.rows,
            columns: weight.columns,
            rotary_head_dim: graph.rotary_head_dim(id),
            scales: weight.scales.clone(),
        }
    }
}

impl Field {
    /// Bytes of one instance in the memory of this kind of hardware.
    pub fn bytes(&self, hardware: &HardwareKind) -> u64 {
        match (&self.kind, hardware) {
            (FieldKind::Vector { length, .. } | FieldKind::Norm { length, .. }, _) => 4 * *length as u64,
            (FieldKind::Matrix { format, rows, columns, packing, .. }, HardwareKind::Cpu(_)) => {
                let tiles = match packing {
                    Packing::Stacked => rows.div_ceil(16),
                    Packing::Gated => 2 * (rows / 2).div_ceil(16),
                };
                format.bytes(tiles * 16 * columns).expect("the spec checks that rows fill whole blocks")
                    as u64
            }
            (FieldKind::Matrix { .. }, HardwareKind::Cuda(_)) => {
                self.planes().map_or(0, |planes| planes.total())
            }
        }
    }

    /// The planes of a matrix on a CUDA device; `None` for anything but a matrix.
    pub fn planes(&self) -> Option<packed::Planes> {
        match self.kind {
            FieldKind::Matrix { format, scales, rows, columns, packing, .. } => {
                Some(packed::Planes::new(format, scales, packing, rows, columns))
            }
            FieldKind::Vector { .. } | FieldKind::Norm { .. } => None,
        }
    }
}

/// A body as phases.
#[derive(Clone, Debug)]
pub struct PlanBody {
    /// The graph's name for it.
    pub name: String,
    /// The layers that run it; empty for one outside the layers.
    pub layers: Vec<usize>,
    /// In execution order.
    pub phases: Vec<Phase>,
}

/// One CPU loop nest or one kernel launch.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Unique in its body.
    pub name: String,
    /// What it does over what.
    pub kind: PhaseKind,
    /// The ops it covers, for people.
    pub ops: Vec<&'static str>,
    /// Earlier phases of the body whose results it reads.
    pub waits_for: Vec<usize>,
    /// One token after [`Prediction::DECODE_CONTEXT`] others.
    pub decode: Cost,
    /// [`Prediction::PREFILL_TOKENS`] tokens of one prompt.
    pub prefill: Cost,
}

/// The kinds of phase there are, with their operands.
#[derive(Clone, Debug, PartialEq)]
pub enum PhaseKind {
    /// `out = table[tokens]`.
    Embed {
        /// The embedding.
        table: FieldId,
        /// Residual stream.
        out: BufferId,
    },
    /// `out = matrix * round(norm(x)) + bias`.
    Project {
        /// Input.
        x: BufferId,
        /// Before the product.
        norm: FieldId,
        /// One or more products stacked.
        matrix: FieldId,
        /// Of all of them.
        bias: Option<FieldId>,
        /// Products side by side.
        out: BufferId,
    },
    /// Norms of q and k heads, rotary, K/V write, attention.
    Attention {
        /// q, k and v side by side.
        qkv: BufferId,
        /// Per query head.
        q_norm: Option<FieldId>,
        /// Per key head.
        k_norm: Option<FieldId>,
        /// Angles.
        frequencies: RotaryFrequencies,
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Width of one.
        head_dim: usize,
        /// Multiplies scores.
        scale: f32,
        /// One context vector a query head.
        out: BufferId,
    },
    /// `residual += matrix * round(x) + bias`.
    Accumulate {
        /// Input.
        x: BufferId,
        /// The product.
        matrix: FieldId,
        /// Of it.
        bias: Option<FieldId>,
        /// Read and written.
        residual: BufferId,
    },
    /// `out = activation(gate * round(norm(x))) * (up * round(norm(x)))`.
    Gated {
        /// Input.
        x: BufferId,
        /// Before the products.
        norm: FieldId,
        /// Gate and up, [`Packing::Gated`].
        matrix: FieldId,
        /// Gate's and up's.
        biases: Option<(FieldId, FieldId)>,
        /// Applied to the gate.
        activation: Activation,
        /// Input of the down product.
        out: BufferId,
    },
    /// `out = rows of x whose logits are wanted`.
    Select {
        /// Input.
        x: BufferId,
        /// Fewer rows.
        out: BufferId,
    },
}

impl PhaseKind {
    /// The name reports use.
    pub fn name(&self) -> &'static str {
        match self {
            PhaseKind::Embed { .. } => "embed",
            PhaseKind::Project { .. } => "project",
            PhaseKind::Attention { .. } => "attention",
            PhaseKind::Accumulate { .. } => "accumulate",
            PhaseKind::Gated { .. } => "gated",
            PhaseKind::Select { .. } => "select",
        }
    }

    /// Buffers read, then the buffer written.
    pub fn buffers(&self) -> (Vec<BufferId>, BufferId) {
        match *self {
            PhaseKind::Embed { out, .. } => (vec![], out),
            PhaseKind::Project { x, out, .. }
            | PhaseKind::Gated { x, out, .. }
            | PhaseKind::Select { x, out } => (vec![x], out),
            PhaseKind::Attention { qkv, out, .. } => (vec![qkv], out),
            PhaseKind::Accumulate { x, residual, .. } => (vec![x, residual], residual),
        }
    }

    /// Fields read.
    pub fn fields(&self) -> Vec<FieldId> {
        match self {
            PhaseKind::Embed { table, .. } => vec![*table],
            PhaseKind::Project { norm, matrix, bias, .. } => {
                [*norm, *matrix].into_iter().chain(*bias).collect()
            }
            PhaseKind::Gated { norm, matrix, biases, .. } => [*norm, *matrix]
                .into_iter()
                .chain(biases.iter().flat_map(|(gate, up)| [*gate, *up]))
                .collect(),
            PhaseKind::Attention { q_norm, k_norm, .. } => q_norm.iter().chain(k_norm).copied().collect(),
            PhaseKind::Accumulate { matrix, bias, .. } => std::iter::once(*matrix).chain(*bias).collect(),
            PhaseKind::Select { .. } => vec![],
        }
    }
}

impl Plan {
    /// The field.
    pub fn field(&self, id: FieldId) -> &Field {
        &self.fields[id.0]
    }

    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// Instances of a field: one a layer of its owner, or one.
    pub fn instances(&self, field: &Field) -> usize {
        field.owner.map_or(1, |owner| self.bodies[owner.0].layers.len())
    }
}
