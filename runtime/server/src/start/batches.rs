//! How a build's batch invariance is reported.

use monomorph_model::{BatchInvariantSpec, ModelSpec};
use serde_json::{Value, json};

/// In words.
pub(crate) fn describe(spec: &ModelSpec, invariant: &BatchInvariantSpec) -> String {
    let pieces = match invariant.chunk_alignment {
        1 => "anywhere".to_owned(),
        tokens => format!("at multiples of {tokens} tokens"),
    };
    let most = spec.step_sequences;
    format!("their size changes no bit of a row; at most {most} sequences at once, prompts are cut {pieces}")
}

/// As JSON; null for a build without it.
pub(crate) fn facts(spec: &ModelSpec) -> Value {
    let Some(BatchInvariantSpec { chunk_alignment }) = spec.batch_invariant else { return Value::Null };
    json!({ "sequences": spec.step_sequences, "chunk_alignment": chunk_alignment })
}
