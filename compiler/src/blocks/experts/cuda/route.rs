//! The router of a mixture: of few rows, alone or beside a shared expert's gate and up, and as a phase of its
//! own.

use super::super::graph::Weighing;
use super::super::{Choice, Experts, Judge};
use super::shape;
use crate::blocks::experts::kernels::{Route, RouteScales, RouteScores};
use crate::blocks::products::cuda::stream::{
    self, PACE, Stream, WARPS_BESIDE, arithmetic, consumer_warps, lookahead,
};
use crate::blocks::products::cuda::{activation, limit};
use crate::kernels::{Planes, Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Member, Site, alone, count, fits, fixed, integer, no_kernel, value,
};
use crate::plan::FieldId;
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::{TILE_ROWS, unit_columns};
use crate::spec::types::Knobs;
use monomorph_formats::Format;

impl Choice {
    /// Arrays of a row of what the router's kernel makes: keys, and what else weighs experts
    /// (templates/cuda/experts/route_scores.cuh).
    pub(super) fn arrays(&self) -> usize {
        1 + self.fields().count()
    }

    /// Floats of such a row of logits of `outputs` rows of the router's matrix.
    pub(super) fn row(&self, outputs: usize) -> usize {
        match self.arrays() {
            1 => outputs,
            arrays => (arrays * outputs).next_multiple_of(4),
        }
    }

    /// Constants of a kernel that chooses.
    pub(super) fn constants(&self) -> Vec<Member> {
        let mut constants = match self.weighing {
            Weighing::Softmax { renormalise } => vec![("RENORMALISE", Constant::Flag(renormalise))],
            Weighing::Scores { scale, .. } => {
                vec![("RENORMALISE", Constant::Flag(true)), ("SCORE_SCALE", Constant::Float(scale))]
            }
        };
        constants.extend(self.scales.map(|_| ("EXPERT_SCALES", Constant::Flag(true))));
        constants
    }

    /// Constants of a kernel that makes rows with scales.
    pub(super) fn row_constants(&self) -> [Member; 2] {
        let scored = Constant::Flag(self.correction().is_some());
        [("SCORED", scored), ("EXPERT_SCALES", Constant::Flag(true))]
    }
}

impl Judge {
    /// What multiplies the normed row that the router reads, if anything does.
    pub(super) fn factor(&self) -> Option<Member> {
        (self.factor != 1.0).then_some(("FACTOR", Constant::Float(self.factor)))
    }
}

impl Experts {
    /// Its router, which reads what the experts do.
    pub(super) fn judge(&self) -> Judge {
        let Experts { x, norm, router, logits, routing, choice, .. } = *self;
        Judge { x, norm, factor: 1.0, router, logits, routing, choice }
    }
}

