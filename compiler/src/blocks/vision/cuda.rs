//! Towers on a CUDA device, and the rows of images that a text model takes. Rows of patches are counted as a
//! step's tokens are, those that they are merged to as its outputs: so products are those of text.

use super::graph::{Merged, PatchAxis, PatchTurn, PositionTable};
use super::kernels::{self, Turned};
use super::phases::{
    Activate, AddImageRows, AttendPatches, EmbedImages, EmbedPatches, LayerNorm, MergeNorm, MergePatches,
    Place, PoolPatches, ProjectPatches,
};
use crate::blocks::ends::Embed;
use crate::blocks::products::cuda::Operands;
use crate::kernels::{Images, Planes, Rotary, Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Site, Style, count, fixed, integer, no_kernel, staged_bytes, value,
};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::unit_columns;
use crate::plan::{BufferId, FieldId, FieldKind, TowerPlan};
use crate::spec::types::{NormWeight, Vision};

/// Threads of a block that has a patch's row, or a token's.
const PATCH_THREADS: usize = 256;
/// Threads of a block of elements.
const THREADS: usize = 128;
/// Warps of turn_patches, some heads of a patch each.
const TURN_WARPS: usize = 8;
const TURN_HEADS: usize = 4;
/// Threads of attend_patches; keys of its tiles, and queries.
const ATTEND_THREADS: usize = 128;
const ATTEND_KEYS: usize = 64;
const ATTEND_QUERIES: usize = 128;
/// Threads of attend_patches_wgmma; keys of its tiles, and stages of keys and of values.
const ATTEND_WGMMA_THREADS: usize = 384;
const ATTEND_WGMMA_KEYS: usize = 128;
const ATTEND_WGMMA_STAGES: usize = 2;
/// Heads that it takes, as wide as they are padded.
const ATTEND_WGMMA_WIDTHS: [usize; 2] = [64, 80];
/// Threads of attend_patches_exact.
const ATTEND_EXACT_THREADS: usize = 256;
/// Widest heads that attend_patches has registers for.
const WIDEST_HEAD: usize = 128;

/// The scratch of all rows that are kept of images.
pub(crate) const IMAGE_ROWS: &str = "image_rows";
/// The scratch with a table of angles, which the runtime fills.
pub(crate) const PATCH_ANGLES: &str = "patch_angles";

/// How the pairs of a head are numbered, by name, and whether the first half of them turns by rows.
fn numbering(turns: &[PatchTurn], dim: usize) -> Option<(&'static str, bool)> {
    let (half, quarter) = (dim / 2, dim / 4);
    let rows_first = turns.first()?.axis == PatchAxis::Row;
    let by_row = |at: usize| (at < quarter) == rows_first;
    let quarters = |at: usize| at / quarter * half + at % quarter;
    let pair = |name: &str, at: usize| match name {
        "HALVES" => [at, at + half],
        "QUARTERS" => [quarters(at), quarters(at) + quarter],
        _ => [2 * at, 2 * at + 1],
    };
    let is = |name: &&str| {
        let alike = |(at, turn): (usize, &PatchTurn)| {
            turn.pair == pair(name, at) && (turn.axis == PatchAxis::Row) == by_row(at)
        };
        turns.len() == half && turns.iter().enumerate().all(alike)
    };
    ["HALVES", "QUARTERS", "ADJACENT"].into_iter().find(is).map(|name| (name, rows_first))
}

/// `sizeof(PrefillShared<PatchAttention<C>>)`.
fn attend_shared(head_dim: usize) -> usize {
    let stride = head_dim.next_multiple_of(16) + 8;
    (2 * (ATTEND_QUERIES + 2 * 2 * ATTEND_KEYS) * stride + 2 * 4).next_multiple_of(16)
}

/// `sizeof(WgmmaShared<PatchAttention<C>>)`: tiles of panels of 64 columns, barriers and what is not used.
fn attend_wgmma_shared(head_dim: usize) -> usize {
    let tile = ATTEND_WGMMA_KEYS * 128 * head_dim.div_ceil(64);
    (ATTEND_WGMMA_STAGES * (2 * tile + 4 * 8) + 64).next_multiple_of(1024)
}

