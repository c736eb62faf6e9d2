//! What images add to attention: positions of three axes, and tokens that see all of their image.

use super::Operands;
use crate::blocks::attention::Attention;
use crate::blocks::attention::kernels::{AttendSpans, Queries, TurnHeads};
use crate::graph::{BodyId, PositionAxis};
use crate::kernels::{Cache, Header, Images, Rotary, Rows, Tokens};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Site, count, integer, no_kernel, value};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};

/// Threads of attend_spans.
const SPAN_THREADS: usize = 256;
/// Rows and threads of a block of turn_heads.
const TURN_ROWS: usize = 4;
const TURN_THREADS: usize = 256;

impl Launcher<'_> {
    /// Launches the norms and the rotation of heads, in place, where positions have three axes, and leaves
    /// operands without either.
    ///
    /// # Errors
    /// When values are made of keys that are turned, or more pairs turn than the kernel has bits for.
    pub(super) fn turn_heads(
        &mut self,
        site: Site,
        phase: &Attention,
        operands: &mut Operands,
        exact: bool,
    ) -> Result<Option<Launch>, PassError> {
        let axes = phase.frequencies.as_ref().map_or(&[][..], |it| &it.axes);
        if axes.is_empty() {
            return Ok(None);
        }
        if phase.keys_as_values || axes.len() > 64 {
            let what = "no kernel turns more than 64 pairs, or keys that are values, by three axes";
            return Err(no_kernel(site, self.plan, what));
        }
        let pairs = |of: PositionAxis| {
            let bits = axes.iter().enumerate().map(|(pair, axis)| u64::from(*axis == of) << pair);
            value(format!("{:#x}ull", bits.sum::<u64>()))
        };
        let decode = site.program.regime == Regime::Decode;
        let mut constants = operands.constants.clone();
        constants.extend([
            ("EXACT", Constant::Flag(exact)),
            ("HEIGHT_PAIRS", pairs(PositionAxis::Height)),
            ("WIDTH_PAIRS", pairs(PositionAxis::Width)),
            ("DECODE", Constant::Flag(decode)),
        ]);
        constants.extend((site.header != Header::STEP).then_some(("PASS", Constant::Flag(true))));
        let [q_norm, k_norm] = operands.normed();
        for (name, member) in &mut operands.constants {
            if *name == "ROTARY_PAIRS" {
                *member = integer(0);
            }
        }
        let rotary = std::mem::replace(&mut operands.rotary, Rotary::NULL);
        let images = if decode { Images::NULL } else { Images::STEP };
        let qkv = self.buffer(site, operands.qkv);
        let arguments = TurnHeads { step: site.header, images, qkv, q_norm, k_norm, rotary };
        let instance = Instance::new(self.kernel_name(site, "_turn"), constants, TURN_THREADS);
        Ok(Some(self.launch(site, instance, self.grid_of_rows(site, TURN_ROWS), arguments)))
    }

    /// Launches the attention of images to all of themselves, behind that of all rows.
    ///
    /// # Errors
    /// When results are gated.
    pub(super) fn spans(
        &mut self,
        site: Site,
        operands: &Operands,
        exact: bool,
    ) -> Result<Launch, PassError> {
        if operands.gated {
            return Err(no_kernel(site, self.plan, "no kernel gates what attends to all of an image"));
        }
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(exact)));
        let shape = operands.shape;
        let arguments = AttendSpans {
            step: site.header,
            tokens: Tokens::STEP,
            images: Images::STEP,
            qkv: if exact { self.buffer(site, operands.qkv) } else { Rows::NULL },
            q: if exact { Queries::NULL } else { self.q_rows(site, shape) },
            layer: Cache::of(BodyId(site.body)),
            out: self.buffer(site, operands.out),
        };
        let mut grid = self.grid_of_rows(site, 1);
        grid[1] = Extent::Fixed(count(shape.heads));
        let bytes = vec![operands.kv_block];
        let instance = Instance::new(self.kernel_name(site, "_spans"), constants, SPAN_THREADS);
        Ok(self.launch(site, Instance { bytes, ..instance }, grid, arguments))
    }
}
