//! The draft head, as defined by [`crate::spec::types::Draft`], and the model as its own draft model.

use super::{Cache, Fed, Interpreter, Logits, Outcome, Pass};
use crate::graph::{Graph, Op, Run};

impl Interpreter<'_> {
    /// Drafts on from the contents of `cache`, the draft's own. `hidden` `[rows, hidden]` are states of
    /// consecutive tokens after the final norm, and `following[i]` is the token after that of row `i`. Row
    /// `i` of the logits predicts the token after that. The hidden states returned take the place of the
    /// model's if the next draft continues from this one.
    ///
    /// # Panics
    /// If the checkpoint has no draft head, or there is not one token per row.
    pub fn draft(&self, hidden: &[f32], following: &[u32], cache: &mut Cache, logits: Logits) -> Outcome {
        self.draft_fed(hidden, &Fed::text(following), cache, logits)
    }

    /// The same behind images. `fed` has the following tokens, those of images among them, whose rows are
    /// taken in place of embeddings; its positions are those of the tokens whose states are given.
    ///
    /// # Panics
    /// As [`draft`](Self::draft), and if an image's rows are missing.
    pub fn draft_fed(&self, hidden: &[f32], fed: &Fed, cache: &mut Cache, logits: Logits) -> Outcome {
        let draft = self.graph.draft.as_ref().expect("a graph with a draft head");
        let first = &draft.bodies[draft.schedule[0].body.0];
        let input = first.input.expect("a draft begins with hidden states");
        assert_eq!(hidden.len(), fed.tokens.len() * first.values[input.0].width, "one token a row");
        let (bodies, schedule) = (&draft.bodies[..], &draft.schedule[..]);
        let pass = Pass { bodies, schedule, hidden: draft.hidden, taps: &[], scaled: false };
        self.run(&pass, hidden.to_vec(), fed, cache, logits)
    }

    /// Like [`forward_fed`](Self::forward_fed), but only through attention layers. The keys and values it
    /// adds to `cache` are valid for no other pass.
    pub fn skip(&self, fed: &Fed, cache: &mut Cache, logits: Logits) -> Vec<f32> {
        let Graph { bodies, schedule, hidden, .. } = self.graph;
        let attends = |run: &&Run| {
            let mut nodes = bodies[run.body.0].nodes.iter();
            run.layer.is_none() || nodes.any(|node| matches!(&node.op, Op::Block(op) if op.attends()))
        };
        let schedule: Vec<Run> = schedule.iter().filter(attends).copied().collect();
        let pass = Pass { bodies, schedule: &schedule, hidden: *hidden, taps: &[], scaled: true };
        self.run(&pass, Vec::new(), fed, cache, logits).logits
    }
}
