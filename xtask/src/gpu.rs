//! `cargo xtask gpu`: gathers what a machine with a card needs to check and measure CUDA servers without
//! cargo. With `--report` it adds that machine's measurements to the ledger.
//!
//! It leaves in `target/gpu/`: `run.py` and `checks/`, `manifest.json`, and `part-1.tar.xz`, `part-2.tar`, …,
//! each below `--part-bytes`, for machines that limit the size of an upload. Weights come last, in parts of
//! their own. On that machine, from the repository's root:
//!
//! ```text
//! python3 target/gpu/run.py --only unpack     # once for every part but the last, if parts come one by one
//! python3 target/gpu/run.py --out DIR
//! ```

mod files;
mod gather;
mod gathering;
mod listed;
mod parts;
mod programs;
mod ranks;
mod report;

use crate::draft::DraftOptions;
use clap::{Args, ValueEnum};
use monomorph_formats::cached::KvFormats;
use std::path::PathBuf;

/// What is measured on one card unless `--bench` names others.
const BENCHES: [&str; 4] = ["llama-3.2-1b/bf16", "llama-3.1-8b/bf16", "llama-3.1-8b/fp8", "qwen3-8b/nvfp4"];
/// What `--bench hybrids` names: delta-nets and mixtures of experts at full size, the most important first.
const HYBRIDS: [&str; 9] = [
    "qwen3.5-35b/nvfp4",
    "qwen3.6-35b/fp8",
    "qwen3.5-35b/nvfp4-all",
    "qwen3.5-122b/nvfp4",
    "qwen3-next-80b/nvfp4",
    "qwen3.5-27b/nvfp4",
    "qwen3.5-35b/bf16",
    "qwen3-30b-a3b/bf16",
    "qwen3.5-0.8b/bf16",
];

#[derive(Args)]
pub struct Options {
    /// The card.
    #[arg(long, default_value = "h200")]
    hardware: String,
    /// What to gather [default: everything].
    #[arg(long, value_name = "PIECE", value_delimiter = ',', conflicts_with = "without")]
    only: Option<Vec<Piece>>,
    /// Only programs whose source in tests/cuda contains one of these.
    #[arg(long, value_name = "TEXT", value_delimiter = ',', default_value = "")]
    programs: Vec<String>,
    /// Only goldens, with and without a vision tower, and models whose sequences join and leave batches,
    /// whose target contains one of these.
    #[arg(long, value_name = "TEXT", value_delimiter = ',', default_value = "/")]
    goldens: Vec<String>,
    /// Targets to measure, as model/quant; `hybrids` are the delta-nets and mixtures of experts at full size
    /// [default: a Llama of 1B, and 8B models in bf16, fp8 and nvfp4].
    #[arg(long, value_name = "MODEL/QUANT", value_delimiter = ',')]
    bench: Option<Vec<String>>,
    // Of the servers that are measured; the others do not draft.
    #[command(flatten)]
    draft: DraftOptions,
    /// Measure every target built batch-invariant as well, for up to each of these numbers of concurrent
    /// sequences.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    batch_invariant: Vec<usize>,
    /// Measure every target with keys and values in each of these formats as well, as `build --kv` takes
    /// them, and all of its servers after 32,768 and 131,072 tokens too, with 1 and 8 sequences.
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', value_parser = KvFormats::from_name)]
    kv: Vec<KvFormats>,
    /// Measure every target built with its vision tower as well, and there the tower and answers about images
    /// of these sizes.
    #[arg(long, value_name = "WIDTHxHEIGHT", value_delimiter = ',')]
    images: Vec<String>,
    /// And built for images of so many patches, as `build --image-patches` takes them, and there the same.
    #[arg(long, value_name = "N", requires = "images")]
    image_patches: Option<usize>,
    /// Build a profiling build of every target that is measured, on one GPU and without drafts, for
    /// `run.py --only profiles`: a table of its kernels' times.
    #[arg(long)]
    profile: bool,
    /// Build servers for N GPUs: whatever is checked, of sizes that ranks can share, and beside those for
    /// one, what is measured.
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// Build servers of N processes, too, a GPU each: as many as `--tp`. They are compared with those of one
    /// process and measured beside them.
    #[arg(long, value_name = "N", requires = "tp")]
    hosts: Option<usize>,
    /// The same with whole experts on each GPU; what is measured is built with `--tp N` too.
    #[arg(long, value_name = "N", conflicts_with = "tp")]
    ep: Option<usize>,
    /// Add the programs that time single kernels, for `run.py --only instruments`.
    #[arg(long)]
    instruments: bool,
    /// What to leave out.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Piece>,
    /// Gather the sources of the programs instead of compiling them here; the other machine's nvcc does,
    /// which must be of the same version: `run.py --only compile,programs`.
    #[arg(long)]
    compile_there: bool,
    /// Most bytes per part.
    #[arg(long, default_value_t = 44_000_000)]
    part_bytes: u64,
    /// Gather nothing; add the results of a run to docs/performance.md.
    #[arg(long, value_name = "RESULTS.JSON")]
    report: Option<PathBuf>,
}

/// The targets to measure.
fn benches(asked: Option<&[String]>) -> Vec<String> {
    let Some(asked) = asked else { return BENCHES.map(str::to_owned).to_vec() };
    let of = |name: &String| match name.as_str() {
        "hybrids" => HYBRIDS.map(str::to_owned).to_vec(),
        _ => vec![name.clone()],
    };
    asked.iter().flat_map(of).collect()
}

/// What can be left out.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Piece {
    /// The programs of tests/cuda.
    Programs,
    /// Servers of small random checkpoints with the interpreter's logits.
    Goldens,
    /// Servers of small random checkpoints with vision towers, questions about images, and the interpreter's
    /// answers.
    Images,
    /// Batch-invariant servers of small random checkpoints.
    Joins,
    /// A server with weights that answers over HTTP: SmolLM2's, and of several ranks one of random weights.
    #[value(alias = "smollm2")]
    Served,
    /// A server that clients hang up on.
    Storm,
    /// Of several ranks: a server beside that of a single GPU, in all ways that sequences are kept.
    Ranks,
    /// Servers whose engine is checked against its promises, with made-up weights.
    Engine,
    /// Servers under compute-sanitizer.
    Sanitized,
    /// Servers of several processes beside those of one; only with `--hosts`.
    Hosts,
    /// Servers that are measured.
    Benches,
}

pub fn gpu(options: Options) -> Result<(), String> {
    if let Some(results) = &options.report {
        return report::append(results);
    }
    gather::gather(&options)
}
