//! The built binary: `serve`, `generate`, `logits`, `bench`, `info`.
//!
//! A generated crate's `main` is one line, `monomorph_server::main::<Stack>()`. Only what touches the layer stack is
//! generic over it ([`main`], loading, and the two verbs that drive it directly); HTTP and text are compiled
//! once and talk to the engine's handle.

mod answer;
mod cli;
mod cpu;
mod http;
mod load;
mod openai;
mod out;
mod paths;
mod text;
mod verbs;

pub use cpu::{EXIT_WRONG_CPU, require_cpu};
pub use load::{StartEngine, start_engine};
pub use paths::{default_weights, resolve_weights, weights_directory};
pub use verbs::serve::{ServeArgs, serve};

use clap::Parser;
use monomorph_model::Model;
use std::process::ExitCode;

/// Runs a built binary: checks the CPU, reads the command line, does what it asks for.
///
/// It must be all that a binary's `main` does. Code before it is compiled for the target's CPU too and would crash on
/// another one before the check: a `main` that needs some calls [`require_cpu`] first.
pub fn main<M: Model>() -> ExitCode {
    require_cpu(&M::SPEC.hardware);
    run::<M>()
}

/// Apart from [`main`], so that none of its code can be moved before the check.
#[inline(never)]
fn run<M: Model>() -> ExitCode {
    let spec = M::SPEC;
    let result = match cli::Cli::parse().verb {
        cli::Verb::Serve(args) => serve(spec, start_engine::<M>, &args),
        cli::Verb::Generate(args) => verbs::generate::generate(spec, start_engine::<M>, &args),
        cli::Verb::Logits(args) => verbs::logits::logits::<M>(&args),
        cli::Verb::Bench(args) => verbs::bench::bench::<M>(&args),
        cli::Verb::Info(args) => verbs::info::info(spec, &args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            out::say(format_args!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}
