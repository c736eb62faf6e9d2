//! A mixture of experts over few rows: the router beside the shared expert's gate and up (`route`), then the
//! chosen experts' gate and up, then all down products with the residual, each bound by reading its weights.
//! Larger steps use `batch`.

mod batch;
mod few;
mod route;
mod route_batch;
mod shape;

use self::shape::{Ring, Together};
use super::{Chosen, Combine, Experts, Judge, Latent, SharedDown, SharedUp};
use crate::blocks::Sum;
use crate::blocks::experts::kernels::{
    ExpertsStream, ExpertsStreamDown, ExpertsStreamDownSum, ExpertsStreamSum, ExpertsStreamUp,
    ExpertsStreamUpPart,
};
use crate::blocks::products::cuda::stream::arithmetic;
use crate::blocks::products::cuda::{Operands, activation, limit};
use crate::kernels::{Following, Planes, Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Matrix, Member, REPLACING, Site, fixed, integer, no_kernel};
use crate::plan::cuda::{Constant, Launch, Regime};
use crate::plan::packed::TILE_ROWS;
use crate::plan::{BufferId, FieldId, Packing, PhaseKind};
use monomorph_abi::world::PIECE;
use monomorph_formats::Format;

/// Most rows of a step whose chosen experts are streamed.
const FEW_ROWS: usize = 8;
/// The same of experts without gates. Sorted rows are 13 % quicker at eight rows and streams 28 % at one
/// (Nemotron 3 Nano on an H200).
const FEW_UNGATED_ROWS: usize = 4;

/// The routing by which a phase multiplies chosen experts' gate and up.
fn up(kind: &PhaseKind) -> Option<BufferId> {
    match kind {
        PhaseKind::Experts(experts) => Some(experts.routing),
        PhaseKind::Chosen(chosen) => Some(chosen.routing),
        _ => None,
    }
}

fn down(kind: &PhaseKind) -> Option<Combine> {
    if let PhaseKind::Combine(combine) = kind { Some(*combine) } else { None }
}

impl Chosen {
    /// The mixture whose router is a phase of its own. What reads the norm of that phase is not asked of it.
    fn judged_by(&self, judge: &Judge) -> Experts {
        let Chosen { x, norm, routing, matrix, up, active, activation, out } = *self;
        let Judge { router, logits, choice, .. } = *judge;
        Experts {
            x,
            norm,
            router,
            weigher: None,
            logits,
            routing,
            matrix,
            up,
            latent: None,
            gated: true,
            active,
            choice,
            activation,
            out,
            shared: None,
        }
    }
}

impl Experts {
    /// What a product makes of its sums before the down product.
    fn epilogue(&self) -> &'static str {
        if self.gated { "GATED" } else { "ACTIVATED" }
    }

    /// The shared expert's gate and up, or up.
    fn shared_up(&self, shared: SharedUp) -> Operands {
        let stored = Operands::stored(self.x, shared.matrix, shared.out).normed(self.norm);
        Operands { epilogue: self.epilogue(), activation: self.activation, ..stored }
    }

    /// The projection to the experts' own width.
    fn latent_in(&self, latent: Latent) -> Operands {
        Operands::stored(self.x, latent.matrix, latent.out).normed(self.norm)
    }

    /// What the experts read, and its norm.
    fn read(&self) -> (BufferId, Option<FieldId>) {
        self.latent.map_or((self.x, Some(self.norm)), |latent| (latent.out, None))
    }
}

/// How a program computes the phases of a mixture.
#[derive(Clone, Copy)]
enum Streams {
    /// One launch per phase.
    Apart { up: Ring, down: Ring },
    /// One launch for both, with the rings side by side.
    Together(Together),
}

