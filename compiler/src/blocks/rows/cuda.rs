//! Whole rows on a CUDA device: a block a row where it is normed, else a thread every four elements.

use super::kernels;
use super::{AddNormed, Cap, Scale, SumNormed};
use crate::blocks::products::cuda::limit;
use crate::kernels::Vector;
use crate::passes::launch::{Instance, Launcher, Member, Site, integer};
use crate::plan::cuda::{Constant, Extent, Launch};
use crate::plan::{BufferId, FieldId, PhaseKind};

/// Most threads of a block of add_normed.
const MOST_THREADS: usize = 512;
/// Threads of a block that works on elements.
const THREADS: usize = 256;

impl Launcher<'_> {
    /// The launch of `residual += norm(x)`, and of the scale right behind it, if there is one.
    pub(super) fn add_normed(&mut self, site: Site, phase: &AddNormed) -> Launch {
        let AddNormed { x, norm, residual } = *phase;
        let factor = self.scale_behind(site, residual);
        self.sum_of_rows(site, x, norm, (residual, None), factor)
    }

    pub(super) fn sum_normed(&mut self, site: Site, phase: &SumNormed) -> Launch {
        let SumNormed { x, norm, sum, own } = *phase;
        self.sum_of_rows(site, x, norm, (sum, Some(own)), None)
    }

    /// The launch of a scale; `None` where the launch before has already scaled.
    pub(super) fn scale(&mut self, site: Site, phase: &Scale) -> Option<Launch> {
        let Scale { x, factor } = *phase;
        let phases = &self.plan.bodies[site.body].phases;
        let before = site.phase.checked_sub(1).map(|at| &phases[at].kind);
        if before.is_some_and(|kind| matches!(kind, PhaseKind::AddNormed(it) if it.residual == x)) {
            return None;
        }
        let (instance, grid) = self.of_elements(site, x, None);
        let (factor, x) = (Vector::field(Some(factor)), self.buffer(site, x));
        Some(self.launch(site, instance, grid, kernels::ScaleRows { step: site.header, factor, x }))
    }

    pub(super) fn cap(&mut self, site: Site, phase: &Cap) -> Launch {
        let Cap { x, cap } = *phase;
        let (instance, grid) = self.of_elements(site, x, Some(("CAP", Constant::Float(cap))));
        let x = self.buffer(site, x);
        self.launch(site, instance, grid, kernels::CapRows { step: site.header, x })
    }

    /// The factor of the next phase, if that scales this buffer.
    fn scale_behind(&self, site: Site, buffer: BufferId) -> Option<FieldId> {
        match &self.plan.bodies[site.body].phases.get(site.phase + 1)?.kind {
            PhaseKind::Scale(it) if it.x == buffer => Some(it.factor),
            _ => None,
        }
    }

    /// Adds normed rows of `x` to `out`, which has a norm of its own or none.
    fn sum_of_rows(
        &mut self,
        site: Site,
        x: BufferId,
        norm: FieldId,
        (out, own): (BufferId, Option<FieldId>),
        factor: Option<FieldId>,
    ) -> Launch {
        let width = self.plan.buffer(out).width;
        let ((form, eps), (own_form, own_eps)) = (self.norm(Some(norm)), self.norm(own));
        let constants = vec![
            ("WIDTH", integer(width)),
            ("NORM", form),
            ("EPS", Constant::Float(eps)),
            ("OWN", own_form),
            ("OWN_EPS", Constant::Float(own_eps)),
            ("SCALED", Constant::Flag(factor.is_some())),
            ("LIMIT", limit(site, false)),
        ];
        let places = width.div_ceil(if width.is_multiple_of(4) { 4 } else { 1 });
        let threads = places.next_multiple_of(32).min(MOST_THREADS);
        let [norm, own, factor] = [Some(norm), own, factor].map(Vector::field);
        let (x, out) = (self.buffer(site, x), self.buffer(site, out));
        let arguments = kernels::AddNormed { step: site.header, x, norm, own, factor, out };
        let instance = Instance::new(self.kernel_name(site, ""), constants, threads);
        self.launch(site, instance, self.grid_of_rows(site, 1), arguments)
    }

    /// A kernel that works on every element of a buffer.
    fn of_elements(&self, site: Site, x: BufferId, further: Option<Member>) -> (Instance, [Extent; 3]) {
        let width = self.plan.buffer(x).width;
        let mut constants =
            vec![("WIDTH", integer(width)), ("THREADS", integer(THREADS)), ("LIMIT", limit(site, false))];
        constants.extend(further);
        let grid = self.columns_and_rows(site, width.div_ceil(4).div_ceil(THREADS));
        (Instance::new(self.kernel_name(site, "_rows"), constants, THREADS), grid)
    }
}
