//! Attention's call on a CPU.

use super::{Attention, KeepContext};
use crate::emit::call::Call;
use crate::emit::names::{Scratch, Working, body_ident};
use crate::emit::{float, number};
use crate::plan::Plan;
use crate::spec::types::RotaryPairs;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The buffer of angles of heads that are not rotated.
const NO_ANGLES: &str = "no_angles";

impl Attention {
    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        let tokens = number(plan.buckets.tokens);
        let none = || (format_ident!("{NO_ANGLES}"), quote!(Rows<0>), quote!(Rows::new(#tokens)));
        if self.frequencies.is_some() { Vec::new() } else { vec![none()] }
    }

    pub(super) fn scratch(&self, plan: &Plan) -> Scratch {
        let Attention { heads, kv_heads, head_dim, .. } = *self;
        let [heads, kv_heads, head_dim] = [heads, kv_heads, head_dim].map(number);
        let tokens = number(plan.buckets.tokens);
        Scratch {
            kind: quote!(AttentionScratch<#heads, #kv_heads, #head_dim>),
            new: quote!(AttentionScratch::new(lanes, SPEC.context).streamed(#tokens)),
        }
    }

    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let norm = |id: Option<_>| id.map_or_else(|| quote!(&NoNorm), |id| it.field(id));
        let (mut q_norm, mut k_norm) = (norm(self.q_norm), norm(self.k_norm));
        let (qkv, out) = (it.buffer(self.qkv), it.buffer(self.out));
        let rows = self.norm_rows.then(|| {
            let [q_norm, k_norm] =
                [&mut q_norm, &mut k_norm].map(|it| std::mem::replace(it, quote!(&NoNorm)));
            quote!(norm_rows(lane, batch, #qkv, #q_norm, #k_norm);)
        });
        let pairs = match self.frequencies.as_ref().map(|it| it.pairs) {
            // Of no pairs.
            None | Some(RotaryPairs::Halves) => quote!(Halves),
            Some(RotaryPairs::Adjacent) => quote!(Adjacent),
        };
        let [angles, cache, scratch] = ["_angles", "_cache", "_scratch"].map(|suffix| it.own(suffix));
        let angles = if self.frequencies.is_some() { angles } else { format_ident!("{NO_ANGLES}") };
        let scale = float(self.scale);
        if self.v_norm.is_some() || self.keys_as_values || self.window.is_some() || self.image_spans {
            let v_norm = self.v_norm.map_or_else(
                || quote!(&NoNorm),
                |eps| {
                    let eps = float(eps);
                    quote!(&BareNorm(#eps))
                },
            );
            let window = number(self.window.unwrap_or(it.plan.target.model.context));
            let window = match (self.image_spans, self.of_drafter) {
                (true, true) => quote!(WholeBlock(#window)),
                (true, false) => quote!(WholeImages(#window)),
                (false, _) => quote!(#window),
            };
            return quote! {
                #rows
                attention_within(
                    lane, batch, layer, #qkv, #q_norm, #k_norm, #v_norm, &self.buffers.#angles, #pairs, #scale,
                    #window, &self.#cache, &self.buffers.#scratch, #out,
                );
            };
        }
        quote! {
            #rows
            attention(
                lane, batch, layer, #qkv, #q_norm, #k_norm, &self.buffers.#angles, #pairs, #scale,
                &self.#cache, &self.buffers.#scratch, #out,
            );
        }
    }
}

impl KeepContext {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (kv, k_norm, angles) = (it.buffer(self.kv), it.field(self.k_norm), it.own("_angles"));
        let block = it.plan.block.as_ref().expect("a drafter has a plan");
        let cache = body_ident(&it.plan.bodies[block.layer(self.kind).0], "_cache");
        quote!(keep_context(lane, batch, layer, #kv, #k_norm, &self.buffers.#angles, Halves, &self.#cache);)
    }
}
