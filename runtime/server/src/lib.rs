//! The built binary: `serve`, `generate`, `logits`, `perplexity`, `retrieval`, `bench`, `profile`, `pack`,
//! `info`, `health`, `completions`, `manual`.
//!
//! Exit codes: 0 done; 1 it could not be done; 2 the command line is wrong; 3 the hardware it was compiled
//! for is not there; 4 the device failed while it worked, and all clients were told; 5 a supervised server's
//! engine was dead or wrong, or hung.
//!
//! A generated crate's `main` is one line, `monomorph_server::main::<Stack>()`. Only what touches the layer
//! stack is generic over it ([`main`], loading, and the verbs that drive it directly); HTTP and text are
//! compiled once and talk to the engine's handle.

mod answer;
mod anthropic;
mod error;
mod failure;
mod health;
mod http;
mod images;
mod openai;
mod openapi;
mod process;
mod request;
mod start;
mod verbs;

pub use failure::{EXIT_DEVICE_FAULT, EXIT_WRONG_HARDWARE, Failure};
pub use process::cpu::require_cpu;
pub use start::hosts::Start;
pub use start::load::{StartEngine, start_engine};
pub use start::paths::{default_weights, resolve_weights, weights_directory};
pub use verbs::serve::{ServeArgs, serve};

use crate::process::{allocator, out};
use crate::verbs::cli::{Cli, Logits, Pack, Verb};
use crate::verbs::info::Build;
use crate::verbs::version;
use clap::{CommandFactory, FromArgMatches, Parser};
use monomorph_model::{Model, ModelSpec, device_fault};
use std::ffi::OsString;
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Runs a built binary: checks the CPU, reads the command line, does what it asks for.
///
/// It must be all that a binary's `main` does. Code before it is compiled for the target's CPU too and would
/// crash on another one before the check: a `main` that needs some calls [`require_cpu`] first.
pub fn main<M: Model>() -> ExitCode {
    require_cpu(&M::SPEC.hardware);
    run::<M>()
}

/// Apart from [`main`], so that none of its code can be moved before the check.
#[inline(never)]
fn run<M: Model>() -> ExitCode {
    let started = Instant::now();
    let verb = command_line(M::SPEC, M::RANKS).verb;
    exit_code(|| carry_out::<M>(&verb, started))
}

/// Reads the command line, whose `--version` says what the build is.
fn command_line(spec: &ModelSpec, ranks: usize) -> Cli {
    // Clap borrows its texts for as long as the program runs.
    let [short, long] = [version::short(spec), version::long(spec, ranks)].map(|text| &*text.leak());
    let matches = Cli::command().version(short).long_version(long).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The verb `logits` of one of a binary's several stacks: what tests compare is then compiled without a
/// server around each. `arguments` begin with the program's name. The binary checks no CPU.
pub fn logits<M: Model>(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let args = Logits::parse_from(arguments).args;
    allocator::share(allocator::ARENAS);
    exit_code(|| verbs::logits::logits::<M>(&args))
}

/// As [`logits`], the verb `pack`.
pub fn pack<M: Model>(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let args = Pack::parse_from(arguments).args;
    exit_code(|| verbs::pack::pack::<M>(&args))
}

/// Says what failed, and how the process ends.
fn exit_code(work: impl FnOnce() -> Result<(), Failure> + UnwindSafe) -> ExitCode {
    // A device that fails in a step that a verb drives itself unwinds to here.
    let result = catch_unwind(work).unwrap_or_else(|panic| match device_fault() {
        Some(fault) => Err(fault.to_owned().into()),
        None => resume_unwind(panic),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out::say(format_args!("error: {}", failure.message));
            failure.exit_code()
        }
    }
}

fn carry_out<M: Model>(verb: &Verb, started: Instant) -> Result<(), Failure> {
    let spec = M::SPEC;
    match verb {
        Verb::Info(args) => return Ok(verbs::info::info(&Build::of::<M>(), M::SLIDING, args)?),
        Verb::Health(args) => return Ok(verbs::health::health(args)?),
        Verb::Completions(args) => return Ok(verbs::manual::completions(&Cli::command(), args)?),
        Verb::Manual(args) => return Ok(verbs::manual::manual(Cli::command(), args)?),
        Verb::Read(args) => return Ok(verbs::read::read(spec, args)?),
        Verb::TryGrammars => return Ok(request::grammars::trial::run()?),
        Verb::Serve(_) | Verb::Generate(_) | Verb::Bench(_) | Verb::Profile(_) => {}
        Verb::Logits(_) | Verb::Perplexity(_) | Verb::Retrieval(_) | Verb::Pack(_) => {}
    }
    if let Verb::Serve(args) = verb
        && args.supervised
    {
        return verbs::supervise::supervise(args);
    }
    allocator::share(allocator::ARENAS);
    if let Some(gpus) = verb.gpus() {
        M::check_hardware(&gpus.ordinals(spec, verb.ranks_here(M::RANKS), M::ordinal_of)?)?;
    }
    if matches!(verb, Verb::Generate(_)) && !M::PROCESSES.contains(&1) {
        return Err(
            "generate: this build runs as several processes, and only serve, logits, perplexity, retrieval and bench do"
                .to_owned()
                .into(),
        );
    }
    match verb {
        Verb::Serve(args) => serve(spec, Start::of::<M>(), args, started),
        Verb::Generate(args) => verbs::generate::generate(spec, &Start::of::<M>(), args, started),
        Verb::Logits(args) => verbs::logits::logits::<M>(args),
        Verb::Perplexity(args) => verbs::perplexity::perplexity::<M>(args),
        Verb::Retrieval(args) => verbs::retrieval::retrieval::<M>(args),
        Verb::Bench(args) => verbs::bench::bench::<M>(args, started),
        Verb::Profile(args) => verbs::profile::profile::<M>(args),
        Verb::Pack(args) => verbs::pack::pack::<M>(args),
        _ => Ok(()),
    }
}
