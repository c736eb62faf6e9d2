//! A launch of a CUDA stack: its grid and its arguments.

use super::names::body_ident;
use super::{format_ident, number, profile, quote};
use crate::plan::cuda::{Argument, CudaPlan, Extent, Launch, Plane};
use crate::plan::{Plan, PlanBody};
use proc_macro2::TokenStream;

/// Whether launches of this body's layers prefetch the next layer's weights.
pub fn looks_ahead(plan: &Plan, cuda: &CudaPlan, body: &PlanBody) -> bool {
    let at = plan.bodies.iter().position(|other| std::ptr::eq(other, body));
    let mut launches = cuda.programs.iter().filter_map(|it| it.bodies.get(at?)).flatten();
    launches.any(|it| it.arguments.iter().any(|it| matches!(it, Argument::Following(_))))
}

/// The body whose rotary table a body reads: the first with the same frequencies.
pub fn rotary_body(plan: &Plan, body: usize) -> usize {
    let own = plan.bodies[body].frequencies();
    plan.bodies.iter().position(|other| other.frequencies() == own).unwrap_or(body)
}

pub fn launch(plan: &Plan, cuda: &CudaPlan, body: Option<&PlanBody>, launch: &Launch) -> TokenStream {
    let module = format_ident!("{}", cuda.modules[launch.kernel.0].name);
    let kernel = format_ident!("{}", cuda.kernel(launch.kernel).name);
    let extent = |extent: &Extent| {
        let rows = |count: TokenStream, each: u32| match each {
            1 => count,
            _ => {
                let each = number(each as usize);
                quote!(#count.div_ceil(#each))
            }
        };
        match *extent {
            Extent::Fixed(blocks) => {
                let blocks = number(blocks as usize);
                quote!(#blocks)
            }
            Extent::Tokens(each) => rows(quote!(queue.extents.tokens), each),
            Extent::Sequences(each) => rows(quote!(queue.extents.sequences), each),
            Extent::Outputs(each) => rows(quote!(queue.extents.outputs), each),
        }
    };
    let grid = launch.grid.iter().map(extent);
    let gathers = launch.gathers.as_ref().map(|it| {
        let [from, to] = [&it.from, &it.to].map(|it| argument(plan, cuda, body, it));
        let (rows, width) = (extent(&it.rows), number(it.width));
        quote!(queue.all_gather(#from, #to, #rows, #width);)
    });
    let signature = cuda.kernel(launch.kernel).signature;
    let arguments = format_ident!("{}", signature.arguments);
    let fields = signature.parameters.iter().zip(&launch.arguments).map(|(parameter, it)| {
        let (name, value) = (format_ident!("{}", parameter.name), argument(plan, cuda, body, it));
        quote!(#name: #value)
    });
    let row = profile::row(plan, cuda, launch);
    let (waits, launches) = match (launch.beside, row.is_some()) {
        (true, false) => (quote!(queue.fork();), quote!(beside)),
        (false, false) => (quote!(queue.join();), quote!(launch)),
        (true, true) => (quote!(queue.fork_if_untimed();), quote!(timed_beside)),
        (false, true) => (quote!(queue.join_if_untimed();), quote!(timed)),
    };
    let row = row.map(|row| quote!(#row,));
    let waits = launch.waits.then_some(waits);
    quote! {
        #waits
        #gathers
        queue.#launches(#row &self.kernels.#module.#kernel, [#(#grid),*], #arguments { #(#fields),* });
    }
}

fn argument(plan: &Plan, cuda: &CudaPlan, body: Option<&PlanBody>, argument: &Argument) -> TokenStream {
    match argument {
        Argument::Step => quote!(queue.step.header),
        // Of several passes through the model's layers, the current one.
        Argument::Pass(_) if body.is_some() => quote!(queue.step.pass(pass)),
        Argument::Pass(pass) => {
            let pass = number(*pass);
            quote!(queue.step.pass(#pass))
        }
        Argument::Tokens => quote!(queue.step.tokens),
        Argument::Images => quote!(queue.step.images),
        Argument::SampledIds => quote!(queue.step.ids),
        Argument::Ids(at) => {
            let at = number(*at);
            quote!(queue.step.ids_from(#at))
        }
        Argument::History => quote!(queue.step.history),
        Argument::SampledOut => quote!(queue.step.sampled),
        Argument::DraftedOut(row) => {
            let row = number(*row);
            quote!(queue.step.drafted_from(#row))
        }
        Argument::Held => quote!(queue.step.held),
        Argument::Buffer(id) => {
            let name = format_ident!("{}", plan.buffer(*id).name);
            quote!(self.buffers.#name)
        }
        Argument::Field(id, plane) => {
            let field = plan.field(*id);
            let name = format_ident!("{}", field.name);
            let plane = match plane {
                Plane::Codes => quote!(codes),
                Plane::Scales => quote!(scales),
                Plane::RowScales => quote!(row_scales),
            };
            match field.owner {
                Some(_) => quote!(weights.#name.#plane),
                None => quote!(self.globals.#name.#plane),
            }
        }
        Argument::Cache(body) => {
            let body = &plan.bodies[body.0];
            let cache = body_ident(body, "_cache");
            let layer = if body.layers.is_empty() { quote!(0) } else { quote!(layer) };
            quote!(self.#cache.layer(#layer))
        }
        Argument::State(body, part) => {
            let body = &plan.bodies[body.0];
            let parts = plan.state(body).map_or(Vec::new(), |state| state.parts);
            let at = parts.iter().position(|it| it.name == *part).expect("a part of the body's state");
            let (state, at) = (body_ident(body, "_state"), number(at));
            quote!(self.#state.part(#at, layer))
        }
        Argument::Following(edge) => {
            let body = body.expect("only launches of layers have weights that follow");
            let (table, edge) = (body_ident(body, "_following"), number(*edge as usize));
            quote!(self.#table[layer][#edge])
        }
        Argument::Rotary(body) => {
            let rotary = body_ident(&plan.bodies[rotary_body(plan, body.0)], "_rotary");
            quote!(self.#rotary)
        }
        Argument::Scratch(index) => {
            let name = format_ident!("{}", cuda.scratch[*index].name);
            quote!(self.scratch.#name)
        }
        Argument::Null => quote!(Pointer::NULL),
    }
}
