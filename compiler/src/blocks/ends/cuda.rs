//! Row-wise kernels: the embedding, and the selection of rows that need logits.

use crate::blocks::ends::kernels::{Embed, Select};
use crate::kernels::{Planes, Tokens};
use crate::passes::launch::{Instance, Launcher, Member, Site, count, integer};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::unit_columns;

/// Threads of a block: rows are short, and blocks of one or two warps start soonest.
const THREADS: usize = 128;

impl Launcher<'_> {
    pub(crate) fn embed(&mut self, site: Site, phase: &super::Embed) -> Launch {
        let super::Embed { table, scale, out } = *phase;
        let matrix = self.matrix(table);
        let decode = site.program.regime == Regime::Decode;
        let mut constants = vec![("HIDDEN", integer(matrix.columns))];
        constants.extend(matrix.names());
        constants.extend([("THREADS", integer(THREADS)), ("DECODE", Constant::Flag(decode))]);
        constants.extend(scale.map(|factor| ("FACTOR", Constant::Float(factor))));
        let Planes { codes, scales, row_scales } = self.planes(table);
        let arguments = Embed {
            step: site.header,
            tokens: if decode { Tokens::NULL } else { Tokens::STEP },
            sampled_ids: self.ids_of(site),
            codes,
            scales,
            row_scales,
            residual: self.buffer(site, out),
        };
        let pieces = matrix.columns.div_ceil(unit_columns(matrix.format)) * 4;
        let grid = self.columns_and_rows(site, pieces.div_ceil(THREADS));
        let instance = self.of_rows(site, constants);
        self.launch(site, instance, grid, arguments)
    }

    pub(crate) fn select(&mut self, site: Site, phase: &super::Select) -> Launch {
        let super::Select { x, out } = *phase;
        let width = self.plan.buffer(x).width;
        let constants = vec![("HIDDEN", integer(width)), ("THREADS", integer(THREADS))];
        let arguments =
            Select { step: site.header, residual: self.buffer(site, x), out: self.buffer(site, out) };
        let grid = self.columns_and_rows(site, width.div_ceil(4).div_ceil(THREADS));
        let instance = self.of_rows(site, constants);
        self.launch(site, instance, grid, arguments)
    }

    fn of_rows(&self, site: Site, constants: Vec<Member>) -> Instance {
        // `_rows` avoids a clash: the C library has a `select` of its own.
        Instance::new(self.kernel_name(site, "_rows"), constants, THREADS)
    }

    /// A grid of blocks over a row's columns in x and rows in y.
    pub(crate) fn columns_and_rows(&self, site: Site, columns: usize) -> [Extent; 3] {
        let [rows, one, _] = self.grid_of_rows(site, 1);
        [Extent::Fixed(count(columns)), rows, one]
    }
}
