//! What a phase's call on a CPU is written with: where its weights and rows are found.

use super::cpu::{body_ident, staging};
use super::{format_ident, quote};
use crate::graph::Rows;
use crate::plan::{BufferId, FieldId, FieldKind, Phase, Plan, PlanBody};
use crate::spec::types::Activation;
use proc_macro2::{Ident, TokenStream};

/// Where a phase's weights and rows are found.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    in_layer: bool,
    in_draft: bool,
}

impl Place {
    /// Weights in the layer's struct, called `weights`.
    pub const LAYER: Place = Place { in_layer: true, in_draft: false };
    /// Weights in the stack's.
    pub const GLOBAL: Place = Place { in_layer: false, in_draft: false };
    /// Weights in the stack's; rows are those of a pass that drafts.
    pub const DRAFT: Place = Place { in_layer: false, in_draft: true };
    /// Weights in the layer's struct; rows are those of a pass that drafts.
    pub const DRAFT_LAYER: Place = Place { in_layer: true, in_draft: true };
}

/// The call of a phase's function; `self`, `lane` and, in a layer, `layer` and `weights` are in scope.
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
        if self.place.in_layer { quote!(&weights.#name) } else { quote!(&self.globals.#name) }
    }

    /// The step's batch, or the pass's.
    pub fn batch(&self) -> TokenStream {
        if self.place.in_draft { quote!(self.drafting.batch()) } else { quote!(&self.batch) }
    }

    /// Rows that a buffer has.
    pub fn rows(&self, id: BufferId) -> TokenStream {
        match self.plan.buffer(id).rows {
            Rows::Tokens if self.place.in_draft => quote!(self.drafting.batch().tokens()),
            Rows::Tokens => quote!(self.batch.tokens()),
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
