//! Weights as they are stored in memory.

use super::cost::touched_experts_of_busiest;
use super::packed::{self, Packing};
use crate::graph::{BodyId, Graph, RankPart, WeightId};
use crate::spec::types::{Compute, FileTensor, HardwareKind, NormWeight, Scales, TensorClass};
use monomorph_abi::VECTOR;
use monomorph_abi::tiles::tile_bytes;
use monomorph_formats::{Format, ScaleForm};

/// A weight in memory: a field of a generated struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Name in the struct.
    pub name: String,
    /// The body whose layers have one each; `None` for a field that exists once.
    pub owner: Option<BodyId>,
    /// Shape and format.
    pub kind: FieldKind,
    /// The tensors it consists of, in order.
    pub parts: Vec<TensorPart>,
}

/// Shape and format of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldKind {
    /// A matrix of products.
    Matrix {
        /// Stored format; a CUDA device stores some formats as others ([`packed::halves`]).
        format: Format,
        /// Form of the scales beside its codes, if there are some.
        scales: Option<ScaleForm>,
        /// Compute format, to which activations are rounded.
        compute: Compute,
        /// Outputs, all parts together.
        rows: usize,
        /// Inputs of a product.
        columns: usize,
        /// Arrangement of the parts.
        packing: Packing,
        /// Number of experts of a rank that have such a matrix each, one after another; `None` for a matrix
        /// of no expert.
        experts: Option<usize>,
    },
    /// The weights of a convolution, kept in f32.
    Convolution {
        /// Format in the file.
        format: Format,
        /// Rows: channels of the convolution.
        channels: usize,
        /// Columns: taps of each channel.
        taps: usize,
    },
    /// What makes each head's keys and values of a latent, on a CPU: a matrix for each, as stored. A CUDA
    /// device has one [`FieldKind::Matrix`] of all.
    Heads {
        /// Stored format, one of floats.
        format: Format,
        /// Number of heads.
        heads: usize,
        /// Rows of a head's keys.
        key_dim: usize,
        /// Rows of a head's values.
        value_dim: usize,
        /// Width of a latent.
        latent: usize,
    },
    /// A vector, kept in f32.
    Vector {
        /// Format in the file.
        format: Format,
        /// Number of elements.
        length: usize,
    },
    /// The weights of a norm, kept in f32.
    Norm {
        /// Format in the file.
        format: Format,
        /// Number of elements.
        length: usize,
        /// Added to the mean square.
        eps: f32,
        /// How the weight is applied.
        form: NormWeight,
    },
}

/// Why no [`FieldKind::Heads`] is met where a plan is for a CUDA device.
pub const NO_HEADS: &str = "a CUDA device has what makes heads of latents as a matrix of products";

/// A tensor that becomes a field or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The model's name for it, with `{layer}`.
    pub weight: String,
    /// Which kind of tensor it is.
    pub class: TensorClass,
    /// Rows (or elements of a vector).
    pub rows: usize,
    /// Columns; 1 for a vector.
    pub columns: usize,
    /// Width of the heads that a rotary op rotates: files may permute their rows.
    pub rotary_head_dim: Option<usize>,
    /// Scales of its codes, if they are tensors of their own.
    pub scales: Option<Scales>,
    /// Number of experts that have one each, if the name contains `{expert}`; of one shared out to ranks, a
    /// rank's.
    pub experts: Option<usize>,
    /// The tensor in the checkpoint.
    pub file: FileTensor,
    /// Shape of that tensor, outermost dimension first.
    pub file_shape: Vec<usize>,
    /// Whether the file holds `-exp(x)` of every number `x`.
    pub negative_rates: bool,
    /// The part of it that a rank holds.
    pub cut: RankPart,
}

impl TensorPart {
    /// Number of experts that have one each, on all ranks together.
    pub fn all_experts(&self, ranks: usize) -> Option<usize> {
        self.experts.map(|experts| if self.cut.experts { experts * ranks } else { experts })
    }

    pub(crate) fn new(graph: &Graph, id: WeightId) -> TensorPart {
        let weight = &graph.weights[id.0];
        TensorPart {
            weight: weight.name.clone(),
            class: weight.class,
            rows: weight.rows,
            columns: weight.columns,
            rotary_head_dim: graph.rotary_head_dim(id),
            scales: weight.scales.clone(),
            experts: weight.experts,
            file: weight.file.clone(),
            file_shape: weight.file_shape.clone(),
            negative_rates: weight.negative_rates,
            cut: weight.cut.clone(),
        }
    }
}

impl Field {
    /// Number of experts that have such a matrix each, on all ranks together.
    pub fn all_experts(&self, ranks: usize) -> Option<usize> {
        self.parts.first().and_then(|part| part.all_experts(ranks))
    }

    /// Expected number of a rank's experts that `tokens` touch, each choosing `active` of all; where ranks
    /// hold whole experts, of the rank that has most of them.
    pub fn touched_experts(&self, active: usize, tokens: usize, ranks: usize) -> Option<f64> {
        let FieldKind::Matrix { experts: Some(held), .. } = self.kind else { return None };
        let all = self.all_experts(ranks)?;
        Some(touched_experts_of_busiest(all, active, tokens, all / held))
    }

    /// Bytes of one instance on this kind of hardware.
    pub fn bytes(&self, hardware: &HardwareKind) -> u64 {
        match (&self.kind, hardware) {
            (FieldKind::Vector { length, .. } | FieldKind::Norm { length, .. }, _) => 4 * *length as u64,
            (FieldKind::Convolution { channels, taps, .. }, _) => 4 * (channels * taps) as u64,
            (FieldKind::Heads { format, heads, key_dim, value_dim, latent }, HardwareKind::Cpu(_)) => {
                // Keys' matrices stand transposed.
                let whole = |rows: &usize| rows.next_multiple_of(VECTOR);
                let elements = heads * (whole(latent) * key_dim + whole(value_dim) * latent);
                (elements * format.block_bytes()) as u64
            }
            (FieldKind::Heads { .. }, HardwareKind::Cuda(_)) => unreachable!("{NO_HEADS}"),
            (FieldKind::Matrix { experts, .. }, _) => {
                self.matrix_bytes(hardware) * experts.unwrap_or(1) as u64
            }
        }
    }

    /// Bytes of one matrix, or of one expert's if experts have one each. 0 for other fields.
    pub fn matrix_bytes(&self, hardware: &HardwareKind) -> u64 {
        match (&self.kind, hardware) {
            (FieldKind::Matrix { format, scales, rows, columns, packing, .. }, HardwareKind::Cpu(_)) => {
                (packing.tiles(*rows, VECTOR) * tile_bytes(*format, *scales, *columns)) as u64
            }
            _ => self.planes().map_or(0, |planes| planes.total()),
        }
    }

    /// The planes of a matrix (of one expert's) on a CUDA device; `None` for anything but a matrix.
    pub fn planes(&self) -> Option<packed::Planes> {
        match self.kind {
            FieldKind::Matrix { format, scales, compute, rows, columns, packing, .. } => {
                let halves = packed::halves(format, compute);
                Some(packed::Matrix { stored: format, halves, scales, packing, rows, columns }.planes())
            }
            FieldKind::Vector { .. }
            | FieldKind::Norm { .. }
            | FieldKind::Convolution { .. }
            | FieldKind::Heads { .. } => None,
        }
    }
}