/// What norms a patch's row: the name of its form, the fields of weight and bias, and what is added.
struct RowNorm {
    form: &'static str,
    weight: Option<FieldId>,
    bias: Option<FieldId>,
    eps: f32,
}

impl Launcher<'_> {
    fn vision(&self) -> (&Vision, &TowerPlan) {
        let vision = self.plan.target.tower.as_ref().expect("a phase of a tower has one");
        (vision, self.plan.tower.as_ref().expect("it is planned"))
    }

    fn rms_norm(&self, id: FieldId) -> RowNorm {
        let FieldKind::Norm { eps, form, .. } = self.plan.field(id).kind else {
            unreachable!("an RMS norm has a norm's weights")
        };
        let form = match form {
            NormWeight::Plain => "PLAIN",
            NormWeight::OnePlus => "ONE_PLUS",
        };
        RowNorm { form, weight: Some(id), bias: None, eps }
    }

    fn layer_norm(&self, norm: LayerNorm) -> RowNorm {
        RowNorm { form: "LAYER", weight: Some(norm.weight), bias: Some(norm.bias), eps: norm.eps }
    }

    /// Norms rows of patches, which may be merged channel by channel.
    fn norm_patches(
        &mut self,
        site: Site,
        suffix: &str,
        x: BufferId,
        norm: RowNorm,
        merged: Option<usize>,
        out: Rows,
    ) -> Launch {
        let width = self.plan.buffer(x).width;
        let RowNorm { form, weight, bias, eps } = norm;
        let constants = vec![
            ("WIDTH", integer(width)),
            ("NORM", value(format!("PatchNorm::{form}"))),
            ("EPS", Constant::Float(eps)),
            ("MERGED", integer(merged.unwrap_or(1))),
            ("BY_CHANNEL", Constant::Flag(merged.is_some())),
        ];
        let [weight, bias] = [weight, bias].map(Vector::field);
        let x = self.buffer(site, x);
        let instance = Instance::new(self.kernel_name(site, suffix), constants, PATCH_THREADS);
        let grid = [Extent::Tokens(1), Extent::Fixed(1), Extent::Fixed(1)];
        self.launch(site, instance, grid, kernels::NormPatches { step: site.header, x, weight, bias, out })
    }

    /// A product of rows behind a layer norm.
    fn product_of_layer_normed(
        &mut self,
        site: Site,
        norm: LayerNorm,
        operands: &Operands,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let matrix = self.matrix(operands.matrix);
        let (x, width) = (operands.x, self.plan.buffer(operands.x).width);
        match self.style_of(site, &matrix)? {
            Style::Stream => {
                let bytes = 4 * site.program.rows * width;
                let normed: Rows = self.scratch("patches_normed", bytes as u64, false);
                let of = self.layer_norm(norm);
                launches.push(self.norm_patches(site, "_norm", x, of, None, normed));
                launches.push(self.stream_of(site, "", operands, &matrix, normed)?);
            }
            Style::Gemm => {
                let capacity = site.program.rows.next_multiple_of(8);
                let constants = vec![
                    ("WIDTH", integer(width)),
                    ("CAPACITY", integer(capacity)),
                    ("EPS", Constant::Float(norm.eps)),
                ];
                let chunks = width.div_ceil(64) * 8;
                let threads = if chunks >= 256 { 256 } else { chunks.next_multiple_of(32) };
                let staged = self.staged(site, x, capacity);
                let [weight, bias] = [norm.weight, norm.bias].map(|it| Vector::field(Some(it)));
                let from = self.buffer(site, x);
                let arguments =
                    kernels::StagePatches { step: site.header, x: from, weight, bias, out: staged };
                let bytes = vec![("staged", staged_bytes(capacity, width))];
                let name = format!("stage_layer_normed_{width}");
                let instance = Instance { bytes, ..Instance::new(name, constants, threads) };
                launches.push(self.launch(site, instance, self.grid_of_rows(site, 1), arguments));
                let out = self.buffer(site, operands.out);
                launches.push(self.gemm(site, "", operands, &matrix, staged, out)?);
            }
            Style::Codes => return Err(no_kernel(site, self.plan, "towers have no products in `fp8`")),
        }
        Ok(())
    }

    /// `HeadNorm::…` and what is added to the mean square.
    fn head_norm(&self, id: Option<FieldId>) -> (Constant, Constant) {
        let (form, eps) = match id.map(|id| &self.plan.field(id).kind) {
            Some(FieldKind::Norm { eps, form: NormWeight::Plain, .. }) => ("Plain", *eps),
            Some(FieldKind::Norm { eps, form: NormWeight::OnePlus, .. }) => ("OnePlus", *eps),
            _ => ("None", 0.0),
        };
        (value(format!("HeadNorm::{form}")), Constant::Float(eps))
    }

    /// The rows that are kept of images.
    pub(crate) fn kept_of_images(&mut self, hidden: usize) -> Rows {
        let (_, tower) = self.vision();
        let bytes = 4 * (tower.kept_rows() * hidden) as u64;
        self.scratch(IMAGE_ROWS, bytes, false)
    }

    /// Launches what a prefill does with rows of images: in place of what there is, or added to it, `behind`
    /// rows further on.
    fn image_rows(&mut self, site: Site, x: BufferId, adds: bool, behind: usize) -> Launch {
        let hidden = self.plan.buffer(x).width;
        let constants = vec![
            ("HIDDEN", integer(hidden)),
            ("THREADS", integer(THREADS)),
            ("ADDS", Constant::Flag(adds)),
            ("BEHIND", integer(behind)),
        ];
        let kept = self.kept_of_images(hidden);
        let arguments =
            kernels::ImageRows { step: site.header, images: Images::STEP, kept, x: self.buffer(site, x) };
        let grid = self.columns_and_rows(site, hidden.div_ceil(4).div_ceil(THREADS));
        let instance = Instance::new(self.kernel_name(site, "_images"), constants, THREADS);
        self.launch(site, instance, grid, arguments)
    }
}

