//! A mixture of experts over many rows. Pairs of token and expert are sorted by expert, the rows of each
//! expert share one stream of its weights, and each token sums the results of its experts
//! (templates/cuda/experts/experts_batch.cuh).

use super::few;
use super::shape::{self, Lists, Ring};
use crate::blocks::experts::kernels::{
    ExpertsBatchCombine, ExpertsBatchCombineSum, ExpertsGemmFp8, ExpertsGemmMma, ExpertsGemmWgmma,
    ExpertsPlace, ExpertsRings, ExpertsRingsDown, ExpertsSort, ExpertsSortPart, ExpertsStage,
};
use crate::blocks::products::cuda::fp8;
use crate::blocks::products::cuda::gemm::Gemm;
use crate::blocks::products::cuda::{Operands, activation, limit};
use crate::blocks::{Combine, Experts, Judge, Sum};
use crate::kernels::{self, Operand, Planes, Products, Quantised, Rows, Staged};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Matrix, Member, REPLACING, Site, Style, count, fixed, integer, no_kernel,
    quantised_bytes, staged_bytes, value,
};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::TILE_ROWS;
use crate::spec::types::Activation;

/// Threads of experts_place and of experts_stage, which gives a warp one row.
const PLACE_THREADS: usize = 256;
const STAGE_THREADS: usize = 256;

/// Blocks a multiprocessor of the kernel that adds up a token's experts and sums over ranks.
pub(super) const SUM_RESIDENT: usize = 3;

/// `CombineShape<C>`: threads of a block, and blocks, for the columns of a token.
pub(super) fn columns(hidden: usize) -> (usize, usize) {
    let columns = hidden.div_ceil(if hidden.is_multiple_of(4) { 4 } else { 1 });
    let threads = if columns >= 256 { 256 } else { columns.next_multiple_of(32) };
    (threads, columns.div_ceil(threads))
}

