//! Calls of a model as they are sent: whole numbers and lists of them, so that two are equal or are not.

use monomorph_sampling::{Sampled, Sampling, TokenBias, TokenMask, TokenUse};
use std::sync::Arc;

/// A call of [`Model`](monomorph_model::Model) that every process of a world makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Start a step.
    Submit(StepCall),
    /// Bind what the last step is sampled by: of each row that samples, in their order.
    Sample(Vec<SampledBy>),
    /// Wait for the step that the command of this number submitted. Answered.
    Collect(u64),
    /// Write blocks to a place on disk. Answered.
    Offload {
        /// A whole group of them.
        blocks: Vec<u32>,
        /// The place.
        to: u32,
    },
    /// Read this process's part of a block. Answered.
    ReadBlock(u32),
    /// Write what was read, of which each process may have a part.
    WriteBlock(u32, Vec<u8>),
    /// Read this process's part of a block of layers with a sliding window. Answered.
    ReadSliding(u32),
    /// Write what was read, of which each process may have a part.
    WriteSliding(u32, Vec<u8>),
    /// Read this process's part of a recurrent state. Answered.
    ReadState(Place),
    /// Write what was read, of which each process may have a part.
    WriteState(Place, Vec<u8>),
}

impl Call {
    /// Whether the caller waits for an answer.
    pub fn is_answered(&self) -> bool {
        match self {
            Call::Collect(_) | Call::Offload { .. } => true,
            Call::ReadBlock(_) | Call::ReadSliding(_) | Call::ReadState(_) => true,
            Call::Submit(_) | Call::Sample(_) => false,
            Call::WriteBlock(..) | Call::WriteSliding(..) | Call::WriteState(..) => false,
        }
    }
}

/// Where a recurrent state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The one of a slot.
    Slot(u32),
    /// A saved one.
    Snapshot(u32),
}

/// A step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepCall {
    /// Copies of states: from, to.
    pub copies: Vec<(Place, Place)>,
    /// Places on disk of groups of blocks.
    pub offloaded: Vec<u32>,
    /// Whether a [`Call::Sample`] follows.
    pub sampling_follows: bool,
    /// A row a sequence.
    pub rows: Vec<Row>,
}

/// A sequence's part of a step: what the receiver does not hold already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Which slot it runs in.
    pub slot: u32,
    /// Sequences that began in the slot so far, this one included.
    pub generation: u64,
    /// Tokens already cached.
    pub position: u64,
    /// Whether it begins in the slot.
    pub begins: bool,
    /// What it is fed.
    pub tokens: Feed,
    /// How many of the last tokens are drafts.
    pub drafts: u32,
    /// Whether everything from `position` on was generated.
    pub generated: bool,
    /// The token after the last.
    pub following: Option<u32>,
    /// How many of the blocks of the slot's last row stay, from the first on.
    pub kept: u32,
    /// The blocks behind those.
    pub added: Vec<u32>,
    /// Of a model with a sliding window, which of its blocks is the first that layers with one still read,
    /// and theirs from there on.
    pub sliding: Option<(u64, Vec<u32>)>,
    /// What it returns.
    pub output: Want,
}

/// Tokens of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Feed {
    /// The one sampled last.
    Sampled,
    /// Known ids.
    Known(Vec<u32>),
}

impl Feed {
    /// Number of tokens.
    pub fn count(&self) -> usize {
        match self {
            Feed::Sampled => 1,
            Feed::Known(ids) => ids.len(),
        }
    }
}

/// What a row returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// Nothing is returned.
    None,
    /// All logits.
    Logits,
    /// A token, the one of this number of its random stream.
    Sample(u64, SampledBy),
}

/// What a row is sampled by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampledBy {
    /// Its parameters.
    pub sampling: SamplingBits,
    /// Tokens seen and how often each was generated.
    pub history: Vec<(u32, u32)>,
    /// Ids and the bits of what is added to their logits.
    pub biases: Vec<Vec<(u32, u32)>>,
    /// Which ids may be sampled.
    pub masks: Vec<Mask>,
}

/// Sampling parameters, real numbers as their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SamplingBits {
    /// Temperature, `top_p`, `min_p`, `top_n_sigma`, repetition, presence and frequency penalties,
    /// `dynatemp_range`, `dynatemp_exponent`.
    pub reals: [u32; 9],
    /// Parameter `top_k`.
    pub top_k: u32,
    /// Seed of the random stream.
    pub seed: u64,
    /// How many alternatives are reported.
    pub top_logprobs: Option<u8>,
}

impl Default for SamplingBits {
    fn default() -> SamplingBits {
        SamplingBits::from(&Sampling::default())
    }
}

impl From<&Sampling> for SamplingBits {
    fn from(from: &Sampling) -> SamplingBits {
        // Named one by one: a parameter that is added does not compile until it is sent.
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            top_n_sigma,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            dynatemp_range,
            dynatemp_exponent,
            seed,
            top_logprobs,
        } = *from;
        let reals = [
            temperature,
            top_p,
            min_p,
            top_n_sigma,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            dynatemp_range,
            dynatemp_exponent,
        ];
        SamplingBits { reals: reals.map(f32::to_bits), top_k, seed, top_logprobs }
    }
}

impl From<SamplingBits> for Sampling {
    fn from(from: SamplingBits) -> Sampling {
        let SamplingBits { reals, top_k, seed, top_logprobs } = from;
        let [
            temperature,
            top_p,
            min_p,
            top_n_sigma,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            dynatemp_range,
            dynatemp_exponent,
        ] = reals.map(f32::from_bits);
        Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            top_n_sigma,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            dynatemp_range,
            dynatemp_exponent,
            seed,
            top_logprobs,
        }
    }
}

