//! `monomorph run`: installs what is missing, says so, and becomes the server.

use crate::{Cache, From, choice, weights};
use clap::Args;
use monomorph_abi::serve::PORT;
use monomorph_hub::{Shown, free};
use monomorph_launcher::index::Entry;
use monomorph_launcher::install::{install, server};
use monomorph_launcher::machine::Machine;
use monomorph_launcher::place::Place;
use monomorph_launcher::{size, start};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    /// hardware/model/quant, model/quant or model, as `monomorph list` prints them [default:
    /// smollm2-135m/q4_1 on what fits this machine].
    target: Option<String>,
    /// Answer this prompt on standard output and exit.
    #[arg(long)]
    prompt: Option<String>,
    /// Port to serve on.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Weights to use instead of fetching them.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    cache: Cache,
    /// Flags of the server.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<OsString>,
}

pub fn run(options: &Options) -> Result<(), String> {
    let (place, machine, cache) =
        (Place::named(&options.from.index), Machine::look(), options.cache.directory()?);
    let index = place.index()?;
    let entry = choice::choose(&index, options.target.as_deref(), &machine, &place.to_string())?;
    let there = server(&cache, entry);
    eprintln!("target   {}, {}", entry.target, entry.formats.join(" "));
    match there.is_file() {
        true => eprintln!("server   {}", there.display()),
        false => eprintln!("server   {} from {place} to {}", size(entry.archive.bytes), there.display()),
    }
    let wanted = match &options.weights {
        Some(path) => weights::Wanted::given(path)?,
        None => weights::Wanted::of(entry, &cache)?,
    };
    eprintln!("weights  {wanted}");
    room(entry, &cache, there.is_file(), &wanted)?;
    if let Some((_, free)) = machine.memory {
        eprintln!("memory   {} free, {} needed at least", size(free), size(entry.memory.least()));
    }
    let server = install(&place, entry, &cache, &mut Shown::default())?;
    let weights = wanted.fetch()?;
    if options.prompt.is_none() {
        eprintln!("{}", start::invitation(&start::address(options.port)));
    }
    let mut command = start::command(&server, &weights, options.prompt.as_deref(), options.port);
    command.args(&options.flags);
    // The server replaces this process, so signals and the exit status are its own.
    Err(format!("{}: {}", server.display(), command.exec()))
}

/// Says how much room there is, and whether it is enough for what is to come.
fn room(entry: &Entry, cache: &Path, installed: bool, wanted: &weights::Wanted) -> Result<(), String> {
    let server = if installed { 0 } else { entry.archive.bytes + entry.unpacked };
    let mut all = vec![(cache, server)];
    all.extend(wanted.missing());
    for (directory, needed) in all {
        let Some(free) = free(directory) else { continue };
        eprintln!("disk     {} free in {}, {} needed", size(free), directory.display(), size(needed));
        if free < needed {
            return Err(format!(
                "{} are needed in {}, and {} are free: make room, or name another disk with --cache-dir, and of a hub's weights with HF_HUB_CACHE",
                size(needed),
                directory.display(),
                size(free)
            ));
        }
    }
    Ok(())
}
