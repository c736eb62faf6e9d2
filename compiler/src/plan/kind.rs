//! What a phase does over what.

use super::{BufferId, FieldId};
use crate::graph::RotaryFrequencies;
use crate::spec::types::{Activation, DeltaShape};

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
    /// `residual += sum of weight * down * round(inner) + sigmoid(scale) * shared_down *
    /// round(shared_inner)`.
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
    /// `out = [embedding_norm(table[following]) | hidden_norm(norm(x))]`: where a draft begins. A row's
    /// `following` is the token after the row's own ([`super::DraftPlan`]).
    DraftEmbed {
        /// A residual stream.
        x: BufferId,
        /// What makes it hidden states: the norm before the head that the stream leads to.
        norm: FieldId,
        /// Of those.
        hidden_norm: FieldId,
        /// The model's embedding.
        table: FieldId,
        /// Of its rows.
        embedding_norm: FieldId,
        /// Twice as wide as `x`.
        out: BufferId,
    },
    /// `out = matrix * round(x)`.
    Linear {
        /// Input.
        x: BufferId,
        /// The product.
        matrix: FieldId,
        /// Residual stream.
        out: BufferId,
    },
    /// `out = the first rows of matrix * round(norm(x))`, where a draft ends: the largest of a row's logits,
    /// the first of equals, is the id drafted.
    Propose {
        /// Input.
        x: BufferId,
        /// Before the product.
        norm: FieldId,
        /// The model's head, of which the first rows are multiplied: as many as `out` is wide.
        matrix: FieldId,
        /// Logits of the ids that can be drafted.
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
            PhaseKind::DraftEmbed { .. } => "draft-embed",
            PhaseKind::Linear { .. } => "linear",
            PhaseKind::Propose { .. } => "propose",
            PhaseKind::Select { .. } => "select",
        }
    }

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    pub fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        match *self {
            PhaseKind::Embed { out, .. } => (vec![], vec![out]),
            PhaseKind::Project { x, out, .. }
            | PhaseKind::Gated { x, out, .. }
            | PhaseKind::DraftEmbed { x, out, .. }
            | PhaseKind::Linear { x, out, .. }
            | PhaseKind::Propose { x, out, .. }
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
            PhaseKind::DraftEmbed { norm, hidden_norm, table, embedding_norm, .. } => {
                vec![*norm, *hidden_norm, *table, *embedding_norm]
            }
            PhaseKind::Linear { matrix, .. } => vec![*matrix],
            PhaseKind::Propose { norm, matrix, .. } => vec![*norm, *matrix],
            PhaseKind::Select { .. } => vec![],
        }
    }
}
