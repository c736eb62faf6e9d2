//! What a build drafts with.

use clap::{Args, ValueEnum};
use monomorph_compiler::spec::types::{DraftMethod, DraftOption};

#[derive(Args, Clone, Copy)]
pub struct DraftOptions {
    /// Draft tokens, several of which a step then verifies at once [default: no drafts].
    #[arg(long, value_name = "METHOD")]
    draft: Option<Method>,
    /// Drafts per step: 1 to 3 with mtp, 1 to 7 with ngram and self, 1 to 15 with dflash, whose drafter may
    /// have a shorter block [default: 1, and with dflash as many as the block has].
    #[arg(long, value_name = "K", requires = "draft", value_parser = clap::value_parser!(u64).range(1..))]
    drafts: Option<u64>,
    /// With dflash: let no layer of the drafter attend to more than the last N positions [default: each to as
    /// many as its config says].
    #[arg(long, value_name = "N", requires = "draft")]
    draft_window: Option<usize>,
    /// With mtp, self and dflash: draft only the first N ids, which saves most of the bytes that the draft
    /// head reads [default: all].
    #[arg(long, value_name = "N", requires = "draft")]
    draft_vocabulary: Option<usize>,
    /// With mtp, self and dflash, to measure speed only: accept drafts at this rate whatever was sampled;
    /// answers are then meaningless.
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
    /// A drafter of blocks with weights of its own (DFlash), run once after every sampled token; only for
    /// models beside which a DFLASH.toml stands.
    Dflash,
}

impl DraftOptions {
    /// What to request from the compiler.
    ///
    /// # Errors
    /// When an option goes with another method.
    pub fn option(self) -> Result<Option<DraftOption>, String> {
        let DraftOptions { draft, drafts, draft_window, draft_vocabulary, forced_acceptance } = self;
        if let (Some(window), true) = (draft_window, !matches!(draft, Some(Method::Dflash))) {
            return Err(format!(
                "--draft-window {window} is for the layers of a drafter: give it with `--draft dflash`, or leave it out"
            ));
        }
        let method = |method: Method| match method {
            Method::Mtp => DraftMethod::Mtp,
            Method::Ngram => DraftMethod::Ngram,
            Method::Layers => DraftMethod::Layers,
            Method::Dflash => DraftMethod::Dflash { window: draft_window },
        };
        Ok(draft.map(|it| DraftOption {
            method: method(it),
            // A drafter's block has as many as it was trained on.
            drafts: drafts.map_or(usize::from(!matches!(it, Method::Dflash)), |drafts| drafts as usize),
            vocabulary: draft_vocabulary,
            forced_acceptance,
        }))
    }
}
