//! Phases at the ends of a stack: rules, operands, cost.

use super::super::Kind;
use super::super::products::Project;
use crate::blocks::draft::Propose;
use crate::emit::call::Call;
use crate::graph::Op;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::Fusion;
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Work};
use proc_macro2::TokenStream;

/// `out = table[tokens]`, or that multiplied by a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Embedding table.
    pub table: FieldId,
    /// Multiplies embeddings.
    pub scale: Option<f32>,
    /// Residual stream.
    pub out: BufferId,
}

impl Kind for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.table]
    }

    fn work(&self, work: &mut Work) {
        work.rows_of(self.table);
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(launcher.embed(site, self));
        Ok(())
    }
}

/// `out = the rows of x that need logits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select {
    /// Residual stream of every row.
    pub x: BufferId,
    /// Residual stream of the selected rows.
    pub out: BufferId,
}

impl Kind for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn selects(&self) -> Option<(BufferId, BufferId)> {
        Some((self.x, self.out))
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        // Without a selection, the rows are read in place.
        if launcher.selects(site) {
            launches.push(launcher.select(site, self));
        }
        Ok(())
    }
}

/// Fusion rules at the ends of a stack.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "embed",
        pattern: "out = embedding() where out is handed on",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: |it| Ok(Embed { table: it.matrix("out"), scale: None, out: it.whole("out")? }.into()),
    },
    Fusion {
        name: "embed-scaled",
        pattern: "e = embedding(); out = scale(e) where out is handed on",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| {
            let Op::Scale { factor } = *it.op("out") else { unreachable!("the rule says scale") };
            Ok(Embed { table: it.matrix("e"), scale: Some(factor), out: it.whole("out")? }.into())
        },
    },
    Fusion {
        name: "select",
        pattern: "out = select(x)",
        matrices: &[],
        buffers: &[],
        lower: |it| Ok(Select { x: it.whole("x")?, out: it.whole("out")? }.into()),
    },
    // A draft pass's head keeps only the ids that may be drafted.
    Fusion {
        name: "head",
        pattern: "n = rms-norm(x); out = linear(n) where x is select",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: |it| {
            let (x, norm, matrix, out) = (it.whole("x")?, it.norm("n"), it.matrix("out"), it.whole("out")?);
            Ok(match it.in_draft {
                true => Propose { x, norm, matrix, out }.into(),
                false => Project { x, norm, matrix, bias: it.bias("out"), activation: None, out }.into(),
            })
        },
    },
];
