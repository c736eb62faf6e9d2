//! Checks that a target can be a profiling build, if one is asked for.

use super::diagnostic::{Diagnostic, Diagnostics, Sink};
use super::types::Target;
use std::path::Path;

/// `target`, built so that its server can take the time of each phase of the model's steps.
///
/// # Errors
/// When it has phases besides these, or more than one device.
pub fn with_profile(mut target: Target) -> Result<Target, Diagnostics> {
    let sink = Sink::default();
    let others = [
        (target.draft.is_some(), "--draft", "phases of drafts are not timed"),
        (target.vision, "--vision on", "phases of a vision tower are not timed"),
        (target.ranks > 1, target.shared_by().flag(), "the times of one device are taken"),
    ];
    for (_, flag, why) in others.into_iter().filter(|(given, ..)| *given) {
        let message = format!("`--profile` and `{flag}` were both given");
        let help = format!("{why}: build it without {flag}");
        sink.push(Diagnostic::outside(Path::new("--profile"), message, help));
    }
    target.profile = true;
    sink.finish(Some(target))
}
