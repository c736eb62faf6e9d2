//! Whether a target can keep the size of a batch out of its rows' bits as a build is asked to.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::types::{BatchInvariant, Target};
use crate::plan::cuda::DECODE_BUCKETS;
use std::path::Path;

/// `target`, built so that the size of a batch changes no bit of a row; `sequences` is how many its one
/// decode program takes.
///
/// # Errors
/// When it is no number of sequences that a decode program is made for, or the target's hardware has no such
/// programs, or the target drafts.
pub fn with_batch_invariant(mut target: Target, sequences: usize) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let refuse = |message: String, help: &str| {
        sink.push(Diagnostic::outside(Path::new("--batch-invariant"), message, help.to_owned()));
    };
    if target.hardware.cuda().is_none() {
        let message = format!("{} runs on a CPU, and `--batch-invariant` was given", target.name());
        refuse(message, "a CPU's rows have the same bits in every batch; build it without");
    } else if !DECODE_BUCKETS.contains(&sequences) {
        let message = format!("`--batch-invariant` is {sequences}");
        let sizes = DECODE_BUCKETS.map(|it| it.to_string()).join(", ");
        refuse(message, &format!("the most sequences that are to run at once: one of {sizes}"));
    }
    if target.draft.is_some() {
        let message = "`--batch-invariant` and `--draft` were both given".to_owned();
        let help = "a sequence that was pre-empted is decoded again token by token, and in a build that drafts the program for \
                    that depends on drafts, its own or others'; give one of the two";
        refuse(message, help);
    }
    target.batch_invariant = Some(BatchInvariant { sequences });
    sink.finish(Some(target))
}
