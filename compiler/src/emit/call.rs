//! What a phase's call on a CPU is written with: where its weights and rows are found.

use super::cpu::{body_ident, staging};
use super::{format_ident, quote};
use crate::graph::Rows;
use crate::plan::{BufferId, FieldId, FieldKind, Phase, Plan, PlanBody};
use crate::spec::types::Activation;
use proc_macro2::{Ident, TokenStream};

/// Where a phase's weights are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the layer's struct, called `weights`.
    Layer,
    /// In the stack's.
    Stack,
}

/// The call of a phase's function; `self`, `lane`, `batch` or `rows`, and in a layer `layer` and `weights`
/// are in scope.
pub fn phase(plan: &Plan, body: &PlanBody, phase: &Phase, place: Place) -> TokenStream {
    phase.kind.kind().cpu(&Call { plan, body, place })
}

/// A call that is being written.
#[derive(Debug)]
pub struct Call<'a> {
    /// The plan.
    pub plan: &'a Plan,
    body: &'a PlanBody,
    place: Place,
}

impl Call<'_> {
    /// An activation buffer.
    pub fn buffer(&self, id: BufferId) -> TokenStream {
        let name = format_ident!("{}", self.plan.buffer(id).name);
        quote!(&self.buffers.#name)
    }

    /// A field.
    pub fn field(&self, id: FieldId) -> TokenStream {
        let name = format_ident!("{}", self.plan.field(id).name);
        match self.place {
            Place::Layer => quote!(&weights.#name),
            Place::Stack => quote!(&self.globals.#name),
        }
    }

    /// Rows that a buffer has.
    pub fn rows(&self, id: BufferId) -> TokenStream {
        match self.plan.buffer(id).rows {
            Rows::Tokens => quote!(batch.tokens()),
            Rows::Outputs => quote!(rows.len()),
            Rows::Slots(_) => unreachable!("phases count tokens"),
        }
    }

    /// Where a product's input is staged.
    pub fn staged(&self, matrix: FieldId) -> TokenStream {
        let (name, _) = staging(self.plan, matrix);
        quote!(&self.buffers.#name)
    }

    /// How many experts have a matrix each.
    ///
    /// # Panics
    /// If it is no matrix of experts.
    pub fn experts(&self, matrix: FieldId) -> usize {
        let FieldKind::Matrix { experts: Some(experts), .. } = self.plan.field(matrix).kind else {
            unreachable!("layout gives experts a matrix each")
        };
        experts
    }

    /// What of the stack belongs to the body.
    pub fn own(&self, suffix: &str) -> Ident {
        body_ident(self.body, suffix)
    }
}

/// A scalar function's marker.
pub fn activation(activation: Activation) -> TokenStream {
    match activation {
        Activation::Silu => quote!(Silu),
        Activation::Gelu => quote!(Gelu),
        Activation::GeluTanh => quote!(GeluTanh),
        Activation::Relu => quote!(Relu),
    }
}
