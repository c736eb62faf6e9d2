//! Where the state of a sequence is worth saving.

/// The positions at which a recurrent state is saved: behind full blocks, at the end of each prompt, and at
/// intervals in long sequences.
///
/// All positions count tokens from the beginning of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoints {
    /// Saves are at multiples of it; at least 1. Of a block's tokens at least, for what goes on from a state
    /// reads whole blocks.
    pub granule: usize,
    /// Tokens after which a state is saved again; at least 1.
    pub interval: usize,
}

impl SavePoints {
    /// The last position of a prompt of `prompt` tokens that can be saved so that an equal prompt can go on
    /// from it.
    pub fn turn_end(&self, prompt: usize) -> usize {
        prompt.saturating_sub(1) / self.granule * self.granule
    }

    /// Whether to save at `position`, where `saved` was saved or restored last and `prompt` tokens were there
    /// when it began.
    pub fn is_due(&self, position: usize, saved: usize, prompt: usize) -> bool {
        position > saved
            && position.is_multiple_of(self.granule)
            && (position == self.turn_end(prompt) || position - saved >= self.interval)
    }

    /// Up to which token a sequence that has `fed` of its `tokens` may be fed, so that no save of its prompt
    /// is missed.
    ///
    /// ```
    /// let points = monomorph_cache::SavePoints { granule: 16, interval: 100 };
    /// assert_eq!(points.until(0, 0, 250, 250), 112, "a hundred, rounded up");
    /// assert_eq!(points.until(112, 112, 250, 250), 224);
    /// assert_eq!(points.until(224, 224, 250, 250), 240, "the end of the prompt");
    /// assert_eq!(points.until(240, 240, 250, 250), 250);
    /// assert_eq!(points.until(250, 240, 250, 251), 251, "an answer is fed as it comes");
    /// ```
    pub fn until(&self, fed: usize, saved: usize, prompt: usize, tokens: usize) -> usize {
        let regular = (saved + self.interval).next_multiple_of(self.granule);
        let points = [regular, self.turn_end(prompt)];
        points.into_iter().filter(|&point| point > fed && point < prompt).min().unwrap_or(tokens)
    }
}
