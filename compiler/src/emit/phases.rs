//! One phase as the call of its function.

use super::cpu::{body_ident, gathering, staging};
use super::{float, format_ident, number, quote};
use crate::blocks;
use crate::graph::Rows;
use crate::plan::{BufferId, FieldId, FieldKind, Phase, PhaseKind, Plan, PlanBody};
use crate::spec::types::{Activation, RotaryPairs};
use proc_macro2::TokenStream;

/// Where a phase's weights and rows are found.
#[derive(Clone, Copy)]
pub struct Operands {
    in_layer: bool,
    in_draft: bool,
}

impl Operands {
    /// Weights in the layer's struct, called `weights`.
    pub const LAYER: Operands = Operands { in_layer: true, in_draft: false };
    /// Weights in the stack's.
    pub const GLOBAL: Operands = Operands { in_layer: false, in_draft: false };
    /// Weights in the stack's; rows are those of a pass that drafts.
    pub const DRAFT: Operands = Operands { in_layer: false, in_draft: true };
    /// Weights in the layer's struct; rows are those of a pass that drafts.
    pub const DRAFT_LAYER: Operands = Operands { in_layer: true, in_draft: true };
}

/// The call; `self`, `lane` and, in a layer, `layer` and `weights` are in scope.
pub fn phase(plan: &Plan, body: &PlanBody, phase: &Phase, operands: Operands) -> TokenStream {
    let buffer = |id: BufferId| {
        let name = format_ident!("{}", plan.buffer(id).name);
        quote!(&self.buffers.#name)
    };
    let field = |id: FieldId| {
        let name = format_ident!("{}", plan.field(id).name);
        if operands.in_layer { quote!(&weights.#name) } else { quote!(&self.globals.#name) }
    };
    let batch = if operands.in_draft { quote!(self.drafting.batch()) } else { quote!(&self.batch) };
    let count = |id: BufferId| match plan.buffer(id).rows {
        Rows::Tokens if operands.in_draft => quote!(self.drafting.batch().tokens()),
        Rows::Tokens => quote!(self.batch.tokens()),
        Rows::Outputs => quote!(rows.len()),
        Rows::Slots(_) => unreachable!("phases count tokens"),
    };
    let staged = |matrix: FieldId| {
        let (name, _) = staging(plan, matrix);
        quote!(&self.buffers.#name)
    };
    match &phase.kind {
        PhaseKind::Embed(blocks::Embed { table, out }) => {
            let (table, out) = (field(*table), buffer(*out));
            quote!(embed(lane, #batch, #table, #out);)
        }
        PhaseKind::Project(blocks::Project { x, norm, matrix, bias, out }) => {
            let epilogue = biased(quote!(Store), buffer(*out), bias.map(field));
            let (rows, x, norm) = (count(*out), buffer(*x), field(*norm));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Accumulate(blocks::Accumulate { x, matrix, bias, residual }) => {
            let epilogue = biased(quote!(Add), buffer(*residual), bias.map(field));
            let (rows, x) = (count(*x), buffer(*x));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(linear(lane, #rows, #x, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Gated(blocks::Gated { x, norm, matrix, biases, activation, out }) => {
            let activation = self::activation(*activation);
            let out_buffer = buffer(*out);
            let epilogue = quote!(Gated(#activation, #out_buffer));
            let epilogue = match biases {
                None => epilogue,
                Some((gate, up)) => {
                    let (gate, up) = (field(*gate), field(*up));
                    quote!(GatedBias(#gate, #up, #epilogue))
                }
            };
            let (rows, x, norm) = (count(*x), buffer(*x), field(*norm));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, #epilogue);)
        }
        PhaseKind::Attention(blocks::Attention { qkv, q_norm, k_norm, frequencies, scale, out, .. }) => {
            let norm = |id: &Option<FieldId>| id.map_or_else(|| quote!(&NoNorm), field);
            let (qkv, q_norm, k_norm, out) = (buffer(*qkv), norm(q_norm), norm(k_norm), buffer(*out));
            let pairs = match frequencies.pairs {
                RotaryPairs::Halves => quote!(Halves),
                RotaryPairs::Adjacent => quote!(Adjacent),
            };
            let [angles, cache, scratch] = ["_angles", "_cache", "_scratch"].map(|it| body_ident(body, it));
            let scale = float(*scale);
            quote! {
                attention(
                    lane, #batch, layer, #qkv, #q_norm, #k_norm, &self.buffers.#angles, #pairs, #scale,
                    &self.#cache, &self.buffers.#scratch, #out,
                );
            }
        }
        PhaseKind::ProjectDelta(blocks::ProjectDelta { x, norm, matrix, gates, out, gates_out }) => {
            let (rows, x, norm) = (count(*out), buffer(*x), field(*norm));
            let products = [(matrix, out), (gates, gates_out)].map(|(matrix, out)| {
                let (staged, matrix, out) = (staged(*matrix), field(*matrix), buffer(*out));
                quote!(norm_linear(lane, #rows, #x, #norm, #staged, #matrix, Store(#out));)
            });
            quote!(#(#products)*)
        }
        PhaseKind::Delta(blocks::Delta {
            qkvz,
            ba,
            convolution,
            a_log,
            dt_bias,
            norm,
            activation,
            out,
            ..
        }) => {
            let [qkvz, ba, out] = [qkvz, ba, out].map(|id| buffer(*id));
            let [convolution, a_log, dt_bias, norm] =
                [convolution, a_log, dt_bias, norm].map(|id| field(*id));
            let [state, scratch] = ["_state", "_scratch"].map(|it| body_ident(body, it));
            let activation = self::activation(*activation);
            quote! {
                delta(
                    lane, #batch, layer, #qkvz, #ba, #convolution, #a_log, #dt_bias, #norm, #activation,
                    &self.#state, &self.buffers.#scratch, #out,
                );
            }
        }
        PhaseKind::Experts(blocks::Experts {
            x,
            norm,
            router,
            logits,
            routing,
            matrix,
            renormalise,
            activation,
            out,
            shared,
            ..
        }) => {
            let FieldKind::Matrix { experts: Some(experts), .. } = plan.field(*matrix).kind else {
                unreachable!("layout gives experts a matrix each")
            };
            let (rows, experts) = (count(*x), number(experts));
            let (router_staged, staged_x) = (staged(*router), staged(*matrix));
            let [x, logits, routing, out] = [x, logits, routing, out].map(|id| buffer(*id));
            let (norm, router, activation) = (field(*norm), field(*router), self::activation(*activation));
            let common = shared.map(|shared| {
                let (staged, matrix, out) = (staged(shared.matrix), field(shared.matrix), buffer(shared.out));
                quote!(norm_gated(lane, #rows, #x, #norm, #staged, #matrix, Gated(#activation, #out));)
            });
            let (gathered, _) = gathering(plan, *matrix);
            let matrix = field(*matrix);
            quote! {
                norm_linear(lane, #rows, #x, #norm, #router_staged, #router, Store(#logits));
                route::<#experts, _, _>(lane, #rows, #logits, #renormalise, #routing);
                #common
                expert_gated(
                    lane, #rows, #x, #norm, #staged_x, #routing, #matrix, &self.buffers.#gathered,
                    Gated(#activation, #out),
                );
            }
        }
        PhaseKind::Combine(blocks::Combine { inner, routing, matrix, shared, residual, .. }) => {
            let FieldKind::Matrix { experts: Some(experts), .. } = plan.field(*matrix).kind else {
                unreachable!("layout gives experts a matrix each")
            };
            let (rows, experts) = (count(*residual), number(experts));
            let common = shared.map(|shared| {
                let (x, product) = (buffer(shared.inner), buffer(shared.product));
                let (staged, matrix) = (staged(shared.matrix), field(shared.matrix));
                quote!(linear(lane, #rows, #x, #staged, #matrix, Store(#product));)
            });
            let term = match shared {
                None => quote!(NoShared),
                Some(shared) => {
                    let (output, logits) = (buffer(shared.product), buffer(shared.logits));
                    quote!(Shared { output: #output, logits: #logits, gate: #experts })
                }
            };
            let (gathered, _) = gathering(plan, *matrix);
            let [inner, routing, residual] = [inner, routing, residual].map(|id| buffer(*id));
            let matrix = field(*matrix);
            quote! {
                #common
                expert_down(
                    lane, #rows, #inner, #routing, #matrix, &self.buffers.#gathered, &self.buffers.expert_products,
                    #term, #residual,
                );
            }
        }
        PhaseKind::DraftEmbed(blocks::DraftEmbed { x, norm, hidden_norm, table, embedding_norm, out }) => {
            let (x, out) = (buffer(*x), buffer(*out));
            let [norm, hidden_norm, table, embedding_norm] =
                [norm, hidden_norm, table, embedding_norm].map(|id| field(*id));
            quote!(draft_embed(lane, #batch, #x, #norm, #hidden_norm, #table, #embedding_norm, #out);)
        }
        PhaseKind::Linear(blocks::Linear { x, matrix, out }) => {
            let (rows, x, out) = (count(*out), buffer(*x), buffer(*out));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(linear(lane, #rows, #x, #staged, #matrix, Store(#out));)
        }
        PhaseKind::Propose(blocks::Propose { x, norm, matrix, out }) => {
            let (rows, x, norm, out) = (count(*out), buffer(*x), field(*norm), buffer(*out));
            let (staged, matrix) = (staged(*matrix), field(*matrix));
            quote!(norm_linear_top(lane, #rows, #x, #norm, #staged, #matrix, Store(#out));)
        }
        PhaseKind::Select(blocks::Select { x, out }) => {
            let (x, out) = (buffer(*x), buffer(*out));
            quote!(gather(lane, rows, #x, #out);)
        }
    }
}

/// A scalar function's marker.
fn activation(activation: Activation) -> TokenStream {
    match activation {
        Activation::Silu => quote!(Silu),
        Activation::Gelu => quote!(Gelu),
        Activation::GeluTanh => quote!(GeluTanh),
        Activation::Relu => quote!(Relu),
    }
}

/// What happens to the sums of a product.
fn biased(kind: TokenStream, out: TokenStream, bias: Option<TokenStream>) -> TokenStream {
    match bias {
        None => quote!(#kind(#out)),
        Some(bias) => quote!(Bias(#bias, #kind(#out))),
    }
}
