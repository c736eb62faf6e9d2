//! CPU calls of the phases that begin and end a draft pass.

use super::{DraftEmbed, Propose};
use crate::emit::call::Call;
use crate::emit::names::IMAGE_ROWS;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl DraftEmbed {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (x, out) = (it.buffer(self.x), it.buffer(self.out));
        let [norm, hidden_norm, table, embedding_norm] =
            [self.norm, self.hidden_norm, self.table, self.embedding_norm].map(|id| it.field(id));
        if self.images {
            let kept = format_ident!("{IMAGE_ROWS}");
            return quote!(draft_embed_images(
                lane, batch, #x, #norm, #hidden_norm, #table, #embedding_norm, &self.#kept, #out,
            ););
        }
        quote!(draft_embed(lane, batch, #x, #norm, #hidden_norm, #table, #embedding_norm, #out);)
    }
}

impl Propose {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, norm) = (it.rows(self.out), it.buffer(self.x), it.field(self.norm));
        let (staged, matrix, out) = (it.staged(self.matrix), it.field(self.matrix), it.buffer(self.out));
        quote!(norm_linear_top(lane, #rows, #x, #norm, #staged, #matrix, Store(#out));)
    }
}
