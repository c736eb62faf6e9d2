//! Launches of drafting (docs/adr/0013): after a step's sampling, the check of its drafts, then the draft
//! passes.
//!
//! The first pass of a draft head takes all rows of the step up to and including its layer. The rest of that
//! pass takes one row per sequence, as the other passes do: this is a program of its own, which also follows
//! a prefill. `accept` writes the headers of these passes. If the model's own layers draft (docs/adr/0025),
//! every pass takes one row per sequence, and all belong to that program.

use super::{Launcher, Outline, Site};
use crate::graph::BodyId;
use crate::kernels::{Header, Ids, Sampled};
use crate::passes::PassError;
use crate::plan::cuda::{Launch, Program, Regime};
use crate::plan::{Boundaries, BufferId, DraftLayers, DraftPlan, Lowered};
use monomorph_abi::step;
use std::collections::BTreeSet;

/// Bodies and their launches, in order.
type Passes = Vec<(BodyId, Vec<Launch>)>;

/// Boundaries of the phases of a body that only draft passes run: for the first pass over a token and its
/// drafts, for a pass over one row, and for draft prefill. `None` for the model's bodies, even those that
/// passes share.
pub(crate) fn boundaries(plan: &Lowered, programs: &[Program], body: BodyId) -> Option<Vec<Boundaries>> {
    let draft = plan.draft?;
    let own = match draft.layers {
        DraftLayers::Own(layer) => vec![draft.first, draft.again, layer, draft.head],
        DraftLayers::Attending => vec![draft.head],
    };
    if !own.contains(&body) {
        return None;
    }
    let of = |regime: Regime| programs.iter().find(|program| program.regime == regime).expect("one of each");
    let (decode, learn, passes) = (of(Regime::Decode), of(Regime::Learn), of(Regime::Draft));
    let of_phase = |at: usize| {
        // A body may run several times; the last run counts. The first head also selects rows, once per step.
        let launches = |program: &Program| {
            let run = program.passes.iter().rfind(|(it, _)| *it == body);
            run.map_or(0, |(_, launches)| launches.iter().filter(|it| it.phase == at).count()) as f64
        };
        Boundaries { decode: launches(passes), verify: launches(decode), prefill: launches(learn) }
    };
    Some((0..plan.bodies[body.0].phases.len()).map(of_phase).collect())
}

/// The passes of a draft head, and the body of its layer.
fn of_head(plan: &Lowered) -> Option<(DraftPlan, BodyId)> {
    plan.draft.and_then(|draft| Some((draft, draft.own_layer()?)))
}

