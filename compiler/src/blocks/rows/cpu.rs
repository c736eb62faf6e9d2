//! CPU calls on whole rows.

use super::{AddNormed, Cap, Scale, SumNormed};
use crate::emit::call::Call;
use crate::emit::float;
use proc_macro2::TokenStream;
use quote::quote;

impl AddNormed {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, norm) = (it.rows(self.residual), it.buffer(self.x), it.field(self.norm));
        let residual = it.buffer(self.residual);
        quote!(add_normed(lane, #rows, #x, #norm, #residual);)
    }
}

impl SumNormed {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let [x, sum] = [self.x, self.sum].map(|id| it.buffer(id));
        let [norm, own] = [self.norm, self.own].map(|id| it.field(id));
        let rows = it.rows(self.sum);
        quote!(sum_normed(lane, #rows, #x, #norm, #sum, #own);)
    }
}

impl Scale {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, factor) = (it.rows(self.x), it.buffer(self.x), it.field(self.factor));
        quote!(scale_by(lane, #rows, #factor, #x);)
    }
}

impl Cap {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, cap) = (it.rows(self.x), it.buffer(self.x), float(self.cap));
        quote!(cap(lane, #rows, #cap, #x);)
    }
}
