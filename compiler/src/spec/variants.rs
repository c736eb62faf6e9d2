//! Variants that a target can be built as.

use super::types::{DraftMethod, DraftOption, Ranks, Target};
use super::{with_batch_invariant, with_draft, with_hosts, with_ranks, with_vision};
use monomorph_abi::world::MAX_RANKS;

/// Variants of a target: both ends of the range of every build option that the model takes, but of experts
/// kept whole two ranks alone, and images of as many patches as a build has by default. A model may turn out
/// not to be shared out to so many ranks once it is planned.
pub fn variants(target: &Target) -> Vec<Target> {
    let blocks = DraftMethod::Dflash { window: None };
    let methods = [DraftMethod::Mtp, DraftMethod::Ngram, DraftMethod::Layers, blocks];
    let drafts = methods.into_iter().flat_map(|method| [1, method.most()].map(|drafts| (method, drafts)));
    let drafting = drafts.filter_map(|(method, drafts)| {
        let option = DraftOption { method, drafts, vocabulary: None, forced_acceptance: None };
        with_draft(target.clone(), &option).ok()
    });
    let batches = [1, 128].into_iter().filter_map(|batch| with_batch_invariant(target.clone(), batch).ok());
    let ranks =
        [Ranks::tensor_parallel(2), Ranks::tensor_parallel(MAX_RANKS), Ranks::expert_parallel(2)].into_iter();
    let ranks = ranks.filter_map(|ranks| with_ranks(target.clone(), ranks).ok());
    let two = with_ranks(target.clone(), Ranks::tensor_parallel(2));
    let spread = two.and_then(|target| with_hosts(target, 2)).ok();
    let seeing = with_vision(target.clone(), None).ok();
    drafting.chain(batches).chain(ranks).chain(spread).chain(seeing).collect()
}
