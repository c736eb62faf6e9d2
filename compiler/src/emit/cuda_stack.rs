//! `stack.rs` for a CUDA device: the layer stack as programs of kernel launches, one function a program,
//! every launch with its grid and its arguments.

use super::cpu::{body_ident, frequency_table, logits_name};
use super::cuda_programs::{looks_ahead, program, rotary_body};
use super::cuda_weights;
use super::{far, float, format_ident, layer_type, number, quote};
use crate::graph::BodyId;
use crate::plan::cuda::{CudaPlan, Program, Regime};
use crate::plan::{Keeps, Plan, PlanBody};
use proc_macro2::{Ident, TokenStream};

/// The items of `stack.rs`.
pub fn stack(plan: &Plan) -> TokenStream {
    let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
    let weights = cuda_weights::structs(plan, cuda);
    let turning = plan.bodies.iter().enumerate().filter(|(at, _)| rotary_body(plan, *at) == *at);
    let frequencies = turning.filter_map(|(_, body)| Some(frequency_table(body, body.frequencies()?)));
    let parts = far::numbers(plan);
    let kernels = kernels(cuda);
    let areas = [buffers(plan), scratch(cuda)];
    let layers = layers_struct(plan, cuda);
    let programs = cuda.programs.iter().map(|it| program(plan, cuda, it));
    let traits = programs_impl(cuda);
    let model = model(plan, cuda);
    quote! {
        use crate::arguments::*;
        use crate::spec::SPEC;
        use monomorph_device::cuda::*;
        use monomorph_formats::Format;
        use monomorph_model::{
            BlockId, FarId, FarRoom, LoadError, LoadOptions, Model, ModelSpec, Progress, StatePlace, Step, StepOutput, Ticket,
            Weights,
        };

        #weights
        #(#frequencies)*
        #parts
        #kernels
        #(#areas)*
        #layers

        impl Layers {
            #(#programs)*
        }

        #traits
        #model
    }
}

/// `decode_1` becomes `Decode1Kernels`.
fn kernels_type(module: &str) -> Ident {
    let words = module.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    format_ident!("{}Kernels", words.collect::<String>())
}

