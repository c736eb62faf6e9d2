//! Files beside the weights.

use crate::error::TextError;
use monomorph_weights::{Checkpoint, SideFile};
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) fn read_file(file: &SideFile) -> Result<Vec<u8>, TextError> {
    file.read().map_err(|error| TextError::malformed(file.path(), error.to_string()))
}

/// A JSON file beside the weights; `None` if it does not exist.
pub(crate) fn read_config(checkpoint: &Checkpoint, name: &str) -> Result<Option<Value>, TextError> {
    let Some(file) = checkpoint.side_file(name) else { return Ok(None) };
    serde_json::from_slice(&read_file(&file)?)
        .map(Some)
        .map_err(|error| TextError::malformed(file.path(), format!("is not JSON: {error}")))
}

/// Every token that ends an answer: `eos`, and what the files beside the weights say.
pub(crate) fn end_ids(checkpoint: &Checkpoint, eos: Option<u32>) -> Result<Vec<u32>, TextError> {
    let mut ends: BTreeSet<u32> = eos.into_iter().collect();
    for name in ["generation_config.json", "config.json"] {
        if let Some(config) = read_config(checkpoint, name)? {
            let ids = match &config["eos_token_id"] {
                Value::Array(ids) => ids.iter().filter_map(Value::as_u64).collect(),
                id => id.as_u64().into_iter().collect::<Vec<u64>>(),
            };
            ends.extend(ids.into_iter().filter_map(|id| u32::try_from(id).ok()));
        }
    }
    Ok(ends.into_iter().collect())
}
