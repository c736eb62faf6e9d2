//! The weights of a CUDA stack: shapes as constants, structs of addresses, and the code that loads them.

use super::names::body_ident;
use super::spec::{format, variant};
use super::{format_ident, layer_type, number, quote};
use crate::graph::RankPart;
use crate::plan::cuda::CudaPlan;
use crate::plan::{Field, FieldId, FieldKind, NO_HEADS, Packing, Plan, PlanBody, TensorPart, packed};
use crate::spec::types::{NormWeight, RotaryRows};
use monomorph_abi::cut::{self, Segment};
use proc_macro2::{Ident, Literal, TokenStream};

/// The shape of each matrix, a struct for the layer weights of each body, one for the weights outside the
/// layers, and the bytes of all.
pub fn structs(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
    let shapes = plan.fields.iter().filter_map(|field| shape(plan, field));
    let layers = plan.bodies.iter().enumerate().filter(|(_, body)| !body.layers.is_empty());
    let layers = layers.map(|(index, body)| {
        let documentation = format!(" Weights of one `{}` layer.", body.name);
        weight_struct(plan, cuda, &layer_type(&body.name), &documentation, Some(index))
    });
    let globals = weight_struct(plan, cuda, &format_ident!("Globals"), " Weights outside the layers.", None);
    let bytes = bodies(plan).map(|body| {
        let (kind, count) = (layer_type(&body.name), number(body.layers.len()));
        quote!(+ #count * #kind::BYTES)
    });
    quote! {
        #(#shapes)*
        #(#layers)*
        #globals

        /// Bytes of all weights on the device.
        const WEIGHT_BYTES: u64 = Globals::BYTES #(#bytes)*;
    }
}

/// The statements that load all weights; `from` and `kernels` are in scope.
pub fn loads(plan: &Plan) -> TokenStream {
    let layers = bodies(plan).map(|body| {
        let (layers, kind) = (body_ident(body, "_layers"), layer_type(&body.name));
        let indices = body.layers.iter().map(|layer| number(*layer));
        quote! {
            let #layers = [#(#kind::load(&mut loader, &kernels, #indices)?),*];
        }
    });
    quote! {
        let mut loader = from.loader(&SPEC)?;
        let globals = Globals::load(&mut loader, &kernels)?;
        #(#layers)*
        loader.run()?;
    }
}

fn bodies(plan: &Plan) -> impl Iterator<Item = &PlanBody> {
    plan.bodies.iter().filter(|body| !body.layers.is_empty())
}

/// The constant of a matrix's shape, prefixed with the body's name if several bodies have layers.
fn shape_name(plan: &Plan, field: &Field) -> Ident {
    let owner = field.owner.filter(|_| bodies(plan).count() > 1);
    let owner = owner.map_or(String::new(), |body| body_ident(&plan.bodies[body.0], "_").to_string());
    format_ident!("{}", format!("{owner}{}", field.name).to_uppercase())
}

fn shape(plan: &Plan, field: &Field) -> Option<TokenStream> {
    let FieldKind::Matrix { format: stored, scales, compute, columns, packing, experts, .. } = field.kind
    else {
        return None;
    };
    let halves = packed::halves(stored, compute);
    let experts = number(experts.unwrap_or(1));
    let (name, stored, columns) = (shape_name(plan, field), format(stored), number(columns));
    let scales = match scales {
        None => quote!(None),
        Some(form) => {
            let form = format_ident!("{form:?}");
            quote!(Some(monomorph_formats::ScaleForm::#form))
        }
    };
    let packing = match packing {
        Packing::Stacked => quote!(Packing::Stacked),
        Packing::Gated => quote!(Packing::Gated),
    };
    let parts = field.parts.iter().map(|part| number(part.rows));
    Some(quote! {
        const #name: MatrixShape = MatrixShape {
            stored: #stored,
            halves: #halves,
            scales: #scales,
            parts: &[#(#parts),*],
            columns: #columns,
            packing: #packing,
            experts: #experts,
        };
    })
}

fn weight_struct(
    plan: &Plan,
    cuda: &CudaPlan,
    name: &Ident,
    documentation: &str,
    owner: Option<usize>,
) -> TokenStream {
    let fields: Vec<(usize, &Field)> =
        plan.fields.iter().enumerate().filter(|(_, it)| it.owner.map(|body| body.0) == owner).collect();
    let names: Vec<Ident> = fields.iter().map(|(_, field)| format_ident!("{}", field.name)).collect();
    let types = fields.iter().map(|(_, field)| match field.kind {
        FieldKind::Matrix { .. } => quote!(Matrix),
        FieldKind::Vector { .. } | FieldKind::Norm { .. } | FieldKind::Convolution { .. } => quote!(Vector),
        FieldKind::Heads { .. } => unreachable!("{NO_HEADS}"),
    });
    let bytes = fields.iter().map(|(_, field)| match field.kind {
        FieldKind::Matrix { .. } => {
            let shape = shape_name(plan, field);
            quote!(#shape.bytes())
        }
        FieldKind::Vector { length, .. } | FieldKind::Norm { length, .. } => {
            let length = number(length);
            quote!(vector_bytes(#length))
        }
        FieldKind::Convolution { channels, taps, .. } => {
            let length = number(channels * taps);
            quote!(vector_bytes(#length))
        }
        FieldKind::Heads { .. } => unreachable!("{NO_HEADS}"),
    });
    let loads = fields.iter().map(|(index, field)| load(plan, cuda, FieldId(*index), field));
    let layer = owner.map(|_| quote!(, layer: usize));
    quote! {
        #[doc = #documentation]
        struct #name { #(#names: #types),* }

        impl #name {
            const BYTES: u64 = #(#bytes)+*;

            fn load(loader: &mut Loader, kernels: &Kernels #layer) -> Result<Self, LoadError> {
                Ok(#name { #(#names: #loads),* })
            }
        }
    }
}

/// The expression that loads a field.
fn load(plan: &Plan, cuda: &CudaPlan, id: FieldId, field: &Field) -> TokenStream {
    let (module, _) = cuda.fills[id.0];
    let module = format_ident!("{}", cuda.modules[module].name);
    let fill = format_ident!("{}", cuda.kernel(cuda.fills[id.0]).name);
    let fill = quote!(&kernels.#module.#fill);
    let parts: Vec<TokenStream> = field.parts.iter().map(|it| part(plan, it)).collect();
    match field.kind {
        FieldKind::Matrix { experts: None, .. } => {
            let shape = shape_name(plan, field);
            quote!(loader.matrix(&#shape, #fill, &[#(#parts),*])?)
        }
        FieldKind::Matrix { experts: Some(_), .. } => {
            let shape = shape_name(plan, field);
            let run = match field.parts.iter().any(|part| part.cut.experts) {
                true => quote!(own_experts),
                false => quote!(experts),
            };
            quote!(loader.#run(&#shape, #fill, |expert| [#(#parts),*])?)
        }
        FieldKind::Vector { format: stored, .. } => {
            let (stored, lengths) = (vector_format(stored), field.parts.iter().map(|it| number(it.rows)));
            quote!(loader.vector(#stored, &[#(#lengths),*], #fill, &[#(#parts),*])?)
        }
        FieldKind::Convolution { format: stored, channels, taps } => {
            let (stored, channels, taps) = (vector_format(stored), number(channels), number(taps));
            quote!(loader.convolution(#stored, #channels, #taps, #fill, #(#parts)*)?)
        }
        FieldKind::Heads { .. } => unreachable!("{NO_HEADS}"),
        FieldKind::Norm { format: stored, length, form, .. } => {
            let (stored, length) = (vector_format(stored), number(length));
            let run = match form {
                NormWeight::Plain => quote!(norm),
                NormWeight::OnePlus => quote!(norm_one_plus),
            };
            quote!(loader.#run(#stored, #length, #fill, #(#parts)*)?)
        }
    }
}

fn vector_format(stored: monomorph_formats::Format) -> TokenStream {
    let name = format_ident!("{}", variant(stored));
    quote!(Format::#name)
}

/// A tensor's name and rows. `layer` is in scope in a layer, and `expert` if experts have a tensor each.
fn part(plan: &Plan, part: &TensorPart) -> TokenStream {
    let spelled = |name: &str| match name.contains('{') {
        true => quote!(format!(#name)),
        false => quote!(#name),
    };
    let checkpoint = &plan.target.quant.checkpoint;
    let name = spelled(&part.file.name);
    let shape = part.file_shape.iter().map(|size| number(*size));
    let view = part.file.view.map(|view| [view.first, view.take, view.of].map(number));
    let rows = match (view, checkpoint.rotary_rows, part.rotary_head_dim) {
        (Some([first, take, of]), ..) if part.file.stacks_experts(&part.weight) => {
            Some(quote!(.of_group(#first, #take, #of, expert)))
        }
        (Some([first, take, of]), ..) => Some(quote!(.of_groups(#first, #take, #of))),
        (None, RotaryRows::Interleaved, Some(head_dim)) => {
            let head_dim = number(head_dim);
            Some(quote!(.interleaved(#head_dim)))
        }
        // The head of a draft with fewer ids: ranks share out the tensor's first rows.
        (None, ..) => first_rows(part).map(|[rows, of]| quote!(.of_groups(0, #rows, #of))),
    };
    let companions = part.scales.iter().flat_map(|scales| &scales.companions).map(|companion| {
        let name = spelled(&companion.name);
        quote!(.scaled_by(#name))
    });
    let cut = rank_part(&part.cut);
    let rates = part.negative_rates.then(|| quote!(.negative_rates()));
    quote!(Part::new(#name, &[#(#shape),*]) #rows #cut #rates #(#companions)*)
}

/// How many rows ranks share out of a tensor that has more, and how many it has.
fn first_rows(part: &TensorPart) -> Option<[Literal; 2]> {
    let [rows, _] = part.file_shape[..] else { return None };
    let taken = cut::whole(&part.cut.rows);
    (0 < taken && taken < rows).then(|| [taken, rows].map(number))
}

/// The part of the tensor that a rank holds, if not all of it.
fn rank_part(cut: &RankPart) -> TokenStream {
    let segments = |segments: &[Segment]| {
        let each = segments.iter().map(|it| {
            let [units, unit] = [it.units, it.unit].map(number);
            quote!(Segment { units: #units, unit: #unit })
        });
        quote!(&[#(#each),*])
    };
    let [rows, columns] = [&cut.rows, &cut.columns].map(|it| (!it.is_empty()).then(|| segments(it)));
    let rows = rows.map(|it| quote!(.cut_rows(#it)));
    let columns = columns.map(|it| quote!(.cut_columns(#it)));
    let first = cut.first_rank_only.then(|| quote!(.first_rank_only()));
    quote!(#rows #columns #first)
}
