//! What `stack.rs` for a CPU has besides where the target drafts.

use super::call::{Place, phase};
use super::cpu::{angles, body_ident, cache_type, layer_loop};
use super::{far, format_ident, layer_type, number, quote};
use crate::blocks;
use crate::graph::BodyId;
use crate::plan::{DraftPlan, PhaseKind, Plan, PlanBody};
use proc_macro2::{Literal, TokenStream};

/// Fields of the stack.
pub fn fields(plan: &Plan) -> TokenStream {
    if plan.draft.is_none() {
        return TokenStream::new();
    }
    let acceptance = acceptance(plan);
    let cache = plan.draft_layer().map(|layer| {
        let heads = plan.kv_heads(layer).expect("the spec checks that a draft's layer attends");
        let (cache, kind) = (body_ident(layer, "_cache"), cache_type(plan, heads));
        quote!(#cache: #kind,)
    });
    quote!(drafting: Drafting<#acceptance>, #cache)
}

/// Which drafts hold.
fn acceptance(plan: &Plan) -> TokenStream {
    match plan.target.draft.and_then(|draft| draft.forced_acceptance) {
        None => quote!(Verify),
        Some(rate) => {
            let threshold = Literal::u64_unsuffixed((rate * f64::from(1 << 24)) as u64);
            quote!(Forced<#threshold>)
        }
    }
}

/// The functions that run a pass.
pub fn passes(plan: &Plan) -> TokenStream {
    match plan.draft.map(|draft| (draft, draft.own_layer())) {
        None => TokenStream::new(),
        Some((draft, Some(layer))) => of_head(plan, &draft, layer),
        Some((draft, None)) => of_layers(plan, &draft),
    }
}

/// The phases of a body in a pass.
fn phases(plan: &Plan, body: &PlanBody, operands: Place) -> Vec<TokenStream> {
    body.phases.iter().map(|it| phase(plan, body, it, operands)).collect()
}

/// A pass of the model's layers that attend. Bodies of others are not named, so that nothing here comes to
/// their state.
fn of_layers(plan: &Plan, draft: &DraftPlan) -> TokenStream {
    let order: Vec<usize> = plan.attending().map(|body| body.0).collect();
    let [embed, head] =
        [draft.first, draft.head].map(|body| phases(plan, &plan.bodies[body.0], Place::DRAFT));
    let attend: Vec<&PlanBody> =
        plan.bodies.iter().enumerate().filter(|(at, _)| order.contains(at)).map(|(_, body)| body).collect();
    let angles = attend.iter().filter_map(|body| angles(body, &quote!(self.drafting.batch())));
    let run = |body: &PlanBody| format_ident!("draft_{}", body_ident(body, "_layer"));
    let layers = layer_loop(plan, &order, |body| {
        let run = run(body);
        quote!(self.#run(lane, layer, weights);)
    });
    let functions = attend.iter().map(|body| {
        let (run, kind) = (run(body), layer_type(&body.name));
        let phases = phases(plan, body, Place::DRAFT_LAYER);
        let documentation = format!(" One `{}` layer of a pass that drafts.", body.name);
        quote! {
            #[doc = #documentation]
            fn #run(&self, lane: &Lane, layer: usize, weights: &#kind) {
                #(#phases)*
            }
        }
    });
    quote! {
        /// A pass of the model without its recurrent layers.
        fn draft(&self) {
            let rows = self.drafting.rows();
            self.team.run(|lane| {
                #(#embed)*
                #(#angles)*
                #layers
                #(#head)*
            });
        }

        #(#functions)*
    }
}

/// The passes of a draft head with this layer.
fn of_head(plan: &Plan, draft: &DraftPlan, layer: BodyId) -> TokenStream {
    let phases = |body: BodyId| phases(plan, &plan.bodies[body.0], Place::DRAFT);
    let angles = angles(&plan.bodies[layer.0], &quote!(self.drafting.batch()));
    let (first, again) = (phases(draft.first), phases(draft.again));
    let (layer, head) = (phases(layer), phases(draft.head));
    let mut functions = quote! {
        /// The pass of the draft head that goes on from the model's residual stream.
        fn draft_first(&self) {
            self.team.run(|lane| {
                #(#first)*
                self.draft(lane);
            });
        }

        /// The layer and the head of a pass; the residual stream is the draft's.
        fn draft(&self, lane: &Lane) {
            let (layer, rows) = (0, self.drafting.rows());
            #angles
            #(#layer)*
            #(#head)*
        }
    };
    if draft.drafts > 1 {
        functions.extend(quote! {
            /// A pass that goes on from the rows whose logits the one before was wanted for.
            fn draft_again(&self) {
                self.team.run(|lane| {
                    #(#again)*
                    self.draft(lane);
                });
            }
        });
    }
    functions
}

/// What the functions of the contract do besides.
#[derive(Default)]
pub struct Statements {
    /// In `load`, where `limits` and `blocks` are known.
    pub load: TokenStream,
    /// How the batch made there is changed.
    pub batch: TokenStream,
    /// The fields made there.
    pub names: TokenStream,
    /// In `submit`, behind the logits.
    pub submit: TokenStream,
}

/// What the functions of the contract do besides.
pub fn statements(plan: &Plan) -> Statements {
    let Some(draft) = plan.draft else {
        let given = plan.drafts() > 0;
        let submit = if given { quote!(self.outputs.verify(step);) } else { TokenStream::new() };
        return Statements { submit, ..Statements::default() };
    };
    let logits = plan.bodies[draft.head.0].phases.iter().find_map(|phase| match phase.kind {
        PhaseKind::Propose(blocks::Propose { out, .. }) => Some(format_ident!("{}", plan.buffer(out).name)),
        _ => None,
    });
    let take = quote! {
        self.drafting.take(&self.team, &self.batch, &mut self.buffers.#logits, &mut self.outputs);
    };
    let reads = far::draft_parts(plan);
    let reads = quote!(self.far.begin(step, self.drafting.batch(), #reads););
    let passes = number(draft.drafts);
    // One more pass, where a sequence is drafted for.
    let pass = |run: TokenStream| {
        quote! {
            if self.drafting.rows().is_empty() {
                break;
            }
            #reads
            #run
            #take
        }
    };
    let Some(layer) = plan.draft_layer() else {
        let pass = pass(quote!(self.draft();));
        return Statements {
            load: quote!(let drafting = Drafting::new(limits);),
            batch: quote!(.ahead(SPEC.drafts())),
            names: quote!(drafting,),
            submit: quote! {
                self.drafting.begin_alone(step, &self.batch, &mut self.outputs);
                for _ in 0..#passes {
                    #pass
                }
            },
        };
    };
    let cache = body_ident(layer, "_cache");
    let further = (draft.drafts > 1).then(|| {
        let pass = pass(quote!(self.draft_again();));
        quote! {
            for _ in 1..#passes {
                #pass
            }
        }
    });
    Statements {
        load: quote! {
            let drafting = Drafting::new(limits);
            let #cache = KvCache::new(1, blocks)?;
        },
        batch: quote!(.ahead(SPEC.drafts() - 1)),
        names: quote!(drafting, #cache,),
        submit: quote! {
            self.drafting.begin(step, &self.batch, &mut self.outputs);
            #reads
            self.draft_first();
            #take
            #further
        },
    }
}
