//! What layers are made of, a folder a block. A block knows the phases that its ops become: their operands,
//! which buffers and fields they read and write, what they move and compute.
//!
//! Nothing outside this folder lists the kinds of phase; [`PhaseKind`] is made from the list at the end of
//! this file.

pub mod attention;
pub mod delta_net;
pub mod draft;
pub mod ends;
pub mod experts;
pub mod products;

pub use attention::Attention;
pub use delta_net::{Delta, ProjectDelta};
pub use draft::{DraftEmbed, Propose};
pub use ends::{Embed, Select};
pub use experts::{Combine, Experts, SharedDown, SharedUp};
pub use products::{Accumulate, Gated, Linear, Project};

use crate::emit::call::Call;
use crate::emit::cpu::Working;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::rules::Fusion;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Plan, Work};
use proc_macro2::TokenStream;

/// A kind of phase: its operands, and what is done with them.
pub(crate) trait Kind {
    /// What reports call it.
    fn name(&self) -> &'static str;

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>);

    /// Fields read.
    fn fields(&self) -> Vec<FieldId>;

    /// The matrix it streams, which names the phase.
    fn streams(&self) -> Option<FieldId> {
        None
    }

    /// Adds what it moves and computes besides activations.
    fn work(&self, work: &mut Work);

    /// Matrices whose input a CPU stages.
    fn staged(&self) -> Vec<FieldId> {
        self.streams().into_iter().collect()
    }

    /// What else it works in on a CPU.
    fn working(&self, _: &Plan) -> Vec<Working> {
        Vec::new()
    }

    /// Its call on a CPU.
    fn cpu(&self, call: &Call) -> TokenStream;

    /// Its launches in a program of a CUDA device.
    ///
    /// # Errors
    /// When there is no kernel for its formats, or none that fits the card.
    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError>;
}

macro_rules! blocks {
    ($($block:ident: $($name:ident),*;)*) => {
        /// The fusion rules of all blocks.
        pub fn fusions() -> impl Iterator<Item = &'static Fusion> {
            [$($block::FUSIONS),*].into_iter().flatten()
        }

        /// The kinds of phase there are, with their operands.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the operands say what each is")]
        pub enum PhaseKind {
            $($($name($name),)*)*
        }

        impl PhaseKind {
            /// What is asked for anything else.
            pub(crate) fn kind(&self) -> &dyn Kind {
                match self {
                    $($(PhaseKind::$name(it) => it,)*)*
                }
            }
        }

        $($(
            impl From<$name> for PhaseKind {
                fn from(kind: $name) -> PhaseKind {
                    PhaseKind::$name(kind)
                }
            }
        )*)*
    };
}

impl PhaseKind {
    /// The name reports use.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    pub fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        self.kind().buffers()
    }

    /// Fields read.
    pub fn fields(&self) -> Vec<FieldId> {
        self.kind().fields()
    }

    /// The buffer the phase is for.
    pub fn result(&self) -> BufferId {
        *self.buffers().1.last().expect("every phase writes something")
    }
}

blocks! {
    ends: Embed, Select;
    products: Project, Accumulate, Gated, Linear;
    attention: Attention;
    delta_net: ProjectDelta, Delta;
    experts: Experts, Combine;
    draft: DraftEmbed, Propose;
}
