//! Phases of a draft pass: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use crate::blocks::products::cuda::Operands;
use crate::emit::call::Call;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, FieldKind, LoweredPhase, Work};
use proc_macro2::TokenStream;

/// `out = [embedding_norm(table[following]) | hidden_norm(norm(x))]`: the start of a draft. `following` is
/// the token after a row's own ([`crate::plan::DraftPlan`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftEmbed {
    /// Residual stream.
    pub x: BufferId,
    /// The norm before the stream's own head, which turns the stream into hidden states.
    pub norm: FieldId,
    /// Norm of the hidden states.
    pub hidden_norm: FieldId,
    /// The model's embedding.
    pub table: FieldId,
    /// Norm of the embedding's rows.
    pub embedding_norm: FieldId,
    /// Whether rows of images take the place of embeddings.
    pub images: bool,
    /// Twice as wide as `x`.
    pub out: BufferId,
}

impl Kind for DraftEmbed {
    fn name(&self) -> &'static str {
        "draft-embed"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.hidden_norm, self.table, self.embedding_norm]
    }

    fn work(&self, work: &mut Work) {
        work.rows_of(self.table);
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.draft_embed(site, self, launches)
    }
}

/// `out = the first rows of matrix * round(norm(x))`: the end of a draft. The drafted id is that of the
/// largest logit of a row, the first of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propose {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before the product.
    pub norm: FieldId,
    /// The model's head; only its first rows are multiplied, as many as `out` is wide.
    pub matrix: FieldId,
    /// Logits of the ids that may be drafted.
    pub out: BufferId,
}

impl Kind for Propose {
    fn name(&self) -> &'static str {
        "propose"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.matrix]
    }

    fn work(&self, work: &mut Work) {
        let FieldKind::Matrix { rows: all, .. } = work.field(self.matrix).kind else { return };
        let part = work.width(self.out) as f64 / all as f64;
        let before = std::mem::take(&mut work.cost);
        work.product(self.matrix, work.given.outputs);
        let whole = std::mem::take(&mut work.cost);
        work.cost = before + whole.part(part);
    }

    fn staged(&self) -> Vec<FieldId> {
        vec![self.matrix]
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let rows = Some(launcher.plan.buffer(self.out).width);
        let stored = Operands::stored(self.x, self.matrix, self.out).normed(self.norm);
        launcher.product(site, Operands { rows, ..stored }, launches)
    }
}

/// The phases that begin a draft head's later passes: those of its first pass, from the hidden states that
/// the pass before selected.
///
/// # Panics
/// If `first` does not begin a draft head, or `head` does not end one.
pub(crate) fn again(first: &[LoweredPhase], head: &[LoweredPhase]) -> Vec<LoweredPhase> {
    let proposes = |phase: &LoweredPhase| match phase.kind {
        PhaseKind::Propose(Propose { x, norm, .. }) => Some((x, norm)),
        _ => None,
    };
    let (x, norm) = head.iter().find_map(proposes).expect("a draft ends so");
    let [LoweredPhase { name, kind: PhaseKind::DraftEmbed(embed), ops }, rest @ ..] = first else {
        panic!("a draft begins so")
    };
    let kind = DraftEmbed { x, norm, ..*embed }.into();
    let begin = LoweredPhase { name: name.clone(), kind, ops: ops.clone() };
    std::iter::once(begin).chain(rest.iter().cloned()).collect()
}

/// Fusion rules of drafts. A draft's layer and head use the rules of models.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "draft-embed",
        pattern: "e = embedding(); m = rms-norm(e); n = rms-norm(h); out = concat(m, n)",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| draft_embed(it, false),
    },
    Fusion {
        name: "draft-embed-images",
        pattern: "e = embedding(); i = image-rows(e); m = rms-norm(i); n = rms-norm(h); out = concat(m, n)",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| draft_embed(it, true),
    },
];

fn draft_embed(it: &Lowering, images: bool) -> Result<PhaseKind, PassError> {
    Ok(DraftEmbed {
        x: it.whole("h")?,
        norm: it.final_norm.expect("a model's head begins with a norm"),
        hidden_norm: it.norm("n"),
        table: it.matrix("e"),
        embedding_norm: it.norm("m"),
        images,
        out: it.whole("out")?,
    }
    .into())
}
