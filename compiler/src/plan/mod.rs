//! What runs, in which order, over which bytes: everything an emitter needs, and no decision left to it.

mod cost;
pub mod cuda;
pub mod packed;

pub use cost::{Cost, Prediction};

use crate::graph::{BodyId, Graph, RotaryFrequencies, Rows, WeightId};
use crate::passes::buckets::Buckets;
use crate::spec::types::{
    Activation, Compute, DeltaShape, FileTensor, HardwareKind, NormWeight, Scales, Target, TensorClass,
};
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
    /// Recurrent state of one sequence over all layers.
    pub state: u64,
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
        /// How many experts have such a matrix each, one after another; `None` for a matrix of no expert.
        experts: Option<usize>,
    },
    /// The weights of a convolution, kept in f32.
    Convolution {
        /// Format in the file.
        format: Format,
        /// Rows.
        channels: usize,
        /// Columns.
        taps: usize,
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
    /// How many experts have one each, where the name contains `{expert}`.
    pub experts: Option<usize>,
    /// What holds it in the checkpoint.
    pub file: FileTensor,
    /// The shape of that, outermost dimension first.
    pub file_shape: Vec<usize>,
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
            experts: weight.experts,
            file: weight.file.clone(),
            file_shape: weight.file_shape.clone(),
        }
    }
}

impl Field {
    /// Bytes of one instance in the memory of this kind of hardware.
    pub fn bytes(&self, hardware: &HardwareKind) -> u64 {
        match (&self.kind, hardware) {
            (FieldKind::Vector { length, .. } | FieldKind::Norm { length, .. }, _) => 4 * *length as u64,
            (FieldKind::Convolution { channels, taps, .. }, _) => 4 * (channels * taps) as u64,
            (FieldKind::Matrix { experts, .. }, _) => {
                self.matrix_bytes(hardware) * experts.unwrap_or(1) as u64
            }
        }
    }

    /// Bytes of one matrix: of one expert's, where experts have one each. 0 for other fields.
    pub fn matrix_bytes(&self, hardware: &HardwareKind) -> u64 {
        match (&self.kind, hardware) {
            (FieldKind::Matrix { format, rows, columns, packing, .. }, HardwareKind::Cpu(_)) => {
                let tiles = match packing {
                    Packing::Stacked => rows.div_ceil(16),
                    Packing::Gated => 2 * (rows / 2).div_ceil(16),
                };
                format.bytes(tiles * 16 * columns).expect("the spec checks that rows fill whole blocks")
                    as u64
            }
            _ => self.planes().map_or(0, |planes| planes.total()),
        }
    }

