//! The layers of a stack in the order in which they run, and what all backends say of them.

use super::names::body_ident;
use super::{float, format_ident, number, quote};
use crate::graph::RotaryFrequencies;
use crate::plan::{Plan, PlanBody};
use proc_macro2::TokenStream;

pub fn frequency_table(body: &PlanBody, frequencies: &RotaryFrequencies) -> TokenStream {
    let name = format_ident!("{}", body_ident(body, "_frequencies").to_string().to_uppercase());
    let (count, values) = (number(frequencies.inverse.len()), frequencies.inverse.iter().map(|f| float(*f)));
    let documentation = format!(" Radians a position by which each pair of an `{}` head turns.", body.name);
    quote! {
        #[doc = #documentation]
        static #name: [f32; #count] = [#(#values),*];
    }
}

/// The statement that finds rotary cosines and sines for a batch's positions; only for bodies with rotary
/// heads.
pub fn angles(body: &PlanBody) -> Option<TokenStream> {
    let frequencies = body.frequencies()?;
    let factor = float(frequencies.factor);
    let table = format_ident!("{}", body_ident(body, "_frequencies").to_string().to_uppercase());
    let angles = body_ident(body, "_angles");
    if !frequencies.axes.is_empty() {
        let axes = frequencies.axes.iter().map(|axis| number(*axis as usize));
        return Some(quote!(
            rotary_grid_angles(lane, batch, &#table, &[#(#axes),*], #factor, &self.buffers.#angles);
        ));
    }
    Some(quote!(rotary_angles(lane, batch, &#table, #factor, &self.buffers.#angles);))
}

/// The bodies of the model's layers in order.
pub fn layer_order(plan: &Plan) -> Vec<usize> {
    plan.schedule.iter().filter(|(_, layer)| layer.is_some()).map(|(body, _)| body.0).collect()
}

/// Runs the layers in schedule order. If bodies alternate, they do so with a period, and the loop runs over
/// its repetitions. `run` is the statement that runs a layer of a body; `layer` and `weights` are in scope.
pub fn layer_loop(plan: &Plan, order: &[usize], run: impl Fn(&PlanBody) -> TokenStream) -> TokenStream {
    let repeats = |period: &usize| order.iter().enumerate().all(|(i, body)| order[i % period] == *body);
    let period = (1..=order.len()).find(repeats).unwrap_or(order.len());
    if period == 1 {
        let body = &plan.bodies[order[0]];
        let (layers, run) = (body_ident(body, "_layers"), run(body));
        return quote! {
            for (layer, weights) in self.#layers.iter().enumerate() {
                #run
            }
        };
    }
    let steps = (0..period).map(|at| {
        let body = &plan.bodies[order[at]];
        let (layers, run) = (body_ident(body, "_layers"), run(body));
        let before = number(order[..at].iter().filter(|other| **other == order[at]).count());
        let each = number(order[..period].iter().filter(|other| **other == order[at]).count());
        quote! {
            let layer = repetition * #each + #before;
            if let Some(weights) = self.#layers.get(layer) {
                #run
            }
        }
    });
    let repetitions = number(order.len().div_ceil(period));
    quote! {
        for repetition in 0..#repetitions {
            #(#steps)*
        }
    }
}

/// The statement that runs a layer of a body.
pub fn run_layer(body: &PlanBody) -> TokenStream {
    let run = body_ident(body, "_layer");
    quote!(self.#run(lane, batch, layer, weights);)
}

/// The constant that says what layers with a sliding window keep, of a stack in which these give back blocks.
pub fn sliding(plan: &Plan) -> Option<TokenStream> {
    let (window, bytes) = plan.sliding()?;
    let [window, bytes] = [window, bytes as usize].map(number);
    Some(quote! {
        const SLIDING: Option<monomorph_model::SlidingSpec> =
            Some(monomorph_model::SlidingSpec { window: #window, block_bytes: #bytes });
    })
}
