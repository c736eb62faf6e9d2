//! What a compiled model bounds in requests.

use monomorph_sampling::Sampling;

/// What requests are checked against.
#[derive(Clone, Debug)]
pub(crate) struct RequestLimits {
    /// Longest sequence in tokens, prompt and answer.
    pub(crate) context: usize,
    /// Ids below this one exist.
    pub(crate) vocabulary: usize,
    /// Whether a GPU samples.
    pub(crate) on_gpu: bool,
    /// Whether the model takes images.
    pub(crate) images: bool,
    /// Sampling parameters of a request that names none.
    pub(crate) sampling: Sampling,
}
