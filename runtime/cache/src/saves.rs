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

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: SavePoints = SavePoints { granule: 16, interval: 100 };

    #[test]
    fn a_turn_ends_before_its_last_token() {
        assert_eq!([0, 1, 16, 17, 32, 33].map(|prompt| POINTS.turn_end(prompt)), [0, 0, 0, 16, 16, 32]);
    }

    #[test]
    fn states_are_saved_behind_blocks_at_the_end_of_prompts_and_at_intervals() {
        for (position, saved, prompt, due) in [
            (16, 0, 17, true),
            (16, 0, 16, false),
            (16, 0, 33, false),
            (32, 0, 33, true),
            (32, 16, 33, true),
            // No interval is over.
            (96, 0, 1_000, false),
            (112, 0, 1_000, true),
            (112, 12, 1_000, true),
            (112, 13, 1_000, false),
            // No block ends here.
            (100, 0, 1_000, false),
            (120, 0, 1_000, false),
            // It is saved.
            (32, 32, 33, false),
            (32, 48, 33, false),
            (0, 0, 1, false),
        ] {
            assert_eq!(POINTS.is_due(position, saved, prompt), due, "{position} {saved} {prompt}");
        }
    }

    #[test]
    fn a_step_feeds_up_to_the_next_save_of_the_prompt() {
        for (fed, saved, prompt, tokens, until) in [
            (0, 0, 17, 17, 16),
            (0, 0, 16, 16, 16),
            (0, 0, 300, 300, 112),
            (112, 0, 300, 300, 288),
            (112, 112, 300, 300, 224),
            (288, 288, 300, 300, 300),
            // What is generated behind the prompt is not waited for.
            (96, 0, 112, 115, 115),
            (16, 16, 17, 20, 20),
        ] {
            assert_eq!(POINTS.until(fed, saved, prompt, tokens), until, "{fed} {saved} {prompt}");
        }
    }
}
