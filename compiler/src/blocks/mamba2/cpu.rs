//! Mamba-2's call on a CPU.

use super::Mamba2;
use super::spec::Shape;
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::emit::{float, number};
use crate::plan::Plan;
use proc_macro2::TokenStream;
use quote::quote;

impl Mamba2 {
    pub(super) fn scratch(&self, plan: &Plan) -> Scratch {
        let Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (parameters, tokens) =
            ([heads, head_dim, groups, state].map(number), number(plan.buckets.tokens));
        Scratch { kind: quote!(Mamba2Scratch<#(#parameters),*>), new: quote!(Mamba2Scratch::new(#tokens)) }
    }

    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let [projected, out] = [self.projected, self.out].map(|id| it.buffer(id));
        let [convolution, convolution_bias] =
            [self.convolution, self.convolution_bias].map(|id| it.field(id));
        let [a_log, dt_bias, d, norm] = [self.a_log, self.dt_bias, self.d, self.norm].map(|id| it.field(id));
        let [state, scratch] = ["_state", "_scratch"].map(|suffix| it.own(suffix));
        let eps = float(self.eps);
        quote! {
            mamba2(
                lane, batch, layer, #projected, #convolution, #convolution_bias, #a_log, #dt_bias, #d, #norm, #eps,
                &self.#state, &self.buffers.#scratch, #out,
            );
        }
    }
}
