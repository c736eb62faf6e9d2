//! The structs that hold weights, and the code that loads them.

use super::names::kernels;
use super::spec::variant;
use super::{float, format_ident, layer_type, number, quote};
use crate::plan::{Field, FieldKind, Packing, Plan, PlanBody, TensorPart};
use crate::spec::types::{NormWeight, RotaryRows, Scales};
use monomorph_formats::Format;
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
        FieldKind::Convolution { channels, taps, .. } => {
            let (channels, taps) = (number(channels), number(taps));
            quote!(Convolution<#channels, #taps>)
        }
        FieldKind::Heads { format, heads, key_dim, value_dim, latent } => {
            let format = format_ident!("{}", variant(format));
            let sizes = [heads, key_dim, value_dim, latent].map(number);
            quote!(LatentHeads<#format, #(#sizes),*>)
        }
        FieldKind::Matrix { rows, columns, packing, experts, .. } => {
            let ((format, _), columns) = (kernels(field), number(columns));
            let rows = number(match packing {
                Packing::Stacked => rows,
                Packing::Gated => rows / 2,
            });
            match (packing, experts.map(number)) {
                (Packing::Stacked, None) => quote!(Matrix<#format, #rows, #columns>),
                (Packing::Gated, None) => quote!(GatedMatrix<#format, #rows, #columns>),
                (Packing::Stacked, Some(experts)) => quote!(Experts<#format, #experts, #rows, #columns>),
                (Packing::Gated, Some(experts)) => quote!(GatedExperts<#format, #experts, #rows, #columns>),
            }
        }
    }
}

/// A struct for the layer weights of each body, and one for the weights outside the layers.
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
    let tensors = fields.iter().flat_map(|field| field.parts.iter().map(|part| tensor(field, part)));
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

/// The local variable of a part's tensor: its model name without the layer.
fn local(part: &TensorPart) -> Ident {
    let name = part.weight.trim_start_matches("layers.{layer}.").replace("{expert}.", "");
    let name = name.replace("{layer}.", "");
    format_ident!("{}", name.replace('.', "_"))
}

/// The statements that find a part's tensor and the scales beside it, or those of each expert. `checkpoint`
/// is in scope, and `layer` in a layer.
fn tensor(field: &Field, part: &TensorPart) -> TokenStream {
    let stored = match field.kind {
        FieldKind::Matrix { format, .. }
        | FieldKind::Vector { format, .. }
        | FieldKind::Convolution { format, .. }
        | FieldKind::Heads { format, .. }
        | FieldKind::Norm { format, .. } => format,
    };
    let local = local(part);
    let found = find(&part.file.name, &part.file_shape, stored);
    let of_each = part.experts.filter(|_| part.file.name.contains("{expert}")).map(number);
    let each = |found: TokenStream| match &of_each {
        None => quote!(#found?),
        Some(experts) => quote!((0..#experts).map(|expert| #found).collect::<Result<Vec<_>, _>>()?),
    };
    let weight = each(found);
    let scales = part.scales.as_ref().map(|scales| {
        let name = companions(part);
        let found = scales.companions.iter().map(|it| find(&it.name, &it.shape, it.format));
        let found = match &of_each {
            None => quote!([#(#found?),*]),
            Some(_) => each(quote!(Ok::<_, LoadError>([#(#found?),*]))),
        };
        quote!(let #name = #found;)
    });
    quote!(let #local = #weight; #scales)
}

/// The local variable of the scales beside a part.
fn companions(part: &TensorPart) -> Ident {
    format_ident!("{}_scales", local(part))
}

/// The expression that finds a tensor, or says why it is not there.
fn find(name: &str, shape: &[usize], format: Format) -> TokenStream {
    let name = if name.contains('{') { quote!(&format!(#name)) } else { quote!(#name) };
    let (shape, format) = (shape.iter().map(|size| number(*size)), super::spec::format(format));
    quote!(checkpoint.expect(#name, &[#(#shape),*], #format))
}

/// The expression that packs a field's tensors; `loader` is in scope.
fn load(plan: &Plan, field: &Field) -> TokenStream {
    let interleaved = plan.target.quant.checkpoint.rotary_rows == RotaryRows::Interleaved;
    let parts: Vec<TokenStream> = field.parts.iter().map(|it| part(it, interleaved)).collect();
    match field.kind {
        FieldKind::Vector { .. } => quote!(Vector::load(loader, &[#(#parts),*])?),
        FieldKind::Convolution { .. } => quote!(Convolution::load(loader, &[#(#parts),*])?),
        FieldKind::Heads { .. } => quote!(LatentHeads::load(loader, &[#(#parts),*])?),
        FieldKind::Norm { eps, .. } => {
            let eps = float(eps);
            quote!(RmsNorm::load(loader, #(&#parts),*, #eps)?)
        }
        FieldKind::Matrix { packing: Packing::Stacked, experts: None, .. } => {
            quote!(Matrix::load(loader, &[#(#parts),*])?)
        }
        FieldKind::Matrix { packing: Packing::Gated, experts: None, .. } => {
            quote!(GatedMatrix::load(loader, #(&[#parts]),*)?)
        }
        FieldKind::Matrix { packing: Packing::Stacked, .. } => quote!(Experts::load(loader, #(&#parts),*)?),
        FieldKind::Matrix { packing: Packing::Gated, .. } => {
            quote!(GatedExperts::load(loader, #(&#parts),*)?)
        }
    }
}

/// A part of a field, or a list with one per expert.
fn part(part: &TensorPart, interleaved: bool) -> TokenStream {
    let local = local(part);
    let view = part.file.view.map(|view| [view.first, view.take, view.of].map(number));
    let scaled =
        part.scales.as_ref().map(|Scales { form, .. }| (format_ident!("{form:?}"), companions(part)));
    let of_all = scaled.as_ref().map(|(form, scales)| quote!(.scaled(ScaleForm::#form, &#scales)));
    // A list's tensor, and its scales beside it.
    let (list, it, of_it) = match &scaled {
        None => (quote!(#local.iter()), quote!(it), None),
        Some((form, scales)) => {
            let of_it = quote!(.scaled(ScaleForm::#form, scales));
            (quote!(#local.iter().zip(&#scales)), quote!((it, scales)), Some(of_it))
        }
    };
    match (part.experts.map(number), view) {
        (Some(experts), Some([first, take, of])) if part.file.stacks_experts(&part.weight) => {
            quote! {
                (0..#experts).map(|expert| Part::of_group(#local, #first, #take, #of, expert)).collect::<Vec<_>>()
            }
        }
        (Some(_), Some([first, take, of])) => {
            quote!(#list.map(|#it| Part::of_groups(*it, #first, #take, #of)#of_it).collect::<Vec<_>>())
        }
        (Some(_), None) => quote!(#list.map(|#it| Part::new(*it)#of_it).collect::<Vec<_>>()),
        (None, Some([first, take, of])) => quote!(Part::of_groups(#local, #first, #take, #of)#of_all),
        (None, None) => match part.rotary_head_dim.filter(|_| interleaved).map(number) {
            Some(head_dim) => quote!(Part::interleaved(#local, #head_dim)#of_all),
            None if part.negative_rates => quote!(Part::new(#local).negative_rates()),
            None => quote!(Part::new(#local)#of_all),
        },
    }
}
