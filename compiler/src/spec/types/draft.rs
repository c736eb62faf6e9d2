//! What a build drafts with.

use super::Model;

/// With what tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// The model's draft head: multi-token prediction.
    Mtp,
    /// What came after the same tokens before, which the engine looks up: the build verifies it.
    Ngram,
    /// The model itself without its recurrent layers.
    Layers,
}

impl DraftMethod {
    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            DraftMethod::Mtp => "mtp",
            DraftMethod::Ngram => "ngram",
            DraftMethod::Layers => "self",
        }
    }

    /// Most drafts at a time. A head that was trained to look one token further is right less often with
    /// each; what is looked up ends as rarely behind the seventh as behind the first, and eight rows are what
    /// kernels for few rows take at once. The model without some layers was trained for neither, and may have
    /// as many.
    pub const fn most(self) -> usize {
        match self {
            DraftMethod::Mtp => 3,
            DraftMethod::Ngram | DraftMethod::Layers => 7,
        }
    }
}

/// What was asked for: `--draft` and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOption {
    /// With what.
    pub method: DraftMethod,
    /// Drafts at a time.
    pub drafts: usize,
    /// Ids the head of draft passes is cut to; `None` for the whole vocabulary.
    pub vocabulary: Option<usize>,
    /// For measuring speed only: the rate at which drafts are accepted whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

/// How a target drafts: a [`DraftOption`] that fits its model and checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafting {
    /// With what.
    pub method: DraftMethod,
    /// Drafts at a time, 1 to [`DraftMethod::most`].
    pub drafts: usize,
    /// Ids that can be drafted: those below it. At most the model's vocabulary.
    pub vocabulary: usize,
    /// For measuring speed only: drafts are accepted at this rate, in 0 to 1, whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

impl Drafting {
    /// Whether the model's draft head is built.
    pub fn has_head(&self) -> bool {
        self.method == DraftMethod::Mtp
    }

    /// A name of these choices for `model`, such as `mtp2` or `mtp2-of-32768`.
    pub(super) fn name(&self, model: &Model) -> String {
        let mut name = format!("{}{}", self.method.name(), self.drafts);
        if self.vocabulary < model.vocabulary {
            name += &format!("-of-{}", self.vocabulary);
        }
        if let Some(rate) = self.forced_acceptance {
            name += &format!("-forced-{rate}");
        }
        name
    }
}
