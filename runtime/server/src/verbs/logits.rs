//! `logits`: what the stack computes, for comparison with other implementations.

use crate::failure::Failure;
use crate::process::out;
use crate::start::gpus::GpuArgs;
use crate::start::hosts::{HostsArgs, Work, World, drive};
use crate::start::load::{MemoryArgs, ThreadArgs, WeightsArgs};
use crate::start::sliding::SlidingTables;
use crate::verbs::feeding::{Cut, Fed, feed};
use monomorph_model::{Model, ModelSpec, StatesWanted};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// Flags of `logits`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    /// A JSON list of lists of token ids.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where to write f32 tensors `0`, `1`, … of shape [tokens, vocabulary], as safetensors.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Feed the tokens one at a time instead of as many at once as a step takes.
    #[arg(long)]
    decode: bool,
    /// Feed the first N tokens of a list at once before the rest, as a prompt is.
    #[arg(long, value_name = "N", requires = "decode")]
    prompt: Option<NonZero<usize>>,
    /// Feed all lists side by side, as a server does, instead of one after the other.
    #[arg(long)]
    together: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    /// Which of several processes this is.
    #[command(flatten)]
    pub(crate) processes: HostsArgs,
}

/// Runs the lists through the kernels and the cache that serving uses.
pub(crate) fn logits<M: Model>(args: &LogitsArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    let world = args.processes.read(M::RANKS, M::PROCESSES)?;
    let lists = read_lists(&args.tokens, spec)?;
    let longest = lists.iter().map(Vec::len).max().unwrap_or(1);
    let weights = args.weights.open(spec, args.threads.count())?;
    let beside = if args.together { lists.len() } else { 1 };
    if beside > spec.step_sequences {
        let most = spec.step_sequences;
        return Err(format!("{beside} lists are more than the {most} sequences of a step").into());
    }
    let blocks_each = longest.div_ceil(spec.block_tokens);
    let blocks = Some(beside * blocks_each);
    let states = StatesWanted { sequences: Some(beside), snapshots: Some(0) };
    let mut options = args.memory.options(blocks, longest, states, args.threads.count(), out::say)?;
    options.ordinals = args.gpus.ordinals(spec, args.processes.ranks_here(M::RANKS), M::ordinal_of)?;
    options.process = world.as_ref().map(World::process);
    drive::<M>(world.as_ref(), &weights, &options, Logits { args, lists, beside, blocks_each })
}

/// Lists to run through a model.
struct Logits<'a> {
    args: &'a LogitsArgs,
    lists: Vec<Vec<u32>>,
    /// Lists side by side.
    beside: usize,
    /// K/V blocks of each.
    blocks_each: usize,
}

impl Work for Logits<'_> {
    fn run<M: Model>(self, mut model: M) -> Result<(), Failure> {
        let (spec, Logits { args, lists, beside, blocks_each }) = (M::SPEC, self);
        // Under another name first: a run that breaks off leaves no file that looks whole.
        let mut partial = args.out.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let written = File::create(&partial).map_err(|error| error.to_string()).and_then(|file| {
            let mut file = BufWriter::with_capacity(1 << 20, file);
            write_header(&mut file, &lists, spec.vocabulary).map_err(|error| error.to_string())?;
            let cut = Cut { decode: args.decode, prompt: args.prompt.map_or(0, NonZero::get) };
            for group in lists.chunks(beside.max(1)) {
                let fresh = group.iter().map(|tokens| Fed::new(tokens));
                let mut fed: Vec<Fed> = fresh.collect();
                let mut tables = SlidingTables::new(&model, fed.len());
                while feed(&mut model, spec, &mut fed, &mut tables, blocks_each, cut)? {
                    // One list's rows follow one another in the file; of several they are kept until the
                    // first is done.
                    if let [fed] = fed.as_mut_slice() {
                        write(&mut file, fed.rows.drain(..))?;
                    }
                }
                write(&mut file, fed.into_iter().flat_map(|fed| fed.rows))?;
            }
            file.flush().map_err(|error| error.to_string())
        });
        let renamed =
            written.and_then(|()| std::fs::rename(&partial, &args.out).map_err(|error| error.to_string()));
        if let Err(error) = renamed {
            let _ = std::fs::remove_file(&partial);
            return Err(format!("{}: {error}", args.out.display()).into());
        }
        let total: usize = lists.iter().map(Vec::len).sum();
        out::say(format_args!("{total} rows of {} logits in {}", spec.vocabulary, args.out.display()));
        Ok(())
    }
}

fn write(file: &mut impl Write, logits: impl Iterator<Item = f32>) -> Result<(), String> {
    for logit in logits {
        file.write_all(&logit.to_le_bytes()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Reads and checks the token lists.
pub(crate) fn read_lists(path: &Path, spec: &ModelSpec) -> Result<Vec<Vec<u32>>, String> {
    let at = |what: String| format!("{}: {what}", path.display());
    let bytes = std::fs::read(path).map_err(|error| at(error.to_string()))?;
    let lists: Vec<Vec<u32>> = serde_json::from_slice(&bytes)
        .map_err(|error| at(format!("not a list of lists of token ids: {error}")))?;
    for (index, list) in lists.iter().enumerate() {
        if list.is_empty() {
            return Err(at(format!("list {index} is empty")));
        }
        if list.len() > spec.context {
            let (length, context) = (list.len(), spec.context);
            return Err(at(format!(
                "list {index} has {length} tokens, and the model's context is {context}"
            )));
        }
        if let Some(place) = list.iter().position(|&id| id as usize >= spec.vocabulary) {
            let (id, vocabulary) = (list[place], spec.vocabulary);
            return Err(at(format!(
                "list {index}: id {id} at {place} is not below the vocabulary of {vocabulary}"
            )));
        }
    }
    Ok(lists)
}

/// The header of a safetensors file: its length, then JSON, padded to eight bytes. Written by hand because
/// the data follows piece by piece; the whole would not always fit in memory.
fn write_header(file: &mut impl Write, lists: &[Vec<u32>], vocabulary: usize) -> std::io::Result<()> {
    let mut header = serde_json::Map::new();
    let mut begin = 0;
    for (index, list) in lists.iter().enumerate() {
        let end = begin + list.len() * vocabulary * size_of::<f32>();
        let entry = serde_json::json!({
            "dtype": "F32", "shape": [list.len(), vocabulary], "data_offsets": [begin, end],
        });
        header.insert(index.to_string(), entry);
        begin = end;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    let padded = header.len().next_multiple_of(8);
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    file.write_all(&(padded as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())
}
