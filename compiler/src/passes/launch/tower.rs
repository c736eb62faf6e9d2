//! Launches of vision towers (docs/adr/0052): a program for each bucket of patches.
//!
//! What a tower's kernels count as tokens are patches, as outputs the tokens that patches become, so that
//! kernels of text take both. A phase over either has the outline of a prompt, or of a head.

use super::{Launcher, Outline, Site};
use crate::graph::{BodyId, Rows};
use crate::kernels::Header;
use crate::passes::PassError;
use crate::plan::Boundaries;
use crate::plan::cuda::{Launch, Program, Regime};

/// Boundaries of the phases of a tower's body, in its largest program. No step of tokens has any of them.
pub(super) fn boundaries(programs: &[Program], body: BodyId, phases: usize) -> Vec<Boundaries> {
    let program = programs.iter().rfind(|it| it.regime == Regime::See).expect("a tower has programs");
    let (_, launches) = program.passes.iter().find(|(it, _)| *it == body).expect("with all its bodies");
    let of_phase = |at: usize| launches.iter().filter(|it| it.phase == at).count() as f64;
    let one = |prefill: f64| Boundaries { decode: 0.0, verify: 0.0, prefill };
    (0..phases).map(|at| one(of_phase(at))).collect()
}

impl Launcher<'_> {
    /// Patches that become one token.
    pub(super) fn merged(&self) -> usize {
        self.plan.tower.as_ref().map_or(1, |tower| tower.merged)
    }

    /// The programs of a target's tower, by bucket.
    pub(crate) fn tower_programs(&mut self) -> Result<Vec<Program>, PassError> {
        let plan = self.plan;
        let Some(tower) = &plan.tower else { return Ok(Vec::new()) };
        let mut programs = Vec::new();
        for patches in tower.buckets.iter().copied() {
            let name = match patches == tower.most_patches {
                true => "see".to_owned(),
                false => format!("see_{patches}"),
            };
            let of_patches = Outline {
                name: name.clone(),
                regime: Regime::Prefill,
                rows: patches,
                sequences: 1,
                tokens: 1,
            };
            let of_tokens = Outline {
                name: name.clone(),
                regime: Regime::Head,
                rows: patches / tower.merged,
                sequences: 1,
                tokens: 1,
            };
            self.begin(&of_patches);
            let mut passes = Vec::new();
            for body in tower.first.0..plan.bodies.len() {
                let mut launches: Vec<Launch> = Vec::new();
                for (phase, it) in plan.bodies[body].phases.iter().enumerate() {
                    let (read, _) = it.kind.buffers();
                    let of_rows = read.first().map(|buffer| plan.buffer(*buffer).rows);
                    let program = if of_rows == Some(Rows::ImageTokens) { &of_tokens } else { &of_patches };
                    let site = Site { program, body, phase, pass: None, header: Header::STEP };
                    self.phase(site, &mut launches)?;
                }
                passes.push((BodyId(body), launches));
            }
            let (bodies, tail) = (vec![Vec::new(); plan.bodies.len()], Vec::new());
            let (rows, regime) = (patches, Regime::See);
            programs.push(Program { name, rows, sequences: 1, tokens: 1, regime, bodies, tail, passes });
        }
        Ok(programs)
    }
}
