//! Drafting of a build.

use super::Model;

/// Source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftMethod {
    /// The model's draft head: multi-token prediction.
    Mtp,
    /// Earlier continuations of the same tokens: the engine looks them up (n-gram lookup), and the build
    /// verifies them.
    Ngram,
    /// The model itself without its recurrent layers.
    Layers,
    /// A drafter with a checkpoint of its own, which drafts a block in one pass.
    Dflash {
        /// Positions that its layers attend to at most; `None` for what each has by itself.
        window: Option<usize>,
    },
}

impl DraftMethod {
    /// Name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            DraftMethod::Mtp => "mtp",
            DraftMethod::Ngram => "ngram",
            DraftMethod::Layers => "self",
            DraftMethod::Dflash { .. } => "dflash",
        }
    }

    /// Whether a drafter of blocks makes the drafts.
    pub const fn is_dflash(self) -> bool {
        matches!(self, DraftMethod::Dflash { .. })
    }

    /// Most drafts at a time. A head trained to look one token further is right less often with each draft. A
    /// looked-up continuation ends after the seventh draft no more often than after the first, and kernels
    /// for few rows take eight rows at once. The model without some layers was trained for neither, and may
    /// have as many. Drafters of blocks are trained on 16 rows, of which one is the token sampled last.
    pub const fn most(self) -> usize {
        match self {
            DraftMethod::Mtp => 3,
            DraftMethod::Ngram | DraftMethod::Layers => 7,
            DraftMethod::Dflash { .. } => 15,
        }
    }
}

/// Requested drafting: `--draft` and its companion options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOption {
    /// Source of drafts.
    pub method: DraftMethod,
    /// Drafts at a time; 0 for as many as a drafter's block has, with [`DraftMethod::Dflash`] alone.
    pub drafts: usize,
    /// Ids the head of draft passes is cut to; `None` for the whole vocabulary.
    pub vocabulary: Option<usize>,
    /// For measuring speed only: the rate at which drafts are accepted whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

/// How a target drafts: a [`DraftOption`] that fits its model and checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafting {
    /// Source of drafts.
    pub method: DraftMethod,
    /// Drafts at a time, 1 to [`DraftMethod::most`].
    pub drafts: usize,
    /// Ids below this can be drafted; at most the model's vocabulary.
    pub vocabulary: usize,
    /// For measuring speed only: drafts are accepted at this rate, in 0 to 1, whatever was sampled.
    pub forced_acceptance: Option<f64>,
}

impl Drafting {
    /// Whether the build includes the model's draft head.
    pub fn has_head(&self) -> bool {
        self.method == DraftMethod::Mtp
    }

    /// Suffix of the build's name for `model`, such as `mtp2` or `mtp2-of-32768`.
    pub(super) fn name(&self, model: &Model) -> String {
        let mut name = format!("{}{}", self.method.name(), self.drafts);
        if let DraftMethod::Dflash { window: Some(window) } = self.method {
            name += &format!("-window-{window}");
        }
        if self.vocabulary < model.vocabulary {
            name += &format!("-of-{}", self.vocabulary);
        }
        if let Some(rate) = self.forced_acceptance {
            name += &format!("-forced-{rate}");
        }
        name
    }
}
