//! `templates/cuda/lib/step.cuh`, byte for byte.

use monomorph_sampling::{MAX_TOP_LOGPROBS, Sampling};

/// Sequences (and outputs) one step may carry: MAX_SEQUENCES.
pub(crate) const MAX_SEQUENCES: usize = 128;
const MAX_TOP: usize = MAX_TOP_LOGPROBS as usize;

/// Plain numbers without gaps: they may be looked at as bytes.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding, and every bit pattern is a value.
pub(crate) unsafe trait Wire: Copy {}

/// The bytes of some values.
pub(crate) fn bytes_of<T: Wire>(values: &[T]) -> &[u8] {
    // SAFETY: no padding, by the trait's promise; the length is the slice's own.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct SequenceRow {
    pub(crate) first_token: i32,
    pub(crate) count: i32,
    pub(crate) position: i32,
    pub(crate) block_start: i32,
    /// Decode only; -1 is the id last sampled for the slot.
    pub(crate) token: i32,
    pub(crate) slot: i32,
    /// Place among the sequences that are drafted for, or -1.
    pub(crate) drafted: i32,
    /// The id after the last token, as far as it is known; -1 is the one sampled for the slot.
    pub(crate) following: i32,
}

/// How one output row is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct SamplingRow {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) repetition_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) top_k: u32,
    pub(crate) top_logprobs: i32,
    pub(crate) seed: u64,
    pub(crate) draw: u64,
    pub(crate) slot: i32,
    pub(crate) history_start: i32,
    pub(crate) history_count: i32,
    /// Where the words of its mask begin, in words from the start of the history; -1 where any id may be chosen.
    pub(crate) mask: i32,
    /// Where its biases begin, in places of 8 bytes from the start of the history.
    pub(crate) bias_start: i32,
    pub(crate) bias_count: i32,
    pub(crate) top_n_sigma: f32,
    pub(crate) reserved: i32,
}

/// What stands before the block table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) tokens: i32,
    pub(crate) sequences: i32,
    pub(crate) outputs: i32,
    /// Bytes from here to the block table.
    pub(crate) blocks_at: i32,
    pub(crate) output_rows: [i32; MAX_SEQUENCES],
    pub(crate) sequence: [SequenceRow; MAX_SEQUENCES],
    pub(crate) sampling: [SamplingRow; MAX_SEQUENCES],
}

/// One token row of a prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct TokenRow {
    pub(crate) id: i32,
    pub(crate) sequence: i32,
}

/// A token that a penalty looks at; the device's layout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Use {
    pub(crate) id: i32,
    pub(crate) generated: i32,
}

/// What is added to a logit; the device's layout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Bias {
    pub(crate) id: i32,
    pub(crate) bias: f32,
}

/// What was sampled for one output row.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SampledRow {
    pub(crate) id: i32,
    pub(crate) logprob: f32,
    pub(crate) top_count: i32,
    pub(crate) reserved: i32,
    pub(crate) top_id: [i32; MAX_TOP],
    pub(crate) top_logprob: [f32; MAX_TOP],
}

// SAFETY: 4-byte fields, or 8-byte ones at multiples of 8, without gaps: the assertions below add them up.
unsafe impl Wire for SequenceRow {}
// SAFETY: as above.
unsafe impl Wire for Header {}
// SAFETY: as above.
unsafe impl Wire for TokenRow {}
// SAFETY: as above.
unsafe impl Wire for Use {}
// SAFETY: as above.
unsafe impl Wire for Bias {}
// SAFETY: a plain number.
unsafe impl Wire for i32 {}
// SAFETY: a plain number.
unsafe impl Wire for u32 {}

const _: () = {
    assert!(size_of::<SequenceRow>() == 32);
    assert!(size_of::<SamplingRow>() == 80);
    assert!(std::mem::offset_of!(SamplingRow, seed) == 32);
    assert!(std::mem::offset_of!(SamplingRow, slot) == 48);
    assert!(size_of::<Header>() == 16 + MAX_SEQUENCES * (4 + 32 + 80));
    assert!(std::mem::offset_of!(Header, sequence) == 16 + 4 * MAX_SEQUENCES);
    assert!(size_of::<TokenRow>() == 8 && size_of::<Use>() == 8 && size_of::<Bias>() == 8);
    assert!(size_of::<SampledRow>() == 16 + 8 * MAX_TOP);
};

impl SampledRow {
    /// Reads one back.
    pub(crate) fn read(bytes: &[u8]) -> SampledRow {
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
            top_logprob: std::array::from_fn(|at| f32::from_bits(word(4 + MAX_TOP + at) as u32)),
        }
    }
}

/// For rows that nobody asked a token of: the largest logit, told to nobody.
pub(crate) const UNWANTED: SamplingRow = SamplingRow {
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    top_k: 0,
    top_logprobs: -1,
    seed: 0,
    draw: 0,
    slot: -1,
    history_start: 0,
    history_count: 0,
    mask: -1,
    bias_start: 0,
    bias_count: 0,
    top_n_sigma: 0.0,
    reserved: 0,
};

/// Of no step.
pub(crate) const NO_SEQUENCE: SequenceRow = SequenceRow {
    first_token: 0,
    count: 0,
    position: 0,
    block_start: 0,
    token: 0,
    slot: -1,
    drafted: -1,
    following: -1,
};

/// How a request is sampled at position `draw` of its random stream.
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
        history_start: 0,
        history_count: 0,
        mask: -1,
        bias_start: 0,
        bias_count: 0,
        top_n_sigma: sampling.top_n_sigma,
        reserved: 0,
    }
}
