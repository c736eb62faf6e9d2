//! Names that more than one part of a stack is written with.

use super::{format_ident, number, quote, variant};
use crate::plan::{Field, FieldId, FieldKind, KvHeads, Plan, PlanBody};
use crate::spec::types::Compute;
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_formats::{Format, ScaleForm};
use proc_macro2::{Ident, TokenStream, TokenTree};

/// The field of a stack that keeps rows of images.
pub const IMAGE_ROWS: &str = "image_rows";

/// Scratch of phases: the name among the buffers, its type, and the expression that makes it.
pub type Working = (Ident, TokenStream, TokenStream);

/// Scratch of a body's phases.
pub struct Scratch {
    /// The type.
    pub kind: TokenStream,
    /// The expression that makes it; `lanes` is in scope.
    pub new: TokenStream,
}

/// A body's name as an identifier.
pub fn body_ident(body: &PlanBody, suffix: &str) -> Ident {
    format_ident!("{}{suffix}", body.name.replace('-', "_"))
}

/// The parameter of a layer's index, which only layers read that keep something: an underscore says that
/// these do not.
pub fn layer_parameter(statements: &TokenStream) -> Ident {
    fn reads(statements: &TokenStream) -> bool {
        statements.clone().into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == "layer",
            TokenTree::Group(group) => reads(&group.stream()),
            _ => false,
        })
    }
    if reads(statements) { format_ident!("layer") } else { format_ident!("_layer") }
}

/// The K/V cache type of a body's layers.
pub fn cache_type(plan: &Plan, heads: KvHeads, formats: KvFormats) -> TokenStream {
    let kv = match formats.same() {
        Some(both) => kept(both),
        None => {
            let [keys, values] = [formats.keys, formats.values].map(kept);
            quote!((#keys, #values))
        }
    };
    let [kv_heads, head_dim, block] = [heads.heads, heads.head_dim, plan.target.quant.kv_block].map(number);
    let cache = cache_name(heads);
    match heads.latent.map(number) {
        None => quote!(#cache<#kv, #kv_heads, #head_dim, #block>),
        // Of one head.
        Some(latent) => quote!(#cache<#kv, #latent, #head_dim, #block>),
    }
}

/// The type of a format of keys or of values.
fn kept(format: Cached) -> TokenStream {
    match format {
        Cached::F32 => quote!(f32),
        Cached::Bf16 => quote!(bf16),
        Cached::F16 => quote!(f16),
        Cached::Fp8 => quote!(Fp8),
        Cached::Nvfp4 => quote!(Nvfp4),
        Cached::Turbo8 => quote!(Turbo8),
        Cached::Turbo4 => quote!(Turbo4),
        Cached::Turbo3 => quote!(Turbo3),
    }
}

/// The name of the type of a K/V cache.
pub fn cache_name(heads: KvHeads) -> Ident {
    format_ident!("{}", if heads.latent.is_none() { "KvCache" } else { "LatentCache" })
}

/// A format's name as part of an identifier.
fn format_name(format: Format) -> String {
    format.name().replace('-', "_")
}

/// The type of a matrix's format on a CPU, which says what its products compute in, and its name as part of
/// an identifier.
pub fn kernels(field: &Field) -> (TokenStream, String) {
    let FieldKind::Matrix { format, scales, compute, .. } = field.kind else {
        unreachable!("a product has a matrix")
    };
    let (kind, name) = match scales {
        None => (variant(format), format_name(format)),
        Some(ScaleForm::Tensor) => ("Fp8Tensor", "fp8_tensor".to_owned()),
        Some(ScaleForm::Block128) => ("Fp8Block128", "fp8_block128".to_owned()),
        Some(ScaleForm::Modelopt | ScaleForm::CompressedTensors) => ("Nvfp4Groups", format_name(format)),
    };
    let kind = format_ident!("{kind}");
    match compute {
        Compute::F32 | Compute::Int8Block32 => (quote!(#kind), name),
        Compute::F16 => (quote!(InF16<#kind>), format!("{name}_in_f16")),
        Compute::Fp8 => (quote!(InE4m3<#kind>), format!("{name}_in_e4m3")),
    }
}

/// The staging buffer of a product's input, one for each format and width.
pub fn staging(plan: &Plan, matrix: FieldId) -> (Ident, TokenStream) {
    let field = plan.field(matrix);
    let FieldKind::Matrix { columns, .. } = field.kind else { unreachable!("a product has a matrix") };
    let ((kind, name), width) = (kernels(field), number(columns));
    (format_ident!("staged_{name}_{columns}"), quote!(Staging<#kind, #width>))
}

pub fn logits_name(plan: &Plan) -> &str {
    &plan.buffer(plan.logits()).name
}
