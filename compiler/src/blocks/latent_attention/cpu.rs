//! The call of attention over latents on a CPU.

use super::LatentAttention;
use super::graph::Shape;
use super::spec::QueryScale;
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::emit::{float, number};
use crate::plan::Plan;
use crate::spec::types::RotaryPairs;
use proc_macro2::TokenStream;
use quote::quote;

impl LatentAttention {
    pub(super) fn scratch(&self, plan: &Plan) -> Scratch {
        let Shape { heads, key_dim, latent, .. } = self.shape;
        let width = self.shape.width();
        let parameters = [heads, key_dim, width, latent, heads * width, heads * latent].map(number);
        let tokens = number(plan.buckets.tokens);
        Scratch {
            kind: quote!(LatentScratch<#(#parameters),*>),
            new: quote!(LatentScratch::new(lanes, SPEC.context, #tokens)),
        }
    }

    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let [q, kv, out] = [self.q, self.kv, self.out].map(|id| it.buffer(id));
        let [norm, made] = [self.norm, self.made].map(|id| it.field(id));
        let [angles, cache, scratch] = ["_angles", "_cache", "_scratch"].map(|suffix| it.own(suffix));
        let pairs = match self.frequencies.pairs {
            RotaryPairs::Halves => quote!(Halves),
            RotaryPairs::Adjacent => quote!(Adjacent),
        };
        let QueryScale { growth, original } =
            self.query_scale.unwrap_or(QueryScale { growth: 0.0, original: 1 });
        let (growth, original, scale) = (float(growth), number(original), float(self.scale));
        quote! {
            latent_attention(
                lane, batch, layer, #q, #kv, #norm, &self.buffers.#angles, #pairs,
                (QueryScale { growth: #growth, original: #original }, #scale), #made, &self.#cache,
                &self.buffers.#scratch, #out,
            );
        }
    }
}
