//! What a compiled model bounds in requests.

use monomorph_model::SamplingPreset;

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Longest sequence in tokens, prompt and answer.
    pub(crate) context: usize,
    /// Ids below this one exist.
    pub(crate) vocabulary: usize,
    /// Default sampling parameters.
    pub(crate) preset: Option<&'static SamplingPreset>,
}
