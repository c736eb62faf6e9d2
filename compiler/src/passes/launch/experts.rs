//! A mixture of experts over few rows: the router beside the shared expert's gate and up, then the chosen
//! experts' gate and up, then all down products with the residual, each at the pace of reading its weights.
//! More rows go by way of `experts_batch`.

use super::experts_shape::{self, Ring, Together};
use super::product::{Member, activation, count, limit, vector};
use super::stream::{self, PACE, Stream, WARPS_BESIDE, arithmetic, consumer_warps, lookahead};
use super::{Launcher, Matrix, Site, alone, fixed, integer, no_kernel, value};
use crate::passes::PassError;
use crate::plan::cuda::{Argument, Constant, Edge, Kernel, Launch, Regime};
use crate::plan::packed::TILE_ROWS;
use crate::plan::{BufferId, FieldId, PhaseKind, SharedDown, SharedUp};
use crate::spec::types::{Activation, Knobs};
use monomorph_formats::Format;

/// Most rows of a step whose chosen experts are streamed.
const FEW_ROWS: usize = 8;

/// The operands of the phase that chooses.
#[derive(Clone, Copy)]
pub(super) struct Up {
    pub x: BufferId,
    pub norm: FieldId,
    pub router: FieldId,
    pub routing: BufferId,
    pub matrix: FieldId,
    pub active: usize,
    pub renormalise: bool,
    pub activation: Activation,
    pub out: BufferId,
    pub shared: Option<SharedUp>,
}

/// The operands of the phase that adds up.
#[derive(Clone, Copy)]
pub(super) struct Down {
    pub inner: BufferId,
    pub routing: BufferId,
    pub matrix: FieldId,
    pub active: usize,
    pub shared: Option<SharedDown>,
    pub residual: BufferId,
}

fn up(kind: &PhaseKind) -> Option<Up> {
    let PhaseKind::Experts {
        x,
        norm,
        router,
        routing,
        matrix,
        active,
        renormalise,
        activation,
        out,
        shared,
        ..
    } = *kind
    else {
        return None;
    };
    Some(Up { x, norm, router, routing, matrix, active, renormalise, activation, out, shared })
}

fn down(kind: &PhaseKind) -> Option<Down> {
    let PhaseKind::Combine { inner, routing, matrix, active, shared, residual } = *kind else { return None };
    Some(Down { inner, routing, matrix, active, shared, residual })
}

/// How the phases of a mixture are computed in a program.
#[derive(Clone, Copy)]
enum Streams {
    /// A launch each.
    Apart { up: Ring, down: Ring },
    /// One launch, the rings side by side.
    Together(Together),
}

