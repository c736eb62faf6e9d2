//! What a build drafts with.

use super::Model;

/// What was asked for: `--draft mtp` and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOption {
    /// Drafts after every token sampled.
    pub drafts: usize,
    /// Ids the draft's head is cut to; `None` for the whole vocabulary.
    pub vocabulary: Option<usize>,
    /// For measuring speed only: the rate at which drafts are accepted whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

/// How a target drafts: a [`DraftOption`] that fits its model and checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafting {
    /// Drafts after every token sampled, 1 to [`Drafting::MOST`].
    pub drafts: usize,
    /// Ids that can be drafted: those below it. At most the model's vocabulary.
    pub vocabulary: usize,
    /// For measuring speed only: drafts are accepted at this rate, in 0 to 1, whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

impl Drafting {
    /// The one kind of draft head there is: multi-token prediction.
    pub const METHOD: &'static str = "mtp";
    /// Most drafts after a token. A head that was trained to look one token further is right less often with each.
    pub const MOST: usize = 3;

    /// A name of these choices for `model`, such as `mtp2` or `mtp2-of-32768`.
    pub(super) fn name(&self, model: &Model) -> String {
        let mut name = format!("{}{}", Self::METHOD, self.drafts);
        if self.vocabulary < model.vocabulary {
            name += &format!("-of-{}", self.vocabulary);
        }
        if let Some(rate) = self.forced_acceptance {
            name += &format!("-forced-{rate}");
        }
        name
    }
}
