//! Rows of logits in place of tokens: a script that says them is sampled as a device's model is.

use monomorph_sampling::{Conditions, Sampled, Sampling, TokenBias, TokenMask, TokenUse, sample_within};
use std::collections::HashMap;
use std::sync::Arc;

/// What a script says next.
#[derive(Clone, Debug)]
pub enum Next {
    /// This token, whatever the request's temperature and penalties, at made-up log-probabilities.
    Token(u32),
    /// What the reference sampler draws of these logits. Tokens behind the last have none.
    Logits(Vec<f32>),
}

/// What comes next from the context (prompt and answer so far) and from how many of it were generated.
pub type Rows = Arc<dyn Fn(&[u32], u64) -> Next + Send + Sync>;

/// Draws from the logits behind `context`, of which `draw` tokens were generated.
pub(super) fn drawn(
    mut row: Vec<f32>,
    context: &[u32],
    sampling: &Sampling,
    draw: u64,
    biases: &[TokenBias],
    mask: Option<&TokenMask>,
) -> Sampled {
    let mut history = Vec::new();
    if sampling.needs_history() {
        history.extend(uses(context, draw).into_iter().map(|(id, generated)| TokenUse { id, generated }));
    }
    sample_within(&mut row, sampling, draw, &Conditions { history: &history, biases, mask })
}

/// Every token of a context, and how often it is among the last `draw`, which were generated.
pub(super) fn uses(context: &[u32], draw: u64) -> HashMap<u32, u32> {
    let prompt = context.len() - draw as usize;
    let mut uses: HashMap<u32, u32> = HashMap::new();
    for (position, &id) in context.iter().enumerate() {
        *uses.entry(id).or_default() += u32::from(position >= prompt);
    }
    uses
}
