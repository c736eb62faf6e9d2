//! Checks that a target can be cut for several ranks, and spread over processes, if a build asks for it.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::tensors::has_experts;
use super::types::{Ranks, Target};
use monomorph_abi::world::MAX_RANKS;
use std::path::Path;

/// `target`, built for so many ranks, which compute each token together.
///
/// # Errors
/// When there are too many, the hardware is a CPU, or whole experts are asked for of a model without. Whether
/// the model can be shared out to so many is known once it is planned.
pub fn with_ranks(mut target: Target, ranks: Ranks) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let Ranks { count, whole_experts } = ranks;
    let flag = ranks.flag();
    let refuse = |message: String, help: &str| {
        sink.push(Diagnostic::outside(Path::new(flag), message, help.to_owned()));
    };
    if !(1..=MAX_RANKS).contains(&count) {
        let help = format!("1 to {MAX_RANKS}, the GPUs that compute each token together");
        refuse(format!("`{flag}` is {count}"), &help);
    } else if target.hardware.cuda().is_none() && count > 1 {
        let message = format!("{} runs on a CPU, and `{flag} {count}` was given", target.name());
        refuse(message, "only CUDA targets are shared out; build it without");
    } else if whole_experts && !has_experts(&target.model) {
        let message = format!("{} has no experts, and `{flag} {count}` was given", target.name());
        refuse(message, &format!("`--tp {count}` shares out the rest of a model the same way"));
    }
    (target.ranks, target.whole_experts) = (count, whole_experts && count > 1);
    sink.finish(Some(target))
}

/// `target`, its ranks spread over so many processes.
///
/// # Errors
/// When that is not one process for each rank, whose GPUs would exchange values in two ways, or experts are
/// kept whole.
pub fn with_hosts(mut target: Target, hosts: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    if hosts != 1 && hosts != target.ranks {
        let message = format!("`--hosts` is {hosts}, and the build has {}", ranks(target.ranks));
        let help = "as many as `--tp`: each process has one GPU".to_owned();
        sink.push(Diagnostic::outside(Path::new("--hosts"), message, help));
    } else if hosts > 1 && target.whole_experts {
        let message = format!("`--hosts` is {hosts}, and the build keeps experts whole (`--ep`)");
        let help = format!("`--tp {hosts}`: processes have a part of each expert");
        sink.push(Diagnostic::outside(Path::new("--hosts"), message, help));
    }
    target.hosts = hosts;
    sink.finish(Some(target))
}

fn ranks(count: usize) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}
