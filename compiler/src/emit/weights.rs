//! The structs that hold weights, and the code that loads them.

use super::spec::{format, variant};
use super::{float, format_ident, layer_type, number, quote};
use crate::plan::{Field, FieldKind, Packing, Part, Plan, PlanBody};
use crate::spec::types::{NormWeight, RotaryRows};
use proc_macro2::{Ident, TokenStream};

/// A field's Rust type.
fn field_type(field: &Field) -> TokenStream {
    match field.kind {
        FieldKind::Vector { length, .. } => {
            let length = number(length);
            quote!(Vector<#length>)
        }
        FieldKind::Norm { length, form, .. } => {
            let length = number(length);
            let form = match form {
                NormWeight::Plain => quote!(Plain),
                NormWeight::OnePlus => quote!(OnePlus),
            };
            quote!(RmsNorm<#form, #length>)
        }
        FieldKind::Matrix { format, rows, columns, packing, .. } => {
            let (format, columns) = (format_ident!("{}", variant(format)), number(columns));
            match packing {
                Packing::Stacked => {
                    let rows = number(rows);
                    quote!(Matrix<#format, #rows, #columns>)
                }
                Packing::Gated => {
                    let width = number(rows / 2);
                    quote!(GatedMatrix<#format, #width, #columns>)
                }
            }
        }
    }
}

/// A struct for the weights of a layer of each body, and one for those outside the layers.
pub fn structs(plan: &Plan) -> TokenStream {
    let layers = plan.bodies.iter().enumerate().filter(|(_, body)| !body.layers.is_empty());
    let layers = layers.map(|(index, body)| layer_struct(plan, index, body));
    let globals: Vec<&Field> = plan.fields.iter().filter(|field| field.owner.is_none()).collect();
    let globals = weight_struct(
        plan,
        &format_ident!("Globals"),
        "Weights outside the layers.",
        &globals,
        &quote!(loader: &Loader, checkpoint: &Checkpoint),
    );
    quote!(#(#layers)* #globals)
}

fn layer_struct(plan: &Plan, index: usize, body: &PlanBody) -> TokenStream {
    let fields = plan.fields.iter().filter(|field| field.owner.is_some_and(|owner| owner.0 == index));
    weight_struct(
        plan,
        &layer_type(&body.name),
        &format!("Weights of one `{}` layer.", body.name),
        &fields.collect::<Vec<_>>(),
        &quote!(loader: &Loader, checkpoint: &Checkpoint, layer: usize),
    )
}

fn weight_struct(
    plan: &Plan,
    name: &Ident,
    documentation: &str,
    fields: &[&Field],
    parameters: &TokenStream,
) -> TokenStream {
    let documentation = format!(" {documentation}");
    let names: Vec<Ident> = fields.iter().map(|field| format_ident!("{}", field.name)).collect();
    let types = fields.iter().map(|field| field_type(field));
    let tensors = fields.iter().flat_map(|field| field.parts.iter().map(|part| tensor(plan, field, part)));
    let loads = fields.iter().map(|field| load(plan, field));
    quote! {
        #[doc = #documentation]
        struct #name { #(#names: #types),* }

        impl #name {
            fn load(#parameters) -> Result<Self, LoadError> {
                #(#tensors)*
                Ok(#name { #(#names: #loads),* })
            }
        }
    }
}

/// The local variable a part's tensor is bound to: its model name without the layer.
fn local(part: &Part) -> Ident {
    format_ident!("{}", part.weight.trim_start_matches("layers.{layer}.").replace('.', "_"))
}

/// The statement that finds a part's tensor; `checkpoint` and, in a layer, `layer` are in scope.
fn tensor(plan: &Plan, field: &Field, part: &Part) -> TokenStream {
    let name = &plan.target.quant.checkpoint.names[&part.weight];
    let name = if name.contains("{layer}") { quote!(&format!(#name)) } else { quote!(#name) };
    let (rows, columns) = (number(part.rows), number(part.columns));
    let (shape, stored) = match field.kind {
        FieldKind::Vector { format, .. } | FieldKind::Norm { format, .. } => (quote!(&[#rows]), format),
        FieldKind::Matrix { format, .. } => (quote!(&[#rows, #columns]), format),
    };
    let (local, stored) = (local(part), format(stored));
    quote!(let #local = checkpoint.expect(#name, #shape, #stored)?;)
}

/// The expression that packs a field's tensors; `loader` is in scope.
fn load(plan: &Plan, field: &Field) -> TokenStream {
    let parts = field.parts.iter().map(|part| {
        let local = local(part);
        match (plan.target.quant.checkpoint.rotary_rows, part.rotary_head_dim) {
            (RotaryRows::Interleaved, Some(head_dim)) => {
                let head_dim = number(head_dim);
                quote!(Part::interleaved(#local, #head_dim))
            }
            _ => quote!(Part::new(#local)),
        }
    });
    match field.kind {
        FieldKind::Vector { .. } => quote!(Vector::load(loader, &[#(#parts),*])?),
        FieldKind::Norm { eps, .. } => {
            let eps = float(eps);
            quote!(RmsNorm::load(loader, #(&#parts),*, #eps)?)
        }
        FieldKind::Matrix { packing: Packing::Stacked, .. } => quote!(Matrix::load(loader, &[#(#parts),*])?),
        FieldKind::Matrix { packing: Packing::Gated, .. } => {
            quote!(GatedMatrix::load(loader, #(&[#parts]),*)?)
        }
    }
}
