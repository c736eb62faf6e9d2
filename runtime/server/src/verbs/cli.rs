//! The command line.

use crate::start::gpus::GpuArgs;
use crate::verbs::bench::BenchArgs;
use crate::verbs::generate::GenerateArgs;
use crate::verbs::health::HealthArgs;
use crate::verbs::info::InfoArgs;
use crate::verbs::logits::LogitsArgs;
use crate::verbs::manual::{CompletionsArgs, ManualArgs};
use crate::verbs::pack::PackArgs;
use crate::verbs::perplexity::PerplexityArgs;
use crate::verbs::profile::ProfileArgs;
use crate::verbs::read::ReadArgs;
use crate::verbs::retrieval::RetrievalArgs;
use crate::verbs::serve::ServeArgs;
use clap::{Parser, Subcommand};

/// One model, in one quantisation, for one piece of hardware.
#[derive(Debug, Parser)]
#[command(name = "server", max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verb `logits` alone.
#[derive(Debug, Parser)]
#[command(name = "logits", max_term_width = 100)]
pub(crate) struct Logits {
    #[command(flatten)]
    pub(crate) args: LogitsArgs,
}

/// The verb `pack` alone.
#[derive(Debug, Parser)]
#[command(name = "pack", max_term_width = 100)]
pub(crate) struct Pack {
    #[command(flatten)]
    pub(crate) args: PackArgs,
}

/// What a built binary can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Answer over HTTP (OpenAI's API, and a chat page at /).
    Serve(Box<ServeArgs>),
    /// Answer one prompt on the terminal, streaming.
    Generate(GenerateArgs),
    /// Write the logits after every token of given token lists.
    Logits(LogitsArgs),
    /// Say how well the model foretells a text.
    Perplexity(PerplexityArgs),
    /// Say whether the model finds again what stands far back in a context.
    Retrieval(RetrievalArgs),
    /// Measure prefill, decode and concurrent streams.
    Bench(BenchArgs),
    /// Take the time of each phase of a step, in a profiling build.
    Profile(ProfileArgs),
    /// Pack weights into a file that servers map, so that they start at once and share it.
    Pack(PackArgs),
    /// Measure how fast the weights' files are read: directly, through the system's cache, and mapped.
    Read(ReadArgs),
    /// Say what this binary was compiled for.
    Info(InfoArgs),
    /// Say whether the server of this machine is ready; exit code 1 if not.
    Health(HealthArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print a manual page, for `man -l -`.
    Manual(ManualArgs),
    /// What `serve` runs to try grammars in.
    #[command(hide = true)]
    TryGrammars,
}

impl Verb {
    /// How many of so many ranks are in this process.
    pub(crate) fn ranks_here(&self, ranks: usize) -> usize {
        match self {
            Verb::Serve(args) => args.processes.ranks_here(ranks),
            Verb::Logits(args) => args.processes.ranks_here(ranks),
            Verb::Perplexity(args) => args.model.processes.ranks_here(ranks),
            Verb::Retrieval(args) => args.model.processes.ranks_here(ranks),
            Verb::Bench(args) => args.processes.ranks_here(ranks),
            _ => ranks,
        }
    }

    /// The flags of GPUs of a verb that loads the model.
    pub(crate) fn gpus(&self) -> Option<&GpuArgs> {
        match self {
            Verb::Serve(args) => Some(&args.gpus),
            Verb::Generate(args) => Some(&args.gpus),
            Verb::Logits(args) => Some(&args.gpus),
            Verb::Perplexity(args) => Some(&args.model.gpus),
            Verb::Retrieval(args) => Some(&args.model.gpus),
            Verb::Bench(args) => Some(&args.gpus),
            Verb::Profile(args) => Some(&args.gpus),
            _ => None,
        }
    }
}
