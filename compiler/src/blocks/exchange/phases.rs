//! Phases between ranks: rules, operands, cost.

use super::super::Kind;
use crate::emit::call::Call;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::Fusion;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Plan, Work};
use proc_macro2::TokenStream;

/// `out = 0`. There is nothing to do: [`Sum`] leaves the buffer so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeros {
    /// A buffer of partial sums.
    pub out: BufferId,
}

impl Kind for Zeros {
    fn name(&self) -> &'static str {
        "zeros"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, _: &Call) -> TokenStream {
        unreachable!("a target on a CPU has one rank")
    }

    fn cuda(&self, _: &mut Launcher, _: Site, _: &mut Vec<Launch>) -> Result<(), PassError> {
        Ok(())
    }
}

/// `residual += sum of the ranks' parts; part = 0`, or `part = sum of the ranks' parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// This rank's part of the sum; zero afterwards, if the sum is added to another buffer.
    pub part: BufferId,
    /// Residual stream, read and written; the part's own buffer, if the sum takes the part's place.
    pub residual: BufferId,
}

impl Sum {
    /// Whether the sum is added to what a buffer holds. If not, it takes the place of this rank's part.
    pub fn adds(&self) -> bool {
        self.part != self.residual
    }
}

impl Kind for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let both = match self.adds() {
            true => vec![self.part, self.residual],
            false => vec![self.part],
        };
        (both.clone(), both)
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn sends(&self, plan: &Plan) -> Option<usize> {
        Some(plan.buffer(self.part).width)
    }

    fn work(&self, work: &mut Work) {
        work.exchange(work.width(self.part), work.given.tokens);
    }

    fn cpu(&self, _: &Call) -> TokenStream {
        unreachable!("a target on a CPU has one rank")
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        if !launcher.is_summed(site, self)? {
            launches.push(launcher.exchange_sum(site, self)?);
        }
        Ok(())
    }
}

/// `out = the ranks' rows side by side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// This rank's part of each row.
    pub part: BufferId,
    /// Whole rows.
    pub out: BufferId,
}

impl Kind for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.part], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn sends(&self, plan: &Plan) -> Option<usize> {
        Some(plan.buffer(self.part).width)
    }

    fn work(&self, work: &mut Work) {
        work.exchange(work.width(self.part), work.given.outputs);
    }

    fn cpu(&self, _: &Call) -> TokenStream {
        unreachable!("a target on a CPU has one rank")
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(launcher.exchange_gather(site, self.part, self.out)?);
        Ok(())
    }
}

/// Fusion rules of exchanges. What is added to a row of zeros uses the rules of what is added to the residual
/// stream. A sum that is added to nothing stays where this rank's part was.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "zeros",
        pattern: "out = zeros()",
        matrices: &[],
        buffers: &[],
        lower: |it| Ok(Zeros { out: it.whole("out")? }.into()),
    },
    Fusion {
        name: "sum",
        pattern: "out = sum(residual, part)",
        matrices: &[],
        buffers: &[],
        lower: |it| Ok(Sum { part: it.whole("part")?, residual: it.whole("residual")? }.into()),
    },
    Fusion {
        name: "total",
        pattern: "out = total(residual)",
        matrices: &[],
        buffers: &[],
        lower: |it| {
            let part = it.whole("residual")?;
            Ok(Sum { part, residual: part }.into())
        },
    },
    Fusion {
        name: "gather",
        pattern: "out = gather(part)",
        matrices: &[],
        buffers: &[],
        lower: |it| Ok(Gather { part: it.whole("part")?, out: it.whole("out")? }.into()),
    },
];