impl Launcher<'_> {
    /// The launch of a router that is a phase of its own.
    pub(crate) fn judge(
        &mut self,
        site: Site,
        operands: &Judge,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let chooser = self.chooser(site, operands.routing);
        self.check_router(site, &chooser)?;
        let launch = match self.streams(site, &chooser) {
            Some(_) => {
                let experts = self.matrix(chooser.matrix).routed.expect("experts have matrices");
                let logits = self.logits(site, operands.choice.row(experts));
                self.route_alone(site, operands, experts, logits, (0, Rows::NULL))
            }
            None => self.batch_route(site, operands, &chooser)?,
        };
        launches.push(launch);
        Ok(())
    }

    /// Checks that there are kernels for how experts are chosen.
    pub(super) fn check_router(&self, site: Site, operands: &Experts) -> Result<(), PassError> {
        let router = self.matrix(operands.router);
        if !matches!(router.format, Format::Bf16 | Format::F16 | Format::F32) {
            let what = format!("no kernel chooses by {} weights", router.format);
            return Err(no_kernel(site, self.plan, &what));
        }
        if operands.choice.arrays() > 1 && operands.weighs_shared() {
            let what = "no kernel scores or scales experts beside a shared one with a gate of the router's";
            return Err(no_kernel(site, self.plan, what));
        }
        Ok(())
    }

    /// The router's product, and beside it the shared expert's gate and up. `arriving` counts the values of
    /// the experts' inner rows that the next kernel hands from block to block.
    pub(super) fn route(
        &mut self,
        site: Site,
        operands: &Experts,
        arriving: usize,
    ) -> Result<Launch, PassError> {
        let experts = self.matrix(operands.matrix).routed.expect("experts have matrices");
        let places = self.card.multiprocessors as usize;
        let Some(shared) = operands.shared.filter(|it| it.weighed) else {
            let logits = self.logits(site, operands.choice.row(experts));
            let inner = self.arriving(site, operands, arriving);
            return Ok(self.route_alone(site, &operands.judge(), experts, logits, (arriving, inner)));
        };
        let matrix = self.matrix(shared.matrix);
        let rows = self.router_rows(site, operands.router, matrix.exact);
        let knobs = self.route_knobs(site, rows);
        let shape = stream::shape(&matrix, rows, true, &knobs, self.card)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        // One multiprocessor computes the row that weighs the shared expert; the two products share the
        // others.
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
        constants.extend(self.router_constants(site, &operands.judge(), rows, experts, router_blocks));
        constants.push(("ARRIVING", integer(arriving)));
        // More tiles per block than the shape assumes need more room for their sums.
        let bytes = bytes
            .max(stream::shared_of_blocks(&matrix, &shape, blocks))
            .max(shape::route_shared(rows, warps));
        let resident = if rows <= 2 && fits(self.card, bytes, 2) { resident.min(2) } else { 1 };
        let Planes { codes, scales, row_scales } = self.planes(shared.matrix);
        let arguments = Route {
            step: site.header,
            x: self.buffer(site, operands.x),
            norm: Vector::field(Some(operands.norm)),
            router: self.planes(operands.router).codes,
            codes,
            scales,
            row_scales,
            logits: self.logits(site, experts),
            scale: self.shared_scale(site, true),
            inner: self.buffer(site, shared.out),
            arriving: self.arriving(site, operands, arriving),
        };
        let grid = fixed(blocks + router_blocks + 1, groups, 1);
        let name = self.kernel_name(site, "_route");
        let instance =
            Instance { resident, shared: bytes, ..Instance::new(name, constants, 32 * (warps + 1)) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// Rows of a block: up to eight, a power of two, where a thread has one unit's columns and so the
    /// registers for that many rows of x at once. Wider rows, and exact ones, go by fours.
    fn router_rows(&self, site: Site, router: FieldId, exact: bool) -> usize {
        let router = self.matrix(router);
        let threads = 32 * consumer_warps(&self.route_knobs(site, site.program.rows));
        let places = 4 * router.columns.div_ceil(unit_columns(router.format));
        match site.program.rows {
            rows @ 5..=8 if !exact && places <= threads => rows.next_power_of_two(),
            rows => rows.min(4),
        }
    }

    /// Tiling of the router's kernel by the phase's knobs, with `rows` rows per block.
    fn route_knobs(&self, site: Site, rows: usize) -> Knobs {
        let mut knobs = self.knobs(site);
        // It streams few bytes: warps that squeeze out the next kernel's blocks cost more than they gain.
        knobs.stream_warps = knobs.stream_warps.min(WARPS_BESIDE);
        knobs.blocks_per_multiprocessor = 1; // its own blocks, not the experts', are one a multiprocessor
        if site.program.rows > rows {
            knobs.stream_kernels = 2; // of several groups of rows each multiprocessor takes several blocks
        }
        knobs
    }

    /// The router's product alone, `outputs` rows of its matrix; padding rows give zeros. `arriving` are the
    /// inner rows that it marks as empty, and how many values of them.
    pub(super) fn route_alone(
        &mut self,
        site: Site,
        operands: &Judge,
        outputs: usize,
        logits: Rows,
        (values, arriving): (usize, Rows),
    ) -> Launch {
        let rows = self.router_rows(site, operands.router, false);
        let groups = site.program.rows.div_ceil(rows);
        // A block takes the rows it holds at a time, and there are no more blocks than there is work for.
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
        constants.extend(self.router_constants(site, operands, rows, outputs, blocks));
        constants.push(("ARRIVING", integer(values)));
        constants.extend(operands.factor());
        let mut bytes = shape::route_shared(rows, warps);
        if site.program.regime == Regime::Decode && knobs.stream_kernels == 1 {
            bytes = bytes.max(alone(self.card));
        }
        let resident = if rows <= 2 { 2 } else { 1 };
        let (step, x, norm) =
            (site.header, self.buffer(site, operands.x), Vector::field(Some(operands.norm)));
        let router = self.planes(operands.router).codes;
        let mut grid = fixed(blocks, groups, 1);
        if site.program.regime == Regime::Prefill {
            grid[1] = Extent::Tokens(count(rows));
        }
        let name = self.kernel_name(site, "_route");
        let choice = operands.choice;
        constants.extend(choice.scales.iter().flat_map(|_| choice.row_constants()));
        let instance =
            Instance { resident, shared: bytes, ..Instance::new(name, constants, 32 * (warps + 1)) };
        let [correction, scales] = [choice.correction(), choice.scales].map(Vector::field);
        if choice.scales.is_some() {
            let arguments = RouteScales { step, x, norm, router, logits, arriving, correction, scales };
            return self.launch(site, instance, grid, arguments);
        }
        if choice.correction().is_some() {
            let arguments = RouteScores { step, x, norm, router, logits, arriving, correction };
            return self.launch(site, instance, grid, arguments);
        }
        let (Planes { codes, scales, row_scales }, scale, inner) = (Planes::NULL, Rows::NULL, Rows::NULL);
        let arguments =
            Route { step, x, norm, router, codes, scales, row_scales, logits, scale, inner, arriving };
        self.launch(site, instance, grid, arguments)
    }

    fn router_constants(
        &self,
        site: Site,
        operands: &Judge,
        rows: usize,
        outputs: usize,
        blocks: usize,
    ) -> Vec<Member> {
        let router = self.matrix(operands.router);
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
}
