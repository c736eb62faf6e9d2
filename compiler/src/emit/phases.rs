//! One phase as the call of its function.

use super::cpu::{body_ident, staging};
use super::{float, format_ident, quote};
use crate::graph::Rows;
use crate::plan::{BufferId, FieldId, Phase, PhaseKind, Plan, PlanBody};
use crate::spec::types::{Activation, RotaryPairs};
use proc_macro2::TokenStream;

/// Where a phase's weights are found.
#[derive(Clone, Copy)]
pub struct Operands {
    in_layer: bool,
}

impl Operands {
    /// In the layer's struct, called `weights`.
    pub const LAYER: Operands = Operands { in_layer: true };
    /// In the stack's.
    pub const GLOBAL: Operands = Operands { in_layer: false };
}

/// The call; `self`, `lane` and, in a layer, `layer` and `weights` are in scope.
pub fn phase(plan: &Plan, body: &PlanBody, phase: &Phase, operands: Operands) -> TokenStream {
    let buffer = |id: BufferId| {
        let name = format_ident!("{}", plan.buffer(id).name);
        quote!(&self.buffers.#name)
    };
    let field = |id: FieldId| {
        let name = format_ident!("{}", plan.field(id).name);
        if operands.in_layer { quote!(&weights.#name) } else { quote!(&self.globals.#name) }
    };
    let count = |id: BufferId| match plan.buffer(id).rows {
        Rows::Tokens => quote!(self.batch.tokens()),
        Rows::Outputs => quote!(rows.len()),
    };
    let staged = |matrix: FieldId| {
        let (name, _) = staging(plan, matrix);
        quote!(&self.buffers.#name)
    };
    match &phase.kind {
        PhaseKind::Embed { table, out } => {
            let (table, out) = (field(*table), buffer(*out));
            quote!(embed(lane, &self.batch, #table, #out);)
        }
        PhaseKind::Project { x, norm, matrix, bias, out } => {
            let epilogue = biased(quote!(Store), buffer(*out), bias.map(field));
            let (rows, x, norm) = (count(*out), buffer(*x), field(*norm));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Accumulate { x, matrix, bias, residual } => {
            let epilogue = biased(quote!(Add), buffer(*residual), bias.map(field));
            let (rows, x) = (count(*x), buffer(*x));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(linear(lane, #rows, #x, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Gated { x, norm, matrix, biases, activation, out } => {
            let activation = match activation {
                Activation::Silu => quote!(Silu),
                Activation::Gelu => quote!(Gelu),
                Activation::GeluTanh => quote!(GeluTanh),
                Activation::Relu => quote!(Relu),
            };
            let out_buffer = buffer(*out);
            let epilogue = quote!(Gated(#activation, #out_buffer));
            let epilogue = match biases {
                None => epilogue,
                Some((gate, up)) => {
                    let (gate, up) = (field(*gate), field(*up));
                    quote!(GatedBias(#gate, #up, #epilogue))
                }
            };
            let (rows, x, norm) = (count(*x), buffer(*x), field(*norm));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Attention { qkv, q_norm, k_norm, frequencies, scale, out, .. } => {
            let norm = |id: &Option<FieldId>| id.map_or_else(|| quote!(&NoNorm), field);
            let (qkv, q_norm, k_norm, out) = (buffer(*qkv), norm(q_norm), norm(k_norm), buffer(*out));
            let pairs = match frequencies.pairs {
                RotaryPairs::Halves => quote!(Halves),
                RotaryPairs::Adjacent => quote!(Adjacent),
            };
            let [angles, cache, scratch] = ["_angles", "_cache", "_scratch"].map(|it| body_ident(body, it));
            let scale = float(*scale);
            quote! {
                attention(
                    lane, &self.batch, layer, #qkv, #q_norm, #k_norm, &self.buffers.#angles, #pairs, #scale,
                    &self.#cache, &self.buffers.#scratch, #out,
                );
            }
        }
        PhaseKind::Select { x, out } => {
            let (x, out) = (buffer(*x), buffer(*out));
            quote!(gather(lane, rows, #x, #out);)
        }
    }
}

/// What happens to the sums of a product.
fn biased(kind: TokenStream, out: TokenStream, bias: Option<TokenStream>) -> TokenStream {
    match bias {
        None => quote!(#kind(#out)),
        Some(bias) => quote!(Bias(#bias, #kind(#out))),
    }
}
