//! What a build drafts with.

use clap::{Args, ValueEnum};
use monomorph_compiler::spec::types::{DraftMethod, DraftOption};

#[derive(Args, Clone, Copy)]
pub struct DraftOptions {
    /// Draft tokens, several of which a step then verifies at once [default: no drafts].
    #[arg(long, value_name = "METHOD")]
    draft: Option<Method>,
    /// Drafts per step: 1 to 3 with mtp, 1 to 7 with ngram and self.
    #[arg(long, value_name = "K", requires = "draft", default_value_t = 1)]
    drafts: usize,
    /// With mtp and self: draft only the first N ids, which saves most of the bytes that the draft head reads
    /// [default: all].
    #[arg(long, value_name = "N", requires = "draft")]
    draft_vocabulary: Option<usize>,
    /// With mtp and self, to measure speed only: accept drafts at this rate whatever was sampled; answers are
    /// then meaningless.
    #[arg(long, value_name = "RATE", requires = "draft")]
    forced_acceptance: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// The model's draft head (multi-token prediction), run after every sampled token.
    Mtp,
    /// The continuation of an earlier occurrence of the same tokens; works for any model.
    Ngram,
    /// The model itself without its recurrent layers, run after every sampled token; only for models that
    /// have such layers.
    #[value(name = "self")]
    Layers,
}

impl DraftOptions {
    /// What to request from the compiler.
    pub fn option(self) -> Option<DraftOption> {
        let DraftOptions { draft, drafts, draft_vocabulary, forced_acceptance } = self;
        let method = |method: Method| match method {
            Method::Mtp => DraftMethod::Mtp,
            Method::Ngram => DraftMethod::Ngram,
            Method::Layers => DraftMethod::Layers,
        };
        draft.map(|it| DraftOption {
            method: method(it),
            drafts,
            vocabulary: draft_vocabulary,
            forced_acceptance,
        })
    }
}
