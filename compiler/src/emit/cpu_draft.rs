//! What `stack.rs` for a CPU has besides where the target drafts.

use super::cpu::{angles, attention, body_ident, cache_type};
use super::phases::{Operands, phase};
use super::{cpu_far, format_ident, number, quote};
use crate::graph::BodyId;
use crate::plan::{DraftPlan, PhaseKind, Plan};
use proc_macro2::{Literal, TokenStream};

/// Fields of the stack.
pub fn fields(plan: &Plan) -> TokenStream {
    let Some(draft) = plan.draft else { return TokenStream::new() };
    let body = &plan.bodies[draft.layer.0];
    let (cache, kind) = (body_ident(body, "_cache"), cache_type(plan, &attends(plan, &draft)));
    let acceptance = acceptance(plan);
    quote!(drafting: Drafting<#acceptance>, #cache: #kind,)
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

fn attends<'a>(plan: &'a Plan, draft: &DraftPlan) -> super::cpu::AttentionShape<'a> {
    attention(&plan.bodies[draft.layer.0]).expect("the spec checks that a draft's layer attends")
}

/// The functions that run a pass.
pub fn passes(plan: &Plan) -> TokenStream {
    let Some(draft) = plan.draft else { return TokenStream::new() };
    let phases = |body: BodyId| -> Vec<TokenStream> {
        let body = &plan.bodies[body.0];
        body.phases.iter().map(|it| phase(plan, body, it, Operands::DRAFT)).collect()
    };
    let angles = angles(&plan.bodies[draft.layer.0], &quote!(self.drafting.batch()));
    let (first, again) = (phases(draft.first), phases(draft.again));
    let (layer, head) = (phases(draft.layer), phases(draft.head));
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
    let cache = body_ident(&plan.bodies[draft.layer.0], "_cache");
    let logits = plan.bodies[draft.head.0].phases.iter().find_map(|phase| match phase.kind {
        PhaseKind::Propose { out, .. } => Some(format_ident!("{}", plan.buffer(out).name)),
        _ => None,
    });
    let take = quote! {
        self.drafting.take(&self.team, &self.batch, &mut self.buffers.#logits, &mut self.outputs);
    };
    let reads = cpu_far::draft_parts(plan);
    let reads = quote!(self.far.begin(step, self.drafting.batch(), #reads););
    let further = (draft.drafts > 1).then(|| {
        let passes = number(draft.drafts);
        quote! {
            for _ in 1..#passes {
                if self.drafting.rows().is_empty() {
                    break;
                }
                #reads
                self.draft_again();
                #take
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
