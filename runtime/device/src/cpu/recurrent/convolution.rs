//! The short causal convolution in front of the recurrence.

use super::super::epilogue::{Activation, Silu};
use super::super::loader::{Loader, Part};
use super::super::simd::{F32s, LANES};
use super::{load, store};
use monomorph_weights::{Tensor, WeightsError};

/// Weights of a depthwise causal convolution over `TAPS` tokens. The last tap is the token's own.
#[derive(Debug)]
pub struct Convolution<const CHANNELS: usize, const TAPS: usize> {
    /// `[TAPS][CHANNELS]`, so that a vector is one tap of several channels.
    data: Box<[f32]>,
}

impl<const CHANNELS: usize, const TAPS: usize> Convolution<CHANNELS, TAPS> {
    /// Reads `parts`, stacked by channel, from any float format; each is `[channels, 1, TAPS]` or
    /// `[channels, TAPS]`.
    ///
    /// # Errors
    /// When a tensor has another shape or is quantised, its channels are in GGUF's rotary order, or the
    /// channels do not add up to `CHANNELS`.
    pub fn load(loader: &Loader, parts: &[Part]) -> Result<Self, WeightsError> {
        let data =
            loader.floats(("convolution", false, parts), TAPS * CHANNELS, || Self::read(loader, parts))?;
        Ok(Convolution { data: data.into() })
    }

    /// The weights, which are `TAPS * CHANNELS`.
    fn read(loader: &Loader, parts: &[Part]) -> Result<Vec<f32>, WeightsError> {
        let mut data = vec![0.0; TAPS * CHANNELS];
        let mut found = 0usize;
        for part in parts {
            let Tensor { name, shape, format, bytes } = part.tensor;
            let fault = |what: String| Err(loader.mismatch(format!("tensor {name}: {what}")));
            if format.is_quantised() {
                return fault(format!("expected a float format, found {format}"));
            }
            if !part.is_whole() {
                return fault("a convolution's channels have no rotary order".into());
            }
            let channels = match *shape {
                [channels, 1, taps] | [channels, taps] if taps == TAPS => channels,
                _ => return fault(format!("expected shape [_, 1, {TAPS}], found {shape:?}")),
            };
            let elements = channels.checked_mul(TAPS);
            if elements.and_then(|elements| format.bytes(elements)) != Some(bytes.len()) {
                return fault(format!("{} bytes are not {shape:?} in {format}", bytes.len()));
            }
            let mut values = vec![0.0; channels * TAPS];
            monomorph_formats::decode(format, &bytes.read()?, &mut values);
            for (channel, taps) in (found..CHANNELS).zip(values.chunks_exact(TAPS)) {
                for (tap, value) in taps.iter().enumerate() {
                    data[tap * CHANNELS + channel] = *value;
                }
            }
            found = found.saturating_add(channels);
            loader.progress.advance(bytes.len() as u64);
        }
        if found != CHANNELS {
            let names: Vec<&str> = parts.iter().map(|part| part.tensor.name).collect();
            let what = format!("tensors {}: expected {CHANNELS} channels, found {found}", names.join(" + "));
            return Err(loader.mismatch(what));
        }
        Ok(data)
    }

    /// All weights.
    #[cfg(test)]
    pub(in super::super) fn taps(&self) -> &[f32] {
        &self.data
    }

    /// Applies the convolution and SiLU to channels `from ..` of a token, as many as `out` has. `inputs` are
    /// the channels of the tokens under the taps, the token's own last; `bias`, one per channel, is added to
    /// the sum if there is one.
    #[inline(always)]
    pub(in super::super) fn apply(
        &self,
        inputs: &[&[f32]; TAPS],
        bias: Option<&[f32]>,
        from: usize,
        out: &mut [f32],
    ) {
        for i in (0..out.len()).step_by(LANES) {
            let mut sum = bias.map_or(F32s::zero(), |bias| load(bias, from + i));
            for (input, weights) in inputs.iter().zip(self.data.chunks_exact(CHANNELS)) {
                sum = load(input, from + i).mul_add(load(weights, from + i), sum);
            }
            store(Silu::apply(sum), out, i);
        }
    }
}
