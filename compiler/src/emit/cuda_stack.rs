//! `stack.rs` for a CUDA device.

use crate::plan::Plan;
use proc_macro2::TokenStream;
use quote::quote;

/// The items of `stack.rs`.
pub fn stack(_plan: &Plan) -> TokenStream {
    quote!(compile_error!("the layer stack of a CUDA target is not emitted yet");)
}
