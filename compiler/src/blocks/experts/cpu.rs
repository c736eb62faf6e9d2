//! A mixture's CPU calls and their scratch buffers.

use super::graph::Weighing;
use super::phases::with;
use super::{Choice, Chosen, Combine, Experts, Judge, SharedUp};
use crate::blocks::products::gated;
use crate::emit::call::{Call, activation};
use crate::emit::names::{Working, kernels};
use crate::emit::{float, number};
use crate::plan::{FieldId, FieldKind, Plan};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

impl Experts {
    pub(super) fn call(&self, it: &Call) -> TokenStream {
        let (rows, experts) = (it.rows(self.x), number(it.experts(self.matrix)));
        let [x, logits, routing, out] = [self.x, self.logits, self.routing, self.out].map(|id| it.buffer(id));
        let norm = it.field(self.norm);
        let to_logits = |router: FieldId, epilogue: TokenStream| {
            let (staged, router) = (it.staged(router), it.field(router));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #router, #epilogue);)
        };
        let judged = match self.weigher {
            None => to_logits(self.router, quote!(Store(#logits))),
            Some(weigher) => {
                let router = to_logits(self.router, quote!(StoreAt::<0, _>(#logits)));
                let weigher = to_logits(weigher, quote!(StoreAt::<#experts, _>(#logits)));
                quote!(#router #weigher)
            }
        };
        let function = activation(self.activation);
        let route = route(it, self.choice, &experts, [&rows, &logits, &routing]);
        let common = self.shared.map(|SharedUp { matrix, up, out, .. }| {
            if self.gated {
                return gated(it, (self.x, self.norm), (matrix, up), None, self.activation, out);
            }
            let (staged, matrix, out) = (it.staged(matrix), it.field(matrix), it.buffer(out));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, Activated(#function, #out));)
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
        let inner =
            inner(it, [&rows, &read, &normed, &routing, &function, &out], self.gated, self.matrix, self.up);
        quote!(#judged #route #common #latent #inner)
    }

    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        with(self.matrix, self.up).map(|it| gathered(plan, it, self.active)).collect()
    }
}

/// The products that make the experts' inner rows: one, or two where `up` is a matrix of its own.
fn inner(
    it: &Call,
    [rows, x, norm, routing, activation, out]: [&TokenStream; 6],
    gated: bool,
    matrix: FieldId,
    up: Option<FieldId>,
) -> TokenStream {
    let product = |run: TokenStream, matrix: FieldId, epilogue: TokenStream| {
        let (gathered, _) = gathering(it.plan, matrix);
        let (staged, matrix) = (it.staged(matrix), it.field(matrix));
        quote! {
            #run(lane, #rows, #x, #norm, #staged, #routing, #matrix, &self.buffers.#gathered, #epilogue);
        }
    };
    let Some(up) = up else {
        return match gated {
            true => product(quote!(expert_gated), matrix, quote!(Gated(#activation, #out))),
            false => product(quote!(expert_up), matrix, quote!(Activated(#activation, #out))),
        };
    };
    let gate = product(quote!(expert_up), matrix, quote!(Activated(#activation, #out)));
    let up = product(quote!(expert_up), up, quote!(Multiply(#out)));
    quote!(#gate #up)
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
        let (rows, norm, activation) = (it.rows(self.x), it.field(self.norm), activation(self.activation));
        let [x, routing, out] = [self.x, self.routing, self.out].map(|id| it.buffer(id));
        inner(it, [&rows, &x, &norm, &routing, &activation, &out], true, self.matrix, self.up)
    }

    pub(super) fn working(&self, plan: &Plan) -> Vec<Working> {
        with(self.matrix, self.up).map(|it| gathered(plan, it, self.active)).collect()
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
