//! Row-wise kernels: the embedding, and the selection of rows whose logits are wanted.

use super::product::count;
use super::{Launcher, Site, fixed, integer};
use crate::plan::PhaseKind;
use crate::plan::cuda::{Argument, Constant, Extent, Kernel, Launch, Regime};
use crate::plan::packed::unit_columns;

/// Threads of a block: rows are short, and blocks of one warp or two start soonest.
const THREADS: usize = 128;

impl Launcher<'_> {
    pub(super) fn embed(&mut self, site: Site) -> Launch {
        let PhaseKind::Embed { table, out } = self.at(site).kind else { unreachable!("the caller looked") };
        let matrix = self.matrix(table);
        let decode = site.program.regime == Regime::Decode;
        let mut constants = vec![("HIDDEN", integer(matrix.columns))];
        constants.extend(matrix.names());
        constants.extend([("THREADS", integer(THREADS)), ("DECODE", Constant::Flag(decode))]);
        let kernel = self.row_kernel(site, "embed", constants);
        let [codes, scales, row_scales] = self.planes(table);
        let tokens = if decode { Argument::Null } else { Argument::Tokens };
        let out = self.buffer(site, out);
        let arguments = vec![Argument::Step, tokens, self.ids_of(site), codes, scales, row_scales, out];
        let pieces = matrix.columns.div_ceil(unit_columns(matrix.format)) * 4;
        Launch {
            phase: site.phase,
            kernel,
            grid: self.columns_and_rows(site, pieces.div_ceil(THREADS)),
            arguments,
        }
    }

    pub(super) fn select(&mut self, site: Site) -> Launch {
        let PhaseKind::Select { x, out } = self.at(site).kind else { unreachable!("the caller looked") };
        let width = self.plan.buffer(x).width;
        let constants = vec![("HIDDEN", integer(width)), ("THREADS", integer(THREADS))];
        let kernel = self.row_kernel(site, "select", constants);
        let arguments = vec![Argument::Step, self.buffer(site, x), self.buffer(site, out)];
        let blocks = width.div_ceil(4).div_ceil(THREADS);
        Launch { phase: site.phase, kernel, grid: self.columns_and_rows(site, blocks), arguments }
    }

    fn row_kernel(
        &mut self,
        site: Site,
        template: &'static str,
        constants: Vec<(&'static str, Constant)>,
    ) -> (usize, usize) {
        // The C library has a `select` of its own.
        let name = self.kernel_name(site, "_rows");
        let block = count(THREADS);
        let kernel =
            Kernel { name, template, constants, block, resident: 1, cluster: 1, shared: 0, decode: false };
        self.kernel(site.program, kernel)
    }

    /// Blocks for a row's columns in x, rows in y.
    fn columns_and_rows(&self, site: Site, columns: usize) -> [Extent; 3] {
        let [rows, one, _] = self.grid_of_rows(site, 1);
        [Extent::Fixed(count(columns)), rows, one]
    }

    /// A block for each so many rows of the step in x; in a captured graph, of the bucket.
    pub(super) fn grid_of_rows(&self, site: Site, rows_a_block: usize) -> [Extent; 3] {
        let mut grid = fixed(site.program.rows.div_ceil(rows_a_block), 1, 1);
        match site.program.regime {
            Regime::Decode | Regime::Draft => {}
            Regime::Prefill | Regime::Learn => grid[0] = Extent::Tokens(count(rows_a_block)),
            Regime::Head => grid[0] = Extent::Outputs(count(rows_a_block)),
        }
        grid
    }
}
