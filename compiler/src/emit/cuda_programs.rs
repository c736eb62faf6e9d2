//! The programs of a CUDA stack: one function each, with the grid and arguments of every launch.

use super::cpu_tower::between;
use super::cuda_launch::launch;
use super::cuda_tower::behind_layers;
use super::layers::{layer_loop, layer_order};
use super::names::layer_parameter;
use super::{format_ident, kv_offload, layer_type, number, quote};
use crate::graph::BodyId;
use crate::plan::cuda::{Argument, CudaPlan, Launch, Program, Regime};
use crate::plan::{Plan, PlanBody};
use proc_macro2::TokenStream;

/// The function that launches a program, and one per body of layers.
pub fn program(plan: &Plan, cuda: &CudaPlan, program: &Program) -> TokenStream {
    let name = format_ident!("{}", program.name);
    let documentation = match program.regime {
        Regime::Decode if program.tokens > 1 => {
            format!(
                " A token and its drafts of up to {} sequences, and what is sampled after each.",
                program.sequences
            )
        }
        Regime::Decode if program.rows == 1 => {
            " One token of one sequence, and the next one sampled.".to_owned()
        }
        Regime::Decode => {
            format!(" One token each of up to {} sequences, and the next ones sampled.", program.rows)
        }
        Regime::Prefill => format!(" Up to {} tokens, to the last layer's residual stream.", program.rows),
        Regime::Head => format!(" The logits of up to {} rows, and what is sampled from them.", program.rows),
        Regime::Learn => {
            format!(
                " Who is drafted for behind a prefill, and what a draft head learns from up to {} tokens.",
                program.rows
            )
        }
        Regime::Draft => format!(" Drafts for up to {} sequences.", program.sequences),
        Regime::See => unreachable!("a tower's programs have functions of their own"),
    };
    let in_layers = |body: &PlanBody| !body.layers.is_empty();
    let between = between(plan);
    let (behind, of_behind) = behind_layers(plan, cuda, program).unzip();
    let outside = |after: bool| -> Vec<TokenStream> {
        let first_layers = plan.bodies.iter().position(in_layers).unwrap_or(plan.bodies.len());
        let bodies = plan.bodies.iter().zip(&program.bodies).enumerate();
        let bodies = bodies.filter(|(at, (body, _))| {
            !in_layers(body) && (*at > first_layers) == after && !between.contains(&BodyId(*at))
        });
        bodies.flat_map(|(_, (_, launches))| launches).map(|it| launch(plan, cuda, None, it)).collect()
    };
    let run = |body: &PlanBody| format_ident!("{}_{}", program.name, body.name.replace('-', "_"));
    let runs_layers =
        plan.bodies.iter().zip(&program.bodies).any(|(body, it)| in_layers(body) && !it.is_empty());
    let layers = runs_layers.then(|| {
        let layers = layer_loop(plan, &layer_order(plan), |body| {
            let run = run(body);
            let behind = behind.as_ref().map(|it| quote!(self.#it(queue, behind); behind += 1;));
            quote!(self.#run(queue, layer, weights); #behind)
        });
        let counted = behind.as_ref().map(|_| quote!(let mut behind = 0;));
        quote!(#counted #layers)
    });
    let bodies =
        plan.bodies.iter().zip(&program.bodies).filter(|(body, it)| in_layers(body) && !it.is_empty());
    let bodies = bodies.map(|(body, launches)| {
        let (run, kind) = (run(body), layer_type(&body.name));
        let attends = |it: &&Launch| it.arguments.iter().any(|it| matches!(it, Argument::Cache(_)));
        let first = launches.iter().find(attends);
        let launches = launches.iter().map(|it| {
            // Blocks must come from disk before the first kernel that reads the cache; staging this late lets
            // as many kernels as possible run meanwhile. Layers with a window have none there.
            let stages = plan.window(body).is_none() && first.is_some_and(|first| std::ptr::eq(first, it));
            let stage = stages.then(|| {
                let parts = kv_offload::table(body);
                quote!(queue.stage(#parts[layer]);)
            });
            let launch = launch(plan, cuda, Some(body), it);
            quote!(#stage #launch)
        });
        let launches: TokenStream = launches.collect();
        let layer = layer_parameter(&launches);
        let documentation = format!(" One `{}` layer of [`Stack::{}`].", body.name, program.name);
        quote! {
            #[doc = #documentation]
            fn #run(&self, queue: &mut Queue, #layer: usize, weights: &#kind) {
                #launches
            }
        }
    });
    let (before, after) = (outside(false), outside(true));
    let sampling = program.regime.samples().then(|| quote!(queue.begin_sampling();));
    let tail = program.tail.iter().map(|it| launch(plan, cuda, None, it));
    let (passes, bodies_of_passes) = passes(plan, cuda, program);
    quote! {
        #[doc = #documentation]
        fn #name(&self, queue: &mut Queue) {
            #(#before)*
            #layers
            #(#after)*
            #sampling
            #(#tail)*
            #(#passes)*
        }

        #(#bodies)*
        #of_behind
        #(#bodies_of_passes)*
    }
}

/// The statements of a program's draft passes. Each body of the model's layers among them gets a function
/// that runs one of its layers in any of these passes.
fn passes(plan: &Plan, cuda: &CudaPlan, program: &Program) -> (Vec<TokenStream>, Vec<TokenStream>) {
    let run = |body: &PlanBody| format_ident!("{}_{}", program.name, body.name.replace('-', "_"));
    let of_layers = |body: &BodyId| !plan.bodies[body.0].layers.is_empty();
    let (mut statements, mut functions) = (Vec::new(), Vec::new());
    let mut pass = 0;
    for alike in program.passes.chunk_by(|(a, _), (b, _)| of_layers(a) == of_layers(b)) {
        if !of_layers(&alike[0].0) {
            let launches = alike.iter().flat_map(|(_, launches)| launches);
            statements.extend(launches.map(|it| launch(plan, cuda, None, it)));
            continue;
        }
        let order: Vec<usize> = plan.attending().map(|body| body.0).collect();
        let at = number(pass);
        statements.push(layer_loop(plan, &order, |body| {
            let run = run(body);
            quote!(self.#run(queue, #at, layer, weights);)
        }));
        for (body, launches) in alike.iter().filter(|_| pass == 0) {
            let body = &plan.bodies[body.0];
            let (run, kind) = (run(body), layer_type(&body.name));
            let launches = launches.iter().map(|it| launch(plan, cuda, Some(body), it));
            let documentation =
                format!(" One `{}` layer of a pass of [`Stack::{}`].", body.name, program.name);
            functions.push(quote! {
                #[doc = #documentation]
                fn #run(&self, queue: &mut Queue, pass: usize, layer: usize, weights: &#kind) {
                    #(#launches)*
                }
            });
        }
        pass += 1;
    }
    (statements, functions)
}
