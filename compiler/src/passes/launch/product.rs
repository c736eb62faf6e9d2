//! Matrix products: which kernel, and what stages its input.

use super::gemm::{self, Gemm};
use super::stream::{self, Stream};
use super::{Launcher, Matrix, Site, Style, fixed, integer, no_kernel, staged_bytes, value};
use crate::passes::PassError;
use crate::plan::cuda::{Argument, Constant, Kernel, Launch, Plane, Regime};
use crate::plan::{BufferId, FieldId, FieldKind, PhaseKind};
use crate::spec::types::{Activation, Compute, NormWeight};
use monomorph_formats::{Format, ScaleForm};

/// Stages under way at a time while a streaming product's ring is filled first.
const PACE: usize = 2;

/// Bytes a streaming product asks into the second-level cache beyond its ring while it waits. Measured: 1 % gained with fp8, 3 % lost
/// with bf16.
fn lookahead(format: Format) -> usize {
    if format == Format::Fp8E4m3 { 65_536 } else { 0 }
}

/// The operands of a product phase.
struct Operands {
    x: BufferId,
    norm: Option<FieldId>,
    matrix: FieldId,
    biases: [Option<FieldId>; 2],
    epilogue: &'static str,
    activation: Activation,
    out: BufferId,
}

fn operands(kind: &PhaseKind) -> Option<Operands> {
    let none = Activation::Relu;
    Some(match *kind {
        PhaseKind::Project { x, norm, matrix, bias, out } => {
            let (biases, epilogue) = ([bias, None], "STORE");
            Operands { x, norm: Some(norm), matrix, biases, epilogue, activation: none, out }
        }
        PhaseKind::Accumulate { x, matrix, bias, residual } => {
            let (biases, epilogue) = ([bias, None], "ADD");
            Operands { x, norm: None, matrix, biases, epilogue, activation: none, out: residual }
        }
        PhaseKind::Gated { x, norm, matrix, biases, activation, out } => {
            let biases = [biases.map(|it| it.0), biases.map(|it| it.1)];
            Operands { x, norm: Some(norm), matrix, biases, epilogue: "GATED", activation, out }
        }
        PhaseKind::Embed { .. }
        | PhaseKind::Attention { .. }
        | PhaseKind::ProjectDelta { .. }
        | PhaseKind::Delta { .. }
        | PhaseKind::Experts { .. }
        | PhaseKind::Combine { .. }
        | PhaseKind::Select { .. } => return None,
    })
}

