//! CPU calls of matrix products.

use super::{Accumulate, Gated, Linear, Project, ProjectApart};
use crate::emit::call::{Call, activation};
use crate::emit::number;
use crate::passes::lower::SideProduct;
use crate::plan::{BufferId, FieldId};
use crate::spec::types::Activation;
use proc_macro2::TokenStream;
use quote::quote;

impl Project {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let bias = self.bias.map(|bias| it.field(bias));
        let epilogue = match self.activation {
            None => biased(quote!(Store), it.buffer(self.out), bias),
            Some(function) => {
                let (function, out) = (activation(function), it.buffer(self.out));
                with_bias(quote!(Activated(#function, #out)), bias)
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
        let products = self.products.iter().map(|SideProduct { matrix, bias, out, column }| {
            let (rows, staged, matrix) = (it.rows(*out), it.staged(*matrix), it.field(*matrix));
            let (out, column) = (it.buffer(*out), number(*column));
            let epilogue = with_bias(quote!(StoreAt::<#column, _>(#out)), bias.map(|bias| it.field(bias)));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
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
        let biases = self.biases.map(|(gate, up)| [gate, up].map(|bias| it.field(bias)));
        gated(it, (self.x, self.norm), (self.matrix, self.up), biases, self.activation, self.out)
    }
}

/// The products of a gate and of what it gates: one of both, or two where `up` is a matrix of its own.
pub(crate) fn gated(
    it: &Call,
    (x, norm): (BufferId, FieldId),
    (matrix, up): (FieldId, Option<FieldId>),
    biases: Option<[TokenStream; 2]>,
    function: Activation,
    out: BufferId,
) -> TokenStream {
    let (rows, x, norm) = (it.rows(x), it.buffer(x), it.field(norm));
    let (function, out) = (activation(function), it.buffer(out));
    let (staged, matrix) = (it.staged(matrix), it.field(matrix));
    let Some(up) = up else {
        let epilogue = quote!(Gated(#function, #out));
        let epilogue = match biases {
            None => epilogue,
            Some([gate, up]) => quote!(GatedBias(#gate, #up, #epilogue)),
        };
        return quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, #epilogue););
    };
    let (staged_up, up) = (it.staged(up), it.field(up));
    let [of_gate, of_up] = biases.map_or([None, None], |biases| biases.map(Some));
    let activated = with_bias(quote!(Activated(#function, #out)), of_gate);
    let multiplied = with_bias(quote!(Multiply(#out)), of_up);
    quote! {
        norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #activated);
        norm_linear(lane, #rows, #x, #norm, #staged_up, #up, #multiplied);
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
    with_bias(quote!(#kind(#out)), bias)
}

fn with_bias(epilogue: TokenStream, bias: Option<TokenStream>) -> TokenStream {
    match bias {
        None => epilogue,
        Some(bias) => quote!(Bias(#bias, #epilogue)),
    }
}
