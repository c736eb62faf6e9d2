//! A drafter of blocks, as defined by [`crate::spec::types::Dflash`].

use super::{Cache, Fed, ImageSpan, Interpreter, Logits, Pass};
use crate::graph::{DflashGraph, Run, ValueId};

impl<'a> Interpreter<'a> {
    /// The drafter keeps what it attends to of tokens that follow those in `cache`, its own: of `taps`
    /// `[tokens, taps * hidden]`, the model's residual streams of each
    /// ([`Outcome::taps`](super::Outcome::taps)).
    ///
    /// # Panics
    /// If the graph has no drafter.
    pub fn keep_context(&self, taps: &[f32], cache: &mut Cache) {
        let dflash = self.drafter();
        let first = &dflash.bodies[dflash.context[0].body.0];
        let width = first.values[first.input.expect("it takes residual streams").0].width;
        // Ids are of no interest: positions count rows.
        let tokens = vec![dflash.mask; taps.len() / width];
        let pass = pass(dflash, &dflash.context);
        self.run(&pass, taps.to_vec(), &Fed::text(&tokens), cache, Logits::All);
    }

    /// Logits `[drafts, vocabulary]` of the tokens that follow `last`, the token sampled last, by a block of
    /// `1 + drafts` rows behind the tokens in `cache`, which are all before it.
    ///
    /// # Panics
    /// If the graph has no drafter.
    pub fn draft_block(&self, last: u32, drafts: usize, cache: &Cache) -> Vec<f32> {
        let dflash = self.drafter();
        let mut ids = vec![dflash.mask; 1 + drafts];
        ids[0] = last;
        let span = [ImageSpan { at: 0, count: ids.len(), first: 0 }];
        let fed = Fed { images: &span, ..Fed::text(&ids) };
        let pass = pass(dflash, &dflash.block);
        // What the rows of a block append is the block's alone.
        let logits = self.run(&pass, Vec::new(), &fed, &mut cache.clone(), Logits::All).logits;
        let vocabulary = logits.len() / ids.len();
        logits[vocabulary..].to_vec()
    }

    fn drafter(&self) -> &'a DflashGraph {
        self.graph.dflash.as_ref().expect("a graph with a drafter")
    }
}

fn pass<'a>(dflash: &'a DflashGraph, schedule: &'a [Run]) -> Pass<'a> {
    Pass { bodies: &dflash.bodies, schedule, hidden: ValueId(0), taps: &[], scaled: false }
}
