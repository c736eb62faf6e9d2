//! What only a profiling build has: `profile.rs`, the table of its steps' phases, and the statements that
//! take the time of phases.

use super::{number, quote};
use crate::plan::cuda::{CudaPlan, Launch};
use crate::plan::profile::{ProfiledKind, ProfiledPhase, ProfiledStep, launch_row};
use crate::plan::{Phase, Plan, PlanBody};
use monomorph_abi::PhaseWork;
use proc_macro2::{Literal, TokenStream};

/// The items of `profile.rs`.
pub fn table(plan: &Plan) -> TokenStream {
    let clock = if plan.cuda.is_some() { quote!(Events) } else { quote!(Barriers) };
    let bandwidth = Literal::f64_unsuffixed(plan.target.hardware.bandwidth);
    let (names, steps) = (plan.profiled_names(), plan.profiled());
    let steps = steps.iter().map(|ProfiledStep { kind, phases }| {
        let kind = match kind {
            ProfiledKind::Decode(sequences) => {
                let sequences = number(*sequences);
                quote!(Decode(#sequences))
            }
            ProfiledKind::Prompt(tokens) => {
                let tokens = number(*tokens);
                quote!(Prompt(#tokens))
            }
        };
        let phases = phases.iter().map(phase);
        quote!(ProfiledStep { kind: ProfiledKind::#kind, phases: &[#(#phases),*] })
    });
    quote! {
        use monomorph_model::{PhaseClock, PhaseWork, ProfileSpec, ProfiledKind, ProfiledPhase, ProfiledStep};

        /// The steps whose phases are timed, and what the plan says of these.
        pub static PROFILE: ProfileSpec = ProfileSpec {
            clock: PhaseClock::#clock,
            bandwidth: #bandwidth,
            names: &[#(#names),*],
            steps: &[#(#steps),*],
        };
    }
}

fn phase(phase: &ProfiledPhase) -> TokenStream {
    let ProfiledPhase { body, name, kind, times, rows, work } = phase;
    let (times, rows) = (number(*times), rows.iter().copied().map(number));
    let PhaseWork { bytes, bytes_each, products, products_each, most, decoding, overhead } = *work;
    let [bytes, bytes_each, products, products_each, most, decoding, overhead] =
        [bytes, bytes_each, products, products_each, most, decoding, overhead].map(Literal::f64_unsuffixed);
    quote! {
        ProfiledPhase {
            body: #body, name: #name, kind: #kind, times: #times, rows: &[#(#rows),*],
            work: PhaseWork {
                bytes: #bytes, bytes_each: #bytes_each, products: #products,
                products_each: #products_each, most: #most, decoding: #decoding, overhead: #overhead,
            },
        }
    }
}

/// The constant of a stack that names the table.
pub fn constant(plan: &Plan) -> Option<TokenStream> {
    plan.target.profile.then(|| {
        quote! {
            const PROFILE: Option<&'static monomorph_model::ProfileSpec> = Some(&crate::profile::PROFILE);
        }
    })
}

/// The statement on a CPU from which on time is charged to the phase that ends next.
pub fn begin(plan: &Plan) -> Option<TokenStream> {
    plan.target.profile.then(|| quote!(self.clock.begin(lane);))
}

/// The statement on a CPU behind a phase's call.
pub fn passed(plan: &Plan, body: &PlanBody, phase: &Phase) -> Option<TokenStream> {
    plan.target.profile.then(|| {
        let body = plan.bodies.iter().position(|other| std::ptr::eq(other, body));
        let body = body.expect("a body of the plan");
        let at = plan.bodies[body].phases.iter().position(|other| std::ptr::eq(other, phase));
        let row = number(plan.profiled_row(body, at.expect("a phase of the body")));
        quote!(self.clock.passed(lane, #row);)
    })
}

/// The row of times that a launch's is added to.
pub fn row(plan: &Plan, cuda: &CudaPlan, launch: &Launch) -> Option<Literal> {
    plan.target.profile.then(|| number(launch_row(cuda, launch)))
}
