//! CPU calls of towers, and of rows of images.

use super::graph::{Merged, PatchTurn, PositionTable};
use super::phases::{
    Activate, AddImageRows, AttendPatches, EmbedImages, EmbedPatches, LayerNorm, MergeNorm, MergePatches,
    Place, PoolPatches, ProjectPatches,
};
use crate::blocks::vision::graph::PatchAxis;
use crate::emit::call::{Call, activation};
use crate::emit::names::{IMAGE_ROWS, Scratch};
use crate::emit::{float, number};
use crate::plan::FieldId;
use crate::spec::types::Activation;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The expression of a layer norm.
fn layer_norm(it: &Call, LayerNorm { weight, bias, eps }: LayerNorm) -> TokenStream {
    let ([weight, bias], eps) = ([weight, bias].map(|id| it.field(id)), float(eps));
    quote!(&LayerNorm(#weight, #bias, #eps))
}

/// The epilogue of a product.
fn epilogue(
    it: &Call,
    function: Option<Activation>,
    out: &TokenStream,
    bias: Option<FieldId>,
) -> TokenStream {
    let stored = match function.map(activation) {
        None => quote!(Store(#out)),
        Some(function) => quote!(Activated(#function, #out)),
    };
    match bias.map(|bias| it.field(bias)) {
        None => stored,
        Some(bias) => quote!(Bias(#bias, #stored)),
    }
}

impl EmbedPatches {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, out) = (it.rows(self.out), it.buffer(self.pixels), it.buffer(self.out));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        let epilogue = epilogue(it, None, &out, self.bias);
        let placed = match self.place {
            Place::Table(table, PositionTable::Square { side }) => {
                let (table, side) = (it.field(table), number(side));
                quote!(patch_square::<_, #side, _, _>(lane, patches, #table, #out);)
            }
            Place::Table(table, PositionTable::Axes { entries }) => {
                let (table, entries) = (it.field(table), number(entries));
                quote!(patch_axes::<_, #entries, _, _>(lane, patches, #table, #out);)
            }
            Place::Norm(norm) => {
                let norm = it.field(norm);
                quote!(norm_in_place(lane, #rows, #norm, #out);)
            }
        };
        quote! {
            linear(lane, #rows, #x, #staged, #matrix, #epilogue);
            #placed
        }
    }
}

impl ProjectPatches {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let epilogue = epilogue(it, self.activation, &it.buffer(self.out), self.bias);
        let (rows, x, norm) = (it.rows(self.out), it.buffer(self.x), layer_norm(it, self.norm));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
    }
}

impl Activate {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let epilogue = epilogue(it, Some(self.activation), &it.buffer(self.out), self.bias);
        let (rows, x) = (it.rows(self.out), it.buffer(self.x));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        quote!(linear(lane, #rows, #x, #staged, #matrix, #epilogue);)
    }
}

impl AttendPatches {
    pub(super) fn scratch(&self) -> Scratch {
        let head_dim = number(self.head_dim);
        Scratch {
            kind: quote!(PatchAttentionScratch<#head_dim>),
            new: quote!(PatchAttentionScratch::new(lanes)),
        }
    }

    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let norms = self.norms.map(|norms| norms.map(|norm| it.field(norm)));
        let [q_norm, k_norm] = norms.unwrap_or_else(|| [quote!(&NoNorm), quote!(&NoNorm)]);
        let v_norm = match self.v_norm.map(float) {
            None => quote!(&NoNorm),
            Some(eps) => quote!(&BareNorm(#eps)),
        };
        let turns = self.turns.iter().map(|PatchTurn { pair, axis, inverse }| {
            let ([a, b], inverse) = (pair.map(number), float(*inverse));
            let by = match axis {
                PatchAxis::Row => quote!([#inverse, 0.0]),
                PatchAxis::Column => quote!([0.0, #inverse]),
            };
            quote!(PatchTurn { pair: [#a, #b], by: #by })
        });
        let (qkv, out, scale) = (it.buffer(self.qkv), it.buffer(self.out), float(self.scale));
        let scratch = it.own("_scratch");
        quote! {
            segment_attention(
                lane, patches, #qkv, #q_norm, #k_norm, #v_norm, &[#(#turns),*], #scale,
                &self.buffers.#scratch, #out,
            );
        }
    }
}

impl MergePatches {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let norm = match self.norm {
            MergeNorm::None => quote!(&NoNorm),
            MergeNorm::Layer(norm) => layer_norm(it, norm),
            MergeNorm::Rms(norm) => it.field(norm),
        };
        let function = format_ident!(
            "{}",
            match self.form {
                Merged::SideBySide => "merge_patches",
                Merged::ByChannel => "merge_channels",
                Merged::Mean => unreachable!("lowering refuses a mean"),
            }
        );
        let (x, out) = (it.buffer(self.x), it.buffer(self.out));
        quote!(#function(lane, patches, #x, #norm, #out);)
    }
}

impl PoolPatches {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let standard = match self.standard.map(|parts| parts.map(|part| it.field(part))) {
            None => quote!(&AsPooled),
            Some([bias, scale]) => quote!(&Standardise(#bias, #scale)),
        };
        let ([x, out], [factor, eps]) =
            ([self.x, self.out].map(|id| it.buffer(id)), [self.factor, self.eps].map(float));
        quote!(pool_patches(lane, patches, #x, #factor, #standard, #eps, #out);)
    }
}

impl EmbedImages {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (table, out, kept) = (it.field(self.table), it.buffer(self.out), format_ident!("{IMAGE_ROWS}"));
        let embedded = match self.scale.map(float) {
            None => quote!(embed(lane, batch, #table, #out);),
            Some(scale) => quote!(embed_scaled(lane, batch, #table, #scale, #out);),
        };
        quote! {
            #embedded
            image_rows(lane, batch, &self.#kept, #out);
        }
    }
}

impl AddImageRows {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (residual, kept) = (it.buffer(self.residual), format_ident!("{IMAGE_ROWS}"));
        let tap = number(self.tap);
        quote!(add_image_rows(lane, batch, &self.#kept, #tap, #residual);)
    }
}
