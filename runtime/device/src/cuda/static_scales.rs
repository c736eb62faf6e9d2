//! Static scales of keys and values, in front of the blocks of each layer (`monomorph_abi::kv`).

use super::driver::Stream;
use super::pointer::Cache;
use monomorph_model::{KvScaleSpec, LoadError, Weights};
use monomorph_weights::{Checkpoint, WeightsError};

/// Uploads f32 `[keys, values][heads]` for each layer of an fp8 cache.
pub(crate) fn load(
    stream: &Stream,
    weights: &Weights,
    cache: &Cache,
    heads: usize,
    layers: &[Option<usize>],
    spec: Option<&KvScaleSpec>,
) -> Result<(), LoadError> {
    for (at, layer) in layers.iter().enumerate() {
        let scales = match (weights, spec, layer) {
            (Weights::Checkpoint(checkpoint), Some(spec), Some(layer)) => {
                of_layer(checkpoint, spec, *layer, heads)?
            }
            _ => vec![1.0; 2 * heads],
        };
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let to = cache.layer(at).before(bytes.len() as u64);
        // SAFETY: the cache was taken with room for them in front of each layer; the driver has copied these
        // pageable bytes once the stream has been waited for.
        unsafe { stream.upload(to.0, &bytes) }?;
        stream.wait()?;
    }
    Ok(())
}

/// Those of a layer of the model, of keys and then of values.
fn of_layer(
    checkpoint: &Checkpoint,
    spec: &KvScaleSpec,
    layer: usize,
    heads: usize,
) -> Result<Vec<f32>, WeightsError> {
    let names = spec.names.iter().map(|name| name.replace("{layer}", &layer.to_string()));
    let scales = names.map(|name| checkpoint.static_scales(&name, heads));
    Ok(scales.collect::<Result<Vec<_>, _>>()?.concat())
}
