//! `stack.rs` for a CPU: the layer stack as a sequence of phase functions of `monomorph_device::cpu`.

use super::call::{WeightOwner, phase};
use super::layers::{angles, frequency_table, sliding};
use super::names::{
    IMAGE_ROWS, Scratch, Working, body_ident, cache_name, cache_type, layer_parameter, logits_name, staging,
};
use super::{cpu_draft, cpu_tower, format_ident, kv_offload, layer_type, number, profile, quote, weights};
use crate::graph::{BodyId, Rows};
use crate::plan::{Keeps, KvHeads, Plan, PlanBody, State, TowerPlan};
use monomorph_formats::cached::{Cached, KvFormats};
use proc_macro2::{Ident, TokenStream};

/// The items of `stack.rs`.
pub fn stack(plan: &Plan) -> TokenStream {
    let weights = weights::structs(plan);
    let frequencies = plan.bodies.iter().filter_map(|body| Some(frequency_table(body, body.frequencies()?)));
    let parts = kv_offload::numbers(plan);
    let buffers = buffers(plan);
    let stack = stack_struct(plan);
    let in_layers = plan.bodies.iter().enumerate().filter(|(_, body)| !body.layers.is_empty());
    let bodies = in_layers.map(|(index, body)| match plan.in_tower(BodyId(index)) {
        true => cpu_tower::layer(plan, body),
        false => layer(plan, body),
    });
    let behind = cpu_tower::behind_layers(plan);
    let contract = contract(plan);
    let draft = cpu_draft::passes(plan);
    let [vocabulary, drafts] = [logits_width(plan), plan.drafts()].map(number);
    let scaled = plan.fields.iter().flat_map(|field| &field.parts).any(|part| part.scales.is_some());
    let formats = if scaled { quote!({Format, ScaleForm}) } else { quote!(Format) };
    let (spec, vision) = match plan.tower {
        None => (quote!(SPEC), None),
        Some(_) => (quote!({SPEC, VISION}), Some(quote!(, VisionSpec))),
    };
    quote! {
        use crate::spec::#spec;
        use monomorph_device::cpu::{self, *};
        use monomorph_formats::#formats;
        use monomorph_model::{LoadError, ModelSpec #vision};
        use monomorph_weights::Checkpoint;
        use std::ops::Range;

        #weights
        #(#frequencies)*
        #parts
        #buffers
        #stack

        impl Stack {
            #(#bodies)*
            #behind
        }

        #contract
        #draft

        /// What the server runs.
        pub type Model = cpu::Model<Stack, #vocabulary, #drafts>;
    }
}

/// The struct of activations, staging buffers and scratch.
fn buffers(plan: &Plan) -> TokenStream {
    let (tokens, sequences) = (number(plan.buckets.tokens), number(plan.buckets.sequences));
    let mut fields: Vec<Working> = Vec::new();
    for buffer in &plan.buffers {
        let width = number(buffer.width);
        let rows = match buffer.rows {
            Rows::Tokens => &tokens,
            Rows::Outputs => &sequences,
            Rows::Slots(slots) => &number(slots * plan.buckets.tokens),
            Rows::Patches => &number(plan.tower.as_ref().map_or(0, |tower| tower.most_patches)),
            Rows::ImageTokens => &number(plan.tower.as_ref().map_or(0, TowerPlan::most_tokens)),
        };
        fields.push((format_ident!("{}", buffer.name), quote!(Rows<#width>), quote!(Rows::new(#rows))));
    }
    let phases = || plan.bodies.iter().flat_map(|body| &body.phases);
    let staged = phases().flat_map(|phase| phase.kind.kind().staged()).map(|matrix| {
        let (name, kind) = staging(plan, matrix);
        let rows = number(staged_rows(plan, &name));
        (name, kind, quote!(Staging::new(lanes, #rows)))
    });
    let working = phases().flat_map(|phase| phase.kind.kind().working(plan));
    for (name, kind, init) in staged.chain(working) {
        if fields.iter().all(|(known, ..)| *known != name) {
            fields.push((name, kind, init));
        }
    }
    for body in &plan.bodies {
        if let Some(frequencies) = body.frequencies() {
            let dims = number(2 * frequencies.inverse.len());
            fields.push((body_ident(body, "_angles"), quote!(Rows<#dims>), quote!(Rows::new(#tokens))));
        }
        let scratch = body.phases.iter().find_map(|phase| phase.kind.kind().scratch(plan));
        fields.extend(scratch.map(|Scratch { kind, new }| (body_ident(body, "_scratch"), kind, new)));
    }
    let declarations = fields.iter().map(|(name, kind, _)| quote!(#name: #kind));
    let inits = fields.iter().map(|(name, _, init)| quote!(#name: #init));
    quote! {
        /// Activations of one step, and what phases work in.
        struct Buffers { #(#declarations),* }

        impl Buffers {
            fn new(lanes: usize) -> Self {
                Buffers { #(#inits),* }
            }
        }
    }
}

/// Rows of a staging buffer: those of a step, or of the largest image where a tower shares it.
fn staged_rows(plan: &Plan, name: &Ident) -> usize {
    let Some(tower) = &plan.tower else { return plan.buckets.tokens };
    let mut of_tower = plan.bodies[tower.first.0..].iter().flat_map(|body| &body.phases);
    let staged = of_tower
        .any(|phase| phase.kind.kind().staged().into_iter().any(|matrix| staging(plan, matrix).0 == *name));
    if staged { tower.most_patches.max(plan.buckets.tokens) } else { plan.buckets.tokens }
}

fn stack_struct(plan: &Plan) -> TokenStream {
    let fields = plan.bodies.iter().filter(|body| !body.layers.is_empty()).map(|body| {
        let (layers, kind) = (body_ident(body, "_layers"), layer_type(&body.name));
        let layers = quote!(#layers: Vec<#kind>);
        match body.keeps(&plan.target) {
            Some(Keeps::Blocks(heads, formats)) => {
                let (cache, kind) = (body_ident(body, "_cache"), cache_type(plan, heads, formats));
                quote!(#layers, #cache: #kind)
            }
            Some(Keeps::State(State { parameters, .. })) => {
                let (state, parameters) = (body_ident(body, "_state"), parameters.into_iter().map(number));
                quote!(#layers, #state: RecurrentState<#(#parameters),*>)
            }
            None => layers,
        }
    });
    let draft = plan.draft_layer().map(|layer| {
        let Some(Keeps::Blocks(heads, formats)) = layer.keeps(&plan.target) else {
            unreachable!("the spec checks that a draft's layer attends")
        };
        let (cache, kind) = (body_ident(layer, "_cache"), cache_type(plan, heads, formats));
        quote!(#cache: #kind,)
    });
    let images = plan.tower.as_ref().map(|_| {
        let (kept, hidden) = (format_ident!("{IMAGE_ROWS}"), number(plan.target.model.hidden));
        quote!(#kept: Rows<#hidden>,)
    });
    let clock = plan.target.profile.then(|| quote!(clock: PhaseTimes,));
    quote! {
        /// Weights, what layers keep, and activations.
        pub struct Stack {
            globals: Globals,
            #(#fields,)*
            #draft
            #images
            buffers: Buffers,
            #clock
        }
    }
}

/// The function of one layer of a body.
fn layer(plan: &Plan, body: &PlanBody) -> TokenStream {
    let (run, kind) = (body_ident(body, "_layer"), layer_type(&body.name));
    let phases: TokenStream =
        body.phases.iter().map(|it| phase(plan, body, it, WeightOwner::Layer)).collect();
    let layer = layer_parameter(&phases);
    let documentation = format!(" One `{}` layer; `layer` counts those of its kind.", body.name);
    quote! {
        #[doc = #documentation]
        fn #run(&self, lane: &Lane, batch: &Batch, #layer: usize, weights: &#kind) {
            #phases
        }
    }
}

/// The implementation of `Stack`, for the hand-written model.
fn contract(plan: &Plan) -> TokenStream {
    let (mut locals, mut names, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let with_layers = plan.bodies.iter().enumerate().filter(|(_, body)| !body.layers.is_empty());
    for (index, body) in with_layers {
        let (layers, kind) = (body_ident(body, "_layers"), layer_type(&body.name));
        let count = number(body.layers.len());
        let contiguous = body.layers.iter().copied().eq(0..body.layers.len());
        let indices = if contiguous {
            quote!((0..#count))
        } else {
            let indices = body.layers.iter().map(|layer| number(*layer));
            quote!([#(#indices),*].into_iter())
        };
        locals.push(quote! {
            let #layers = #indices
                .map(|layer| #kind::load(loader, checkpoint, layer))
                .collect::<Result<Vec<_>, _>>()?;
        });
        names.push(layers);
        let (name, new) = match body.keeps(&plan.target) {
            Some(Keeps::Blocks(heads, formats)) => {
                let new = cache(plan, body, heads, body.layers.len());
                let scaled = if plan.in_block(BodyId(index)) { None } else { scaled(plan, body, formats) };
                (body_ident(body, "_cache"), quote!(#new #scaled))
            }
            Some(Keeps::State(_)) => {
                (body_ident(body, "_state"), quote!(RecurrentState::new(#count, room.states)?))
            }
            None => continue,
        };
        locals.push(quote!(let #name = #new;));
        kept.push(name);
    }
    if let Some(layer) = plan.draft_layer() {
        let heads = plan.kv_heads(layer).expect("the spec checks that a draft's layer attends");
        let (name, new) = (body_ident(layer, "_cache"), cache(plan, layer, heads, 1));
        locals.push(quote!(let #name = #new;));
        kept.push(name);
    }
    let keeps = kept.iter().rev().fold(quote!(()), |behind, name| quote!((&mut self.#name, #behind)));
    let images = plan.tower.as_ref().map(|tower| {
        let (kept, rows) = (format_ident!("{IMAGE_ROWS}"), number(tower.kept_rows()));
        (quote!(let #kept = Rows::new(#rows);), quote!(#kept,))
    });
    let (image_rows, images): (Option<TokenStream>, Option<TokenStream>) = images.unzip();
    let tower = cpu_tower::contract(plan);
    let in_layers = plan.bodies.iter().enumerate().filter(|(_, body)| !body.layers.is_empty());
    // A drafter's are found at the positions of its own rows.
    let of_model = in_layers.filter(|(at, _)| !plan.in_block(BodyId(*at))).map(|(_, body)| body);
    let angles = of_model.filter_map(angles);
    let of_body = |body: &PlanBody| -> Vec<TokenStream> {
        body.phases.iter().map(|it| phase(plan, body, it, WeightOwner::Stack)).collect()
    };
    let (embed, head) = (of_body(&plan.bodies[0]), of_body(&plan.bodies[plan.head().0]));
    let layers = cpu_tower::model_layers(plan);
    let logits = format_ident!("{}", logits_name(plan));
    let [vocabulary, drafts, parts] =
        [logits_width(plan), plan.drafts(), kv_offload::parts_of_model(plan)].map(number);
    let passes = cpu_draft::kind(plan);
    let sliding = sliding(plan);
    let (profile, begin) = (profile::constant(plan), profile::begin(plan));
    let timed = plan.target.profile.then(|| {
        let rows = number(plan.profiled_names().len());
        (
            quote!(clock: PhaseTimes::new(#rows)),
            quote! {
                fn clock(&self) -> Option<&PhaseTimes> {
                    Some(&self.clock)
                }
            },
        )
    });
    let (new_clock, clock) = timed.unzip();
    // What finds the angles is no phase.
    let begin_layers = begin.as_ref().filter(|_| plan.bodies.iter().any(|body| body.frequencies().is_some()));
    quote! {
        impl cpu::Stack<#vocabulary, #drafts> for Stack {
            const SPEC: &'static ModelSpec = &SPEC;
            #sliding
            #profile
            const PARTS: Range<usize> = 0..#parts;

            type Drafts = #passes;

            fn load(loader: &Loader, checkpoint: &Checkpoint, room: Room) -> Result<Self, LoadError> {
                let globals = Globals::load(loader, checkpoint)?;
                #(#locals)*
                #image_rows
                let buffers = Buffers::new(room.lanes);
                Ok(Stack { globals, #(#names,)* #(#kept,)* #images buffers, #new_clock })
            }

            fn keeps(&mut self) -> impl Keeps {
                #keeps
            }

            fn forward(&self, lane: &Lane, batch: &Batch) {
                #begin
                #(#embed)*
                #(#angles)*
                #begin_layers
                #layers
            }

            fn head(&self, lane: &Lane, rows: &[u32]) {
                #begin
                #(#head)*
            }

            fn logits(&mut self) -> &mut Rows<#vocabulary> {
                &mut self.buffers.#logits
            }

            #clock

            #tower
        }
    }
}

/// The expression that makes the K/V cache of so many layers of a body.
fn cache(plan: &Plan, body: &PlanBody, heads: KvHeads, layers: usize) -> TokenStream {
    let cache = cache_name(heads);
    if plan.window(body).is_some() {
        let layers = number(layers);
        return quote!(#cache::sliding(#layers, room.sliding)?);
    }
    let parts = kv_offload::table(body);
    quote!(#cache::new(&#parts, room.blocks)?)
}

/// What gives the cache of layers of the model the checkpoint's static scales, if there are some for its
/// formats. A draft head has none.
fn scaled(plan: &Plan, body: &PlanBody, formats: KvFormats) -> Option<TokenStream> {
    plan.target.quant.fp8_scales()?;
    let takes = [formats.keys, formats.values].contains(&Cached::Fp8);
    let layers = body.layers.iter().map(|layer| number(*layer));
    takes.then(|| quote!(.scaled(checkpoint, SPEC.kv_scales.as_ref(), [#(#layers),*])?))
}

/// Columns of the logits.
fn logits_width(plan: &Plan) -> usize {
    plan.buffer(plan.logits()).width
}
