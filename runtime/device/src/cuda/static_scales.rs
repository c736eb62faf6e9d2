//! Static scales of keys and values, and what they are set by, in front of the blocks of each layer
//! (`monomorph_abi::kv`).

use super::driver::Stream;
use super::fault::Fault;
use super::pointer::{Cache, Pointer};
use monomorph_formats::cached::{Cached, static_scale};
use monomorph_model::{KvScaleSpec, KvScales, LoadError, Weights};
use monomorph_weights::{Checkpoint, WeightsError};

/// What a layer has scales of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaled {
    /// Heads of keys, and of values.
    pub(crate) heads: usize,
    /// Formats of keys and of values. One that has no static scales has 1.
    pub(crate) formats: [Cached; 2],
}

/// Those of a cache: f32 `[keys, values][heads]` of each layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaticScales {
    cache: Cache,
    scaled: Scaled,
    layers: usize,
    /// Whether they are a checkpoint's: these are not measured.
    given: bool,
}

impl StaticScales {
    /// Uploads a checkpoint's, if `spec` names some, for these layers of the model; 1 for others.
    pub(crate) fn load(
        stream: &Stream,
        weights: &Weights,
        cache: &Cache,
        scaled: Scaled,
        layers: &[Option<usize>],
        spec: Option<&KvScaleSpec>,
    ) -> Result<StaticScales, LoadError> {
        let given = spec.is_some() && layers.iter().all(Option::is_some);
        let it = StaticScales { cache: *cache, scaled, layers: layers.len(), given };
        let heads = scaled.heads;
        for (at, layer) in layers.iter().enumerate() {
            let scales = match (weights, spec, layer) {
                (Weights::Checkpoint(checkpoint), Some(spec), Some(layer)) => {
                    of_layer(checkpoint, spec, *layer, heads)?
                }
                _ => vec![1.0; 2 * heads],
            };
            it.write(stream, at, &scales)?;
        }
        Ok(it)
    }

    /// Bytes of a layer's.
    fn bytes(&self) -> usize {
        2 * self.scaled.heads * size_of::<f32>()
    }

    /// The word that says whether something is being measured; the largest magnitudes follow it.
    fn measured(&self, layer: usize) -> Pointer {
        self.cache.layer(layer).before((size_of::<u32>() + 2 * self.bytes()) as u64)
    }

    fn write(&self, stream: &Stream, layer: usize, scales: &[f32]) -> Result<(), Fault> {
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let to = self.cache.layer(layer).before(self.bytes() as u64);
        // SAFETY: the cache was taken with room for them in front of each layer; the driver has copied these
        // pageable bytes once the stream has been waited for.
        unsafe { stream.upload(to.0, &bytes) }?;
        stream.wait()
    }

    /// Begins to measure.
    pub(crate) fn measure(&self, stream: &Stream) -> Result<(), Fault> {
        let mut bytes = 1u32.to_le_bytes().to_vec();
        bytes.resize(size_of::<u32>() + self.bytes(), 0);
        for layer in 0..self.layers {
            // SAFETY: as in `write`.
            unsafe { stream.upload(self.measured(layer).0, &bytes) }?;
        }
        stream.wait()
    }

    /// Ends measuring: scales that are no checkpoint's become what was measured, and are added to `set`.
    pub(crate) fn set(&self, stream: &Stream, set: &mut KvScales) -> Result<(), String> {
        for layer in 0..self.layers {
            let magnitudes = self.take(stream, layer).map_err(|fault| fault.to_string())?;
            if self.given {
                continue;
            }
            let mut scales = Vec::with_capacity(magnitudes.len());
            for (at, largest) in magnitudes.into_iter().enumerate() {
                let Scaled { heads, formats } = self.scaled;
                let (side, head) = (at / heads, at % heads);
                if !largest.is_finite() {
                    let what = ["keys", "values"][side];
                    return Err(format!(
                        "{what} of head {head} are not finite in layer {layer} of their kind"
                    ));
                }
                let scale = static_scale(formats[side], largest);
                if formats[side].has_static_scale() {
                    set.add(side, scale);
                }
                scales.push(scale);
            }
            self.write(stream, layer, &scales).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    }

    /// A layer's largest magnitudes; it measures no more.
    fn take(&self, stream: &Stream, layer: usize) -> Result<Vec<f32>, Fault> {
        let mut bytes = vec![0; size_of::<u32>() + self.bytes()];
        let at = self.measured(layer).0;
        // SAFETY: the range is in front of the layer, in the arena; the copies have happened once the stream
        // has been waited for.
        unsafe { stream.download(at, &mut bytes) }?;
        // SAFETY: likewise.
        unsafe { stream.clear(at, size_of::<u32>() as u64) }?;
        stream.wait()?;
        let words = bytes[size_of::<u32>()..].as_chunks::<4>().0.iter();
        Ok(words.map(|word| f32::from_bits(u32::from_le_bytes(*word))).collect())
    }
}

/// A checkpoint's of a layer of the model, of keys and then of values.
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