impl Launcher<'_> {
    /// The programs of a drafting target that are neither decode nor prefill.
    pub(crate) fn draft_programs(&mut self) -> Result<Vec<Program>, PassError> {
        let Some(draft) = self.plan.draft else { return Ok(Vec::new()) };
        let attending: BTreeSet<BodyId> = self.plan.attending().collect();
        let buckets = self.plan.buckets;
        let learn = Outline {
            name: "learn".to_owned(),
            regime: Regime::Prefill,
            rows: buckets.tokens,
            sequences: buckets.sequences,
            tokens: 1,
        };
        self.begin(&learn);
        let tail = vec![self.accept(&learn)];
        let passes = self.first_pass(&learn)?;
        let mut programs = vec![self.apart(&learn, Regime::Learn, tail, passes)];
        for sequences in buckets.decode.iter().copied().filter(|it| *it <= buckets.sequences) {
            let name = format!("draft_{sequences}");
            let outline = Outline { name, ..Outline::decode(sequences, 1) };
            self.begin(&outline);
            let mut passes = Vec::new();
            for pass in 0..draft.drafts {
                let bodies = match draft.layers {
                    DraftLayers::Own(_) if pass == 0 => Vec::new(),
                    DraftLayers::Own(layer) => vec![draft.again, layer],
                    DraftLayers::Attending => [draft.first].into_iter().chain(attending.clone()).collect(),
                };
                for body in bodies {
                    passes.push(self.pass(&outline, body, pass)?);
                }
                let (head, mut launches) = self.pass(&outline, draft.head, pass)?;
                launches.push(self.propose(&outline, head, pass)?);
                passes.push((head, launches));
            }
            programs.push(self.apart(&outline, Regime::Draft, Vec::new(), passes));
        }
        Ok(programs)
    }

    /// A program that runs none of the model's bodies.
    fn apart(&self, outline: &Outline, regime: Regime, tail: Vec<Launch>, passes: Passes) -> Program {
        let Outline { name, rows, sequences, .. } = outline;
        let (name, bodies) = (name.clone(), vec![Vec::new(); self.plan.bodies.len()]);
        Program { name, rows: *rows, sequences: *sequences, tokens: 1, regime, bodies, tail, passes }
    }

    /// The first pass over all rows of a step, as far as it takes all of them.
    pub(crate) fn first_pass(&mut self, outline: &Outline) -> Result<Passes, PassError> {
        let mut passes = Vec::new();
        let bodies = of_head(self.plan).map(|(draft, layer)| [draft.first, layer]);
        for body in bodies.into_iter().flatten() {
            passes.push((body, self.body(outline, body, 0, Header::STEP)?));
        }
        Ok(passes)
    }

    /// A body in a pass with one row per sequence, which has a header of its own.
    fn pass(
        &mut self,
        outline: &Outline,
        body: BodyId,
        pass: usize,
    ) -> Result<(BodyId, Vec<Launch>), PassError> {
        let launches = self.body(outline, body, pass, Header::pass(pass))?;
        Ok((body, launches))
    }

    fn body(
        &mut self,
        outline: &Outline,
        body: BodyId,
        pass: usize,
        header: Header,
    ) -> Result<Vec<Launch>, PassError> {
        let mut launches = Vec::new();
        for phase in 0..self.plan.bodies[body.0].phases.len() {
            let site = Site { program: outline, body: body.0, phase, pass: Some(pass), header };
            self.phase(site, &mut launches)?;
        }
        Ok(launches)
    }

    /// The buffer that holds a phase's input `id`: without a selection, the buffer that would be selected
    /// from. A pass begins with the selection of the one before it.
    pub(crate) fn unselected(&self, site: Site, id: BufferId) -> BufferId {
        let (body, selected) = match (of_head(self.plan), site.pass) {
            (Some((draft, _)), Some(pass)) if site.body == draft.again.0 => (draft.head.0, pass == 1),
            _ => (site.body, self.selects(site)),
        };
        let phases = self.plan.bodies[body].phases.iter();
        let from = phases.filter_map(|phase| phase.kind.kind().selects()).find(|(_, out)| *out == id);
        from.filter(|_| !selected).map_or(id, |(x, _)| x)
    }

    /// Whether a selecting body drops rows of a program. The first pass of a draft head keeps one row per
    /// sequence; all other passes have no more than that.
    pub(crate) fn selects(&self, site: Site) -> bool {
        site.program.regime != Regime::Decode || (site.pass == Some(0) && of_head(self.plan).is_some())
    }

    /// Whether keys and values of all positions but the rows' own are complete before a launch's program
    /// starts. After a step that feeds all its rows to a draft head's layer, this holds for the first pass
    /// only; it never holds for a pass through the model's layers.
    pub(crate) fn context_is_there(&self, site: Site) -> bool {
        site.pass.is_none_or(|pass| pass == 0 && of_head(self.plan).is_some())
    }

    /// Token ids of a pass through the model's layers, by the slots that `accept` assigns.
    pub(crate) fn ids_of(&self, site: Site) -> Ids {
        match site.pass.and_then(|pass| pass.checked_sub(1)) {
            None => Ids::SAMPLED,
            Some(before) => self.drafted_ids(before),
        }
    }

    /// The ids that a pass drafted.
    pub(crate) fn drafted_ids(&self, pass: usize) -> Ids {
        Ids::from(self.kept_ids().drafted(pass))
    }

    /// The ids sampled for the rows of a step that verifies.
    pub(crate) fn row_ids(&self) -> Ids {
        Ids::from(self.kept_ids().row(0))
    }

    pub(crate) fn kept_ids(&self) -> step::Ids {
        step::Ids { sequences: self.plan.buckets.sequences }
    }

    /// Drafts an id for every sequence in a pass: that of its largest logit.
    fn propose(&mut self, outline: &Outline, head: BodyId, pass: usize) -> Result<Launch, PassError> {
        let phases = &self.plan.bodies[head.0].phases;
        let logits = phases.last().expect("a head ends with its logits").kind.result();
        let sampled = Sampled::drafted(pass * self.plan.buckets.sequences);
        self.sample_of(outline, logits, phases.len() - 1, Header::pass(pass), sampled)
    }
}
