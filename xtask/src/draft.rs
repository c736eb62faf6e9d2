//! What a build drafts with.

use clap::{Args, ValueEnum};
use monomorph_compiler::spec::types::DraftOption;

#[derive(Args, Clone, Copy)]
pub struct DraftOptions {
    /// Draft tokens with the model's draft head, which every step then verifies [default: do not].
    #[arg(long, value_name = "METHOD")]
    draft: Option<Method>,
    /// Drafts after every token sampled, 1 to 3.
    #[arg(long, value_name = "K", requires = "draft", default_value_t = 1)]
    drafts: usize,
    /// Draft the first N ids only, which saves most bytes of the draft's head [default: all].
    #[arg(long, value_name = "N", requires = "draft")]
    draft_vocabulary: Option<usize>,
    /// For measuring speed only: accept drafts at this rate whatever was sampled. Answers mean nothing.
    #[arg(long, value_name = "RATE", requires = "draft")]
    forced_acceptance: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// Multi-token prediction.
    Mtp,
}

impl DraftOptions {
    /// What the compiler is asked for.
    pub fn option(self) -> Option<DraftOption> {
        let DraftOptions { draft, drafts, draft_vocabulary, forced_acceptance } = self;
        draft.map(|Method::Mtp| DraftOption { drafts, vocabulary: draft_vocabulary, forced_acceptance })
    }
}
