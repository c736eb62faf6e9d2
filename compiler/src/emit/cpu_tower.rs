//! The parts of a CPU's `stack.rs` that only a target with a vision tower has.

use super::call::{WeightOwner, phase};
use super::layers::{layer_loop, layer_order, run_layer};
use super::names::{IMAGE_ROWS, body_ident};
use super::{format_ident, layer_type, number, quote};
use crate::graph::BodyId;
use crate::plan::{BufferId, Plan, PlanBody, TowerPlan};
use proc_macro2::TokenStream;

/// The items of a tower in `impl Stack` of a CPU.
pub fn contract(plan: &Plan) -> TokenStream {
    let Some(tower) = &plan.tower else { return TokenStream::new() };
    let pixels = format_ident!("{}", plan.buffer(plan.pixels()).name);
    let (rows, kept) = (format_ident!("{}", rows_name(plan, tower)), format_ident!("{IMAGE_ROWS}"));
    let [kept_rows, most] = [1 + tower.branches.len(), tower.most_tokens()].map(number);
    let steps = parts(
        tower,
        |body| phases(plan, body),
        |body| layers(plan, tower, body),
        quote!(keep_image_rows(lane, patches, &self.buffers.#rows, &self.#kept, first);),
    );
    quote! {
        const VISION: Option<VisionSpec> = Some(VISION);

        fn pixels(&mut self, patch: usize) -> &mut [f32] {
            self.buffers.#pixels.row_mut(patch)
        }

        fn see(&self, lane: &Lane, patches: &Patches, slot: usize, layers: Range<usize>) {
            let first = slot * #kept_rows * #most;
            #steps
        }

        fn image_row(&mut self, row: usize) -> &[f32] {
            self.#kept.row(row)
        }
    }
}

/// The statements of a part of a tower's pass, whose layers are in `layers`: what comes before all layers
/// belongs to the first part, and what follows them, with `keep`, to the last.
pub fn parts(
    tower: &TowerPlan,
    body: impl Fn(BodyId) -> TokenStream,
    layers: impl Fn(BodyId) -> TokenStream,
    keep: TokenStream,
) -> TokenStream {
    let without_layer = |run: &&(BodyId, Option<usize>)| run.1.is_none();
    let before: Vec<BodyId> = tower.schedule.iter().take_while(without_layer).map(|run| run.0).collect();
    let rest = &tower.schedule[before.len()..];
    let (repeated, behind) = rest.split_at(tower.depth());
    let (of_layers, _) = repeated[0];
    debug_assert!(repeated.iter().all(|run| run.0 == of_layers), "the layers of a tower are alike");
    debug_assert!(behind.iter().all(|run| run.1.is_none()), "the layers of a tower follow each other");
    let before: TokenStream = before.into_iter().map(&body).collect();
    let behind: TokenStream = behind.iter().map(|run| body(run.0)).collect();
    let (all, depth) = (layers(of_layers), number(tower.depth()));
    quote! {
        if layers.start == 0 {
            #before
        }
        #all
        if layers.end == #depth {
            #behind
            #keep
        }
    }
}

/// The loop over a tower's layers, with the branches behind some of them.
fn layers(plan: &Plan, tower: &TowerPlan, body: BodyId) -> TokenStream {
    let body = &plan.bodies[body.0];
    let (layers, run) = (body_ident(body, "_layers"), body_ident(body, "_layer"));
    let branches = tower.branches.first().map(|(_, branch)| {
        debug_assert!(tower.branches.iter().all(|(_, other)| other == branch), "branches are alike");
        let branch = &plan.bodies[branch.0];
        let (taps, make) = (body_ident(branch, "_layers"), body_ident(branch, "_layer"));
        let after = tower.branches.iter().map(|(after, _)| number(*after));
        let (rows, kept) = (format_ident!("{}", rows_name(plan, tower)), format_ident!("{IMAGE_ROWS}"));
        let most = number(tower.most_tokens());
        quote! {
            if let Some(tap) = [#(#after),*].iter().position(|after| *after == layer) {
                self.#make(lane, patches, &self.#taps[tap]);
                keep_image_rows(lane, patches, &self.buffers.#rows, &self.#kept, first + (1 + tap) * #most);
            }
        }
    });
    match branches {
        None => quote! {
            for weights in &self.#layers[layers.clone()] {
                self.#run(lane, patches, weights);
            }
        },
        Some(branches) => quote! {
            for layer in layers.clone() {
                self.#run(lane, patches, &self.#layers[layer]);
                #branches
            }
        },
    }
}

/// The buffer of the rows that a tower gives, in which its branches leave theirs too.
pub fn rows_name<'a>(plan: &'a Plan, tower: &TowerPlan) -> &'a str {
    let last = |body: BodyId| {
        let phases = &plan.bodies[body.0].phases;
        phases.last().expect("a body of a tower does something").kind.result()
    };
    let (merger, _) = tower.schedule.last().expect("a tower ends with its merger");
    let rows = last(*merger);
    debug_assert!(tower.branches.iter().all(|(_, branch)| last(*branch) == rows), "rows are rows");
    &plan.buffer(rows).name
}

