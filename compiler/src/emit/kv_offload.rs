//! K/V offload in `stack.rs`: which part of an offloaded block belongs to each attention layer.

use super::names::body_ident;
use super::{format_ident, number, quote};
use crate::plan::{Plan, PlanBody};
use proc_macro2::{Ident, TokenStream};

/// The bodies with caches of which blocks may be on disk, and the numbers of each one's parts: the layers'
/// parts in execution order, then the draft head's, or those of a drafter's layers.
fn caches(plan: &Plan) -> Vec<(&PlanBody, Vec<usize>)> {
    let attends = |at: usize| plan.kv_heads(&plan.bodies[at]).is_some_and(|kept| kept.window.is_none());
    let layers = plan.schedule.iter().filter(|(body, layer)| layer.is_some() && attends(body.0));
    let draft = plan.draft.iter().filter_map(|draft| draft.own_layer()).map(|layer| layer.0);
    let draft = draft.filter(|at| attends(*at));
    let block = plan.block.iter().flat_map(|block| &block.block);
    let block = block.filter(|(_, layer)| layer.is_some()).map(|(body, _)| body.0);
    let order: Vec<usize> = layers.map(|(body, _)| body.0).chain(draft).chain(block).collect();
    let numbers = |body: usize| (0..order.len()).filter(|at| order[*at] == body).collect::<Vec<_>>();
    let bodies = plan.bodies.iter().enumerate().map(|(at, body)| (body, numbers(at)));
    bodies.filter(|(_, numbers)| !numbers.is_empty()).collect()
}

/// Name of the table of a body's parts.
pub fn table(body: &PlanBody) -> Ident {
    format_ident!("{}", body_ident(body, "_parts").to_string().to_uppercase())
}

/// The table of part numbers of each cache.
pub fn numbers(plan: &Plan) -> TokenStream {
    let tables = caches(plan).into_iter().map(|(body, numbers)| {
        let (name, count) = (table(body), number(numbers.len()));
        let numbers = numbers.into_iter().map(number);
        let documentation = format!(" Which part of a block on disk each `{}` layer keeps.", body.name);
        quote! {
            #[doc = #documentation]
            static #name: [usize; #count] = [#(#numbers),*];
        }
    });
    quote!(#(#tables)*)
}

/// The bytes of a part on a CUDA device, for each cache, with the numbers of the parts of that size.
pub fn parts(plan: &Plan) -> TokenStream {
    let parts = caches(plan).into_iter().filter_map(|(body, _)| {
        let bytes = number(plan.kv_layout(body)?.block_bytes());
        let numbers = table(body);
        Some(quote!((#bytes, &#numbers)))
    });
    quote!(&[#(#parts),*])
}

/// Number of parts of the model's own layers, which come first.
pub fn parts_of_model(plan: &Plan) -> usize {
    let all: usize = caches(plan).iter().map(|(_, numbers)| numbers.len()).sum();
    all - draft_part(plan)
}

/// How many parts a draft head has: one, unless its layer gives back blocks behind a window. A drafter of
/// blocks has one a layer.
fn draft_part(plan: &Plan) -> usize {
    if let Some(block) = &plan.block {
        return block.block.iter().filter(|(_, layer)| layer.is_some()).count();
    }
    usize::from(plan.draft_layer().is_some_and(|layer| plan.window(layer).is_none()))
}

/// The parts that a draft pass attends to: the draft head's, or the model's.
pub fn draft_parts(plan: &Plan) -> TokenStream {
    let all = caches(plan).iter().map(|(_, numbers)| numbers.len()).sum::<usize>();
    let own = plan.draft_layer().is_some() || plan.block.is_some();
    let first = if own { all - draft_part(plan) } else { 0 };
    let (first, end) = (number(first), number(all));
    quote!(#first..#end)
}
