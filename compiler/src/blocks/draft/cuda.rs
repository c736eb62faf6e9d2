//! On a CUDA device: the start of a draft pass, and the check of a step's drafts before the passes.

use super::kernels::{Accept, DraftEmbed, DraftImageRows};
use crate::kernels::{Arguments, Header, Held, Ids, Images, Planes, Tokens, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Member, Outline, Site, fixed, integer, no_kernel, value};
use crate::plan::FieldKind;
use crate::plan::cuda::{Constant, Launch, MAX_SEQUENCES, Regime};
use crate::spec::types::TensorClass;

/// One thread a sequence.
const ACCEPT_THREADS: usize = MAX_SEQUENCES;
const EMBED_THREADS: usize = 256;

impl Launcher<'_> {
    /// Launches the phase that starts a draft pass; with images, rows of these in place of embeddings behind
    /// it.
    pub(crate) fn draft_embed(
        &mut self,
        site: Site,
        phase: &super::DraftEmbed,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let super::DraftEmbed { x, norm, hidden_norm, table, embedding_norm, images, out } = *phase;
        let forms = [norm, hidden_norm, embedding_norm].map(|field| match self.plan.field(field).kind {
            FieldKind::Norm { eps, form, .. } => Some((eps, form)),
            _ => None,
        });
        if forms[0].is_none() || forms.iter().any(|form| *form != forms[0]) {
            return Err(no_kernel(site, self.plan, "its kernel takes three norms of one form"));
        }
        let (form, eps) = self.norm(Some(norm));
        let matrix = self.matrix(table);
        let exact =
            self.plan.target.quant.compute.classes.get(&TensorClass::Draft).is_none_or(|it| it.is_exact());
        let decode = site.program.regime == Regime::Decode;
        let mut constants = vec![("HIDDEN", integer(matrix.columns)), ("THREADS", integer(EMBED_THREADS))];
        let of_images: Vec<Member> = constants
            .iter()
            .cloned()
            .chain([("NORM", form.clone()), ("EPS", Constant::Float(eps)), ("EXACT", Constant::Flag(exact))])
            .collect();
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
        let out = self.buffer(site, out);
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
            out,
        };
        let of_row = 4 * matrix.columns;
        let instance = Instance {
            shared: 2 * of_row,
            ..Instance::new(self.kernel_name(site, ""), constants, EMBED_THREADS)
        };
        launches.push(self.launch(site, instance, self.grid_of_rows(site, 1), arguments));
        // What is sampled or drafted is text.
        if images && !decode {
            let kept = self.kept_of_images(matrix.columns);
            let arguments =
                DraftImageRows { step: site.header, tokens, images: Images::STEP, kept, embedding_norm, out };
            let name = self.kernel_name(site, "_images");
            let instance = Instance { shared: of_row, ..Instance::new(name, of_images, EMBED_THREADS) };
            launches.push(self.launch(site, instance, self.grid_of_rows(site, 1), arguments));
        }
        Ok(())
    }

    /// Accepts or rejects drafts, and writes the headers of the draft passes.
    pub(crate) fn accept(&mut self, outline: &Outline) -> Launch {
        let forced = self.plan.target.draft.and_then(|draft| draft.forced_acceptance);
        let verified = outline.tokens > 1;
        let ids = self.kept_ids();
        let below = (forced.unwrap_or(0.0) * f64::from(1 << 24)).floor();
        let constants = vec![
            ("TOKENS", integer(outline.tokens)),
            ("PASSES", integer(self.plan.drafts())),
            ("LAYERS", Constant::Flag(self.plan.draft_layer().is_none())),
            ("SEQUENCES", integer(self.plan.buckets.sequences)),
            ("ROWS_AT", integer(ids.row(0))),
            ("DRAFTED_AT", integer(ids.drafted(0))),
            ("FORCED", Constant::Flag(forced.is_some() && verified)),
            ("FORCED_BELOW", value(format!("{below}u"))),
        ];
        let arguments =
            Accept { step: Header::STEP, passes: Header::pass(0), ids: Ids::SAMPLED, held: Held::STEP };
        let instance = Instance::new("accept".to_owned(), constants, ACCEPT_THREADS);
        let grid = fixed(1, 1, 1);
        let kernel = self.kernel(outline, Accept::SIGNATURE, instance, &grid);
        let phase = self.plan.bodies[self.plan.head().0].phases.len();
        Launch::new(phase, kernel, grid, arguments.list())
    }
}
