//! The parts of a CPU's `stack.rs` that only a drafting target has.

use super::call::{WeightOwner, phase};
use super::layers::{angles, layer_loop, run_layer};
use super::{format_ident, kv_offload, number, quote};
use crate::graph::BodyId;
use crate::plan::{BlockPlan, Buffer, DraftPlan, Plan, PlanBody};
use proc_macro2::{Literal, TokenStream};

/// The kind of drafting that follows a step's logits.
pub fn kind(plan: &Plan) -> TokenStream {
    if let Some(block) = &plan.block {
        let (acceptance, width) = (acceptance(plan), number(drafted(plan, block.head()).width));
        return quote!(BlockDrafting<#acceptance, #width>);
    }
    let Some(draft) = plan.draft else { return quote!(()) };
    let (acceptance, width) = (acceptance(plan), number(drafted(plan, draft.head).width));
    quote!(Drafting<#acceptance, #width>)
}

/// The acceptance of drafts.
fn acceptance(plan: &Plan) -> TokenStream {
    match plan.target.draft.and_then(|draft| draft.forced_acceptance) {
        None => quote!(Verify),
        Some(rate) => {
            let threshold = Literal::u64_unsuffixed((rate * f64::from(1 << 24)) as u64);
            quote!(Forced<#threshold>)
        }
    }
}

/// The buffer of the logits that a pass computes.
fn drafted(plan: &Plan, head: BodyId) -> &Buffer {
    let last = plan.bodies[head.0].phases.last().expect("a head ends with its logits");
    plan.buffer(last.kind.result())
}

/// The functions of the draft passes.
pub fn passes(plan: &Plan) -> TokenStream {
    if let Some(block) = &plan.block {
        return of_blocks(plan, block);
    }
    let Some(draft) = plan.draft else { return TokenStream::new() };
    let of_head = draft.own_layer().is_some();
    let statements = match draft.own_layer() {
        Some(layer) => of_head_layer(plan, &draft, layer),
        None => of_layers(plan, &draft),
    };
    let buffer = drafted(plan, draft.head);
    let (logits, width) = (format_ident!("{}", buffer.name), number(buffer.width));
    let parts = kv_offload::draft_parts(plan);
    let Statements { first, again, shared } = statements;
    let again = again.map(|again| {
        quote! {
            fn again(&self, lane: &Lane, batch: &Batch, rows: &[u32]) {
                #again
            }
        }
    });
    quote! {
        impl Passes<#width> for Stack {
            const HEAD: bool = #of_head;
            const PARTS: Range<usize> = #parts;

            fn first(&self, lane: &Lane, batch: &Batch, rows: &[u32]) {
                #first
            }

            #again

            fn drafted(&mut self) -> &mut Rows<#width> {
                &mut self.buffers.#logits
            }
        }

        #shared
    }
}

/// The passes of a drafter of blocks.
fn of_blocks(plan: &Plan, block: &BlockPlan) -> TokenStream {
    let buffer = drafted(plan, block.head());
    let (logits, width) = (format_ident!("{}", buffer.name), number(buffer.width));
    let (mask, parts) = (Literal::u32_unsuffixed(block.mask), kv_offload::draft_parts(plan));
    let selected = number(plan.buckets.sequences);
    let run = |schedule: &[(BodyId, Option<usize>)]| {
        let layers: Vec<usize> =
            schedule.iter().filter(|(_, layer)| layer.is_some()).map(|(body, _)| body.0).collect();
        let bodies = plan.bodies.iter().enumerate().filter(|(at, _)| layers.contains(at));
        let angles = bodies.filter_map(|(_, body): (usize, &PlanBody)| angles(body));
        let (first, layers) = (phases(plan, schedule[0].0), layer_loop(plan, &layers, run_layer));
        quote! {
            #(#first)*
            #(#angles)*
            #layers
        }
    };
    let (context, block_pass, head) = (run(&block.context), run(&block.block), phases(plan, block.head()));
    quote! {
        impl BlockPasses<#width> for Stack {
            const MASK: u32 = #mask;
            const PARTS: Range<usize> = #parts;
            const SELECTED: usize = #selected;

            fn context(&self, lane: &Lane, batch: &Batch) {
                #context
            }

            fn block(&self, lane: &Lane, batch: &Batch) {
                #block_pass
            }

            fn propose(&self, lane: &Lane, rows: &[u32]) {
                #(#head)*
            }

            fn drafted(&mut self) -> &mut Rows<#width> {
                &mut self.buffers.#logits
            }
        }
    }
}

/// The statements of the draft passes.
struct Statements {
    first: TokenStream,
    /// Statements of all passes but the first, if they differ.
    again: Option<TokenStream>,
    /// Functions that both call.
    shared: Option<TokenStream>,
}

/// The phase calls of a body outside the model's layers.
fn phases(plan: &Plan, body: BodyId) -> Vec<TokenStream> {
    let body = &plan.bodies[body.0];
    body.phases.iter().map(|it| phase(plan, body, it, WeightOwner::Stack)).collect()
}

/// A pass through the model's attention layers. Other bodies are not named, so nothing here can reach their
/// state.
fn of_layers(plan: &Plan, draft: &DraftPlan) -> Statements {
    let order: Vec<usize> = plan.attending().map(|body| body.0).collect();
    let attend = plan.bodies.iter().enumerate().filter(|(at, _)| order.contains(at));
    let angles = attend.filter_map(|(_, body): (usize, &PlanBody)| angles(body));
    let [embed, head] = [draft.first, draft.head].map(|body| phases(plan, body));
    let layers = layer_loop(plan, &order, run_layer);
    let first = quote! {
        #(#embed)*
        #(#angles)*
        #layers
        #(#head)*
    };
    Statements { first, again: None, shared: None }
}

/// The passes of a draft head that has this layer.
fn of_head_layer(plan: &Plan, draft: &DraftPlan, layer: BodyId) -> Statements {
    let angles = angles(&plan.bodies[layer.0]);
    let [first, again, layer, head] =
        [draft.first, draft.again, layer, draft.head].map(|body| phases(plan, body));
    let to_logits = quote!(self.draft(lane, batch, rows););
    Statements {
        first: quote!(#(#first)* #to_logits),
        again: (draft.drafts > 1).then(|| quote!(#(#again)* #to_logits)),
        shared: Some(quote! {
            impl Stack {
                /// The layer and the head of a pass; the residual stream is the draft's.
                fn draft(&self, lane: &Lane, batch: &Batch, rows: &[u32]) {
                    let layer = 0;
                    #angles
                    #(#layer)*
                    #(#head)*
                }
            }
        }),
    }
}
