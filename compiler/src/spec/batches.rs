//! Checks that a target can be batch-invariant, if a build asks for it.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::types::{BatchInvariant, DECODE_BUCKETS, Target};
use std::path::Path;

/// `target`, built so that the batch size changes no bit of a row; its one decode program takes `sequences`.
///
/// # Errors
/// When no decode program has this number of sequences, the hardware has no such programs, or the target
/// drafts.
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
