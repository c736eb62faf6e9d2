//! Variants that a target can be built as.

use super::types::{DraftMethod, DraftOption, Target};
use super::{with_batch_invariant, with_draft};

/// Variants of a target: both ends of the range of every build option that the model takes.
pub fn variants(target: &Target) -> Vec<Target> {
    let methods = [DraftMethod::Mtp, DraftMethod::Ngram, DraftMethod::Layers];
    let drafts = methods.into_iter().flat_map(|method| [1, method.most()].map(|drafts| (method, drafts)));
    let drafting = drafts.filter_map(|(method, drafts)| {
        let option = DraftOption { method, drafts, vocabulary: None, forced_acceptance: None };
        with_draft(target.clone(), &option).ok()
    });
    let batches = [1, 128].into_iter().filter_map(|batch| with_batch_invariant(target.clone(), batch).ok());
    drafting.chain(batches).collect()
}
