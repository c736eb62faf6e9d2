//! `stack.rs` for a CPU: the layer stack as a sequence of phase functions of `monomorph_device::cpu`.

use super::call::{Place, phase};
use super::{cpu_draft, far, float, format_ident, layer_type, number, quote, spec, weights};
use crate::graph::{RotaryFrequencies, Rows};
use crate::plan::{FieldId, FieldKind, Keeps, KvHeads, Plan, PlanBody, State};
use monomorph_formats::Format;
use proc_macro2::{Ident, TokenStream};

/// The items of `stack.rs`.
pub fn stack(plan: &Plan) -> TokenStream {
    let weights = weights::structs(plan);
    let frequencies = plan.bodies.iter().filter_map(|body| Some(frequency_table(body, body.frequencies()?)));
    let parts = far::numbers(plan);
    let buffers = buffers(plan);
    let stack = stack_struct(plan);
    let bodies = plan.bodies.iter().filter(|body| !body.layers.is_empty()).map(|it| layer(plan, it));
    let forward = forward(plan);
    let head = head(plan);
    let draft = cpu_draft::passes(plan);
    let model = model(plan);
    let state_place = (plan.memory.state > 0).then(|| quote! { StatePlace, });
    quote! {
        use crate::spec::SPEC;
        use monomorph_device::cpu::*;
        use monomorph_formats::Format;
        use monomorph_model::{
            BlockId, FarId, FarRoom, LoadError, LoadOptions, Model, ModelSpec, Progress, #state_place Step, StepOutput,
            Ticket, Weights,
        };
        use monomorph_weights::Checkpoint;

        #weights
        #(#frequencies)*
        #parts
        #buffers
        #stack

        impl Stack {
            #forward
            #(#bodies)*
            #head
            #draft
        }

        #model
    }
}

/// Something phases work in: its name among the buffers, its type, and how it is made.
pub type Working = (Ident, TokenStream, TokenStream);

/// What a body's phases work in: its type, and how it is made, where `lanes` is in scope.
pub struct Scratch {
    pub kind: TokenStream,
    pub new: TokenStream,
}

/// A body's name as an identifier.
pub fn body_ident(body: &PlanBody, suffix: &str) -> Ident {
    format_ident!("{}{suffix}", body.name.replace('-', "_"))
}

pub fn frequency_table(body: &PlanBody, frequencies: &RotaryFrequencies) -> TokenStream {
    let name = format_ident!("{}", body_ident(body, "_frequencies").to_string().to_uppercase());
    let (count, values) = (number(frequencies.inverse.len()), frequencies.inverse.iter().map(|f| float(*f)));
    let documentation = format!(" Radians a position by which each pair of an `{}` head turns.", body.name);
    quote! {
        #[doc = #documentation]
        static #name: [f32; #count] = [#(#values),*];
    }
}