impl Launcher<'_> {
    /// How a product phase is computed in a program.
    pub(super) fn style(&self, site: Site) -> Result<Style, PassError> {
        let operands = operands(&self.at(site).kind).expect("a product");
        let matrix = self.matrix(operands.matrix);
        if matrix.exact {
            return Ok(Style::Stream);
        }
        if !matches!(matrix.format, Format::Bf16 | Format::F16 | Format::Fp8E4m3 | Format::Nvfp4) {
            let what = format!("there is no bf16 product with {} weights", matrix.format);
            return Err(no_kernel(site, self.plan, &what));
        }
        let (knobs, rows) = (self.knobs(site), site.program.rows);
        // More than two rows that are long, or 4-bit floats to decode beside them, take more registers than a thread may have.
        let two = matrix.format == Format::Nvfp4 || matrix.columns > 8192;
        let most = if two { knobs.stream_rows.min(2) } else { knobs.stream_rows };
        let few = site.program.regime == Regime::Decode && rows <= most as usize;
        let streams = few && stream::shape(&matrix, rows, false, &knobs, self.card).is_some();
        Ok(if streams { Style::Stream } else { Style::Gemm })
    }

    /// Whether a buffer holds staged bf16 rows in a program: its one reader multiplies it on tensor cores, and its writer
    /// can leave it so.
    pub(super) fn is_staged(&self, site: Site, buffer: BufferId) -> Result<bool, PassError> {
        let phases = &self.plan.bodies[site.body].phases;
        let of = |phase| Site { phase, ..site };
        let writer = phases.iter().position(|phase| phase.kind.buffers().1.contains(&buffer));
        let can = match writer.map(|at| (at, &phases[at].kind)) {
            Some((_, PhaseKind::Attention { .. })) => true,
            Some((at, PhaseKind::Gated { .. })) => self.style(of(at))? == Style::Gemm,
            _ => false,
        };
        let readers = phases.iter().enumerate().filter(|(_, phase)| phase.kind.buffers().0.contains(&buffer));
        let readers: Vec<usize> = readers.map(|(at, _)| at).collect();
        match readers[..] {
            [at] if can && operands(&phases[at].kind).is_some_and(|it| it.norm.is_none()) => {
                Ok(self.style(of(at))? == Style::Gemm)
            }
            _ => Ok(false),
        }
    }

    /// The staged form of a buffer.
    pub(super) fn staged(&mut self, site: Site, buffer: BufferId, capacity: usize) -> Argument {
        let (name, width) = (self.plan.buffer(buffer).name.clone(), self.plan.buffer(buffer).width);
        debug_assert!(capacity >= site.program.rows, "every row has a place");
        self.scratch(&format!("staged_{name}"), staged_bytes(capacity, width), false)
    }

    pub(super) fn product(&mut self, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let operands = operands(&self.at(site).kind).expect("a product");
        let matrix = self.matrix(operands.matrix);
        self.check_scales(site, operands.matrix, &matrix)?;
        match self.style(site)? {
            Style::Stream => launches.push(self.stream(site, &operands, &matrix)?),
            Style::Gemm => self.gemm(site, &operands, &matrix, launches)?,
        }
        Ok(())
    }

    /// Scales of 128 x 128 blocks belong to whole tiles: no tile may hold rows of two of the checkpoint's blocks or tensors.
    fn check_scales(&self, site: Site, id: FieldId, matrix: &Matrix) -> Result<(), PassError> {
        if matrix.scales != Some(ScaleForm::Block128) {
            return Ok(());
        }
        if matrix.exact {
            return Err(no_kernel(
                site,
                self.plan,
                "fp8 weights with scales of 128 x 128 blocks compute in `bf16` only",
            ));
        }
        match self.plan.field(id).parts.iter().find(|part| part.rows % 8 != 0) {
            None => Ok(()),
            Some(part) => {
                let what = format!(
                    "`{}` has {} rows, which do not fill tiles of 8 with scales of their own",
                    part.weight, part.rows
                );
                Err(no_kernel(site, self.plan, &what))
            }
        }
    }

    fn stream(&mut self, site: Site, operands: &Operands, matrix: &Matrix) -> Result<Launch, PassError> {
        let rows = site.program.rows;
        let knobs = self.knobs(site);
        let shape = stream::shape(matrix, rows, matrix.exact, &knobs, self.card)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        let row_groups = rows.div_ceil(shape.rows);
        let Stream { stages, stage_bytes, warps, blocks, resident, shared, .. } = shape;
        // The sums of more than two rows, and f64 sums, take the registers that the next kernel's block would need.
        let resident = if matrix.exact || shape.rows > 2 { 1 } else { resident };
        let mut constants: Vec<(&'static str, Constant)> = matrix.names().into();
        let compute = if matrix.exact { "EXACT" } else { "BF16" };
        let rounding = if matrix.compute == Compute::Int8Block32 { "INT8_BLOCK32" } else { "NONE" };
        let (norm, eps) = self.norm(operands.norm);
        constants.extend([
            ("COMPUTE", value(format!("Compute::{compute}"))),
            ("ROUNDING", value(format!("Rounding::{rounding}"))),
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("ROWS", integer(shape.rows)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
        ]);
        constants.extend(epilogue(operands));
        constants.extend([
            // Every row of a bucket has its place, in use or not: a block that computes them all need not ask the step.
            ("LIMIT", limit(site, row_groups == 1 && site.program.regime == Regime::Decode)),
            ("STAGES", integer(stages)),
            ("STAGE_BYTES", integer(stage_bytes)),
            ("CONSUMER_WARPS", integer(warps)),
            ("BLOCKS", integer(blocks)),
            ("MULTIPROCESSORS", integer(self.card.multiprocessors as usize)),
            // Where several groups of rows read the same weights they had better stay.
            ("EVICT_FIRST", Constant::Flag(row_groups == 1)),
            ("LOOKAHEAD", integer(lookahead(matrix.format))),
            ("PACE", integer(PACE.min(stages))),
        ]);
        let kernel = Kernel {
            name: self.kernel_name(site, ""),
            template: "stream_product",
            constants,
            block: count(shape.threads()),
            resident: count(resident),
            cluster: 1,
            shared: count(shared),
            decode: false,
        };
        let kernel = self.kernel(site.program, kernel);
        let [codes, scales, row_scales] = self.planes(operands.matrix);
        let x = self.buffer(site, operands.x);
        let [bias, up_bias] = operands.biases.map(vector);
        let out = self.buffer(site, operands.out);
        let arguments =
            vec![Argument::Step, x, vector(operands.norm), codes, scales, row_scales, bias, up_bias, out];
        let mut grid = fixed(blocks, row_groups, 1);
        if site.program.regime == Regime::Prefill {
            grid[1] = crate::plan::cuda::Extent::Tokens(count(shape.rows));
        } else if site.program.outputs() {
            grid[1] = crate::plan::cuda::Extent::Outputs(count(shape.rows));
        }
        Ok(Launch { phase: site.phase, kernel, grid, arguments })
    }

    fn gemm(
        &mut self,
        site: Site,
        operands: &Operands,
        matrix: &Matrix,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let knobs = self.knobs(site);
        let shape = gemm::shape(matrix, site.program.rows, &knobs, self.card)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        let x = if self.is_staged(site, operands.x)? {
            self.staged(site, operands.x, shape.capacity)
        } else {
            let (launch, staged) = self.stage(site, operands, shape.capacity);
            launches.push(launch);
            staged
        };
        let Gemm {
            capacity,
            tokens,
            strips,
            stage_panels,
            weight_stages,
            stages,
            resident,
            multicast,
            split,
            ..
        } = shape;
        let mut constants: Vec<(&'static str, Constant)> = matrix.names().into();
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("CAPACITY", integer(capacity)),
            ("TOKENS", integer(tokens)),
            ("STRIPS", integer(strips)),
            ("STAGE_PANELS", integer(stage_panels)),
            ("WEIGHT_STAGES", integer(weight_stages)),
            ("STAGES", integer(stages)),
            ("RESIDENT", integer(resident)),
            ("MULTICAST", integer(multicast)),
            ("SPLIT", integer(split)),
        ]);
        constants.extend(epilogue(operands));
        constants.push(("LIMIT", limit(site, false)));
        let kernel = Kernel {
            name: self.kernel_name(site, ""),
            template: if self.card.wgmma { "gemm_wgmma" } else { "gemm_mma" },
            constants,
            block: count(shape.threads),
            resident: count(resident),
            cluster: count(multicast * split),
            shared: count(shape.shared),
            decode: false,
        };
        let kernel = self.kernel(site.program, kernel);
        let [codes, scales, row_scales] = self.planes(operands.matrix);
        let [bias, up_bias] = operands.biases.map(vector);
        let out = if operands.epilogue == "GATED" {
            self.gated_out(site, operands.out, capacity)?
        } else {
            self.buffer(site, operands.out)
        };
        let arguments = vec![Argument::Step, x, codes, scales, row_scales, bias, up_bias, out];
        launches.push(Launch { phase: site.phase, kernel, grid: fixed(shape.grid, 1, 1), arguments });
        Ok(())
    }

    /// A gated tensor-core product leaves staged rows; whoever reads them must take them so.
    fn gated_out(&mut self, site: Site, out: BufferId, capacity: usize) -> Result<Argument, PassError> {
        if self.is_staged(site, out)? {
            return Ok(self.staged(site, out, capacity));
        }
        let what =
            "it leaves bf16 rows, and the product that reads them streams: give both the same `stream_rows`";
        Err(no_kernel(site, self.plan, what))
    }

    /// The launch that stages a product's input, and where it leaves it.
    fn stage(&mut self, site: Site, operands: &Operands, capacity: usize) -> (Launch, Argument) {
        let width = self.plan.buffer(operands.x).width;
        let (norm, eps) = self.norm(operands.norm);
        let constants = vec![
            ("WIDTH", integer(width)),
            ("CAPACITY", integer(capacity)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
            ("LIMIT", limit(site, false)),
        ];
        let chunks = width.div_ceil(64) * 8;
        let kernel = Kernel {
            name: if operands.norm.is_some() {
                format!("stage_normed_{width}")
            } else {
                format!("stage_{width}")
            },
            template: "stage",
            constants,
            block: count(if chunks >= 256 { 256 } else { chunks.next_multiple_of(32) }),
            resident: 1,
            cluster: 1,
            shared: 0,
            decode: false,
        };
        let kernel = self.kernel(site.program, kernel);
        let x = self.buffer(site, operands.x);
        let staged = self.staged(site, operands.x, capacity);
        let arguments = vec![Argument::Step, x, vector(operands.norm), staged.clone()];
        (Launch { phase: site.phase, kernel, grid: self.grid_of_rows(site, 1), arguments }, staged)
    }

    /// `Norm::…` and the number added to the mean square.
    fn norm(&self, field: Option<FieldId>) -> (Constant, f32) {
        match field.map(|id| &self.plan.field(id).kind) {
            Some(FieldKind::Norm { eps, form, .. }) => {
                let form = match form {
                    NormWeight::Plain => "PLAIN",
                    NormWeight::OnePlus => "ONE_PLUS",
                };
                (value(format!("Norm::{form}")), *eps)
            }
            _ => (value("Norm::NONE"), 0.0),
        }
    }
}

fn epilogue(operands: &Operands) -> [(&'static str, Constant); 3] {
    let activation = match operands.activation {
        Activation::Silu => "SILU",
        Activation::Gelu => "GELU",
        Activation::GeluTanh => "GELU_TANH",
        Activation::Relu => "RELU",
    };
    [
        ("EPILOGUE", value(format!("Epilogue::{}", operands.epilogue))),
        ("ACTIVATION", value(format!("Activation::{activation}"))),
        ("BIAS", Constant::Flag(operands.biases[0].is_some())),
    ]
}

fn limit(site: Site, all: bool) -> Constant {
    value(match (all, site.program.outputs()) {
        (true, _) => "Limit::NONE",
        (false, true) => "Limit::OUTPUTS",
        (false, false) => "Limit::TOKENS",
    })
}

/// A vector or norm as an argument.
pub(super) fn vector(field: Option<FieldId>) -> Argument {
    field.map_or(Argument::Null, |id| Argument::Field(id, Plane::Codes))
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).expect("figures of a launch are far below 2^32")
}
