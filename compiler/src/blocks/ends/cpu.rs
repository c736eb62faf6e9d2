//! CPU calls of the embedding and the row selection.

use super::{Embed, Select};
use crate::emit::call::Call;
use proc_macro2::TokenStream;
use quote::quote;

impl Embed {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (table, out) = (it.field(self.table), it.buffer(self.out));
        quote!(embed(lane, batch, #table, #out);)
    }
}

impl Select {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (x, out) = (it.buffer(self.x), it.buffer(self.out));
        quote!(gather(lane, rows, #x, #out);)
    }
}