    /// The planes of a matrix (of one expert's) on a CUDA device; `None` for anything but a matrix.
    pub fn planes(&self) -> Option<packed::Planes> {
        match self.kind {
            FieldKind::Matrix { format, scales, rows, columns, packing, .. } => {
                Some(packed::Planes::new(format, scales, packing, rows, columns))
            }
            FieldKind::Vector { .. } | FieldKind::Norm { .. } | FieldKind::Convolution { .. } => None,
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
        /// q, k and v side by side; where the result is gated, the gates stand between q and k.
        qkv: BufferId,
        /// Whether every element of the result is multiplied by the sigmoid of its gate.
        gated: bool,
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
    /// `out = matrix * round(norm(x))`, `gates_out = gates * round(norm(x))`.
    ProjectDelta {
        /// Input.
        x: BufferId,
        /// Before the products.
        norm: FieldId,
        /// q, k, v and z stacked.
        matrix: FieldId,
        /// b and a stacked.
        gates: FieldId,
        /// q, k, v and z side by side.
        out: BufferId,
        /// b and a side by side.
        gates_out: BufferId,
    },
    /// Convolution, delta rule, norm of every head, gate.
    Delta {
        /// q, k, v and z side by side.
        qkvz: BufferId,
        /// b and a side by side.
        ba: BufferId,
        /// Of q, k and v.
        convolution: FieldId,
        /// Of the decay, one a value head.
        a_log: FieldId,
        /// Of the decay, one a value head.
        dt_bias: FieldId,
        /// Of every head of the result.
        norm: FieldId,
        /// Applied to z.
        activation: Activation,
        /// Heads and widths.
        shape: DeltaShape,
        /// One row of all value heads.
        out: BufferId,
    },
    /// The router, the gated halves of the experts it chooses, and of the shared expert.
    Experts {
        /// Input.
        x: BufferId,
        /// Before all products.
        norm: FieldId,
        /// The router's product; below it, where there is a shared expert, the row that weighs that.
        router: FieldId,
        /// Its logits, and beside them what weighs the shared expert, before the sigmoid.
        logits: BufferId,
        /// What is chosen: weights, then experts.
        routing: BufferId,
        /// Gate and up of every expert, [`Packing::Gated`].
        matrix: FieldId,
        /// How many a token is given to.
        active: usize,
        /// Whether the weights chosen are divided by their sum.
        renormalise: bool,
        /// Applied to every gate.
        activation: Activation,
        /// Input of the down products: the chosen experts' side by side.
        out: BufferId,
        /// The expert every token is given to.
        shared: Option<SharedUp>,
    },
    /// `residual += sum of weight * down * round(inner) + sigmoid(scale) * shared_down * round(shared_inner)`.
    Combine {
        /// The chosen experts' side by side.
        inner: BufferId,
        /// Weights, then experts.
        routing: BufferId,
        /// Down of every expert.
        matrix: FieldId,
        /// How many a token is given to.
        active: usize,
        /// The expert every token is given to.
        shared: Option<SharedDown>,
        /// Read and written.
        residual: BufferId,
    },
    /// `out = rows of x whose logits are wanted`.
    Select {
        /// Input.
        x: BufferId,
        /// Fewer rows.
        out: BufferId,
    },
}

/// The shared expert's part of [`PhaseKind::Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedUp {
    /// Gate and up, [`Packing::Gated`].
    pub matrix: FieldId,
    /// Input of its down product.
    pub out: BufferId,
}

/// The shared expert's part of [`PhaseKind::Combine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDown {
    /// Input of its down product.
    pub inner: BufferId,
    /// The router's logits, beside which stands what weighs it, before the sigmoid.
    pub logits: BufferId,
    /// Down.
    pub matrix: FieldId,
    /// Its product, where a backend keeps it.
    pub product: BufferId,
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
            PhaseKind::ProjectDelta { .. } => "project-delta",
            PhaseKind::Delta { .. } => "delta",
            PhaseKind::Experts { .. } => "experts",
            PhaseKind::Combine { .. } => "combine",
            PhaseKind::Select { .. } => "select",
        }
    }

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    pub fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        match *self {
            PhaseKind::Embed { out, .. } => (vec![], vec![out]),
            PhaseKind::Project { x, out, .. }
            | PhaseKind::Gated { x, out, .. }
            | PhaseKind::Select { x, out } => (vec![x], vec![out]),
            PhaseKind::Attention { qkv, out, .. } => (vec![qkv], vec![out]),
            PhaseKind::Accumulate { x, residual, .. } => (vec![x, residual], vec![residual]),
            PhaseKind::ProjectDelta { x, out, gates_out, .. } => (vec![x], vec![gates_out, out]),
            PhaseKind::Delta { qkvz, ba, out, .. } => (vec![qkvz, ba], vec![out]),
            PhaseKind::Experts { x, logits, routing, out, shared, .. } => {
                let shared = shared.iter().map(|it| it.out);
                (vec![x], [logits, routing].into_iter().chain(shared).chain([out]).collect())
            }
            PhaseKind::Combine { inner, routing, shared, residual, .. } => {
                let read = shared.iter().flat_map(|it| [it.inner, it.logits]);
                let written = shared.iter().map(|it| it.product).chain([residual]).collect();
                ([inner, routing, residual].into_iter().chain(read).collect(), written)
            }
        }
    }

    /// The buffer the phase is for.
    pub fn result(&self) -> BufferId {
        *self.buffers().1.last().expect("every phase writes something")
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
            PhaseKind::ProjectDelta { norm, matrix, gates, .. } => vec![*norm, *matrix, *gates],
            PhaseKind::Delta { convolution, a_log, dt_bias, norm, .. } => {
                vec![*convolution, *a_log, *dt_bias, *norm]
            }
            PhaseKind::Experts { norm, router, matrix, shared, .. } => {
                let shared = shared.iter().map(|it| it.matrix);
                [*norm, *router, *matrix].into_iter().chain(shared).collect()
            }
            PhaseKind::Combine { matrix, shared, .. } => {
                std::iter::once(*matrix).chain(shared.iter().map(|it| it.matrix)).collect()
            }
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