/// A struct of kernels a module, and one of all modules.
fn kernels(cuda: &CudaPlan) -> TokenStream {
    let modules = cuda.modules.iter().map(|module| {
        let (kind, name) = (kernels_type(&module.name), &module.name);
        let documentation = format!(" Kernels of `cuda/{name}.cu`.");
        let cubin = format!("../cubins/{name}.cubin");
        let shared_part = match module.shared_part {
            None => quote!(None),
            Some(percent) => {
                let percent = number(percent as usize);
                quote!(Some(#percent))
            }
        };
        let fields: Vec<Ident> = module.kernels.iter().map(|it| format_ident!("{}", it.name)).collect();
        let looked_up = module.kernels.iter().map(|kernel| {
            let (field, symbol) = (format_ident!("{}", kernel.name), &kernel.name);
            let (block, shared) = (number(kernel.block as usize), number(kernel.shared as usize));
            quote!(#field: module.kernel(#symbol, #block, #shared)?)
        });
        let arguments = module.kernels.iter().map(|it| format_ident!("{}", it.signature.arguments));
        quote! {
            #[doc = #documentation]
            struct #kind { #(#fields: Kernel<#arguments>),* }

            impl #kind {
                fn load(gpu: &Gpu) -> Result<Self, Fault> {
                    let module = Module::load(gpu, #name, include_bytes!(#cubin), #shared_part)?;
                    Ok(#kind { #(#looked_up),* })
                }
            }
        }
    });
    let names: Vec<Ident> = cuda.modules.iter().map(|module| format_ident!("{}", module.name)).collect();
    let types: Vec<Ident> = cuda.modules.iter().map(|module| kernels_type(&module.name)).collect();
    quote! {
        #(#modules)*

        /// All kernels, by the module they stand in.
        struct Kernels { #(#names: #types),* }

        impl Kernels {
            fn load(gpu: &Gpu) -> Result<Self, Fault> {
                Ok(Kernels { #(#names: #types::load(gpu)?),* })
            }
        }
    }
}

/// Activations.
fn buffers(plan: &Plan) -> TokenStream {
    let used = plan.buffers.iter().filter(|buffer| buffer.most > 0);
    area("Buffers", "Activations of one step.", used.map(|it| (it.name.as_str(), it.bytes())).collect())
}

/// What kernels work in.
fn scratch(cuda: &CudaPlan) -> TokenStream {
    let all = cuda.scratch.iter().map(|it| (it.name.as_str(), it.bytes));
    area("Scratch", "What kernels hand on to each other besides activations; zero at first.", all.collect())
}

/// A struct of addresses and the bytes behind them.
fn area(name: &str, documentation: &str, fields: Vec<(&str, u64)>) -> TokenStream {
    let (kind, documentation) = (format_ident!("{name}"), format!(" {documentation}"));
    let names: Vec<Ident> = fields.iter().map(|(name, _)| format_ident!("{name}")).collect();
    let sizes: Vec<_> = fields.iter().map(|(_, bytes)| number(*bytes as usize)).collect();
    let total = number(fields.iter().map(|(_, bytes)| *bytes as usize).sum());
    let memory = if names.is_empty() { quote!(_memory) } else { quote!(memory) };
    quote! {
        #[doc = #documentation]
        struct #kind { #(#names: Pointer),* }

        impl #kind {
            const BYTES: u64 = #total;

            fn take(#memory: &mut Memory) -> Result<Self, Fault> {
                Ok(#kind { #(#names: memory.take(#sizes)?),* })
            }
        }
    }
}

fn bodies_with_layers(plan: &Plan) -> impl Iterator<Item = &PlanBody> {
    plan.bodies.iter().filter(|body| !body.layers.is_empty())
}

/// Those with layers, and the draft head's one.
fn bodies_that_remember(plan: &Plan) -> impl Iterator<Item = &PlanBody> {
    bodies_with_layers(plan).chain(plan.draft_layer())
}

/// Whether the rotary table of a body is its own.
fn turns(plan: &Plan, body: &PlanBody) -> bool {
    let at = plan.bodies.iter().position(|other| std::ptr::eq(other, body));
    body.frequencies().is_some() && at.is_some_and(|at| rotary_body(plan, at) == at)
}

fn layers_struct(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
    let fields = bodies_that_remember(plan).map(|body| {
        let (layers, kind) = (body_ident(body, "_layers"), layer_type(&body.name));
        let count = number(body.layers.len());
        let weights = (!body.layers.is_empty()).then(|| quote!(#layers: [#kind; #count],));
        let following = looks_ahead(plan, cuda, body).then(|| {
            let following = body_ident(body, "_following");
            quote! {
                /// Of each layer, where the weights that follow it begin and end.
                #following: [[Pointer; 2]; #count],
            }
        });
        let [cache, state, rotary] = ["_cache", "_state", "_rotary"].map(|suffix| body_ident(body, suffix));
        let kept = body.keeps(&plan.target).map(|keeps| match keeps {
            Keeps::Blocks(_) => quote!(#cache: Cache,),
            Keeps::State(_) => quote!(#state: State,),
        });
        let rotary = turns(plan, body).then(|| quote!(#rotary: Pointer,));
        quote!(#weights #following #kept #rotary)
    });
    quote! {
        /// Weights, caches and activations, and the kernels that work on them.
        struct Layers {
            kernels: Kernels,
            globals: Globals,
            #(#fields)*
            buffers: Buffers,
            scratch: Scratch,
        }
    }
}

/// The programs that are recorded, in the order of their numbers, each with the passes that draft behind it.
fn recorded(cuda: &CudaPlan) -> impl Iterator<Item = (&Program, Option<&Program>)> {
    let decode = cuda.programs.iter().filter(|program| program.regime == Regime::Decode);
    decode.map(|program| {
        let of = |it: &&Program| it.regime == Regime::Draft && it.sequences == program.sequences;
        (program, cuda.programs.iter().find(of))
    })
}

/// The programs that steps launch themselves.
fn programs_impl(cuda: &CudaPlan) -> TokenStream {
    let of = |regime| cuda.programs.iter().rfind(|it| it.regime == regime).expect("one of each");
    let (prefill, head) = (of(Regime::Prefill), of(Regime::Head));
    let [run_prefill, run_head] = [prefill, head].map(|it| format_ident!("{}", it.name));
    let short = cuda.programs.iter().filter(|it| it.regime == Regime::Prefill && it.name != prefill.name);
    let short = short.scan(0, |least, it| {
        let (run, first, last) = (format_ident!("{}", it.name), number(*least), number(it.rows));
        *least = it.rows + 1;
        Some(quote!(#first..=#last => Layers::#run(self, queue),))
    });
    let recorded = recorded(cuda).enumerate().map(|(at, (program, draft))| {
        let (at, run) = (number(at), format_ident!("{}", program.name));
        let draft = draft.map(|draft| {
            let run = format_ident!("{}", draft.name);
            quote!(Layers::#run(self, queue);)
        });
        quote! {
            #at => {
                Layers::#run(self, queue);
                #draft
            }
        }
    });
    let rows = number(head.rows);
    let learn = cuda.programs.iter().find(|it| it.regime == Regime::Learn).map(|it| {
        let run = format_ident!("{}", it.name);
        quote! {
            fn learn(&self, queue: &mut Queue) {
                Layers::#run(self, queue);
            }
        }
    });
    quote! {
        impl Programs for Layers {
            const HEAD_ROWS: usize = #rows;

            fn decode(&self, program: usize, queue: &mut Queue) {
                match program {
                    #(#recorded)*
                    _ => unreachable!("no such program was recorded"),
                }
            }

            fn prefill(&self, tokens: usize, queue: &mut Queue) {
                match tokens {
                    #(#short)*
                    _ => Layers::#run_prefill(self, queue),
                }
            }

            fn head(&self, queue: &mut Queue) {
                Layers::#run_head(self, queue);
            }

            #learn
        }
    }
}

/// The implementation of the contract.
fn model(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
    let mut mixers = Vec::new();
    let mut names = Vec::new();
    let (mut rotary_position, mut areas) = (0, plan.buffers.len() + cuda.scratch.len());
    for body in bodies_that_remember(plan) {
        let layers = number(body.layers.len().max(1));
        match body.keeps(&plan.target) {
            Some(Keeps::State(state)) => {
                let name = body_ident(body, "_state");
                let bytes = state.parts.iter().map(|part| number(part.bytes));
                mixers.push(quote!(let #name = memory.state(#layers, #(#bytes),*)?;));
                names.push(quote!(#name));
                areas += state.parts.len();
            }
            Some(Keeps::Blocks(heads)) => {
                let (cache, parts) = (body_ident(body, "_cache"), far::table(body));
                let bytes = number(heads.layout(&plan.target).block_bytes());
                mixers.push(quote!(let #cache = memory.cache(&#parts, #bytes)?;));
                names.push(quote!(#cache));
                areas += 1;
            }
            None => {}
        }
        let Some(frequencies) = body.frequencies() else { continue };
        areas += 1;
        if turns(plan, body) {
            let [rotary, table] = ["_rotary", "_frequencies"].map(|it| body_ident(body, it));
            let table = format_ident!("{}", table.to_string().to_uppercase());
            let factor = float(frequencies.factor);
            rotary_position += 8 * frequencies.inverse.len();
            mixers.push(quote! {
                let #rotary = load_rotary(&gpu, &mut memory, &#table, #factor, options.threads)?;
            });
            names.push(quote!(#rotary));
        }
    }
    // Each may leave a gap up to the next multiple of 256.
    let (gaps, rotary_position) = (number(256 * areas), number(rotary_position));
    let state = number(plan.memory.state as usize);
    let weights = cuda_weights::loads(plan);
    let mut layers: Vec<Ident> = bodies_with_layers(plan).map(|body| body_ident(body, "_layers")).collect();
    let mut tables = Vec::new();
    for (at, body) in plan.bodies.iter().enumerate().filter(|(_, body)| looks_ahead(plan, cuda, body)) {
        let name = body_ident(body, "_following");
        let ranges = plan.following(BodyId(at)).into_iter().map(|(body, layer, matrix)| {
            let field = plan.field(matrix);
            let (place, layer) = (format_ident!("{}", field.name), number(layer));
            let bytes = number(field.planes().expect("a matrix has planes").codes as usize);
            match field.owner {
                Some(_) => {
                    let layers = body_ident(&plan.bodies[body.0], "_layers");
                    quote!(#layers[#layer].#place.codes.range(#bytes))
                }
                None => quote!(globals.#place.codes.range(#bytes)),
            }
        });
        tables.push(quote!(let #name = [#(#ranges),*];));
        layers.push(name);
    }
    let logits = format_ident!("{}", logits_name(plan));
    let records = recorded(cuda).enumerate().map(|(at, (program, draft))| {
        let (at, name) = (number(at), &program.name);
        let [sequences, tokens] = [program.sequences, program.tokens].map(number);
        let record = quote!(steps.record(#name, #sequences, #tokens, |queue| layers.decode(#at, queue))?;);
        let Some(draft) = draft else { return record };
        let (name, run) = (&draft.name, format_ident!("{}", draft.name));
        quote! {
            #record
            steps.record_drafts(#name, #sequences, |queue| layers.#run(queue))?;
        }
    });
    let parts = far::parts(plan);
    let snapshots = (plan.memory.state > 0).then(|| {
        quote! {
            fn snapshots(&self) -> usize {
                self.memory.states().snapshots
            }
        }
    });
    // Drafts are fed in the step after the one that they come from: what that is, is known only when this one
    // is collected.
    let in_flight = if plan.drafts() > 0 { quote!(1) } else { quote!(STEPS_IN_FLIGHT) };
    quote! {
        /// The layers, and the steps on their way through them.
        pub struct Stack {
            // Dropped first: it waits for what is under way.
            steps: Steps,
            layers: Layers,
            memory: Memory,
        }

        impl Model for Stack {
            const SPEC: &'static ModelSpec = &SPEC;
            const STEPS_IN_FLIGHT: usize = #in_flight;
            const SAMPLES_APART: bool = true;

            fn check_hardware() -> Result<(), LoadError> {
                Gpu::check(&SPEC)
            }

            fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
                let gpu = Gpu::open(&SPEC)?;
                let kernels = Kernels::load(&gpu)?;
                let needs = Needs {
                    weights: WEIGHT_BYTES,
                    state: #state,
                    activations: Buffers::BYTES,
                    scratch: Scratch::BYTES,
                    rotary_position: #rotary_position,
                    gaps: #gaps,
                };
                let mut memory = Memory::claim(&gpu, &SPEC, options, &needs, #parts)?;
                let buffers = Buffers::take(&mut memory)?;
                let scratch = Scratch::take(&mut memory)?;
                #(#mixers)*
                #weights
                #(#tables)*
                let layers = Layers { kernels, globals, #(#layers,)* #(#names,)* buffers, scratch };
                let logits = layers.buffers.#logits;
                let mut steps = Steps::new(&gpu, &SPEC, &mut memory, logits, Layers::HEAD_ROWS)?;
                #(#records)*
                Ok(Stack { steps, layers, memory })
            }

            fn blocks(&self) -> usize {
                self.memory.blocks()
            }

            fn sequences(&self) -> usize {
                self.memory.states().sequences
            }

            #snapshots

            fn far(&self) -> Option<FarRoom> {
                self.steps.far()
            }

            fn send_far(&mut self, blocks: &[BlockId], to: FarId) -> Result<(), String> {
                self.steps.send_far(blocks, to)
            }

            fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
                self.steps.read_block(block, into);
            }

            fn write_block(&mut self, block: BlockId, from: &[u8]) {
                self.steps.write_block(block, from);
            }

            fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
                self.steps.read_state(place, into);
            }

            fn write_state(&mut self, place: StatePlace, from: &[u8]) {
                self.steps.write_state(place, from);
            }

            fn submit(&mut self, step: &Step) -> Ticket {
                self.steps.submit(&self.layers, step)
            }

            fn sample(&mut self, step: &Step) {
                self.steps.sample(&self.layers, step);
            }

            fn collect(&mut self, ticket: Ticket) -> StepOutput {
                self.steps.collect(ticket)
            }
        }
    }
}
