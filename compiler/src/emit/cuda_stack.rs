//! `stack.rs` for a CUDA device: the layer stack as programs of kernel launches, one function per program,
//! with the grid and arguments of every launch.

use super::cuda_launch::{launch, looks_ahead, rotary_body};
use super::cuda_programs::program;
use super::layers::{frequency_table, sliding};
use super::names::{body_ident, logits_name};
use super::{cuda_tower, cuda_weights, profile};
use super::{float, format_ident, kv_offload, layer_type, number, quote};
use crate::blocks::PhaseKind;
use crate::graph::BodyId;
use crate::plan::cuda::{CudaPlan, Program, Regime};
use crate::plan::traffic::traffic;
use crate::plan::{Keeps, KvHeads, Plan, PlanBody};
use monomorph_abi::world::{Exchanged, Traffic};
use monomorph_formats::cached::{Cached, KvFormats};
use proc_macro2::{Ident, TokenStream};

/// The items of `stack.rs`.
pub fn stack(plan: &Plan) -> TokenStream {
    let cuda = plan.cuda.as_ref().expect("a CUDA target has its launches planned");
    let weights = cuda_weights::structs(plan, cuda);
    let turning = plan.bodies.iter().enumerate().filter(|(at, _)| rotary_body(plan, *at) == *at);
    let frequencies = turning.filter_map(|(_, body)| Some(frequency_table(body, body.frequencies()?)));
    let parts = kv_offload::numbers(plan);
    let kernels = kernels(cuda);
    let areas = [buffers(plan), scratch(cuda)];
    let stack = stack_struct(plan, cuda);
    let programs = cuda.programs.iter().map(|it| match it.regime {
        Regime::See => cuda_tower::program(plan, cuda, it),
        _ => program(plan, cuda, it),
    });
    let [patch_frequencies, _] = cuda_tower::angles(plan).map_or([None, None], |it| it.map(Some));
    let traits = programs_impl(plan, cuda);
    let contract = contract(plan, cuda);
    let model = model(plan);
    let range = plan.tower.as_ref().map(|_| {
        quote!(
            use std::ops::Range;
        )
    });
    quote! {
        use crate::arguments::*;
        use crate::spec::SPEC;
        use monomorph_device::cuda::{self, *};
        use monomorph_formats::Format;
        use monomorph_model::{LoadError, ModelSpec};
        #range

        #weights
        #(#frequencies)*
        #patch_frequencies
        #parts
        #kernels
        #(#areas)*
        #stack

        impl Stack {
            #(#programs)*
        }

        #traits
        #contract

        #model
    }
}

/// The type that the server runs.
fn model(plan: &Plan) -> TokenStream {
    if plan.target.ranks == 1 {
        return quote! {
            /// What the server runs.
            pub type Model = cuda::Model<Stack>;
        };
    }
    if plan.target.hosts > 1 {
        return quote! {
            /// What the server runs: a stack in each process.
            pub type Model = cuda::Process<Stack>;
        };
    }
    quote! {
        /// What the server runs: a stack on each GPU.
        pub type Model = cuda::World<Stack>;
    }
}