/// The phase calls of a body outside the layers.
fn phases(plan: &Plan, body: BodyId) -> TokenStream {
    let body = &plan.bodies[body.0];
    body.phases.iter().map(|it| phase(plan, body, it, WeightOwner::Stack)).collect()
}

/// The function of one layer of a tower, or of one branch.
pub fn layer(plan: &Plan, body: &PlanBody) -> TokenStream {
    let (run, kind) = (body_ident(body, "_layer"), layer_type(&body.name));
    let phases: TokenStream =
        body.phases.iter().map(|it| phase(plan, body, it, WeightOwner::Layer)).collect();
    let documentation = format!(" One `{}` of the vision tower.", body.name);
    quote! {
        #[doc = #documentation]
        fn #run(&self, lane: &Lane, patches: &Patches, weights: &#kind) {
            #phases
        }
    }
}

/// The bodies that stand between the model's layers, behind the first of them: what taps give is added there.
pub fn between(plan: &Plan) -> Vec<BodyId> {
    let inner = &plan.schedule[1..plan.schedule.len() - 1];
    inner.iter().filter(|(_, layer)| layer.is_none()).map(|(body, _)| *body).collect()
}

/// The function that runs these, if there are some.
pub fn behind_layers(plan: &Plan) -> Option<TokenStream> {
    let bodies = between(plan);
    let arms = bodies.iter().enumerate().map(|(tap, body)| {
        let (tap, phases) = (number(tap), phases(plan, *body));
        quote!(#tap => { #phases })
    });
    let function = quote! {
        /// Adds what the tower's taps give to the rows of images, behind as many of the model's layers.
        fn behind_layer(&self, lane: &Lane, batch: &Batch, layer: usize) {
            match layer {
                #(#arms)*
                _ => {}
            }
        }
    };
    (!bodies.is_empty()).then_some(function)
}

/// The loop over the model's layers.
pub fn model_layers(plan: &Plan) -> TokenStream {
    if let Some((block, taps)) = plan.block.as_ref().zip(plan.taps()) {
        let [residual, taps] = [BufferId(0), taps].map(|id| format_ident!("{}", plan.buffer(id).name));
        let of = block.taps.iter().map(|layer| number(*layer));
        let of = quote!([#(#of),*]);
        let layers = layer_loop(plan, &layer_order(plan), |body| {
            let run = run_layer(body);
            quote! {
                #run
                if let Some(tap) = #of.iter().position(|layer| *layer == behind) {
                    keep_tap(lane, batch, &self.buffers.#residual, &self.buffers.#taps, tap);
                }
                behind += 1;
            }
        });
        return quote! {
            let mut behind = 0;
            #layers
        };
    }
    if between(plan).is_empty() {
        return layer_loop(plan, &layer_order(plan), run_layer);
    }
    let layers = layer_loop(plan, &layer_order(plan), |body| {
        let run = run_layer(body);
        quote!(#run self.behind_layer(lane, batch, behind); behind += 1;)
    });
    quote! {
        let mut behind = 0;
        #layers
    }
}
