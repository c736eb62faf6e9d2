//! Encodes sampling requests for the header of a step, and decodes sampled rows.

use monomorph_abi::step::{MAX_TOP_LOGPROBS, SampledRow, SamplingRow};
use monomorph_sampling::Sampling;

/// Decodes the sampled row of an output row.
pub(crate) fn read_sampled(bytes: &[u8]) -> SampledRow {
    let word = |at: usize| {
        let bytes = bytes[4 * at..][..4].try_into().unwrap_or_default();
        i32::from_le_bytes(bytes)
    };
    SampledRow {
        id: word(0),
        logprob: f32::from_bits(word(1) as u32),
        top_count: word(2),
        reserved: 0,
        top_id: std::array::from_fn(|at| word(4 + at)),
        top_logprob: std::array::from_fn(|at| f32::from_bits(word(4 + MAX_TOP_LOGPROBS + at) as u32)),
    }
}

/// The sampling inputs of a request at position `draw` of its random stream.
pub(crate) fn sampling_row(sampling: &Sampling, draw: u64, slot: usize) -> SamplingRow {
    SamplingRow {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        top_k: sampling.top_k,
        top_logprobs: sampling.top_logprobs.map_or(-1, i32::from),
        seed: sampling.seed,
        draw,
        slot: slot as i32,
        top_n_sigma: sampling.top_n_sigma,
        ..SamplingRow::GREEDY
    }
}