impl Launcher<'_> {
    pub(super) fn experts(&mut self, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let operands = up(&self.at(site).kind).expect("the caller looked");
        let matrix = self.matrix(operands.matrix);
        self.check_experts(site, operands.matrix, operands.shared.map(|it| it.matrix))?;
        let router = self.matrix(operands.router);
        if !matches!(router.format, Format::Bf16 | Format::F16 | Format::F32) {
            return Err(no_kernel(
                site,
                self.plan,
                &format!("no kernel chooses by {} weights", router.format),
            ));
        }
        match self.streams(site, &operands) {
            Some(Streams::Apart { up, .. }) => {
                launches.push(self.route(site, &operands, &router, 0)?);
                launches.push(self.stream_up(site, &operands, &matrix, up));
            }
            Some(Streams::Together(rings)) => {
                let arriving = site.program.rows * operands.active * matrix.outputs();
                launches.push(self.route(site, &operands, &router, arriving)?);
                launches.push(self.stream_both(site, &operands, &matrix, rings));
            }
            None => self.batch_up(site, &operands, &matrix, launches)?,
        }
        Ok(())
    }

    pub(super) fn combine(&mut self, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let operands = down(&self.at(site).kind).expect("the caller looked");
        self.check_experts(site, operands.matrix, operands.shared.map(|it| it.matrix))?;
        let chooser = self.chooser(site, operands.routing);
        match self.streams(site, &chooser) {
            Some(Streams::Apart { down, .. }) => {
                launches.push(self.stream_down(site, &operands, &chooser, down));
            }
            // The launch that chose has added them up.
            Some(Streams::Together(_)) => {}
            None => self.batch_down(site, &operands, &chooser, launches)?,
        }
        Ok(())
    }

    /// The phase of the body that writes this routing.
    fn chooser(&self, site: Site, routing: BufferId) -> Up {
        let phases = self.plan.bodies[site.body].phases.iter();
        let mut choosers = phases.filter_map(|phase| up(&phase.kind));
        choosers
            .find(|it| it.routing == routing)
            .expect("experts are chosen before their products are added up")
    }

    fn check_experts(&self, site: Site, of_all: FieldId, shared: Option<FieldId>) -> Result<(), PassError> {
        for id in [of_all].into_iter().chain(shared) {
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

    /// The phase of the body that adds up what this routing chose, and its place.
    fn adder(&self, site: Site, routing: BufferId) -> Option<(usize, Down)> {
        let phases = self.plan.bodies[site.body].phases.iter().enumerate();
        let mut adders = phases.filter_map(|(at, phase)| Some((at, down(&phase.kind)?)));
        adders.find(|(_, it)| it.routing == routing)
    }

    /// The rings of a mixture's streaming kernels; `None` where a program has more rows, or they do not fit.
    fn streams(&self, site: Site, operands: &Up) -> Option<Streams> {
        let rows = site.program.rows;
        if site.program.regime != Regime::Decode || rows > FEW_ROWS {
            return None;
        }
        let matrix = self.matrix(operands.matrix);
        // The row that weighs the shared expert has a tile of its own behind whole tiles of router rows.
        if operands.shared.is_some() && !matrix.experts?.is_multiple_of(TILE_ROWS) {
            return None;
        }
        let (at, sum) = self.adder(site, operands.routing)?;
        let (of_sum, common) = (self.matrix(sum.matrix), sum.shared.map(|it| self.matrix(it.matrix)));
        let phases = &self.plan.bodies[site.body].phases;
        let chooses =
            phases.iter().position(|it| up(&it.kind).is_some_and(|it| it.routing == operands.routing))?;
        let of = |phase: usize| self.knobs(Site { phase, ..site });
        // Nobody but the next phase may want what the first hands to the second.
        if at == chooses + 1 {
            let rings = experts_shape::together(
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
        Some(Streams::Apart {
            up: experts_shape::up(&matrix, operands.active, rows, &of(chooses), self.card)?,
            down: experts_shape::down(&of_sum, common.as_ref(), operands.active, rows, &of(at), self.card)?,
        })
    }

    /// Where the router's logits stand, `stride` floats a row.
    pub(super) fn logits(&mut self, site: Site, stride: usize) -> Argument {
        let rows = site.program.rows.next_multiple_of(FEW_ROWS);
        self.scratch("router_logits", (4 * rows * stride) as u64, false)
    }

    /// Where the logits that weigh the shared expert stand.
    fn shared_scale(&mut self, site: Site, shared: bool) -> Argument {
        if !shared {
            return Argument::Null;
        }
        self.scratch("shared_scale", 4 * site.program.rows as u64, false)
    }

    /// The router's product, and beside it the shared expert's gate and up. `arriving`: values of the
    /// experts' inner rows that the kernel behind hands from block to block.
    fn route(
        &mut self,
        site: Site,
        operands: &Up,
        router: &Matrix,
        arriving: usize,
    ) -> Result<Launch, PassError> {
        let experts = self.matrix(operands.matrix).experts.expect("experts have matrices");
        let places = self.card.multiprocessors as usize;
        let Some(shared) = operands.shared else {
            let logits = self.logits(site, experts);
            return Ok(self.route_alone(site, operands, experts, logits, arriving));
        };
        let matrix = self.matrix(shared.matrix);
        let rows = site.program.rows.min(if matrix.format == Format::Nvfp4 { 2 } else { 4 });
        let knobs = self.route_knobs(site, rows);
        let shape = stream::shape(&matrix, rows, true, &knobs, self.card)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        // Half of the multiprocessors each, and one for the row that weighs the shared expert.
        let blocks = matrix.outputs().div_ceil(TILE_ROWS).min((places - 1) / 2);
        let router_blocks = experts.min(places - 1 - blocks);
        let Stream { rows, warps, stages, stage_bytes, resident, shared: bytes, .. } =
            Stream { blocks, ..shape };
        let groups = site.program.rows.div_ceil(rows);
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend(arithmetic(&matrix));
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("EPILOGUE", value("Epilogue::GATED")),
            ("ACTIVATION", activation(operands.activation)),
            ("BIAS", Constant::Flag(false)),
            ("STAGES", integer(stages)),
            ("STAGE_BYTES", integer(stage_bytes)),
            ("BLOCKS", integer(blocks)),
            ("MULTIPROCESSORS", integer(places)),
            ("CONSUMER_WARPS", integer(warps)),
            ("EVICT_FIRST", Constant::Flag(groups == 1)),
            ("LOOKAHEAD", integer(lookahead(matrix.format))),
            ("PACE", integer(PACE.min(stages))),
        ]);
        constants.extend(self.router_constants(site, operands, router, rows, experts, router_blocks));
        constants.push(("ARRIVING", integer(arriving)));
        // More tiles a block than the shape was made for take more room for their sums.
        let bytes = bytes
            .max(stream::shared_of_blocks(&matrix, &shape, blocks))
            .max(experts_shape::route_shared(rows, warps));
        let resident = if rows <= 2 && super::fits(self.card, bytes, 2) { resident.min(2) } else { 1 };
        let kernel =
            self.experts_kernel(site, "_route", "route", constants, [32 * (warps + 1), resident, bytes]);
        let [codes, scales, row_scales] = self.planes(shared.matrix);
        let [router_codes, ..] = self.planes(operands.router);
        let arguments = vec![
            Argument::Step,
            self.buffer(site, operands.x),
            vector(Some(operands.norm)),
            router_codes,
            codes,
            scales,
            row_scales,
            self.logits(site, experts),
            self.shared_scale(site, true),
            self.buffer(site, shared.out),
            self.arriving(site, operands, arriving),
        ];
        let grid = fixed(blocks + router_blocks + 1, groups, 1);
        Ok(Launch { phase: site.phase, kernel, grid, arguments })
    }

    /// How the phase's knobs cut the router's kernel, whose blocks take `rows` rows each.
    fn route_knobs(&self, site: Site, rows: usize) -> Knobs {
        let mut knobs = self.knobs(site);
        // It has few bytes to stream: more warps than leave the next kernel room would cost more than they
        // gain.
        knobs.stream_warps = knobs.stream_warps.min(WARPS_BESIDE);
        knobs.blocks_per_multiprocessor = 1; // its own blocks, not the experts', are one a multiprocessor
        if site.program.rows > rows {
            knobs.stream_kernels = 2; // of several groups of rows each multiprocessor takes several blocks
        }
        knobs
    }

    /// Rows of the router's matrix alone, `outputs` of them: those that are padding give zeros.
    pub(super) fn route_alone(
        &mut self,
        site: Site,
        operands: &Up,
        outputs: usize,
        logits: Argument,
        arriving: usize,
    ) -> Launch {
        let router = self.matrix(operands.router);
        let rows = site.program.rows.min(4);
        let groups = site.program.rows.div_ceil(rows);
        // A block has the rows it holds at a time, and no more blocks than are of use.
        let blocks =
            (self.card.multiprocessors as usize).min(outputs.div_ceil(if groups == 1 { 1 } else { 8 }));
        let knobs = self.route_knobs(site, rows);
        let warps = consumer_warps(&knobs);
        let mut constants: Vec<Member> = vec![
            ("COMPUTE", value("Compute::F16")),
            ("ROUNDING", value("Rounding::NONE")),
            ("BLOCKS", integer(0)),
            ("CONSUMER_WARPS", integer(warps)),
        ];
        constants.extend(self.router_constants(site, operands, &router, rows, outputs, blocks));
        constants.push(("ARRIVING", integer(arriving)));
        let mut bytes = experts_shape::route_shared(rows, warps);
        if site.program.regime == Regime::Decode && knobs.stream_kernels == 1 {
            bytes = bytes.max(alone(self.card));
        }
        let resident = if rows <= 2 { 2 } else { 1 };
        let kernel =
            self.experts_kernel(site, "_route", "route", constants, [32 * (warps + 1), resident, bytes]);
        let [router_codes, ..] = self.planes(operands.router);
        let null = Argument::Null;
        let arguments = vec![
            Argument::Step,
            self.buffer(site, operands.x),
            vector(Some(operands.norm)),
            router_codes,
            null.clone(),
            null.clone(),
            null.clone(),
            logits,
            null.clone(),
            null,
            self.arriving(site, operands, arriving),
        ];
        let mut grid = fixed(blocks, groups, 1);
        if site.program.regime == Regime::Prefill {
            grid[1] = crate::plan::cuda::Extent::Tokens(count(rows));
        }
        Launch { phase: site.phase, kernel, grid, arguments }
    }

    /// Bytes that a mixture's kernel asks for of the weights that follow its layer.
    fn ahead(&self, site: Site) -> usize {
        // A draft head's layers are not in the schedule, and passes leave it: nothing is known to follow
        // them.
        let known = site.pass.is_none() && self.plan.schedule.iter().any(|(body, _)| body.0 == site.body);
        if known { self.knobs(site).fetch_ahead as usize * 1024 } else { 0 }
    }

    /// The experts' inner rows where a kernel hands them from block to block, and one before it says so.
    fn arriving(&mut self, site: Site, operands: &Up, values: usize) -> Argument {
        if values == 0 { Argument::Null } else { self.buffer(site, operands.out) }
    }

    fn router_constants(
        &self,
        site: Site,
        operands: &Up,
        router: &Matrix,
        rows: usize,
        outputs: usize,
        blocks: usize,
    ) -> Vec<Member> {
        let (norm, eps) = self.norm(Some(operands.norm));
        let [(_, format), _] = router.names();
        vec![
            ("INPUTS", integer(router.columns)),
            ("ROWS", integer(rows)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
            ("LIMIT", limit(site, rows == site.program.rows)),
            ("ROUTER", format.clone()),
            ("SCALE", format),
            ("EXPERTS", integer(outputs)),
            ("ROUTER_BLOCKS", integer(blocks)),
        ]
    }

    fn up_constants(&self, operands: &Up, matrix: &Matrix) -> Vec<Member> {
        let (norm, eps) = self.norm(Some(operands.norm));
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend(arithmetic(matrix));
        constants.extend([
            ("EXPERTS", integer(matrix.experts.expect("experts have matrices"))),
            ("ACTIVE", integer(operands.active)),
            ("RENORMALISE", Constant::Flag(operands.renormalise)),
            ("WIDTH", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
            ("ACTIVATION", activation(operands.activation)),
        ]);
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

    fn shared_planes(&self, shared: Option<SharedDown>) -> [Argument; 3] {
        shared.map_or([Argument::Null, Argument::Null, Argument::Null], |it| self.planes(it.matrix))
    }

    fn stream_both(&mut self, site: Site, operands: &Up, matrix: &Matrix, rings: Together) -> Launch {
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
        let kernel =
            self.experts_kernel(site, "", "experts_stream", constants, [threads, 1, rings.up.shared]);
        let experts = matrix.experts.expect("experts have matrices");
        let mut arguments = vec![
            Argument::Step,
            vector(Some(operands.norm)),
            self.logits(site, experts),
            sum.shared.map_or(Argument::Null, |it| self.buffer(site, it.inner)),
            self.shared_scale(site, operands.shared.is_some()),
        ];
        arguments.extend(self.planes(operands.matrix));
        arguments.extend(self.planes(sum.matrix));
        arguments.extend(self.shared_planes(sum.shared));
        let following = [Edge::Begin, Edge::End].map(Argument::Following);
        arguments.extend(if ahead > 0 { following } else { [Argument::Null, Argument::Null] });
        arguments.extend([self.buffer(site, operands.out), self.buffer(site, operands.x)]);
        Launch { phase: site.phase, kernel, grid: fixed(rings.up.blocks, 1, 1), arguments }
    }

    fn stream_up(&mut self, site: Site, operands: &Up, matrix: &Matrix, ring: Ring) -> Launch {
        let experts = matrix.experts.expect("experts have matrices");
        let constants = self.up_constants(operands, matrix);
        let kernel = self.ring_kernel(site, "experts_stream_up", constants, ring);
        let [codes, scales, row_scales] = self.planes(operands.matrix);
        let arguments = vec![
            Argument::Step,
            self.buffer(site, operands.x),
            vector(Some(operands.norm)),
            self.logits(site, experts),
            codes,
            scales,
            row_scales,
            self.buffer(site, operands.out),
            self.buffer(site, operands.routing),
        ];
        Launch { phase: site.phase, kernel, grid: fixed(ring.blocks, 1, 1), arguments }
    }

    fn stream_down(&mut self, site: Site, operands: &Down, chooser: &Up, ring: Ring) -> Launch {
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
        constants.extend(Self::shared_constants(common.as_ref(), &matrix));
        let kernel = self.ring_kernel(site, "experts_stream_down", constants, ring);
        let [codes, scales, row_scales] = self.planes(operands.matrix);
        let [shared_codes, shared_scales, shared_row_scales] = self.shared_planes(operands.shared);
        let arguments = vec![
            Argument::Step,
            self.buffer(site, operands.inner),
            self.buffer(site, operands.routing),
            operands.shared.map_or(Argument::Null, |it| self.buffer(site, it.inner)),
            self.shared_scale(site, chooser.shared.is_some()),
            codes,
            scales,
            row_scales,
            shared_codes,
            shared_scales,
            shared_row_scales,
            self.buffer(site, operands.residual),
        ];
        Launch { phase: site.phase, kernel, grid: fixed(ring.blocks, 1, 1), arguments }
    }

    /// A kernel that streams the chosen experts by way of a ring.
    fn ring_kernel(
        &mut self,
        site: Site,
        template: &'static str,
        mut constants: Vec<Member>,
        ring: Ring,
    ) -> (usize, usize) {
        constants.extend(ring_constants(site, ring));
        let threads = 32 * (ring.warps + 1);
        self.experts_kernel(site, "", template, constants, [threads, ring.resident, ring.shared])
    }

    fn experts_kernel(
        &mut self,
        site: Site,
        suffix: &str,
        template: &'static str,
        constants: Vec<Member>,
        [threads, resident, shared]: [usize; 3],
    ) -> (usize, usize) {
        let kernel = Kernel {
            name: self.kernel_name(site, suffix),
            template,
            constants,
            block: count(threads),
            resident: count(resident),
            cluster: 1,
            shared: count(shared),
            decode: false,
        };
        self.kernel(site.program, kernel)
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
