//! The delta-net's calls on a CPU.

use super::state::DeltaShape;
use super::{Delta, ProjectDelta};
use crate::emit::call::{Call, activation};
use crate::emit::names::Scratch;
use crate::emit::number;
use crate::plan::Plan;
use crate::spec::types::ValueHeads;
use proc_macro2::TokenStream;
use quote::quote;

impl ProjectDelta {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, norm) = (it.rows(self.out), it.buffer(self.x), it.field(self.norm));
        let products = [(self.matrix, self.out), (self.gates, self.gates_out)].map(|(matrix, out)| {
            let (staged, matrix, out) = (it.staged(matrix), it.field(matrix), it.buffer(out));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, Store(#out));)
        });
        quote!(#(#products)*)
    }
}

impl Delta {
    pub(super) fn scratch(&self, plan: &Plan) -> Scratch {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let parameters = [key_heads, value_heads, key_dim, value_dim].map(number);
        let tiled = (self.order == ValueHeads::Tiled).then(|| quote!(, true));
        let tokens = number(plan.buckets.tokens);
        let kind = quote!(DeltaScratch<#(#parameters),* #tiled>);
        Scratch { kind, new: quote!(DeltaScratch::new(#tokens)) }
    }

    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let [qkvz, ba, out] = [self.qkvz, self.ba, self.out].map(|id| it.buffer(id));
        let [convolution, a_log, dt_bias, norm] =
            [self.convolution, self.a_log, self.dt_bias, self.norm].map(|id| it.field(id));
        let [state, scratch] = ["_state", "_scratch"].map(|suffix| it.own(suffix));
        let activation = activation(self.activation);
        quote! {
            delta(
                lane, batch, layer, #qkvz, #ba, #convolution, #a_log, #dt_bias, #norm, #activation,
                &self.#state, &self.buffers.#scratch, #out,
            );
        }
    }
}
