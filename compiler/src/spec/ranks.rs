//! Checks that a target can be cut for several ranks, and spread over processes, if a build asks for it.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::types::Target;
use monomorph_abi::world::MAX_RANKS;
use std::path::Path;

/// `target`, built for so many ranks, which compute each token together.
///
/// # Errors
/// When there are too many, or the hardware is a CPU. Whether the model can be shared out to so many is known
/// once it is planned.
pub fn with_ranks(mut target: Target, ranks: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let refuse = |message: String, help: &str| {
        sink.push(Diagnostic::outside(Path::new("--tp"), message, help.to_owned()));
    };
    if !(1..=MAX_RANKS).contains(&ranks) {
        let help = format!("1 to {MAX_RANKS}, the GPUs that compute each token together");
        refuse(format!("`--tp` is {ranks}"), &help);
    } else if target.hardware.cuda().is_none() && ranks > 1 {
        let message = format!("{} runs on a CPU, and `--tp {ranks}` was given", target.name());
        refuse(message, "only CUDA targets are shared out; build it without");
    }
    target.ranks = ranks;
    sink.finish(Some(target))
}

/// `target`, its ranks spread over so many processes.
///
/// # Errors
/// When that is not one process for each rank: those of one process would exchange values in two ways.
pub fn with_hosts(mut target: Target, hosts: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    if hosts != 1 && hosts != target.ranks {
        let message = format!("`--hosts` is {hosts}, and the build has {}", ranks(target.ranks));
        let help = "as many as `--tp`: each process has one GPU".to_owned();
        sink.push(Diagnostic::outside(Path::new("--hosts"), message, help));
    }
    target.hosts = hosts;
    sink.finish(Some(target))
}

fn ranks(count: usize) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}