impl EmbedPatches {
    pub(super) fn launch(
        &self,
        it: &mut Launcher,
        site: Site,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let EmbedPatches { pixels, matrix, bias, place, out } = *self;
        let stored = Operands { biases: [bias, None], ..Operands::stored(pixels, matrix, out) };
        it.product(site, stored, launches)?;
        let (table, form) = match place {
            Place::Table(table, form) => (table, form),
            Place::Norm(norm) => {
                let (norm, to) = (it.rms_norm(norm), it.buffer(site, out));
                launches.push(it.norm_patches(site, "_norm", out, norm, None, to));
                return Ok(());
            }
        };
        let (of_table, merge) = (it.matrix(table), it.vision().0.merge);
        let (side, square) = match form {
            PositionTable::Square { side } => (side, true),
            PositionTable::Axes { entries } => (entries, false),
        };
        let mut constants = vec![("HIDDEN", integer(of_table.columns))];
        constants.extend(of_table.names());
        constants.extend([
            ("THREADS", integer(THREADS)),
            ("SIDE", integer(side)),
            ("SQUARE", Constant::Flag(square)),
            ("MERGE", integer(merge)),
        ]);
        let Planes { codes, scales, row_scales } = it.planes(table);
        let x = it.buffer(site, out);
        let pieces = of_table.columns.div_ceil(unit_columns(of_table.format)) * 4;
        let grid = it.columns_and_rows(site, pieces.div_ceil(THREADS));
        let instance = Instance::new(it.kernel_name(site, "_places"), constants, THREADS);
        let arguments = kernels::PlacePatches { step: site.header, codes, scales, row_scales, x };
        launches.push(it.launch(site, instance, grid, arguments));
        Ok(())
    }
}

impl ProjectPatches {
    pub(super) fn launch(
        &self,
        it: &mut Launcher,
        site: Site,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let stored =
            Operands { biases: [self.bias, None], ..Operands::stored(self.x, self.matrix, self.out) };
        let operands = self.activation.map_or(stored, |activation| stored.activated(activation));
        it.product_of_layer_normed(site, self.norm, &operands, launches)
    }
}

