//! Flags of n-gram lookup.

use monomorph_engine::{LONGEST_NGRAM, LookupOptions};
use monomorph_model::{Drafter, ModelSpec};
use std::num::NonZero;

/// N-gram lookup, of a build with `--draft ngram`.
#[derive(Clone, Debug, clap::Args)]
pub struct LookupArgs {
    /// Of a build with `--draft ngram`: most tokens at an answer's end that are looked for in what came
    /// before; what followed there is drafted [default: 4].
    #[arg(long, value_name = "N")]
    pub prompt_lookup_max: Option<NonZero<usize>>,
    /// Of such a build: the fewest [default: 2, or the most if that is less].
    #[arg(long, value_name = "N")]
    pub prompt_lookup_min: Option<NonZero<usize>>,
}

impl LookupArgs {
    /// The engine's options.
    ///
    /// # Errors
    /// When nothing is looked up, or no n-gram has such a length.
    pub(crate) fn options(&self, spec: &ModelSpec) -> Result<LookupOptions, String> {
        let flags =
            [("prompt-lookup-max", self.prompt_lookup_max), ("prompt-lookup-min", self.prompt_lookup_min)];
        let looks_up = spec.draft.is_some_and(|draft| draft.drafter == Drafter::Caller);
        for (flag, value) in flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))) {
            if !looks_up {
                return Err(format!("--{flag} {value}: this server was not built with `--draft ngram`"));
            }
            if value.get() > LONGEST_NGRAM {
                return Err(format!("--{flag} {value}: must be from 1 to {LONGEST_NGRAM}"));
            }
        }
        let default = LookupOptions::default();
        let most = self.prompt_lookup_max.map_or(default.most, NonZero::get);
        let least = self.prompt_lookup_min.map_or(default.least.min(most), NonZero::get);
        if least > most {
            return Err(format!("--prompt-lookup-min {least} is above --prompt-lookup-max, which is {most}"));
        }
        Ok(LookupOptions { most, least })
    }
}
