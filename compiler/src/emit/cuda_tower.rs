//! The parts of a CUDA device's `stack.rs` that only a target with a vision tower has.

use super::cpu_tower::{between, parts, rows_name};
use super::cuda_launch::launch;
use super::names::body_ident;
use super::{float, format_ident, layer_type, number, quote};
use crate::blocks::vision::cuda::{IMAGE_ROWS, PATCH_ANGLES};
use crate::blocks::vision::graph::PositionTable;
use crate::blocks::vision::{AttendPatches, EmbedPatches, Place};
use crate::graph::BodyId;
use crate::plan::cuda::{CudaPlan, Launch, Program, Regime};
use crate::plan::{PhaseKind, Plan, PlanBody, TowerPlan};
use proc_macro2::{Ident, TokenStream};

/// The function that launches a program of a tower over images, and keeps their rows; and one for each body
/// that runs more than once.
pub fn program(plan: &Plan, cuda: &CudaPlan, program: &Program) -> TokenStream {
    let Some(tower) = &plan.tower else { return TokenStream::new() };
    let name = format_ident!("{}", program.name);
    let documentation = format!(" The vision tower over up to {} patches of images.", program.rows);
    let keep = keep(plan, tower, quote!(0));
    let steps = parts(
        tower,
        |body| launches(plan, cuda, None, of(program, body)),
        |body| layers(plan, tower, program, body),
        keep,
    );
    let repeated = program.passes.iter().filter(|(body, _)| !plan.bodies[body.0].layers.is_empty());
    let repeated = repeated.map(|(body, all)| {
        let body = &plan.bodies[body.0];
        let (run, kind) = (run(program, body), layer_type(&body.name));
        let launches = launches(plan, cuda, Some(body), all);
        let documentation = format!(" One `{}` of [`Stack::{}`].", body.name, program.name);
        quote! {
            #[doc = #documentation]
            fn #run(&self, queue: &mut Queue, weights: &#kind) {
                #launches
            }
        }
    });
    quote! {
        #[doc = #documentation]
        fn #name(&self, images: &[Kept], layers: Range<usize>, queue: &mut Queue) {
            #steps
        }

        #(#repeated)*
    }
}

/// The launches of a body in a program.
fn of(program: &Program, body: BodyId) -> &[Launch] {
    program.passes.iter().find(|(it, _)| *it == body).map_or(&[], |(_, launches)| launches)
}

fn run(program: &Program, body: &PlanBody) -> Ident {
    format_ident!("{}_{}", program.name, body.name)
}

fn launches(plan: &Plan, cuda: &CudaPlan, body: Option<&PlanBody>, all: &[Launch]) -> TokenStream {
    all.iter().map(|it| launch(plan, cuda, body, it)).collect()
}

