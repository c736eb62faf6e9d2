//! What `stack.rs` has for blocks on disk: which part of a block each attending layer keeps, and on a CPU the
//! way there.

use super::cpu::body_ident;
use super::{format_ident, number, quote};
use crate::plan::{Plan, PlanBody};
use proc_macro2::{Ident, TokenStream};

/// The bodies with caches, and the numbers of the parts of each: those of layers in the order in which these
/// run, then the draft head's.
fn caches(plan: &Plan) -> Vec<(&PlanBody, Vec<usize>)> {
    let attends = |at: usize| plan.kv_heads(&plan.bodies[at]).is_some();
    let layers = plan.schedule.iter().filter(|(body, layer)| layer.is_some() && attends(body.0));
    let draft = plan.draft.iter().filter_map(|draft| draft.own_layer()).map(|layer| layer.0);
    let order: Vec<usize> = layers.map(|(body, _)| body.0).chain(draft).collect();
    let numbers = |body: usize| (0..order.len()).filter(|at| order[*at] == body).collect::<Vec<_>>();
    let bodies = plan.bodies.iter().enumerate().map(|(at, body)| (body, numbers(at)));
    bodies.filter(|(_, numbers)| !numbers.is_empty()).collect()
}

/// What the table of a body's parts is called.
pub fn table(body: &PlanBody) -> Ident {
    format_ident!("{}", body_ident(body, "_parts").to_string().to_uppercase())
}

/// A table of numbers for each cache.
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

/// The bytes of each part of a block on a CUDA device, by cache, with the numbers of those that have as many.
pub fn parts(plan: &Plan) -> TokenStream {
    let parts = caches(plan).into_iter().filter_map(|(body, _)| {
        let bytes = number(plan.kv_heads(body)?.layout(&plan.target).block_bytes());
        let numbers = table(body);
        Some(quote!((#bytes, &#numbers)))
    });
    quote!(&[#(#parts),*])
}

/// What the functions of the contract do on a CPU.
pub struct Statements {
    /// In `load`, behind the caches.
    pub open: TokenStream,
    /// The body of `send_far`.
    pub send: TokenStream,
    /// The parts that a forward pass attends to.
    pub parts: TokenStream,
}

/// What the functions of the contract do on a CPU.
pub fn statements(plan: &Plan) -> Statements {
    let (caches, drafted) = (caches(plan), usize::from(plan.draft_layer().is_some()));
    let names: Vec<Ident> = caches.iter().map(|(body, _)| body_ident(body, "_cache")).collect();
    let tables: Vec<Ident> = caches.iter().map(|(body, _)| table(body)).collect();
    let last = number(caches.iter().map(|(_, numbers)| numbers.len()).sum::<usize>() - drafted);
    Statements {
        open: quote! {
            let parts: &[(usize, &[usize])] = &[#((#names.part_bytes(), &#tables)),*];
            let far = Far::open(options.far.as_ref(), blocks, SPEC.block_tokens, parts, options.report)?;
            #(let #names = #names.streamed(&far, &#tables);)*
        },
        send: quote! {
            #(self.#names.send_far(blocks, to)?;)*
            Ok(())
        },
        parts: quote!(0..#last),
    }
}

/// The parts that a pass that drafts attends to: the draft head's, or the model's.
pub fn draft_parts(plan: &Plan) -> TokenStream {
    let all = caches(plan).iter().map(|(_, numbers)| numbers.len()).sum::<usize>();
    let first = if plan.draft_layer().is_some() { all - 1 } else { 0 };
    let (first, end) = (number(first), number(all));
    quote!(#first..#end)
}
