//! A matrix as kernels take it.

use super::{integer, value};
use crate::plan::cuda::Constant;
use crate::plan::{Packing, packed};
use crate::spec::types::Compute;
use monomorph_formats::{Format, ScaleForm};

/// Shape, formats and arithmetic of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    /// Format in device memory.
    pub format: Format,
    pub scales: Option<ScaleForm>,
    pub compute: Compute,
    /// Whether activations stay in f32 rather than being rounded for tensor cores.
    pub exact: bool,
    pub rows: usize,
    pub columns: usize,
    pub packing: Packing,
    /// Number of experts, if each has such a matrix; of those that ranks share out, a rank's.
    pub experts: Option<usize>,
    /// Number of experts that a router chooses from: those of all ranks.
    pub routed: Option<usize>,
}

/// The constant of a kernel that is told of experts on other ranks, where a rank holds not all of them.
pub(crate) fn routed_by(held: usize, routed: usize) -> Option<(&'static str, Constant)> {
    (held != routed).then(|| ("ROUTED", integer(routed)))
}

impl Matrix {
    /// `Format::…` and `ScaleForm::…` of templates/cuda/core/formats.cuh.
    pub fn names(&self) -> [(&'static str, Constant); 2] {
        let format = packed::cuda_name(self.format);
        let scales = match self.scales {
            None if self.halves() => "ROWS",
            None => "NONE",
            Some(ScaleForm::Block128) => "BLOCK128",
            Some(ScaleForm::Tensor | ScaleForm::Modelopt | ScaleForm::CompressedTensors) => "ROWS",
        };
        [("FORMAT", value(format!("Format::{format}"))), ("SCALES", value(format!("ScaleForm::{scales}")))]
    }

    /// Whether it stores floats as f16 with a scale per row.
    pub fn halves(&self) -> bool {
        !self.exact && self.format == Format::F16
    }

    /// See [`routed_by`].
    pub fn shared_out(&self) -> Option<(&'static str, Constant)> {
        let (held, routed) = self.experts.zip(self.routed)?;
        routed_by(held, routed)
    }

    /// Outputs; features if gate and up are interleaved.
    pub fn outputs(&self) -> usize {
        match self.packing {
            Packing::Stacked => self.rows,
            Packing::Gated => self.rows / 2,
        }
    }
}
