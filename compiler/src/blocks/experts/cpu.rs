//! A mixture's CPU calls and their scratch buffers.

use super::graph::Weighing;
use super::{Choice, Chosen, Combine, Experts, Judge};
use crate::emit::call::{Call, activation};
use crate::emit::names::{Working, kernels};
use crate::emit::{float, number};
use crate::plan::{FieldId, FieldKind, Plan};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

impl Experts {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, experts) = (it.rows(self.x), number(it.experts(self.matrix)));
        let (router_staged, staged_x) = (it.staged(self.router), it.staged(self.matrix));
        let [x, logits, routing, out] = [self.x, self.logits, self.routing, self.out].map(|id| it.buffer(id));
        let (norm, router, matrix) = (it.field(self.norm), it.field(self.router), it.field(self.matrix));
        let activation = activation(self.activation);
        let route = route(it, self.choice, &experts, [&rows, &logits, &routing]);
        let common = self.shared.map(|shared| {
            let (staged, matrix) = (it.staged(shared.matrix), it.field(shared.matrix));
            let out = it.buffer(shared.out);
            match self.gated {
                true => quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, Gated(#activation, #out));),
                false => {
                    quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, Activated(#activation, #out));)
                }
            }
        });
        let latent = self.latent.map(|latent| {
            let (staged, matrix) = (it.staged(latent.matrix), it.field(latent.matrix));
            let out = it.buffer(latent.out);
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, Store(#out));)
        });
        // What the experts read, and the norm before.
        let (read, normed) = match self.latent {
            None => (x.clone(), norm.clone()),
            Some(latent) => (it.buffer(latent.out), quote!(&NoNorm)),
        };
        let (run, epilogue) = match self.gated {
            true => (quote!(expert_gated), quote!(Gated)),
            false => (quote!(expert_up), quote!(Activated)),
        };
        let (gathered, _) = gathering(it.plan, self.matrix);
        quote! {
            norm_linear(lane, #rows, #x, #norm, #router_staged, #router, Store(#logits));
            #route
            #common
            #latent
            #run(
                lane, #rows, #read, #normed, #staged_x, #routing, #matrix, &self.buffers.#gathered,
                #epilogue(#activation, #out),
            );
        }
    }

    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        vec![gathered(plan, self.matrix, self.active)]
    }
}

impl Judge {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let FieldKind::Matrix { rows: experts, .. } = it.plan.field(self.router).kind else {
            unreachable!("a router has a matrix")
        };
        let (experts, factor) = (number(experts), float(self.factor));
        let (rows, staged) = (it.rows(self.x), it.staged(self.router));
        let [x, logits, routing] = [self.x, self.logits, self.routing].map(|id| it.buffer(id));
        let (norm, router) = (it.field(self.norm), it.field(self.router));
        let route = route(it, self.choice, &experts, [&rows, &logits, &routing]);
        quote! {
            norm_linear(lane, #rows, #x, #norm, #staged, #router, Store(#logits));
            scale(lane, #rows, #factor, #logits);
            #route
        }
    }
}

impl Chosen {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, staged) = (it.rows(self.x), it.staged(self.matrix));
        let [x, routing, out] = [self.x, self.routing, self.out].map(|id| it.buffer(id));
        let (norm, matrix, activation) =
            (it.field(self.norm), it.field(self.matrix), activation(self.activation));
        let (gathered, _) = gathering(it.plan, self.matrix);
        quote! {
            expert_gated(
                lane, #rows, #x, #norm, #staged, #routing, #matrix, &self.buffers.#gathered,
                Gated(#activation, #out),
            );
        }
    }

    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        vec![gathered(plan, self.matrix, self.active)]
    }
}

/// The calls that choose experts.
fn route(
    it: &Call,
    Choice { weighing, scales }: Choice,
    experts: &Literal,
    [rows, logits, routing]: [&TokenStream; 3],
) -> TokenStream {
    let chosen = match weighing {
        Weighing::Softmax { renormalise } => {
            quote!(route::<#experts, _, _>(lane, #rows, #logits, #renormalise, #routing);)
        }
        Weighing::Scores { correction, scale } => {
            let (correction, scale) = (it.field(correction), float(scale));
            quote!(route_by_scores(lane, #rows, #logits, #correction, #scale, #routing);)
        }
    };
    let scaled = scales.map(|scales| {
        let scales = it.field(scales);
        quote!(scale_chosen(lane, #rows, #scales, #routing);)
    });
    quote!(#chosen #scaled)
}

impl Combine {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, experts) = (it.rows(self.residual), number(it.experts(self.matrix)));
        let common = self.shared.map(|shared| {
            let (x, product) = (it.buffer(shared.inner), it.buffer(shared.product));
            let (staged, matrix) = (it.staged(shared.matrix), it.field(shared.matrix));
            quote!(linear(lane, #rows, #x, #staged, #matrix, Store(#product));)
        });
        let term = match self.shared {
            None => quote!(NoShared),
            Some(shared) => {
                let (output, logits) = (it.buffer(shared.product), it.buffer(shared.logits));
                quote!(Shared { output: #output, logits: #logits, gate: #experts })
            }
        };
        let (gathered, _) = gathering(it.plan, self.matrix);
        let [inner, routing, residual] = [self.inner, self.routing, self.residual].map(|id| it.buffer(id));
        let matrix = it.field(self.matrix);
        if !self.adds {
            return quote! {
                expert_sum(
                    lane, #rows, #inner, #routing, #matrix, &self.buffers.#gathered,
                    &self.buffers.expert_products, #residual,
                );
            };
        }
        quote! {
            #common
            expert_down(
                lane, #rows, #inner, #routing, #matrix, &self.buffers.#gathered, &self.buffers.expert_products,
                #term, #residual,
            );
        }
    }

    /// Gathered rows, and the products of the experts' down matrices before they are summed.
    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        let width = number(plan.buffer(self.residual).width);
        let slots = number(self.active * plan.buckets.tokens);
        vec![
            gathered(plan, self.matrix, self.active),
            (format_ident!("expert_products"), quote!(Rows<#width>), quote!(Rows::new(#slots))),
        ]
    }
}

fn gathered(plan: &Plan, matrix: FieldId, active: usize) -> Working {
    let slots = number(active * plan.buckets.tokens);
    let (name, kind) = gathering(plan, matrix);
    (name, kind, quote!(ExpertScratch::new(lanes, #slots)))
}

/// Rows gathered for an expert: one scratch buffer for each format and width.
fn gathering(plan: &Plan, matrix: FieldId) -> (Ident, TokenStream) {
    let field = plan.field(matrix);
    let FieldKind::Matrix { columns, .. } = field.kind else { unreachable!("a product has a matrix") };
    let ((kind, name), width) = (kernels(field), number(columns));
    (format_ident!("gathered_{name}_{columns}"), quote!(ExpertScratch<#kind, #width>))
}