impl Activate {
    pub(super) fn launch(
        &self,
        it: &mut Launcher,
        site: Site,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let stored = Operands::stored(self.x, self.matrix, self.out).activated(self.activation);
        it.product(site, Operands { biases: [self.bias, None], ..stored }, launches)
    }
}

impl AttendPatches {
    /// Radians that each pair turns by from a row or column to the next, in their order.
    pub(crate) fn inverse_frequencies(&self) -> Vec<f32> {
        self.turns.iter().map(|turn| turn.inverse).collect()
    }

    pub(super) fn launch(
        &self,
        it: &mut Launcher,
        site: Site,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let AttendPatches { qkv, norms, v_norm, ref turns, heads, head_dim, scale, out } = *self;
        let (merge, exact) = {
            let (vision, _) = it.vision();
            (vision.merge, vision.compute.is_exact())
        };
        let Some((pairs, rows_first)) = numbering(turns, head_dim) else {
            return Err(no_kernel(site, it.plan, "no kernel turns such pairs of a head"));
        };
        if !exact && head_dim > WIDEST_HEAD {
            return Err(no_kernel(site, it.plan, "heads of patches are wider than 128"));
        }
        let of_heads = vec![("HEADS", integer(heads)), ("HEAD_DIM", integer(head_dim))];
        let [q_norm, k_norm] = [0, 1].map(|at| norms.map(|norms| norms[at]));
        let ((q_form, q_eps), (k_form, k_eps)) = (it.head_norm(q_norm), it.head_norm(k_norm));
        let mut constants = of_heads.clone();
        constants.extend([
            ("MERGE", integer(merge)),
            ("PAIRS", value(format!("PatchPairs::{pairs}"))),
            ("ROWS_FIRST", Constant::Flag(rows_first)),
            ("Q_NORM", q_form),
            ("Q_EPS", q_eps),
            ("K_NORM", k_form),
            ("K_EPS", k_eps),
            ("EXACT", Constant::Flag(exact)),
        ]);
        constants.extend(v_norm.map(|eps| ("V_EPS", Constant::Float(eps))));
        let sides = it.vision().1.most_side(merge);
        let angles: Rotary = it.scratch(PATCH_ANGLES, (8 * sides * turns.len()) as u64, false);
        let turned: Turned = match exact {
            true => Turned::NULL,
            false => {
                let row = 2 * 3 * heads * head_dim.next_multiple_of(16);
                it.scratch("patches_turned", (row * site.program.rows) as u64, false)
            }
        };
        let (rows, [q_norm, k_norm]) = (it.buffer(site, qkv), [q_norm, k_norm].map(Vector::field));
        let arguments = kernels::TurnPatches { step: site.header, qkv: rows, q_norm, k_norm, angles, turned };
        let name = it.kernel_name(site, "_turn");
        let instance = Instance::new(name, constants, 32 * TURN_WARPS);
        let mut grid = it.grid_of_rows(site, TURN_WARPS);
        grid[1] = Extent::Fixed(count(3 * heads.div_ceil(TURN_HEADS)));
        launches.push(it.launch(site, instance, grid, arguments));

        let mut constants = of_heads;
        constants.push(("SCALE", Constant::Float(scale)));
        let (step, out, name) = (site.header, it.buffer(site, out), it.kernel_name(site, ""));
        if exact {
            let mut grid = it.grid_of_rows(site, 1);
            grid[1] = Extent::Fixed(count(heads));
            let instance = Instance::new(name, constants, ATTEND_EXACT_THREADS);
            let arguments = kernels::AttendPatchesExact { step, qkv: rows, out };
            launches.push(it.launch(site, instance, grid, arguments));
            return Ok(());
        }
        let card = it.card;
        if card.wgmma && ATTEND_WGMMA_WIDTHS.contains(&head_dim.next_multiple_of(16)) {
            let shared = attend_wgmma_shared(head_dim);
            let instance = Instance { shared, ..Instance::new(name, constants, ATTEND_WGMMA_THREADS) };
            let grid = fixed(card.multiprocessors as usize, 1, 1);
            launches.push(it.launch(site, instance, grid, kernels::AttendPatchesWgmma { step, turned, out }));
            return Ok(());
        }
        let shared = attend_shared(head_dim);
        if shared > card.shared_per_block as usize {
            return Err(no_kernel(site, it.plan, "its tiles do not fit the card's shared memory"));
        }
        let at_a_time = (card.shared_per_multiprocessor as usize / (shared + 1024)).clamp(1, 2);
        let grid = fixed(at_a_time * card.multiprocessors as usize, 1, 1);
        let instance = Instance { shared, ..Instance::new(name, constants, ATTEND_THREADS) };
        launches.push(it.launch(site, instance, grid, kernels::AttendPatches { step, turned, out }));
        Ok(())
    }
}

