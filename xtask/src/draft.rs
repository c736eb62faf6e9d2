//! What a build drafts with.

use clap::{Args, ValueEnum};
use monomorph_compiler::spec::types::{DraftMethod, DraftOption};

#[derive(Args, Clone, Copy)]
pub struct DraftOptions {
    /// Draft tokens, several of which a step then verifies at once [default: do not].
    #[arg(long, value_name = "METHOD")]
    draft: Option<Method>,
    /// Drafts at a time: 1 to 3 with mtp, 1 to 7 with ngram and self.
    #[arg(long, value_name = "K", requires = "draft", default_value_t = 1)]
    drafts: usize,
    /// With mtp and self: draft the first N ids only, which saves most bytes of a pass's head [default: all].
    #[arg(long, value_name = "N", requires = "draft")]
    draft_vocabulary: Option<usize>,
    /// With mtp and self, for measuring speed only: accept drafts at this rate whatever was sampled. Answers
    /// mean nothing.
    #[arg(long, value_name = "RATE", requires = "draft")]
    forced_acceptance: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// The model's draft head (multi-token prediction), after every token sampled.
    Mtp,
    /// What came after the same tokens before, where they did: any model.
    Ngram,
    /// The model itself without its recurrent layers, after every token sampled: models that have some.
    #[value(name = "self")]
    Layers,
}

impl DraftOptions {
    /// What the compiler is asked for.
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
