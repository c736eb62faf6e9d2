//! Files beside the weights.

use crate::error::TextError;
use monomorph_weights::Checkpoint;
use serde_json::Value;
use std::path::Path;

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, TextError> {
    std::fs::read(path).map_err(|error| TextError::malformed(path, error.to_string()))
}

/// A JSON file beside the weights; `None` if it does not exist.
pub(crate) fn read_config(checkpoint: &Checkpoint, name: &str) -> Result<Option<Value>, TextError> {
    let Some(path) = checkpoint.side_file(name) else { return Ok(None) };
    serde_json::from_slice(&read_file(&path)?)
        .map(Some)
        .map_err(|error| TextError::malformed(&path, format!("is not JSON: {error}")))
}