/// The statement that keeps rows of images, `behind` rows behind the first that are kept of each.
fn keep(plan: &Plan, tower: &TowerPlan, behind: TokenStream) -> TokenStream {
    let (rows, kept) = (format_ident!("{}", rows_name(plan, tower)), format_ident!("{IMAGE_ROWS}"));
    let hidden = number(plan.target.model.hidden);
    quote!(queue.keep_rows(self.buffers.#rows, self.scratch.#kept, images, #behind, #hidden);)
}

/// The loop over a tower's layers, with the branches behind some of them.
fn layers(plan: &Plan, tower: &TowerPlan, program: &Program, body: BodyId) -> TokenStream {
    let body = &plan.bodies[body.0];
    let (layers, layer) = (body_ident(body, "_layers"), run(program, body));
    let Some((_, branch)) = tower.branches.first() else {
        return quote! {
            for weights in &self.#layers[layers.clone()] {
                self.#layer(queue, weights);
            }
        };
    };
    let branch = &plan.bodies[branch.0];
    let (taps, make) = (body_ident(branch, "_layers"), run(program, branch));
    let after = tower.branches.iter().map(|(after, _)| number(*after));
    let most = number(tower.most_tokens());
    let keep = keep(plan, tower, quote!((1 + tap) * #most));
    quote! {
        for layer in layers.clone() {
            self.#layer(queue, &self.#layers[layer]);
            if let Some(tap) = [#(#after),*].iter().position(|after| *after == layer) {
                self.#make(queue, &self.#taps[tap]);
                #keep
            }
        }
    }
}

/// The function of a program of the model's that runs what stands between its layers, if there is something.
pub fn behind_layers(plan: &Plan, cuda: &CudaPlan, program: &Program) -> Option<(Ident, TokenStream)> {
    let bodies = between(plan);
    if bodies.iter().all(|body| program.bodies[body.0].is_empty()) {
        return None;
    }
    let name = format_ident!("{}_behind_layer", program.name);
    let arms = bodies.iter().enumerate().map(|(tap, body)| {
        let (tap, launches) = (number(tap), launches(plan, cuda, None, &program.bodies[body.0]));
        quote!(#tap => { #launches })
    });
    let function = quote! {
        /// Adds what the tower's taps give to the rows of images, behind as many of the model's layers.
        fn #name(&self, queue: &mut Queue, layer: usize) {
            match layer {
                #(#arms)*
                _ => {}
            }
        }
    };
    Some((name, function))
}

/// The items of a tower in `impl Programs`.
pub fn programs(cuda: &CudaPlan) -> Option<TokenStream> {
    let all: Vec<&Program> = cuda.programs.iter().filter(|it| it.regime == Regime::See).collect();
    let (last, short) = all.split_last()?;
    let short = short.iter().scan(0, |least, it| {
        let (run, first, last) = (format_ident!("{}", it.name), number(*least), number(it.rows));
        *least = it.rows + 1;
        Some(quote!(#first..=#last => self.#run(images, layers, queue),))
    });
    let last = format_ident!("{}", last.name);
    Some(quote! {
        fn see(&self, patches: usize, images: &[Kept], layers: Range<usize>, queue: &mut Queue) {
            match patches {
                #(#short)*
                _ => Stack::#last(self, images, layers, queue),
            }
        }
    })
}

/// The items of a tower in `impl cuda::Stack`.
pub fn contract(plan: &Plan) -> Option<TokenStream> {
    let tower = plan.tower.as_ref()?;
    let (pixels, kept) =
        (format_ident!("{}", plan.buffer(plan.pixels()).name), format_ident!("{IMAGE_ROWS}"));
    let phases = || plan.bodies[tower.first.0..].iter().flat_map(|body| &body.phases);
    let table = phases().find_map(|phase| match phase.kind {
        PhaseKind::EmbedPatches(EmbedPatches {
            place: Place::Table(_, PositionTable::Axes { entries }),
            ..
        }) => Some(entries),
        _ => None,
    });
    let side = tower.most_side(plan.target.tower.as_ref().map_or(1, |vision| vision.merge));
    let side = number(table.map_or(side, |entries| side.min(entries)));
    Some(quote! {
        const VISION: Option<monomorph_model::VisionSpec> = Some(crate::spec::VISION);

        const MOST_SIDE: usize = #side;

        fn pixels(&self) -> Pointer {
            self.buffers.#pixels
        }

        fn image_rows(&self) -> Pointer {
            self.scratch.#kept
        }
    })
}

/// The table of radians that pairs of a tower's heads turn by, and the statement that fills what the device
/// has of it.
pub fn angles(plan: &Plan) -> Option<[TokenStream; 2]> {
    let tower = plan.tower.as_ref()?;
    let mut phases = plan.bodies[tower.first.0..].iter().flat_map(|body| &body.phases);
    let inverse = phases.find_map(|phase| match &phase.kind {
        PhaseKind::AttendPatches(it) => Some(AttendPatches::inverse_frequencies(it)),
        _ => None,
    })?;
    let (count, values) = (number(inverse.len()), inverse.iter().map(|it| float(*it)));
    let places = number(tower.most_side(plan.target.tower.as_ref()?.merge));
    let angles = format_ident!("{PATCH_ANGLES}");
    Some([
        quote! {
            /// Radians a row or a column by which each pair of a patch's heads turns.
            static PATCH_FREQUENCIES: [f32; #count] = [#(#values),*];
        },
        quote!(from.patch_angles(scratch.#angles, &PATCH_FREQUENCIES, #places)?;),
    ])
}
