//! Helpers to write a phase's call on a CPU: they name its weights and buffers.

use super::names::{body_ident, staging};
use super::{format_ident, profile, quote};
use crate::graph::Rows;
use crate::plan::{BufferId, FieldId, FieldKind, Phase, Plan, PlanBody};
use crate::spec::types::Activation;
use proc_macro2::{Ident, TokenStream};

/// Owner of a phase's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightOwner {
    /// The layer's struct, in a variable `weights`.
    Layer,
    /// The stack's struct.
    Stack,
}

/// The call of a phase's function. In scope are `self`, `lane`, `batch` or `rows`, in a tower `patches`, and
/// in a layer `layer` and `weights`. A profiling build takes the time behind it.
pub fn phase(plan: &Plan, body: &PlanBody, phase: &Phase, owner: WeightOwner) -> TokenStream {
    let call = phase.kind.kind().cpu(&Call { plan, body, owner });
    match profile::passed(plan, body, phase) {
        None => call,
        Some(passed) => quote!(#call #passed),
    }
}

/// A call under construction.
#[derive(Debug)]
pub struct Call<'a> {
    /// The plan being emitted.
    pub plan: &'a Plan,
    body: &'a PlanBody,
    owner: WeightOwner,
}

impl Call<'_> {
    /// The expression of an activation buffer.
    pub fn buffer(&self, id: BufferId) -> TokenStream {
        let name = format_ident!("{}", self.plan.buffer(id).name);
        quote!(&self.buffers.#name)
    }

    /// The expression of a field.
    pub fn field(&self, id: FieldId) -> TokenStream {
        let name = format_ident!("{}", self.plan.field(id).name);
        match self.owner {
            WeightOwner::Layer => quote!(&weights.#name),
            WeightOwner::Stack => quote!(&self.globals.#name),
        }
    }

    /// The expression of a buffer's number of rows.
    pub fn rows(&self, id: BufferId) -> TokenStream {
        match self.plan.buffer(id).rows {
            Rows::Tokens => quote!(batch.tokens()),
            Rows::Outputs => quote!(rows.len()),
            Rows::Slots(_) => unreachable!("phases count tokens"),
            Rows::Patches => quote!(patches.count()),
            Rows::ImageTokens => quote!(patches.tokens()),
        }
    }

    /// The buffer in which a product's input is staged.
    pub fn staged(&self, matrix: FieldId) -> TokenStream {
        let (name, _) = staging(self.plan, matrix);
        quote!(&self.buffers.#name)
    }

    /// Number of experts that have such a matrix each.
    ///
    /// # Panics
    /// If it is not a matrix of experts.
    pub fn experts(&self, matrix: FieldId) -> usize {
        let FieldKind::Matrix { experts: Some(experts), .. } = self.plan.field(matrix).kind else {
            unreachable!("layout gives experts a matrix each")
        };
        experts
    }

    /// The stack's field with this suffix that belongs to the body.
    pub fn own(&self, suffix: &str) -> Ident {
        body_ident(self.body, suffix)
    }
}

/// The marker type of a scalar function.
pub fn activation(activation: Activation) -> TokenStream {
    match activation {
        Activation::Silu => quote!(Silu),
        Activation::Gelu => quote!(Gelu),
        Activation::GeluTanh => quote!(GeluTanh),
        Activation::Relu => quote!(Relu),
        Activation::Relu2 => quote!(Relu2),
    }
}
