//! CPU calls of matrix products.

use super::{Accumulate, Gated, Linear, Project, ProjectApart};
use crate::emit::call::{Call, activation};
use crate::emit::number;
use crate::passes::lower::SideProduct;
use proc_macro2::TokenStream;
use quote::quote;

impl Project {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let bias = self.bias.map(|bias| it.field(bias));
        let epilogue = match self.activation {
            None => biased(quote!(Store), it.buffer(self.out), bias),
            Some(function) => {
                let (function, out) = (activation(function), it.buffer(self.out));
                let epilogue = quote!(Activated(#function, #out));
                bias.map_or(epilogue.clone(), |bias| quote!(Bias(#bias, #epilogue)))
            }
        };
        let (rows, x, norm) = (it.rows(self.out), it.buffer(self.x), it.field(self.norm));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
    }
}

impl ProjectApart {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (x, norm) = (it.buffer(self.x), it.field(self.norm));
        let products = self.products.iter().map(|SideProduct { matrix, out, column }| {
            let (rows, staged, matrix) = (it.rows(*out), it.staged(*matrix), it.field(*matrix));
            let (out, column) = (it.buffer(*out), number(*column));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, StoreAt::<#column, _>(#out));)
        });
        quote!(#(#products)*)
    }
}

impl Accumulate {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let epilogue = biased(quote!(Add), it.buffer(self.residual), self.bias.map(|bias| it.field(bias)));
        let (rows, x) = (it.rows(self.x), it.buffer(self.x));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        quote!(linear(lane, #rows, #x, #staged, #matrix, #epilogue);)
    }
}

impl Gated {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (activation, out) = (activation(self.activation), it.buffer(self.out));
        let epilogue = quote!(Gated(#activation, #out));
        let epilogue = match self.biases {
            None => epilogue,
            Some((gate, up)) => {
                let (gate, up) = (it.field(gate), it.field(up));
                quote!(GatedBias(#gate, #up, #epilogue))
            }
        };
        let (rows, x, norm) = (it.rows(self.x), it.buffer(self.x), it.field(self.norm));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
    }
}

impl Linear {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, x, out) = (it.rows(self.x), it.buffer(self.x), it.buffer(self.out));
        let (staged, matrix) = (it.staged(self.matrix), it.field(self.matrix));
        let epilogue = biased(quote!(Store), out, self.bias.map(|bias| it.field(bias)));
        quote!(linear(lane, #rows, #x, #staged, #matrix, #epilogue);)
    }
}

/// Epilogue of a product, with its bias if there is one.
fn biased(kind: TokenStream, out: TokenStream, bias: Option<TokenStream>) -> TokenStream {
    match bias {
        None => quote!(#kind(#out)),
        Some(bias) => quote!(Bias(#bias, #kind(#out))),
    }
}
