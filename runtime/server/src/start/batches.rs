//! How a build's batch invariance is reported.

use monomorph_model::{BatchInvariantSpec, ModelSpec};
use serde_json::{Value, json};

/// One line for people.
pub(crate) fn describe(spec: &ModelSpec, invariant: &BatchInvariantSpec) -> String {
    let ends = match invariant.chunk_alignment {
        1 => "anywhere".to_owned(),
        tokens => format!("at multiples of {tokens} tokens"),
    };
    let most = spec.step_sequences;
    format!("results do not depend on batch size; at most {most} sequences; prefill chunks end {ends}")
}

/// As JSON; null for a build without it.
pub(crate) fn facts(spec: &ModelSpec) -> Value {
    let Some(BatchInvariantSpec { chunk_alignment }) = spec.batch_invariant else { return Value::Null };
    json!({ "sequences": spec.step_sequences, "chunk_alignment": chunk_alignment })
}
