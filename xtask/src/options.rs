//! What a build is asked for besides its target.

use crate::draft::DraftOptions;
use clap::Args;
use monomorph_compiler::spec::types::BuildOptions as Asked;

#[derive(Args, Clone, Copy)]
pub struct BuildOptions {
    #[command(flatten)]
    draft: DraftOptions,
    /// Let the size of a batch change no bit of a row, so that a sequence's tokens are those of its lone run:
    /// one decode program, for up to N sequences at once (1, 2, 4, … 128), and one prefill program. CUDA
    /// targets [default: a program for every size].
    #[arg(long, value_name = "N")]
    batch_invariant: Option<usize>,
}

impl BuildOptions {
    /// What the compiler is asked for.
    pub fn asked(self) -> Asked {
        Asked { draft: self.draft.option(), batch_invariant: self.batch_invariant }
    }
}