impl MergePatches {
    pub(super) fn launch(&self, it: &mut Launcher, site: Site) -> Launch {
        let norm = match self.norm {
            MergeNorm::None => RowNorm { form: "NONE", weight: None, bias: None, eps: 0.0 },
            MergeNorm::Layer(norm) => it.layer_norm(norm),
            MergeNorm::Rms(norm) => it.rms_norm(norm),
        };
        let merged = it.vision().1.merged;
        let out = it.buffer(site, self.out);
        // Rows side by side are rows as they stand.
        let merged = match self.form {
            Merged::SideBySide => None,
            Merged::ByChannel => Some(merged),
            Merged::Mean => unreachable!("lowering refuses a mean"),
        };
        it.norm_patches(site, "", self.x, norm, merged, out)
    }
}

impl PoolPatches {
    pub(super) fn launch(&self, it: &mut Launcher, site: Site) -> Launch {
        let PoolPatches { x, factor, standard, eps, out } = *self;
        let constants = vec![
            ("WIDTH", integer(it.plan.buffer(out).width)),
            ("MERGED", integer(it.vision().1.merged)),
            ("FACTOR", Constant::Float(factor)),
            ("STANDARD", Constant::Flag(standard.is_some())),
            ("EPS", Constant::Float(eps)),
        ];
        let [bias, scale] = [0, 1].map(|at| Vector::field(standard.map(|parts| parts[at])));
        let [x, out] = [x, out].map(|id| it.buffer(site, id));
        let instance = Instance::new(it.kernel_name(site, ""), constants, PATCH_THREADS);
        let grid = [Extent::Outputs(1), Extent::Fixed(1), Extent::Fixed(1)];
        it.launch(site, instance, grid, kernels::PoolPatches { step: site.header, x, bias, scale, out })
    }
}

impl EmbedImages {
    pub(super) fn launch(&self, it: &mut Launcher, site: Site, launches: &mut Vec<Launch>) {
        let EmbedImages { table, scale, out } = *self;
        launches.push(it.embed(site, &Embed { table, scale, out }));
        // No image is decoded.
        if site.program.regime == Regime::Prefill {
            launches.push(it.image_rows(site, out, false, 0));
        }
    }
}

impl AddImageRows {
    pub(super) fn launch(&self, it: &mut Launcher, site: Site, launches: &mut Vec<Launch>) {
        if site.program.regime == Regime::Prefill {
            let behind = (1 + self.tap) * it.vision().1.most_tokens();
            launches.push(it.image_rows(site, self.residual, true, behind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_numbered_by_halves_quarters_or_neighbours() {
        let turn = |pair, axis| PatchTurn { pair, axis, inverse: 1.0 };
        let all = |axes: [PatchAxis; 2], pair: fn(usize) -> [usize; 2]| -> Vec<PatchTurn> {
            (0..4).map(|at| turn(pair(at), axes[at / 2])).collect()
        };
        let (row, column) = (PatchAxis::Row, PatchAxis::Column);
        let halves = all([row, column], |at| [at, at + 4]);
        assert_eq!(numbering(&halves, 8), Some(("HALVES", true)));
        let quarters = all([column, row], |at| [at + at / 2 * 2, at + at / 2 * 2 + 2]);
        assert_eq!(numbering(&quarters, 8), Some(("QUARTERS", false)));
        assert_eq!(numbering(&all([row, column], |at| [2 * at, 2 * at + 1]), 8), Some(("ADJACENT", true)));
        assert_eq!(numbering(&all([row, row], |at| [at, at + 4]), 8), None);
        assert_eq!(numbering(&halves[..3], 8), None);
    }
}