/// Number of ranks, what they exchange, and the memory through which they do.
fn world(plan: &Plan, cuda: &CudaPlan) -> Option<[TokenStream; 2]> {
    let ranks = number(Some(plan.target.ranks).filter(|ranks| *ranks > 1)?);
    let area = |name: &str| {
        let scratch = cuda.scratch.iter().find(|it| it.name == name);
        scratch.map_or((quote!(Pointer::NULL), number(0)), |it| {
            let place = format_ident!("{name}");
            (quote!(self.scratch.#place), number(it.bytes as usize))
        })
    };
    if plan.target.hosts > 1 {
        let (gathered, bytes) = area("gathered");
        return Some([
            quote!(const RANKS: usize = #ranks;),
            quote! {
                fn gathered(&self) -> Option<Gathered> {
                    Some(Gathered { at: #gathered, bytes: #bytes })
                }
            },
        ]);
    }
    let [(world, _), (sums, sums_bytes), (gathered, gathered_bytes)] =
        ["world", "sum_inbox", "gather_inbox"].map(area);
    let Traffic { layers, head, learn, drafts } = traffic(plan, cuda);
    let [layers, head, learn, drafts] = [layers, head, learn, drafts].map(|it: Exchanged| {
        let [exchanges, values] = [it.exchanges, it.row_values].map(|it| number(it as usize));
        quote!(Exchanged { exchanges: #exchanges, row_values: #values })
    });
    Some([
        quote! {
            const RANKS: usize = #ranks;

            const TRAFFIC: Traffic =
                Traffic { layers: #layers, head: #head, learn: #learn, drafts: #drafts };
        },
        quote! {
            fn world(&self) -> Option<WorldMemory> {
                Some(WorldMemory {
                    world: #world,
                    sums: #sums,
                    sums_bytes: #sums_bytes,
                    gathered: #gathered,
                    gathered_bytes: #gathered_bytes,
                })
            }
        },
    ])
}

/// Turns `decode_1` into `Decode1Kernels`.
fn kernels_type(module: &str) -> Ident {
    let words = module.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    format_ident!("{}Kernels", words.collect::<String>())
}

/// A struct of kernels per module, and one of all modules.
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
        pub struct Kernels { #(#names: #types),* }

        impl Kernels {
            fn load(gpu: &Gpu) -> Result<Self, Fault> {
                Ok(Kernels { #(#names: #types::load(gpu)?),* })
            }
        }
    }
}

/// The struct of activation buffers.
fn buffers(plan: &Plan) -> TokenStream {
    let used = plan.sizes().filter(|(_, bytes)| *bytes > 0);
    area("Buffers", "Activations of one step.", used.map(|(it, bytes)| (it.name.as_str(), bytes)).collect())
}

/// The struct of the kernels' scratch.
fn scratch(cuda: &CudaPlan) -> TokenStream {
    let all = cuda.scratch.iter().map(|it| (it.name.as_str(), it.bytes));
    area("Scratch", "What kernels hand on to each other besides activations; zero at first.", all.collect())
}

/// A struct of addresses, with the bytes of each.
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

/// Bodies that keep state: those with layers, and the draft head's layer.
fn bodies_that_remember(plan: &Plan) -> impl Iterator<Item = &PlanBody> {
    bodies_with_layers(plan).chain(plan.draft_layer())
}

/// Whether a body has a rotary table of its own.
fn turns(plan: &Plan, body: &PlanBody) -> bool {
    let at = plan.bodies.iter().position(|other| std::ptr::eq(other, body));
    body.frequencies().is_some() && at.is_some_and(|at| rotary_body(plan, at) == at)
}

fn stack_struct(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
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
            Keeps::Blocks(..) => quote!(#cache: Cache,),
            Keeps::State(kept) => {
                let parts = number(kept.parts.len());
                quote!(#state: State<#parts>,)
            }
        });
        let rotary = turns(plan, body).then(|| quote!(#rotary: Pointer,));
        quote!(#weights #following #kept #rotary)
    });
    quote! {
        /// Weights, what layers keep, activations, and the kernels that work on them.
        pub struct Stack {
            kernels: Kernels,
            globals: Globals,
            #(#fields)*
            buffers: Buffers,
            scratch: Scratch,
        }
    }
}

/// The programs captured as graphs, in order of their numbers, each with the draft passes that follow it.
fn recorded(cuda: &CudaPlan) -> impl Iterator<Item = (&Program, Option<&Program>)> {
    let decode = cuda.programs.iter().filter(|program| program.regime == Regime::Decode);
    decode.map(|program| {
        let of = |it: &&Program| it.regime == Regime::Draft && it.sequences == program.sequences;
        (program, cuda.programs.iter().find(of))
    })
}

/// The programs that steps launch without a graph.
fn programs_impl(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
    let of = |regime| cuda.programs.iter().rfind(|it| it.regime == regime).expect("one of each");
    let (prefill, head) = (of(Regime::Prefill), of(Regime::Head));
    let [run_prefill, run_head] = [prefill, head].map(|it| format_ident!("{}", it.name));
    let short = cuda.programs.iter().filter(|it| it.regime == Regime::Prefill && it.name != prefill.name);
    let short = short.scan(0, |least, it| {
        let (run, first, last) = (format_ident!("{}", it.name), number(*least), number(it.rows));
        *least = it.rows + 1;
        Some(quote!(#first..=#last => Stack::#run(self, queue),))
    });
    let decode = recorded(cuda).enumerate().map(|(at, (program, draft))| {
        let (at, run) = (number(at), format_ident!("{}", program.name));
        let draft = draft.map(|_| quote!(self.draft(#at, queue);));
        quote! {
            #at => {
                Stack::#run(self, queue);
                #draft
            }
        }
    });
    let drafts = recorded(cuda).enumerate().filter_map(|(at, (_, draft))| {
        let (at, run) = (number(at), format_ident!("{}", draft?.name));
        Some(quote!(#at => Stack::#run(self, queue),))
    });
    let drafts: Vec<TokenStream> = drafts.collect();
    let draft = (!drafts.is_empty()).then(|| {
        quote! {
            fn draft(&self, program: usize, queue: &mut Queue) {
                match program {
                    #(#drafts)*
                    _ => unreachable!("no such passes were recorded"),
                }
            }
        }
    });
    let rows = number(head.rows);
    let exchange = lone_exchange(plan, cuda).filter(|_| plan.target.hosts == 1).map(|launch| {
        quote! {
            fn exchange(&self, queue: &mut Queue) {
                #launch
            }
        }
    });
    let learn = cuda.programs.iter().find(|it| it.regime == Regime::Learn).map(|it| {
        let run = format_ident!("{}", it.name);
        quote! {
            fn learn(&self, queue: &mut Queue) {
                Stack::#run(self, queue);
            }
        }
    });
    let see = cuda_tower::programs(cuda);
    let profile = profile::constant(plan);
    quote! {
        impl Programs for Stack {
            const HEAD_ROWS: usize = #rows;

            #profile

            fn decode(&self, program: usize, queue: &mut Queue) {
                match program {
                    #(#decode)*
                    _ => unreachable!("no such program was recorded"),
                }
            }

            #draft

            fn prefill(&self, tokens: usize, queue: &mut Queue) {
                match tokens {
                    #(#short)*
                    _ => Stack::#run_prefill(self, queue),
                }
            }

            fn head(&self, queue: &mut Queue) {
                Stack::#run_head(self, queue);
            }

            #learn

            #see

            #exchange
        }
    }
}

/// The launch of a sum over ranks and of nothing else, of the first program that has one.
fn lone_exchange(plan: &Plan, cuda: &CudaPlan) -> Option<TokenStream> {
    let programs = cuda.programs.iter().filter(|it| matches!(it.regime, Regime::Decode | Regime::Prefill));
    let bodies = programs.flat_map(|program| plan.bodies.iter().zip(&program.bodies));
    let bodies = bodies.filter(|(body, _)| !body.layers.is_empty());
    let launches = bodies.flat_map(|(body, launches)| launches.iter().map(move |it| (body, it)));
    let mut sums = launches.filter(|(body, it)| matches!(body.phases[it.phase].kind, PhaseKind::Sum(_)));
    let (body, sum) = sums.next()?;
    Some(launch(plan, cuda, Some(body), sum))
}

/// The implementation of `Stack`, for the hand-written model.
fn contract(plan: &Plan, cuda: &CudaPlan) -> TokenStream {
    let (mut kept, mut names) = (Vec::new(), Vec::new());
    let (mut rotary_position, mut areas) = (0, plan.buffers.len() + cuda.scratch.len());
    let mut ahead_bytes = 0;
    for body in bodies_that_remember(plan) {
        let layers = number(body.layers.len().max(1));
        match body.keeps(&plan.target) {
            Some(Keeps::State(state)) => {
                let name = body_ident(body, "_state");
                let bytes = state.parts.iter().map(|part| number(part.bytes));
                kept.push(quote!(let #name = from.memory.state(#layers, [#(#bytes),*])?;));
                names.push(name);
                areas += state.parts.len();
            }
            Some(Keeps::Blocks(heads, formats)) => {
                let cache = body_ident(body, "_cache");
                let layout = heads.layout(&plan.target.hardware.kind, plan.target.quant.kv_block, formats);
                let bytes = number(layout.block_bytes());
                let parts = kv_offload::table(body);
                let (first, ahead) = (number(layout.ahead_bytes()), layout.ahead_bytes() > 0);
                let new = match (heads.window, ahead) {
                    (Some(_), false) => quote!(sliding_cache(#layers, #bytes)),
                    (Some(_), true) => quote!(sliding_cache_behind(#first, #layers, #bytes)),
                    (None, false) => quote!(cache(&#parts, #bytes)),
                    (None, true) => quote!(cache_behind(#first, &#parts, #bytes)),
                };
                kept.push(quote!(let #cache = from.memory.#new?;));
                if ahead {
                    kept.push(static_scales(body, &cache, heads, formats));
                    ahead_bytes += layout.ahead_bytes() * body.layers.len().max(1);
                }
                names.push(cache);
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
            kept.push(quote!(let #rotary = from.rotary(&#table, #factor)?;));
            names.push(rotary);
        }
    }
    // Each area may leave a gap up to the next multiple of 256. Static scales are counted with the gaps.
    let changed = rotary_position > 0 || ahead_bytes > 0 || plan.tower.is_some();
    let mutable = changed.then(|| quote!(mut));
    let (gaps, rotary_position) = (number(256 * areas + ahead_bytes), number(rotary_position));
    let state = number(plan.memory.state as usize);
    let weights = cuda_weights::loads(plan);
    let layers = bodies_with_layers(plan).map(|body| body_ident(body, "_layers"));
    let (following, tables) = following(plan, cuda);
    let logits = format_ident!("{}", logits_name(plan));
    let decode = recorded(cuda).map(|(program, draft)| {
        let (name, [sequences, tokens]) = (&program.name, [program.sequences, program.tokens].map(number));
        let drafts = match draft {
            None => quote!(None),
            Some(Program { name, .. }) => quote!(Some(#name)),
        };
        quote!(Decode { name: #name, sequences: #sequences, tokens: #tokens, drafts: #drafts })
    });
    let (parts, sliding) = (kv_offload::parts(plan), sliding(plan));
    let vision = cuda_tower::contract(plan);
    let [_, patch_angles] = cuda_tower::angles(plan).map_or([None, None], |it| it.map(Some));
    let [ranks, world] = world(plan, cuda).map_or([None, None], |it| it.map(Some));
    quote! {
        impl cuda::Stack for Stack {
            #ranks

            const SPEC: &'static ModelSpec = &SPEC;

            #sliding
            const NEEDS: Needs = Needs {
                weights: WEIGHT_BYTES,
                state: #state,
                activations: Buffers::BYTES,
                scratch: Scratch::BYTES,
                rotary_position: #rotary_position,
                gaps: #gaps,
            };

            const PARTS: &'static [(usize, &'static [usize])] = #parts;

            const DECODE: &'static [Decode] = &[#(#decode),*];

            type Kernels = Kernels;

            fn kernels(gpu: &Gpu) -> Result<Kernels, Fault> {
                Kernels::load(gpu)
            }

            fn load(kernels: Kernels, #mutable from: Loading) -> Result<Self, LoadError> {
                let buffers = Buffers::take(from.memory)?;
                let scratch = Scratch::take(from.memory)?;
                #patch_angles
                #(#kept)*
                #weights
                #(#tables)*
                Ok(Stack { kernels, globals, #(#layers,)* #(#following,)* #(#names,)* buffers, scratch })
            }

            fn logits(&self) -> Pointer {
                self.buffers.#logits
            }

            #vision

            #world
        }
    }
}

/// The statement that writes the static scales of a body's layers. A draft head has none of the checkpoint's.
fn static_scales(body: &PlanBody, cache: &Ident, heads: KvHeads, formats: KvFormats) -> TokenStream {
    // What is key and value at once has one scale, that of keys.
    let values = if heads.latent.is_some() { Cached::Bf16 } else { formats.values };
    let [keys, values] = [formats.keys, values].map(|it| format_ident!("{}", format!("{it:?}")));
    let heads = number(heads.heads);
    let layers = body.layers.iter().map(|layer| number(*layer));
    let layers: Vec<_> = match body.layers.is_empty() {
        true => vec![quote!(None)],
        false => layers.map(|layer| quote!(Some(#layer))).collect(),
    };
    quote! {
        from.static_scales(
            &#cache,
            #heads,
            [monomorph_formats::cached::Cached::#keys, monomorph_formats::cached::Cached::#values],
            &[#(#layers),*],
            SPEC.kv_scales.as_ref(),
        )?;
    }
}

/// Begin and end of the weights after each layer: the names of the tables, and the statements that fill them.
fn following(plan: &Plan, cuda: &CudaPlan) -> (Vec<Ident>, Vec<TokenStream>) {
    let bodies = plan.bodies.iter().enumerate().filter(|(_, body)| looks_ahead(plan, cuda, body));
    let of_body = |(at, body): (usize, &PlanBody)| {
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
        let statement = quote!(let #name = [#(#ranges),*];);
        (name, statement)
    };
    bodies.map(of_body).unzip()
}
