//! `logits`: what the stack computes, for comparison with other implementations.

use crate::failure::Failure;
use crate::load::{MemoryArgs, ThreadArgs, WeightsArgs};
use crate::out;
use monomorph_model::{
    BlockId, Model, ModelSpec, Output, Progress, RowOutput, SequenceStep, Slot, Step, Tokens,
};
use std::fs::File;
use std::io::{BufWriter, Write};
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
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// Runs the lists one after the other through the kernels and the cache that serving uses.
pub(crate) fn logits<M: Model>(args: &LogitsArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    let lists = read_lists(&args.tokens, spec)?;
    let longest = lists.iter().map(Vec::len).max().unwrap_or(1);
    let weights = args.weights.open(spec)?;
    let blocks = Some(longest.div_ceil(spec.block_tokens));
    let options = args.memory.options(blocks, longest, args.threads.count(), out::say)?;
    let mut model = M::load(&weights, &options, &Progress::default())?;
    drop(weights);

    // Under another name first: a run that breaks off leaves no file that looks whole.
    let mut partial = args.out.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).map_err(|error| error.to_string()).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write_header(&mut file, &lists, spec.vocabulary).map_err(|error| error.to_string())?;
        let chunk = if args.decode { 1 } else { spec.step_tokens };
        for tokens in &lists {
            run_list(&mut model, spec, tokens, chunk, &mut file)?;
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

/// Feeds one list in chunks of at most `chunk` tokens and writes the logits after each token.
fn run_list<M: Model>(
    model: &mut M,
    spec: &ModelSpec,
    tokens: &[u32],
    chunk: usize,
    file: &mut impl Write,
) -> Result<(), String> {
    let mut position = 0;
    for fed in tokens.chunks(chunk) {
        let end = position + fed.len();
        let row = SequenceStep {
            drafts: 0,
            following: None,
            slot: Slot(0),
            position,
            tokens: Tokens::Known(fed.to_vec()),
            blocks: (0..end.div_ceil(spec.block_tokens) as u32).map(BlockId).collect(),
            output: Output::Logits,
        };
        let ticket = model.submit(&Step { sequences: vec![row] });
        let rows = model.collect(ticket).rows;
        let [RowOutput::Logits(logits)] = rows.as_slice() else {
            return Err("the stack did not return the logits of the one sequence it was given".to_owned());
        };
        if logits.len() != fed.len() * spec.vocabulary {
            let expected = fed.len() * spec.vocabulary;
            return Err(format!("the stack returned {} logits, and {expected} were asked for", logits.len()));
        }
        for logit in logits {
            file.write_all(&logit.to_le_bytes()).map_err(|error| error.to_string())?;
        }
        position = end;
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

/// The header of a safetensors file: its length, then JSON, padded to eight bytes. Written by hand because the data
/// follows piece by piece; the whole would not always fit in memory.
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
