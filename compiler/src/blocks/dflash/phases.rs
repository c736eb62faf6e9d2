//! Phases of a drafter of blocks that no model has: rules, operands, cost.

use super::super::Kind;
use crate::emit::call::Call;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::Fusion;
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Work};
use proc_macro2::TokenStream;
use quote::quote;

/// `out = norm(matrix * round(x))`: what a drafter knows of a token, of the model's residual streams behind
/// some layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseTaps {
    /// The residual streams, side by side.
    pub x: BufferId,
    /// Matrix of the product.
    pub matrix: FieldId,
    /// Norm of the sums.
    pub norm: FieldId,
    /// Residual stream.
    pub out: BufferId,
}

impl Kind for FuseTaps {
    fn name(&self) -> &'static str {
        "fuse-taps"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.matrix, self.norm]
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, it: &Call) -> TokenStream {
        let (rows, x, out) = (it.rows(self.x), it.buffer(self.x), it.buffer(self.out));
        let (staged, matrix, norm) = (it.staged(self.matrix), it.field(self.matrix), it.field(self.norm));
        quote! {
            linear(lane, #rows, #x, #staged, #matrix, Store(#out));
            norm_in_place(lane, #rows, #norm, #out);
        }
    }

    fn cuda(&self, _: &mut Launcher, _: Site, _: &mut Vec<Launch>) -> Result<(), PassError> {
        Err(pass_error!("the CUDA backend has no kernels for `{}` of a drafter of blocks", self.name()))
    }
}

/// Fusion rules of drafters of blocks. Their layers and heads use the rules of models.
pub const FUSIONS: &[Fusion] = &[Fusion {
    name: "fuse-taps",
    pattern: "t = taps(x); y = linear(t); out = rms-norm(y) where out is handed on",
    matrices: &[(&["y"], Stacked)],
    buffers: &[],
    lower: |it| {
        let (matrix, norm) = (it.matrix("y"), it.norm("out"));
        Ok(FuseTaps { x: it.whole("x")?, matrix, norm, out: it.whole("out")? }.into())
    },
}];
