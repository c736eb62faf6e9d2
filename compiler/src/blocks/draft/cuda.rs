//! The start of a draft pass on a CUDA device.

use super::kernels::DraftEmbed;
use crate::kernels::{Ids, Planes, Tokens, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Site, integer, no_kernel};
use crate::plan::FieldKind;
use crate::plan::cuda::{Constant, Launch, Regime};
use crate::spec::types::{Compute, TensorClass};

/// Threads of `draft_embed`.
const EMBED_THREADS: usize = 256;

impl Launcher<'_> {
    /// Launches the phase that starts a draft pass.
    pub(crate) fn draft_embed(&mut self, site: Site, phase: &super::DraftEmbed) -> Result<Launch, PassError> {
        let super::DraftEmbed { x, norm, hidden_norm, table, embedding_norm, out } = *phase;
        let forms = [norm, hidden_norm, embedding_norm].map(|field| match self.plan.field(field).kind {
            FieldKind::Norm { eps, form, .. } => Some((eps, form)),
            _ => None,
        });
        if forms[0].is_none() || forms.iter().any(|form| *form != forms[0]) {
            return Err(no_kernel(site, self.plan, "its kernel takes three norms of one form"));
        }
        let (form, eps) = self.norm(Some(norm));
        let matrix = self.matrix(table);
        let exact = self.plan.target.quant.compute.classes.get(&TensorClass::Draft) != Some(&Compute::F16);
        let decode = site.program.regime == Regime::Decode;
        let mut constants = vec![("HIDDEN", integer(matrix.columns)), ("THREADS", integer(EMBED_THREADS))];
        constants.extend(matrix.names());
        constants.extend([
            ("NORM", form),
            ("EPS", Constant::Float(eps)),
            ("EXACT", Constant::Flag(exact)),
            ("DECODE", Constant::Flag(decode)),
        ]);
        let (tokens, ids) = match site.pass {
            _ if !decode => (Tokens::STEP, Ids::SAMPLED),
            None | Some(0) => (Tokens::NULL, self.row_ids()),
            Some(pass) => (Tokens::NULL, self.drafted_ids(pass - 1)),
        };
        let Planes { codes, scales, row_scales } = self.planes(table);
        let [norm, hidden_norm, embedding_norm] =
            [norm, hidden_norm, embedding_norm].map(|id| Vector::field(Some(id)));
        let arguments = DraftEmbed {
            step: site.header,
            tokens,
            ids,
            codes,
            scales,
            row_scales,
            embedding_norm,
            x: self.buffer(site, x),
            norm,
            hidden_norm,
            out: self.buffer(site, out),
        };
        let shared = 8 * matrix.columns;
        let instance =
            Instance { shared, ..Instance::new(self.kernel_name(site, ""), constants, EMBED_THREADS) };
        Ok(self.launch(site, instance, self.grid_of_rows(site, 1), arguments))
    }
}