impl Launcher<'_> {
    /// The launch of the router of many rows, by whose logits `chooser` chooses.
    pub(crate) fn batch_route(
        &mut self,
        site: Site,
        operands: &Judge,
        chooser: &Experts,
    ) -> Result<Launch, PassError> {
        let (lists, _) = self.lists(site, chooser, &self.matrix(chooser.matrix))?;
        let logits = self.logits(site, logits_stride(chooser, &lists));
        let outputs = router_outputs(chooser, &lists);
        let launch = self.route_batch(site, operands, outputs, logits);
        Ok(launch.unwrap_or_else(|| self.route_alone(site, operands, outputs, logits, (0, Rows::NULL))))
    }

    /// The launches between the router's and the down products'.
    pub(crate) fn batch_up(
        &mut self,
        site: Site,
        operands: &Experts,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let capacity = site.program.rows.next_multiple_of(8);
        let matrix = &self.matrix(operands.matrix);
        let (lists, gemm) = self.lists(site, operands, matrix)?;
        let logits = self.logits(site, logits_stride(operands, &lists));
        let style = self.style_of(site, matrix)?;
        // Experts of another width than the residual stream read rows of their own.
        let read = operands.shared.map(|it| it.matrix).into_iter();
        let read = read.chain([operands.latent.map_or(operands.matrix, |it| it.matrix)]);
        let styles: Vec<Style> =
            read.map(|id| self.style_of(site, &self.matrix(id))).collect::<Result<_, _>>()?;
        let mut x = self.inputs(site, operands.x, Some(operands.norm), &styles, launches);
        if let Some(shared) = operands.shared {
            let product = operands.shared_up(shared);
            let matrix = self.matrix(shared.matrix);
            let out = self.buffer(site, shared.out);
            launches.push(self.product_of_many(site, "_shared", &product, &matrix, x, out)?.aside());
        }
        if let Some(latent) = operands.latent {
            let product = operands.latent_in(latent);
            let matrix = self.matrix(latent.matrix);
            let out = self.buffer(site, latent.out);
            launches.push(self.product_of_many(site, "_latent", &product, &matrix, x, out)?);
            x = self.inputs(site, latent.out, None, &[style], launches);
        }
        self.sort(site, operands, &lists, logits, launches);
        if let Some(x) = x.quantised.filter(|_| style == Style::Codes) {
            let inner = self.quantised_inner(&lists, matrix.outputs());
            let bytes = quantised_bytes(lists.pair_rows(), matrix.outputs());
            let constants = vec![
                ("EPILOGUE", value(format!("Epilogue::{}", operands.epilogue()))),
                ("ACTIVATION", activation(operands.activation)),
                ("GATHER", Constant::Flag(true)),
                ("X_ROWS", integer(capacity)),
                ("NARROW", Constant::Flag(false)),
            ];
            launches.push(self.grouped_fp8(site, operands.matrix, &lists, constants, x, (inner, bytes))?);
            return Ok(());
        }
        let x = x.staged.expect("experts in f16 read staged rows");
        let inner: Products = self.expert_inner(&lists, matrix.outputs());
        let constants = vec![
            ("EPILOGUE", value(format!("Epilogue::{}", operands.epilogue()))),
            ("ACTIVATION", activation(operands.activation)),
            ("GATHER", Constant::Flag(true)),
            ("X_ROWS", integer(capacity)),
            ("NARROW", Constant::Flag(false)),
        ];
        let id = operands.matrix;
        let out = (inner, lists.product_bytes(matrix.outputs(), false));
        if let Some(ring) = few::grouped(matrix, &lists, self.card) {
            let instance = self.rings(site, matrix, (&ring, &lists), constants, out.1);
            let Planes { codes, scales, row_scales } = self.planes(id);
            let memory = self.expert_lists(&lists);
            let arguments = ExpertsRings { lists: memory, x, codes, scales, row_scales, out: inner };
            launches.push(self.launch(site, instance, fixed(ring.blocks, 1, 1), arguments));
        } else {
            launches.push(self.grouped(site, (id, matrix), (&gemm, &lists), constants, x, out));
        }
        Ok(())
    }

    pub(crate) fn batch_down(
        &mut self,
        site: Site,
        operands: &Combine,
        chooser: &Experts,
        sum: Option<Sum>,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let rows = site.program.rows;
        let matrix = self.matrix(operands.matrix);
        let (lists, _) = self.lists(site, chooser, &self.matrix(chooser.matrix))?;
        let of_up = self.matrix(chooser.matrix);
        if matrix.compute != of_up.compute {
            let what = format!(
                "experts' gate and up compute in `{}` and their down in `{}`: say one for both",
                of_up.compute.name(),
                matrix.compute.name()
            );
            return Err(no_kernel(site, self.plan, &what));
        }
        let narrow = !lists.one_chunk();
        let bytes = lists.product_bytes(matrix.rows, narrow);
        let products: Products = self.scratch("expert_products", bytes as u64, false);
        let constants = vec![
            ("EPILOGUE", value("Epilogue::STORE")),
            ("ACTIVATION", activation(Activation::Relu)),
            ("GATHER", Constant::Flag(false)),
            ("X_ROWS", integer(lists.pair_rows())),
            ("NARROW", Constant::Flag(narrow)),
        ];
        let (id, out) = (operands.matrix, (products, bytes));
        if self.style_of(site, &matrix)? == Style::Codes {
            let inner = self.quantised_inner(&lists, matrix.columns);
            launches.push(self.grouped_fp8(site, id, &lists, constants, inner, out)?);
        } else if let Some(ring) = few::grouped(&matrix, &lists, self.card) {
            let instance = self.rings(site, &matrix, (&ring, &lists), constants, bytes);
            let Planes { codes, scales, row_scales } = self.planes(id);
            let (memory, x) = (self.expert_lists(&lists), self.expert_inner(&lists, matrix.columns));
            let arguments = ExpertsRingsDown { lists: memory, x, codes, scales, row_scales, out: products };
            launches.push(self.launch(site, instance, fixed(ring.blocks, 1, 1), arguments));
        } else {
            let gemm = self.grouped_shape(site, &matrix, lists.tile)?;
            let (launch, inner) = self.stage_pairs(site, &lists, matrix.columns);
            launches.push(launch);
            launches.push(self.grouped(site, (id, &matrix), (&gemm, &lists), constants, inner, out));
        }
        let mut shared_product = Rows::NULL;
        if let Some(shared) = operands.shared {
            let product = Operands::stored(shared.inner, shared.matrix, shared.product);
            let matrix = self.matrix(shared.matrix);
            let style = self.style_of(site, &matrix)?;
            let mut beside = Vec::new();
            let x = self.inputs(site, shared.inner, None, &[style], &mut beside);
            shared_product = self.buffer(site, shared.product);
            beside.push(self.product_of_many(site, "_shared", &product, &matrix, x, shared_product)?);
            launches.extend(beside.into_iter().map(Launch::aside));
        }
        let stride = logits_stride(chooser, &lists);
        let mut constants = vec![
            ("HIDDEN", integer(matrix.rows)),
            ("EXPERTS", integer(lists.experts)),
            ("ACTIVE", integer(lists.active)),
            ("STEP_ROWS", integer(rows)),
            ("TOKENS", integer(lists.tile)),
            ("NARROW", Constant::Flag(narrow)),
            ("SHARED", Constant::Flag(operands.shared.is_some())),
            ("SHARED_GATE", Constant::Flag(operands.shared.is_some())),
            ("GATE_STRIDE", integer(stride)),
            ("LIMIT", limit(site, false)),
        ];
        constants.extend(lists.shared_out());
        constants.extend((!operands.adds).then_some(REPLACING));
        let (threads, blocks) = columns(matrix.rows);
        let arguments = ExpertsBatchCombine {
            step: site.header,
            lists: self.expert_lists(&lists),
            products,
            shared: shared_product,
            logits: self.logits(site, stride),
            out: self.buffer(site, sum.map_or(operands.residual, |it| it.residual)),
        };
        let [tokens, ..] = self.grid_of_rows(site, 1);
        let grid = [tokens, Extent::Fixed(count(blocks)), Extent::Fixed(1)];
        let bytes = vec![("lists", lists.bytes()), ("products", bytes)];
        let mut instance =
            Instance { bytes, ..Instance::new(self.kernel_name(site, "_sum"), constants, threads) };
        let launch = match sum {
            None => self.launch(site, instance, grid, arguments),
            Some(sum) => {
                instance.resident = SUM_RESIDENT;
                let world = instance.summing(self.summing(sum.residual));
                self.launch(site, instance, grid, ExpertsBatchCombineSum { of: arguments, world })
            }
        };
        launches.push(launch);
        Ok(())
    }

    /// The sort of a program's pairs, and the tiling of gate and up.
    fn lists(&self, site: Site, operands: &Experts, matrix: &Matrix) -> Result<(Lists, Gemm), PassError> {
        let tile = match site.program.regime {
            _ if matrix.compute.quantises(site.program.rows) => fp8::TOKENS,
            Regime::Decode | Regime::Draft => 8,
            // Few tokens leave each expert few rows. Up to 128 tokens, tile as decode programs do: their
            // kernels then serve here too.
            Regime::Prefill | Regime::Head | Regime::Learn | Regime::See => match site.program.rows {
                ..=128 => 8,
                129..=1024 => 32,
                _ if self.card.wgmma => 128,
                _ => 64,
            },
        };
        let [experts, routed] = [matrix.experts, matrix.routed].map(|it| it.expect("experts have matrices"));
        let (active, rows) = (operands.active, site.program.rows);
        let lists = Lists { experts, routed, active, rows, tile };
        Ok((lists, self.grouped_shape(site, matrix, tile)?))
    }

    fn grouped_shape(&self, site: Site, matrix: &Matrix, tile: usize) -> Result<Gemm, PassError> {
        shape::grouped(matrix, tile, self.card)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))
    }

    fn expert_lists(&mut self, lists: &Lists) -> kernels::Lists {
        self.scratch("expert_lists", lists.bytes() as u64, true)
    }

    /// f32 rows of pairs between the two products.
    fn expert_inner<T: Operand>(&mut self, lists: &Lists, width: usize) -> T {
        self.scratch("expert_inner", lists.product_bytes(width, false) as u64, false)
    }

    /// Quantised rows of pairs between the two products.
    fn quantised_inner<T: Operand>(&mut self, lists: &Lists, width: usize) -> T {
        self.scratch("quantised_inner", quantised_bytes(lists.pair_rows(), width) as u64, false)
    }

    /// The launch that stages the pairs' rows, and its output.
    fn stage_pairs(&mut self, site: Site, lists: &Lists, width: usize) -> (Launch, Staged) {
        let constants = vec![
            ("EXPERTS", integer(lists.experts)),
            ("ACTIVE", integer(lists.active)),
            ("STEP_ROWS", integer(lists.rows)),
            ("TOKENS", integer(lists.tile)),
            ("WIDTH", integer(width)),
            ("CAPACITY", integer(lists.pair_rows())),
        ];
        let x = self.expert_inner(lists, width);
        let staged = staged_bytes(lists.pair_rows(), width);
        let out = self.scratch("expert_staged", staged as u64, false);
        let arguments = ExpertsStage { lists: self.expert_lists(lists), x, out };
        let grid = fixed(lists.pair_rows().div_ceil(STAGE_THREADS / 32), 1, 1);
        let bytes = vec![("lists", lists.bytes()), ("staged", staged)];
        let name = self.kernel_name(site, "_stage");
        let instance = Instance { bytes, ..Instance::new(name, constants, STAGE_THREADS) };
        (self.launch(site, instance, grid, arguments), out)
    }

    fn sort(
        &mut self,
        site: Site,
        operands: &Experts,
        lists: &Lists,
        logits: Rows,
        launches: &mut Vec<Launch>,
    ) {
        let mut constants = vec![
            ("EXPERTS", integer(lists.experts)),
            ("ACTIVE", integer(lists.active)),
            ("STEP_ROWS", integer(lists.rows)),
            ("TOKENS", integer(lists.tile)),
            ("LOGITS", integer(logits_stride(operands, lists))),
        ];
        constants.extend(operands.choice.constants());
        constants.push(("LIMIT", limit(site, false)));
        constants.extend(lists.shared_out());
        let threads = if lists.one_chunk() { 256 } else { 512 };
        let (step, memory) = (site.header, self.expert_lists(lists));
        let prefill = site.program.regime == Regime::Prefill;
        let blocks = if lists.one_chunk() { lists.rows.div_ceil(threads / 32) } else { lists.chunks() };
        let mut grid = fixed(blocks, 1, 1);
        if prefill && !lists.one_chunk() {
            grid[0] = Extent::Tokens(64);
        }
        let bytes = vec![("lists", lists.bytes())];
        let name = self.kernel_name(site, "_sort");
        let instance = Instance { bytes: bytes.clone(), ..Instance::new(name, constants.clone(), threads) };
        launches.push(match lists.shared_out() {
            None => self.launch(site, instance, grid, ExpertsSort { step, logits, lists: memory }),
            Some(_) => {
                let world = self.world();
                self.launch(site, instance, grid, ExpertsSortPart { step, logits, lists: memory, world })
            }
        });
        if lists.one_chunk() {
            return;
        }
        let mut grid = fixed(lists.pairs().div_ceil(PLACE_THREADS), 1, 1);
        if prefill {
            grid[0] = Extent::Tokens(count(PLACE_THREADS / lists.active));
        }
        let name = self.kernel_name(site, "_place");
        let instance = Instance { bytes, ..Instance::new(name, constants, PLACE_THREADS) };
        launches.push(self.launch(site, instance, grid, ExpertsPlace { step, lists: memory }));
    }

    /// A product in fp8 whose matrix depends on the expert of the work tile.
    fn grouped_fp8(
        &mut self,
        site: Site,
        id: crate::plan::FieldId,
        lists: &Lists,
        of_product: Vec<Member>,
        x: Quantised,
        (out, bytes): (Products, usize),
    ) -> Result<Launch, PassError> {
        let matrix = self.matrix(id);
        let shape = self.fp8(site, id, &matrix)?;
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("CAPACITY", integer(lists.pair_rows())),
            ("STAGES", integer(shape.stages)),
            ("EXPERTS", integer(lists.experts)),
            ("ACTIVE", integer(lists.active)),
            ("STEP_ROWS", integer(lists.rows)),
            ("TOKENS", integer(lists.tile)),
            ("BIAS", Constant::Flag(false)),
            ("LIMIT", limit(site, false)),
        ]);
        constants.extend(of_product);
        let Planes { codes, scales, row_scales } = self.planes(id);
        let memory = self.expert_lists(lists);
        let work = lists.tiles() * fp8::row_blocks(&matrix);
        let instance = Instance {
            shared: shape.shared,
            bytes: vec![("lists", lists.bytes()), ("products", bytes)],
            ..Instance::new(self.kernel_name(site, ""), constants, shape.threads)
        };
        let grid = fixed(work.min(self.card.multiprocessors as usize), 1, 1);
        let arguments = ExpertsGemmFp8 { lists: memory, x, codes, scales, row_scales, out };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// The kernel of a product over few rows of each expert, whose results are `bytes` long.
    fn rings(
        &self,
        site: Site,
        matrix: &Matrix,
        (ring, lists): (&Ring, &Lists),
        of_product: Vec<Member>,
        bytes: usize,
    ) -> Instance {
        let mut constants = grouped_constants(matrix, lists);
        constants.extend([
            ("TOKENS", integer(lists.tile)),
            ("STAGES", integer(ring.stages)),
            ("STAGE_BYTES", integer(ring.stage_bytes)),
            ("CONSUMER_WARPS", integer(ring.warps)),
            ("BLOCKS", integer(ring.blocks)),
            ("BIAS", Constant::Flag(false)),
        ]);
        constants.extend(of_product);
        Instance {
            resident: ring.resident,
            shared: ring.shared,
            bytes: vec![("lists", lists.bytes()), ("products", bytes)],
            ..Instance::new(self.kernel_name(site, ""), constants, 32 * (ring.warps + 1))
        }
    }

    /// A product whose matrix depends on the expert of the work tile.
    fn grouped(
        &mut self,
        site: Site,
        (id, matrix): (crate::plan::FieldId, &Matrix),
        (gemm, lists): (&Gemm, &Lists),
        of_product: Vec<Member>,
        x: Staged,
        (out, bytes): (Products, usize),
    ) -> Launch {
        let mut constants = grouped_constants(matrix, lists);
        constants.extend([
            ("TOKENS", integer(gemm.tokens)),
            ("STRIPS", integer(gemm.strips)),
            ("STAGE_PANELS", integer(gemm.stage_panels)),
            ("WEIGHT_STAGES", integer(gemm.weight_stages)),
            ("STAGES", integer(gemm.stages)),
            ("RESIDENT", integer(gemm.resident)),
            ("MULTICAST", integer(1)),
            ("SPLIT", integer(1)),
            ("BIAS", Constant::Flag(false)),
            ("LIMIT", limit(site, false)),
        ]);
        constants.extend(of_product);
        let Planes { codes, scales, row_scales } = self.planes(id);
        let memory = self.expert_lists(lists);
        let grid = fixed(shape::grouped_blocks(matrix, gemm, lists, self.card), 1, 1);
        let instance = Instance {
            resident: gemm.resident,
            shared: gemm.shared,
            bytes: vec![("lists", lists.bytes()), ("products", bytes)],
            ..Instance::new(self.kernel_name(site, ""), constants, gemm.threads)
        };
        if self.card.wgmma {
            let arguments = ExpertsGemmWgmma { lists: memory, x, codes, scales, row_scales, out };
            self.launch(site, instance, grid, arguments)
        } else {
            let arguments = ExpertsGemmMma { lists: memory, x, codes, scales, row_scales, out };
            self.launch(site, instance, grid, arguments)
        }
    }
}

/// What products of an expert's matrix with rows in f16 have in common.
fn grouped_constants(matrix: &Matrix, lists: &Lists) -> Vec<Member> {
    let mut constants: Vec<Member> = matrix.names().into();
    constants.extend([
        ("OUTPUTS", integer(matrix.outputs())),
        ("INPUTS", integer(matrix.columns)),
        ("EXPERTS", integer(lists.experts)),
        ("ACTIVE", integer(lists.active)),
        ("STEP_ROWS", integer(lists.rows)),
        ("CAPACITY", integer(lists.pair_rows())),
    ]);
    constants
}

/// Rows of the router's matrix that its kernel multiplies. Of logits whole tiles: the shared expert's weight
/// is an output like the others, and padding is written too. What experts have of their own has no padding.
fn router_outputs(operands: &Experts, lists: &Lists) -> usize {
    match operands.choice.arrays() {
        1 => (lists.routed + usize::from(operands.weighs_shared())).next_multiple_of(TILE_ROWS),
        _ => lists.routed,
    }
}

/// Floats from one row of logits to the next.
fn logits_stride(operands: &Experts, lists: &Lists) -> usize {
    operands.choice.row(router_outputs(operands, lists))
}
