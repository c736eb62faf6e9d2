//! A file with a reference's logits.

use safetensors::{Dtype, SafeTensors};
use std::path::Path;

/// A matrix [tokens, vocabulary] a prompt.
pub type Logits = Vec<Vec<f32>>;

/// What xtask/verify/reference.py writes: of each prompt `I`, `tokens/I` (i64), `I` (f32 [tokens,
/// vocabulary]) and, where it was computed, `rounded/I`: the same logits by the same program in bf16.
pub struct Reference {
    pub tokens: Vec<Vec<u32>>,
    pub vocabulary: usize,
    pub logits: Logits,
    pub rounded: Option<Logits>,
}

impl Reference {
    pub fn read(path: &Path) -> Result<Reference, String> {
        let named = |why: String| format!("{}: {why}", path.display());
        let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| named(error.to_string()))?;
        let prompts = file.names().iter().filter(|name| name.starts_with("tokens/")).count();
        if prompts == 0 {
            return Err(named(
                "it has no tensor tokens/0: make it with xtask/verify/reference.py".to_owned(),
            ));
        }
        let tokens = (0..prompts).map(|at| ids(&file, &format!("tokens/{at}")));
        let tokens = tokens.collect::<Result<Vec<_>, _>>().map_err(named)?;
        let shape = file.tensor("0").map_err(|error| named(error.to_string()))?.shape().to_vec();
        let [_, vocabulary] = shape[..] else {
            return Err(named(format!("tensor 0 has the shape {shape:?}")));
        };
        let of = |prefix: &str| matrices(&file, prefix, &tokens, vocabulary).map_err(named);
        let rounded = match file.names().iter().any(|name| name.starts_with("rounded/")) {
            true => Some(of("rounded/")?),
            false => None,
        };
        Ok(Reference { vocabulary, logits: of("")?, rounded, tokens })
    }

    /// What a server wrote of the same prompts.
    pub fn like(&self, path: &Path) -> Result<Logits, String> {
        let named = |why: String| format!("{}: {why}", path.display());
        let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| named(error.to_string()))?;
        matrices(&file, "", &self.tokens, self.vocabulary).map_err(|why| {
            named(format!("{why}; the reference is of a model with another vocabulary or of other prompts"))
        })
    }
}

/// The ids of a prompt.
fn ids(file: &SafeTensors, name: &str) -> Result<Vec<u32>, String> {
    let tensor = file.tensor(name).map_err(|error| format!("{name}: {error}"))?;
    if tensor.dtype() != Dtype::I64 || tensor.data().is_empty() {
        return Err(format!("{name} is no list of i64"));
    }
    let ids = tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
    ids.map(|id| u32::try_from(id).map_err(|_| format!("{name}: {id} is no token"))).collect()
}

/// The logits of all prompts.
fn matrices(
    file: &SafeTensors,
    prefix: &str,
    tokens: &[Vec<u32>],
    vocabulary: usize,
) -> Result<Logits, String> {
    let matrix = |(at, ids): (usize, &Vec<u32>)| {
        let name = format!("{prefix}{at}");
        let tensor = file.tensor(&name).map_err(|error| format!("{name}: {error}"))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [ids.len(), vocabulary] {
            let (format, shape) = (tensor.dtype(), tensor.shape());
            return Err(format!("{name} is {format:?} {shape:?} and not F32 [{}, {vocabulary}]", ids.len()));
        }
        Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    };
    tokens.iter().enumerate().map(matrix).collect()
}
