//! CPU calls of the embedding and the row selection.

use super::{Embed, Select};
use crate::emit::call::Call;
use crate::emit::float;
use proc_macro2::TokenStream;
use quote::quote;

impl Embed {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (table, out) = (it.field(self.table), it.buffer(self.out));
        match self.scale.map(float) {
            None => quote!(embed(lane, batch, #table, #out);),
            Some(scale) => quote!(embed_scaled(lane, batch, #table, #scale, #out);),
        }
    }
}

impl Select {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (x, out) = (it.buffer(self.x), it.buffer(self.out));
        quote!(gather(lane, rows, #x, #out);)
    }
}