impl Launcher<'_> {
    pub(crate) fn experts(
        &mut self,
        site: Site,
        operands: &Experts,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let matrix = self.matrix(operands.matrix);
        self.check_experts(site, operands.matrix, operands.beside())?;
        self.check_router(site, operands)?;
        match self.streams(site, operands) {
            Some(Streams::Apart { up, .. }) => {
                let beside = self.of_their_own(operands);
                self.products(site, &beside, launches)?;
                launches.push(self.route(site, operands, 0)?);
                launches.push(self.stream_up(site, operands, &matrix, up));
            }
            Some(Streams::Together(rings)) => {
                let beside = self.of_their_own(operands);
                self.products(site, &beside, launches)?;
                let arriving = site.program.rows * operands.active * matrix.outputs();
                launches.push(self.route(site, operands, arriving)?);
                launches.push(self.stream_both(site, operands, &matrix, rings));
            }
            None => {
                launches.push(self.batch_route(site, &operands.judge(), operands)?);
                self.batch_up(site, operands, launches)?;
            }
        }
        Ok(())
    }

    /// The launches of experts whose router is a phase of its own.
    pub(crate) fn chosen(
        &mut self,
        site: Site,
        operands: &Chosen,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        self.check_experts(site, operands.matrix, [])?;
        let chooser = self.chooser(site, operands.routing);
        match self.streams(site, &chooser) {
            Some(Streams::Apart { up, .. }) => {
                let matrix = self.matrix(operands.matrix);
                launches.push(self.stream_up(site, &chooser, &matrix, up));
            }
            Some(Streams::Together(_)) => unreachable!("a router by itself hands no rows over"),
            None => self.batch_up(site, &chooser, launches)?,
        }
        Ok(())
    }

    pub(crate) fn combine(
        &mut self,
        site: Site,
        operands: &Combine,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        self.check_experts(site, operands.matrix, operands.shared.map(|it| it.matrix))?;
        let (chooser, sum) = (self.chooser(site, operands.routing), self.sum_of_combine(site, operands));
        match self.streams(site, &chooser) {
            Some(Streams::Apart { down, .. }) => {
                launches.push(self.stream_down(site, operands, &chooser, down, sum));
            }
            // The launch of the routing phase has already summed them.
            Some(Streams::Together(_)) => {}
            None => self.batch_down(site, operands, &chooser, sum, launches)?,
        }
        Ok(())
    }

    /// Products of normed rows before streaming kernels that the router's kernel does not compute: of a
    /// shared expert that it does not weigh, and of experts of another width than the residual stream.
    fn of_their_own(&self, operands: &Experts) -> Vec<(&'static str, Operands)> {
        let shared = operands.shared.filter(|it| !it.weighed).map(|it| operands.shared_up(it));
        let latent = operands.latent.map(|it| operands.latent_in(it));
        shared.map(|it| ("_shared", it)).into_iter().chain(latent.map(|it| ("_latent", it))).collect()
    }

    /// The sum over ranks that a kernel of a mixture makes in this program, if one does: all its blocks are
    /// on the card together.
    pub(crate) fn sum_of_combine(&self, site: Site, operands: &Combine) -> Option<Sum> {
        let sum = self.sum_of(site, operands.residual)?;
        let chooser = self.chooser(site, operands.routing);
        let places = |resident: usize| resident * self.card.multiprocessors as usize;
        let may = match self.streams(site, &chooser) {
            Some(Streams::Together(_)) => true,
            Some(Streams::Apart { down, .. }) => down.blocks <= places(down.resident),
            None => {
                let hidden = self.plan.buffer(operands.residual).width;
                let (_, blocks) = batch::columns(hidden);
                hidden.is_multiple_of(PIECE) && site.program.rows * blocks <= places(batch::SUM_RESIDENT)
            }
        };
        may.then_some(sum)
    }

    /// The mixture of the body that chooses by this routing.
    fn chooser(&self, site: Site, routing: BufferId) -> Experts {
        let kinds = || self.plan.bodies[site.body].phases.iter().map(|phase| &phase.kind);
        let judge = kinds().find_map(|kind| match kind {
            PhaseKind::Judge(judge) if judge.routing == routing => Some(judge),
            _ => None,
        });
        let mut choosers = kinds().filter_map(|kind| match kind {
            PhaseKind::Experts(experts) if experts.routing == routing => Some(*experts),
            PhaseKind::Chosen(chosen) if chosen.routing == routing => Some(chosen.judged_by(judge?)),
            _ => None,
        });
        choosers.next().expect("experts are chosen before their products are added up")
    }

    fn check_experts(
        &self,
        site: Site,
        of_all: FieldId,
        beside: impl IntoIterator<Item = FieldId>,
    ) -> Result<(), PassError> {
        for id in [of_all].into_iter().chain(beside) {
            let matrix = self.matrix(id);
            let takes = matches!(matrix.format, Format::Bf16 | Format::F16 | Format::Fp8E4m3 | Format::Nvfp4);
            if matrix.exact || !takes {
                let what = format!(
                    "experts of {} weights in `{}` have no kernel: `f16` has",
                    matrix.format,
                    matrix.compute.name()
                );
                return Err(no_kernel(site, self.plan, &what));
            }
            self.check_scales(site, id, &matrix)?;
        }
        Ok(())
    }

    /// The phase of the body that combines the experts of this routing, and its index.
    fn adder(&self, site: Site, routing: BufferId) -> Option<(usize, Combine)> {
        let phases = self.plan.bodies[site.body].phases.iter().enumerate();
        let mut adders = phases.filter_map(|(at, phase)| Some((at, down(&phase.kind)?)));
        adders.find(|(_, it)| it.routing == routing)
    }

    /// Rings of a mixture's streaming kernels; `None` if the program has more rows or they do not fit.
    fn streams(&self, site: Site, operands: &Experts) -> Option<Streams> {
        let rows = site.program.rows;
        let few = if operands.gated { FEW_ROWS } else { FEW_UNGATED_ROWS };
        if site.program.regime != Regime::Decode || rows > few {
            return None;
        }
        let mut matrix = self.matrix(operands.matrix);
        // The row that weighs the shared expert has its own tile after whole tiles of router rows.
        if operands.weighs_shared() && !matrix.routed?.is_multiple_of(TILE_ROWS) {
            return None;
        }
        // Without gates, two tiles are read as a gate's and an up's.
        if !operands.gated {
            if !matrix.outputs().is_multiple_of(2 * TILE_ROWS) {
                return None;
            }
            matrix.packing = Packing::Gated;
        }
        let (at, sum) = self.adder(site, operands.routing)?;
        let (of_sum, common) = (self.matrix(sum.matrix), sum.shared.map(|it| self.matrix(it.matrix)));
        let phases = &self.plan.bodies[site.body].phases;
        let chooses = phases.iter().position(|it| up(&it.kind) == Some(operands.routing))?;
        // A router by itself does not mark the inner rows as empty.
        let marks = matches!(phases[chooses].kind, PhaseKind::Experts(_));
        let of = |phase: usize| self.knobs(Site { phase, ..site });
        // The fused launch keeps the inner rows to itself, and comes before what stands in between: that may
        // read nothing. Its sums are added to its x.
        let between = &phases[chooses + 1..at];
        let summed = self.sum_of(Site { phase: at, ..site }, sum.residual);
        let residual = summed.map_or(sum.residual, |it| it.residual);
        if marks && residual == operands.x && between.iter().all(|phase| phase.kind.buffers().0.is_empty()) {
            let rings = shape::together(
                [&matrix, &of_sum],
                common.as_ref(),
                operands.active,
                rows,
                &of(chooses),
                self.card,
            );
            if let Some(rings) = rings {
                return Some(Streams::Together(rings));
            }
        }
        let (of_up, of_down, common) = (of(chooses), of(at), common.as_ref());
        if shape::is_few(&matrix, rows) {
            return Some(Streams::Apart {
                up: few::up(&matrix, operands.active, rows, &of_up, self.card)?,
                down: few::down(&of_sum, common, operands.active, rows, &of_down, self.card)?,
            });
        }
        Some(Streams::Apart {
            up: shape::up(&matrix, operands.active, rows, &of_up, self.card)?,
            down: shape::down(&of_sum, common, operands.active, rows, &of_down, self.card)?,
        })
    }

    /// The router's logits, `stride` floats a row.
    pub(crate) fn logits(&mut self, site: Site, stride: usize) -> Rows {
        let rows = site.program.rows.next_multiple_of(FEW_ROWS);
        self.scratch("router_logits", (4 * rows * stride) as u64, false)
    }

    /// The logits that weigh the shared expert.
    fn shared_scale(&mut self, site: Site, shared: bool) -> Rows {
        if !shared {
            return Rows::NULL;
        }
        self.scratch("shared_scale", 4 * site.program.rows as u64, false)
    }

    /// Bytes of the next layer's weights that a mixture's kernel prefetches.
    fn ahead(&self, site: Site) -> usize {
        // The schedule does not list a draft head's layers, and draft passes leave it, so their next layer is
        // unknown.
        let known = site.pass.is_none() && self.plan.schedule.iter().any(|(body, _)| body.0 == site.body);
        if known { self.knobs(site).fetch_ahead as usize * 1024 } else { 0 }
    }

    /// The experts' inner rows, if a kernel hands them from block to block and an earlier one marks them as
    /// empty.
    fn arriving(&mut self, site: Site, operands: &Experts, values: usize) -> Rows {
        if values == 0 { Rows::NULL } else { self.buffer(site, operands.out) }
    }

    fn up_constants(&self, operands: &Experts, matrix: &Matrix) -> Vec<Member> {
        let (norm, eps) = self.norm(operands.read().1);
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend(arithmetic(matrix));
        constants.extend([
            ("EXPERTS", integer(matrix.experts.expect("experts have matrices"))),
            ("ACTIVE", integer(operands.active)),
        ]);
        constants.extend(operands.choice.constants());
        constants.extend([
            ("WIDTH", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
            ("ACTIVATION", activation(operands.activation)),
        ]);
        constants.extend((!operands.gated).then_some(("UNGATED", Constant::Flag(true))));
        constants.extend(matrix.shared_out());
        constants
    }

    fn shared_constants(common: Option<&Matrix>, of_experts: &Matrix) -> [Member; 3] {
        let [(_, format), (_, scales)] = common.unwrap_or(of_experts).names();
        [
            ("SHARED_FORMAT", format),
            ("SHARED_SCALES", scales),
            ("SHARED_WIDTH", integer(common.map_or(0, |it| it.columns))),
        ]
    }

    fn shared_planes(&self, shared: Option<SharedDown>) -> Planes {
        shared.map_or(Planes::NULL, |it| self.planes(it.matrix))
    }

    fn stream_both(&mut self, site: Site, operands: &Experts, matrix: &Matrix, rings: Together) -> Launch {
        let (_, sum) = self.adder(site, operands.routing).expect("its shape has been found");
        let of_sum = self.matrix(sum.matrix);
        let common = sum.shared.map(|it| self.matrix(it.matrix));
        let [(_, format), (_, scales)] = of_sum.names();
        let ahead = self.ahead(site);
        let mut constants = self.up_constants(operands, matrix);
        constants.extend([("DOWN_FORMAT", format), ("DOWN_SCALES", scales)]);
        constants.extend(Self::shared_constants(common.as_ref(), &of_sum));
        constants.extend([
            ("DOWN_STAGES", integer(rings.down.stages)),
            ("DOWN_STAGE_BYTES", integer(rings.down.stage_bytes)),
            ("AHEAD", integer(ahead)),
        ]);
        constants.extend(ring_constants(site, rings.up));
        let threads = 32 * (rings.up.warps + 1 + usize::from(ahead > 0));
        let experts = matrix.routed.expect("experts have matrices");
        let (up, down) = (self.planes(operands.matrix), self.planes(sum.matrix));
        let common = self.shared_planes(sum.shared);
        let [following, following_end] = if ahead > 0 { Following::EDGES } else { [Following::NULL; 2] };
        let name = self.kernel_name(site, "");
        let mut instance = Instance { shared: rings.up.shared, ..Instance::new(name, constants, threads) };
        let grid = fixed(rings.up.blocks, 1, 1);
        let arguments = ExpertsStream {
            step: site.header,
            norm: Vector::field(Some(operands.norm)),
            logits: self.logits(site, operands.choice.row(experts)),
            shared_inner: sum.shared.map_or(Rows::NULL, |it| self.buffer(site, it.inner)),
            scale: self.shared_scale(site, operands.weighs_shared()),
            codes: up.codes,
            scales: up.scales,
            row_scales: up.row_scales,
            down_codes: down.codes,
            down_scales: down.scales,
            down_row_scales: down.row_scales,
            shared_codes: common.codes,
            shared_scales: common.scales,
            shared_row_scales: common.row_scales,
            following,
            following_end,
            inner: self.buffer(site, operands.out),
            residual: self.buffer(site, operands.x),
        };
        if sum.residual == operands.x {
            return self.launch(site, instance, grid, arguments);
        }
        let world = instance.summing(self.summing(operands.x));
        self.launch(site, instance, grid, ExpertsStreamSum { of: arguments, world })
    }

    fn stream_up(&mut self, site: Site, operands: &Experts, matrix: &Matrix, ring: Ring) -> Launch {
        let experts = matrix.routed.expect("experts have matrices");
        let constants = self.up_constants(operands, matrix);
        let Planes { codes, scales, row_scales } = self.planes(operands.matrix);
        let (read, norm) = operands.read();
        let (step, x, norm) = (site.header, self.buffer(site, read), Vector::field(norm));
        let [logits, inner, routing] = [
            self.logits(site, operands.choice.row(experts)),
            self.buffer(site, operands.out),
            self.buffer(site, operands.routing),
        ];
        let instance = self.of_ring(site, constants, ring);
        let grid = fixed(ring.blocks, 1, 1);
        if matrix.shared_out().is_none() {
            let arguments =
                ExpertsStreamUp { step, x, norm, logits, codes, scales, row_scales, inner, routing };
            return self.launch(site, instance, grid, arguments);
        }
        let world = self.world();
        let arguments =
            ExpertsStreamUpPart { step, x, norm, logits, codes, scales, row_scales, inner, routing, world };
        self.launch(site, instance, grid, arguments)
    }

    fn stream_down(
        &mut self,
        site: Site,
        operands: &Combine,
        chooser: &Experts,
        ring: Ring,
        sum: Option<Sum>,
    ) -> Launch {
        let matrix = self.matrix(operands.matrix);
        let common = operands.shared.map(|it| self.matrix(it.matrix));
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend(arithmetic(&matrix));
        constants.extend([
            ("EXPERTS", integer(matrix.experts.expect("experts have matrices"))),
            ("ACTIVE", integer(operands.active)),
            ("WIDTH", integer(matrix.columns)),
            ("OUTPUTS", integer(matrix.rows)),
        ]);
        constants.extend((!operands.adds).then_some(REPLACING));
        constants.extend(matrix.shared_out());
        constants.extend(Self::shared_constants(common.as_ref(), &matrix));
        let Planes { codes, scales, row_scales } = self.planes(operands.matrix);
        let common = self.shared_planes(operands.shared);
        let arguments = ExpertsStreamDown {
            step: site.header,
            inner: self.buffer(site, operands.inner),
            routing: self.buffer(site, operands.routing),
            shared_inner: operands.shared.map_or(Rows::NULL, |it| self.buffer(site, it.inner)),
            scale: self.shared_scale(site, chooser.weighs_shared()),
            codes,
            scales,
            row_scales,
            shared_codes: common.codes,
            shared_scales: common.scales,
            shared_row_scales: common.row_scales,
            residual: self.buffer(site, sum.map_or(operands.residual, |it| it.residual)),
        };
        let (mut instance, grid) = (self.of_ring(site, constants, ring), fixed(ring.blocks, 1, 1));
        let Some(sum) = sum else { return self.launch(site, instance, grid, arguments) };
        let world = instance.summing(self.summing(sum.residual));
        self.launch(site, instance, grid, ExpertsStreamDownSum { of: arguments, world })
    }

    /// A kernel that streams the chosen experts through a ring.
    fn of_ring(&self, site: Site, mut constants: Vec<Member>, ring: Ring) -> Instance {
        constants.extend(ring_constants(site, ring));
        let name = self.kernel_name(site, "");
        let Ring { warps, resident, shared, .. } = ring;
        Instance { resident, shared, ..Instance::new(name, constants, 32 * (warps + 1)) }
    }
}

fn ring_constants(site: Site, ring: Ring) -> [Member; 7] {
    let rows = site.program.rows;
    [
        ("ROWS", integer(rows)),
        ("LIMIT", limit(site, rows == 1)),
        ("STAGES", integer(ring.stages)),
        ("STAGE_BYTES", integer(ring.stage_bytes)),
        ("CONSUMER_WARPS", integer(ring.warps)),
        ("BLOCKS", integer(ring.blocks)),
        ("EVICT_FIRST", Constant::Flag(true)),
    ]
}
