//! The command line of people and CI: `cargo xtask <verb>`. One file per verb.

mod bench;
mod book;
mod build;
mod canary;
mod doctor;
mod draft;
mod ended;
mod explain;
mod fetch;
mod gpu;
mod image;
mod import;
mod judged;
mod kernels;
mod licences;
mod list;
mod manifests;
mod matrix;
mod model;
mod mutants;
mod new;
mod options;
mod pages;
mod paths;
mod peer;
mod perplexity;
mod quantize;
mod release;
mod replay;
mod retrieval;
mod run;
mod test;
mod tidy;
mod tune;
mod verify;

use clap::{Args, Parser, Subcommand};
use options::BuildOptions;
use std::path::PathBuf;
use std::process::ExitCode;

/// The target of `run` and `bench` when none is named.
const DEFAULT_TARGET: &str = "cpu/smollm2-135m/q4_1";

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Compiles one model for one piece of hardware into one server.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List what can be built.
    List(list::Options),
    /// Say what this machine can build and run, and what to do about the rest.
    Doctor(doctor::Options),
    /// Build a server and print its path.
    Build(build::Options),
    /// Build, fetch the weights, then serve; with --prompt, answer it and exit.
    Run(run::Options),
    /// Print the plan of a target.
    Explain(explain::Options),
    /// Compile and inspect the kernels of GPU targets, each distinct kernel once.
    Kernels(kernels::Options),
    /// Write specs to begin with: a model, a quant spec, hardware.
    New(new::Options),
    /// Draft MODEL.toml and quant specs from a Hugging Face config.json.
    Import(import::Options),
    /// Fetch a target's weights and print where they are.
    Fetch(fetch::Options),
    /// Print what a target's weights answer under the reference interpreter, in the form its quant spec
    /// takes.
    Canary(canary::Options),
    /// Compare what a server computes with a reference's logits: PASS, FAIL or INCONCLUSIVE.
    Verify(verify::Options),
    /// Say how well a server foretells a text, to compare formats of keys and values.
    Perplexity(perplexity::Options),
    /// Say whether a server finds again what stands far back in a context, to compare the same.
    Retrieval(retrieval::Options),
    /// Turn a checkpoint in floats into the one that a target reads.
    Quantize(quantize::Options),
    /// Measure a target against its prediction and its limit.
    Bench(bench::Options),
    /// Gather what checks and measures servers on a machine with a card; with --report, record its results.
    Gpu(gpu::Options),
    /// Gather the kernel variants of a CUDA target and the scripts that measure them on a machine with the
    /// card.
    Tune(tune::Options),
    /// Write a server as an image for container engines.
    Image(image::Options),
    /// Write what runs a server's image: manifests for Kubernetes, and a compose.yaml for one machine.
    Manifests(manifests::Options),
    /// Write servers, and the launcher, as the archives of a release, and its index.
    Release(release::Options),
    /// Print the targets that can be built as one line of JSON, for the jobs of a workflow.
    Matrix(matrix::Options),
    /// Send the requests of a `serve --dump` to a server again and compare the answers.
    Replay(replay::Options),
    /// Write docs/ as a book of HTML, its links checked; with --run, run the commands of its pages.
    Book(book::Options),
    /// Check what rustfmt and clippy do not: comments, the book's index, links and command lines.
    Tidy,
    /// Mutate the code that only decides, and compare what its tests miss with tests/mutants.toml.
    Mutants(mutants::Options),
    /// Run every check.
    Test(test::Options),
}

/// Which target, and where targets are described.
#[derive(Args, Clone)]
struct TargetOptions {
    /// hardware/model/quant, as `cargo xtask list` prints them.
    #[arg(long, default_value = DEFAULT_TARGET)]
    target: String,
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::List(options) => list::list(options),
        Verb::Doctor(options) => doctor::doctor(options),
        Verb::Build(options) => build::build(options),
        Verb::Run(options) => run::run(options),
        Verb::Explain(options) => explain::explain(options),
        Verb::Kernels(options) => kernels::kernels(options),
        Verb::New(options) => new::new(options),
        Verb::Import(options) => import::import(options),
        Verb::Fetch(options) => fetch::verb(options),
        Verb::Canary(options) => canary::canary(options),
        Verb::Verify(options) => verify::verify(options),
        Verb::Perplexity(options) => perplexity::perplexity(options),
        Verb::Retrieval(options) => retrieval::retrieval(options),
        Verb::Quantize(options) => quantize::quantize(options),
        Verb::Bench(options) => bench::bench(options),
        Verb::Gpu(options) => gpu::gpu(options),
        Verb::Tune(options) => tune::tune(options),
        Verb::Image(options) => image::image(options),
        Verb::Manifests(options) => manifests::manifests(options),
        Verb::Release(options) => release::release(options),
        Verb::Matrix(options) => matrix::matrix(options),
        Verb::Replay(options) => replay::replay(options),
        Verb::Book(options) => book::book(options),
        Verb::Tidy => tidy::tidy(false),
        Verb::Mutants(options) => mutants::mutants(options),
        Verb::Test(options) => test::test(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
