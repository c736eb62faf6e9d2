//! The draft head, as [`crate::spec::types::Draft`] states it.

use super::{Cache, Interpreter, Logits, Outcome, Pass};

impl Interpreter<'_> {
    /// Drafts on after what `cache`, the draft's own, holds: `hidden` `[rows, hidden]` are states after the final norm of
    /// consecutive tokens, and `following[i]` is the token after that of row `i`. Row `i` of the logits is about the token
    /// after that; the hidden states beside them stand for the model's where the next draft goes on from this one.
    ///
    /// # Panics
    /// Where the checkpoint has no draft head, or there is not one token a row.
    pub fn draft(&self, hidden: &[f32], following: &[u32], cache: &mut Cache, logits: Logits) -> Outcome {
        let draft = self.graph.draft.as_ref().expect("a graph with a draft head");
        let first = &draft.bodies[draft.schedule[0].body.0];
        let input = first.input.expect("a draft begins with hidden states");
        assert_eq!(hidden.len(), following.len() * first.values[input.0].width, "one token a row");
        let pass = Pass { bodies: &draft.bodies, schedule: &draft.schedule, hidden: draft.hidden };
        self.run(&pass, hidden.to_vec(), following, cache, logits)
    }
}