/// Activations, the staging of each product's input, and what else phases work in.
fn buffers(plan: &Plan) -> TokenStream {
    let (tokens, sequences) = (number(plan.buckets.tokens), number(plan.buckets.sequences));
    let mut fields: Vec<Working> = Vec::new();
    for buffer in &plan.buffers {
        let width = number(buffer.width);
        let rows = match buffer.rows {
            Rows::Tokens => &tokens,
            Rows::Outputs => &sequences,
            Rows::Slots(slots) => &number(slots * plan.buckets.tokens),
        };
        fields.push((format_ident!("{}", buffer.name), quote!(Rows<#width>), quote!(Rows::new(#rows))));
    }
    let phases = || plan.bodies.iter().flat_map(|body| &body.phases);
    let staged = phases().flat_map(|phase| phase.kind.kind().staged()).map(|matrix| {
        let (name, kind) = staging(plan, matrix);
        (name, kind, quote!(Staging::new(lanes, #tokens)))
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

/// The cache of keys and values of a body's layers.
pub fn cache_type(plan: &Plan, heads: KvHeads) -> TokenStream {
    let kv = format_ident!("{}", plan.target.quant.kv_format.name());
    let [kv_heads, head_dim, block] = [heads.heads, heads.head_dim, plan.target.quant.kv_block].map(number);
    quote!(KvCache<#kv, #kv_heads, #head_dim, #block>)
}

/// A format's name as part of an identifier.
pub fn format_name(format: Format) -> String {
    format.name().replace('-', "_")
}

/// The staging buffer of a product's input: one for each format and width.
pub fn staging(plan: &Plan, matrix: FieldId) -> (Ident, TokenStream) {
    let FieldKind::Matrix { format, columns, .. } = plan.field(matrix).kind else {
        unreachable!("a product has a matrix")
    };
    let (kind, width) = (format_ident!("{}", spec::variant(format)), number(columns));
    (format_ident!("staged_{}_{columns}", format_name(format)), quote!(Staging<#kind, #width>))
}

fn stack_struct(plan: &Plan) -> TokenStream {
    let fields = plan.bodies.iter().filter(|body| !body.layers.is_empty()).map(|body| {
        let (layers, kind) = (body_ident(body, "_layers"), layer_type(&body.name));
        let layers = quote!(#layers: Vec<#kind>);
        match body.keeps(&plan.target) {
            Some(Keeps::Blocks(heads)) => {
                let (cache, kind) = (body_ident(body, "_cache"), cache_type(plan, heads));
                quote!(#layers, #cache: #kind)
            }
            Some(Keeps::State(State { parameters, .. })) => {
                let (state, parameters) = (body_ident(body, "_state"), parameters.into_iter().map(number));
                quote!(#layers, #state: RecurrentState<#(#parameters),*>)
            }
            None => layers,
        }
    });
    let drafts = number(plan.drafts());
    let draft_fields = cpu_draft::fields(plan);
    quote! {
        /// Weights, caches and activations, and the threads that work on them.
        pub struct Stack {
            team: Team,
            far: Far,
            batch: Batch,
            globals: Globals,
            #(#fields,)*
            buffers: Buffers,
            outputs: Outputs<#drafts>,
            #draft_fields
        }
    }
}

/// From token ids to the last layer's residual stream.
fn forward(plan: &Plan) -> TokenStream {
    let in_layers = plan.bodies.iter().filter(|body| !body.layers.is_empty());
    let angles = in_layers.filter_map(|body| angles(body, &quote!(&self.batch)));
    let embed = plan.bodies[0].phases.iter().map(|it| phase(plan, &plan.bodies[0], it, Place::GLOBAL));
    let layers = layer_loop(plan, &layer_order(plan), |body| {
        let run = body_ident(body, "_layer");
        quote!(self.#run(lane, layer, weights);)
    });
    quote! {
        /// From token ids to the last layer's residual stream.
        fn forward(&self) {
            self.team.run(|lane| {
                #(#embed)*
                #(#angles)*
                #layers
            });
        }
    }
}

/// The statement that finds the angles of a batch's positions, for a body whose heads turn.
pub fn angles(body: &PlanBody, batch: &TokenStream) -> Option<TokenStream> {
    let factor = float(body.frequencies()?.factor);
    let table = format_ident!("{}", body_ident(body, "_frequencies").to_string().to_uppercase());
    let angles = body_ident(body, "_angles");
    Some(quote!(rotary_angles(lane, #batch, &#table, #factor, &self.buffers.#angles);))
}

/// The bodies of the model's layers in order.
pub fn layer_order(plan: &Plan) -> Vec<usize> {
    plan.schedule.iter().filter(|(_, layer)| layer.is_some()).map(|(body, _)| body.0).collect()
}

/// Layers in the order of their bodies, of each of which all are there. Bodies that alternate do so with a
/// period, and the loop runs over its repetitions. `run` is the statement that runs a layer of a body;
/// `layer` and `weights` are in scope.
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

/// One layer of a body.
fn layer(plan: &Plan, body: &PlanBody) -> TokenStream {
    let (run, kind) = (body_ident(body, "_layer"), layer_type(&body.name));
    let phases = body.phases.iter().map(|it| phase(plan, body, it, Place::LAYER));
    let documentation = format!(" One `{}` layer; `layer` counts those of its kind.", body.name);
    quote! {
        #[doc = #documentation]
        fn #run(&self, lane: &Lane, layer: usize, weights: &#kind) {
            #(#phases)*
        }
    }
}

/// From the residual stream to the logits of some rows.
fn head(plan: &Plan) -> TokenStream {
    let body = &plan.bodies[plan.head().0];
    let phases = body.phases.iter().map(|it| phase(plan, body, it, Place::GLOBAL));
    quote! {
        /// The logits of `rows` of the residual stream.
        fn head(&self, rows: &[u32]) {
            self.team.run(|lane| {
                #(#phases)*
            });
        }
    }
}

/// The implementation of the contract.
fn model(plan: &Plan) -> TokenStream {
    let mut locals = Vec::new();
    let mut names = Vec::new();
    for body in plan.bodies.iter().filter(|body| !body.layers.is_empty()) {
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
                .map(|layer| #kind::load(&loader, checkpoint, layer))
                .collect::<Result<Vec<_>, _>>()?;
        });
        names.push(quote!(#layers));
        match body.keeps(&plan.target) {
            Some(Keeps::Blocks(_)) => {
                let cache = body_ident(body, "_cache");
                locals.push(quote!(let #cache = KvCache::new(#count, blocks)?;));
                names.push(quote!(#cache));
            }
            Some(Keeps::State(_)) => {
                let state = body_ident(body, "_state");
                locals.push(quote!(let #state = RecurrentState::new(#count, states)?;));
                names.push(quote!(#state));
            }
            None => {}
        }
    }
    let states: Vec<Ident> = plan
        .bodies
        .iter()
        .filter(|body| !body.layers.is_empty() && plan.state(body).is_some())
        .map(|body| body_ident(body, "_state"))
        .collect();
    let snapshots = states.first().map(|state| {
        quote! {
            fn snapshots(&self) -> usize {
                self.#state.states().snapshots
            }
        }
    });
    let copies = (!states.is_empty()).then(|| {
        quote! {
            for copy in &step.copies {
                #(self.#states.copy(copy);)*
            }
        }
    });
    let swap = swap(plan, &states);
    let logits = format_ident!("{}", logits_name(plan));
    let cpu_draft::Statements { load, batch: ahead, names: draft_names, submit } =
        cpu_draft::statements(plan);
    let far::Statements { open, send, parts } = far::statements(plan);
    quote! {
        impl Model for Stack {
            const SPEC: &'static ModelSpec = &SPEC;

            fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
                let checkpoint = weights.checkpoint()?;
                let blocks = options.blocks_or_one_sequence(SPEC.block_tokens);
                let states = options.states(&SPEC);
                checkpoint.refuse_surplus(|name| SPEC.knows(name))?;
                progress.expect(SPEC.weight_bytes);
                let team = Team::new(options.threads).map_err(LoadError::Threads)?;
                let loader = Loader::new(&team, checkpoint.path(), progress);
                let globals = Globals::load(&loader, checkpoint)?;
                #(#locals)*
                let limits = BatchLimits {
                    tokens: SPEC.step_tokens,
                    sequences: states.sequences,
                    vocabulary: SPEC.vocabulary,
                    context: SPEC.context,
                    block_tokens: SPEC.block_tokens,
                    blocks,
                };
                #load
                #open
                let batch = Batch::new(limits).streamed(&far)#ahead;
                let buffers = Buffers::new(team.lanes());
                Ok(Stack { team, far, batch, globals, #(#names,)* buffers, outputs: Outputs::default(), #draft_names })
            }

            fn blocks(&self) -> usize {
                self.batch.limits().blocks
            }

            fn sequences(&self) -> usize {
                self.batch.limits().sequences
            }

            #snapshots

            fn far(&self) -> Option<FarRoom> {
                self.far.room()
            }

            fn send_far(&mut self, blocks: &[BlockId], to: FarId) -> Result<(), String> {
                #send
            }

            #swap

            fn submit(&mut self, step: &Step) -> Ticket {
                self.team.pin_caller();
                #copies
                self.batch.fill(step, &self.outputs);
                self.far.begin(step, &self.batch, #parts);
                self.forward();
                self.outputs.begin(step);
                let mut first = 0;
                while first < self.batch.outputs().len() {
                    let last = self.batch.outputs().len().min(first + SPEC.step_sequences);
                    self.head(&self.batch.outputs()[first..last]);
                    self.outputs.take(&self.team, step, &self.batch, first..last, &mut self.buffers.#logits);
                    first = last;
                }
                #submit
                self.far.end(step, &mut self.outputs);
                self.outputs.end()
            }

            fn collect(&mut self, ticket: Ticket) -> StepOutput {
                self.outputs.collect(ticket)
            }
        }
    }
}

/// The functions that read and write what the model remembers, cache by cache.
fn swap(plan: &Plan, states: &[Ident]) -> TokenStream {
    let layers = plan.bodies.iter().filter(|body| !body.layers.is_empty());
    let attends = layers.filter(|body| plan.kv_heads(body).is_some());
    let draft = plan.draft_layer();
    let caches: Vec<Ident> = attends.chain(draft).map(|body| body_ident(body, "_cache")).collect();
    let state = (!states.is_empty()).then(|| {
        quote! {
            fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
                #(let into = self.#states.read_state(place, into);)*
                assert!(into.is_empty(), "more than a state was asked for");
            }

            fn write_state(&mut self, place: StatePlace, from: &[u8]) {
                #(let from = self.#states.write_state(place, from);)*
                assert!(from.is_empty(), "more than a state was given");
            }
        }
    });
    quote! {
        fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
            #(let into = self.#caches.read_block(block, into);)*
            assert!(into.is_empty(), "more than a block was asked for");
        }

        fn write_block(&mut self, block: BlockId, from: &[u8]) {
            #(let from = self.#caches.write_block(block, from);)*
            assert!(from.is_empty(), "more than a block was given");
        }

        #state
    }
}

pub fn logits_name(plan: &Plan) -> &str {
    &plan.buffer(plan.logits()).name
}
