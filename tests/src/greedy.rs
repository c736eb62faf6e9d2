//! Greedy continuations by the reference interpreter.

use monomorph_compiler::reference::{Cache, Interpreter, Logits};

/// The interpreter's choices behind a prompt, and the lead of each over the second.
pub fn greedy(interpreter: &Interpreter, prompt: &[u32], steps: usize) -> (Vec<u32>, Vec<f32>) {
    let mut cache = Cache::default();
    let mut logits = interpreter.forward(prompt, &mut cache, Logits::Last);
    let (mut ids, mut margins) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let (id, margin) = top(&logits);
        ids.push(id);
        margins.push(margin);
        if step + 1 < steps {
            logits = interpreter.forward(&[id], &mut cache, Logits::Last);
        }
    }
    (ids, margins)
}

/// The largest logit's id (the smallest among equals) and its lead over the second.
pub fn top(logits: &[f32]) -> (u32, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (id, logit) in logits.iter().enumerate().skip(1) {
        if *logit > logits[best] {
            (second, best) = (logits[best], id);
        } else if *logit > second {
            second = *logit;
        }
    }
    (best as u32, logits[best] - second)
}