/// The words of a mask, in runs: most words of most masks have all bits set or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask(pub Vec<Run>);

/// Words of a mask that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// So many words that allow nothing.
    Nothing(u32),
    /// So many words that allow all.
    All(u32),
    /// These words.
    Words(Vec<u32>),
}

impl From<&TokenMask> for Mask {
    fn from(mask: &TokenMask) -> Mask {
        let mut runs: Vec<Run> = Vec::new();
        for &word in mask.words() {
            match (word, runs.last_mut()) {
                (0, Some(Run::Nothing(count))) | (u32::MAX, Some(Run::All(count))) => *count += 1,
                (0, _) => runs.push(Run::Nothing(1)),
                (u32::MAX, _) => runs.push(Run::All(1)),
                (_, Some(Run::Words(words))) => words.push(word),
                _ => runs.push(Run::Words(vec![word])),
            }
        }
        Mask(runs)
    }
}

impl Mask {
    /// The mask, which must have so many words.
    ///
    /// # Errors
    /// When it has another number of them.
    pub fn expand(&self, words: usize) -> Result<TokenMask, String> {
        let length = |run: &Run| match run {
            Run::Nothing(count) | Run::All(count) => *count as usize,
            Run::Words(words) => words.len(),
        };
        // Before anything is claimed for them.
        let told = self.0.iter().map(length).fold(0usize, usize::saturating_add);
        if told != words {
            return Err(format!("a mask has {told} words, and the vocabulary takes {words}"));
        }
        let mut all = Vec::with_capacity(words);
        for run in &self.0 {
            match run {
                Run::Nothing(count) => all.resize(all.len() + *count as usize, 0),
                Run::All(count) => all.resize(all.len() + *count as usize, u32::MAX),
                Run::Words(words) => all.extend_from_slice(words),
            }
        }
        Ok(TokenMask::new(all))
    }
}

/// Biases as their ids and bits.
pub(crate) fn bias_bits(biases: &[TokenBias]) -> Vec<(u32, u32)> {
    biases.iter().map(|one| (one.id, one.bias.to_bits())).collect()
}

/// The biases of these bits.
pub(crate) fn biases(bits: &[(u32, u32)]) -> Arc<[TokenBias]> {
    bits.iter().map(|&(id, bias)| TokenBias { id, bias: f32::from_bits(bias) }).collect()
}

/// A history as pairs.
pub(crate) fn history_pairs(history: &[TokenUse]) -> Vec<(u32, u32)> {
    history.iter().map(|one| (one.id, one.generated)).collect()
}

/// The history of these pairs.
pub(crate) fn history(pairs: &[(u32, u32)]) -> Vec<TokenUse> {
    pairs.iter().map(|&(id, generated)| TokenUse { id, generated }).collect()
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// What a step produced, row by row.
    Collected(Vec<RowAnswer>),
    /// Whether blocks were written to disk.
    Offloaded(Result<(), String>),
    /// What was read of this process's part.
    Bytes(Vec<u8>),
}

/// What a step produced for one sequence, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowAnswer {
    /// Nothing was asked for.
    None,
    /// A token.
    Sampled(u32),
    /// Verified drafts: what was sampled and what was drafted.
    Verified(Vec<u32>, Vec<u32>),
    /// A digest of the bits of all logits.
    Logits(u64),
    /// The row is lost.
    Lost,
}

impl RowAnswer {
    /// [`RowAnswer::Verified`] of these.
    pub(crate) fn verified(sampled: &[Sampled], drafts: &[u32]) -> RowAnswer {
        RowAnswer::Verified(sampled.iter().map(|one| one.id).collect(), drafts.to_vec())
    }
}

/// FNV-1a over 64-bit words: equal contents give equal digests, and a difference is all but never missed.
pub(crate) fn digest(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xCBF2_9CE4_8422_2325, |hash: u64, word| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        hash ^ (hash >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_comes_back_from_its_runs() {
        for vocabulary in [1usize, 31, 32, 33, 100, 1000] {
            for step in [1usize, 2, 7, 200, 5000] {
                let ids = (0..vocabulary as u32).filter(|id| !(*id as usize / 64).is_multiple_of(step));
                let mask = TokenMask::of(vocabulary, ids);
                let words = TokenMask::words_for(vocabulary);
                assert_eq!(Mask::from(&mask).expand(words).unwrap(), mask, "{vocabulary} {step}");
                assert!(Mask::from(&mask).expand(words + 1).is_err());
            }
        }
        let huge = Mask(vec![Run::All(u32::MAX), Run::All(u32::MAX)]);
        assert_eq!(huge.expand(4).unwrap_err(), "a mask has 8589934590 words, and the vocabulary takes 4");
    }

    #[test]
    fn sampling_parameters_come_back_from_their_bits() {
        let all = Sampling {
            temperature: 0.1,
            top_k: 2,
            top_p: 0.3,
            min_p: 0.4,
            top_n_sigma: 0.5,
            repetition_penalty: 0.6,
            presence_penalty: -0.7,
            frequency_penalty: 0.8,
            dynatemp_range: 0.9,
            dynatemp_exponent: 1.1,
            seed: u64::MAX,
            top_logprobs: Some(3),
        };
        assert_eq!(Sampling::from(SamplingBits::from(&all)), all);
        assert_eq!(Sampling::from(SamplingBits::default()), Sampling::default());
    }
}
