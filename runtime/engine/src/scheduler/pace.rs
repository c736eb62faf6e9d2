//! An estimate of step times from recent steps.

/// Decay of an observation's weight with every later one: half after eleven.
const KEEP: f64 = 15.0 / 16.0;

/// A line through the times of recent steps: a fixed time, and a time per prefilled token. Weighted least
/// squares in which older steps weigh less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    weight: f64,
    tokens: f64,
    micros: f64,
    tokens_squared: f64,
    tokens_micros: f64,
}

impl Pace {
    /// Records the prefilled tokens and the duration in microseconds of a step.
    pub fn observe(&mut self, tokens: usize, micros: u64) {
        let (tokens, micros) = (tokens as f64, micros as f64);
        for (sum, seen) in [
            (&mut self.weight, 1.0),
            (&mut self.tokens, tokens),
            (&mut self.micros, micros),
            (&mut self.tokens_squared, tokens * tokens),
            (&mut self.tokens_micros, tokens * micros),
        ] {
            *sum = *sum * KEEP + seen;
        }
    }

    /// Microseconds of a step without prefill, and for each prefilled token; `None` before any prefill was
    /// seen.
    pub fn line(&self) -> Option<(f64, f64)> {
        let Pace { weight, tokens, micros, tokens_squared, tokens_micros } = *self;
        // Prompts of long ago have decayed to nothing: at least a token's weight must be left.
        if tokens_squared < 1.0 {
            return None;
        }
        let spread = weight * tokens_squared - tokens * tokens;
        let origin = tokens_micros / tokens_squared;
        // If all steps prefilled the same, or noise makes a negative intercept, the tokens account for all of
        // the time.
        if spread <= 1e-6 * weight * tokens_squared {
            return Some((0.0, origin));
        }
        let slope = ((weight * tokens_micros - tokens * micros) / spread).max(0.0);
        let fixed = (micros - slope * tokens) / weight;
        Some(if fixed < 0.0 { (0.0, origin) } else { (fixed, slope) })
    }

    /// Most prefilled tokens of a step that takes `micros` microseconds; unbounded before anything is known.
    pub fn fits(&self, micros: u64) -> usize {
        let Some((fixed, token)) = self.line() else { return usize::MAX };
        // A float beyond the integers becomes the largest, and one below the smallest.
        ((micros as f64 - fixed) / token.max(1e-9)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    #[test]
    fn a_line_is_found_and_followed() {
        let mut pace = Pace::default();
        assert_eq!(pace.fits(0), usize::MAX, "nothing is known");
        pace.observe(0, 5_000);
        assert_eq!(pace.fits(0), usize::MAX, "nothing is known of prompts");
        pace.observe(64, 5_000 + 64 * 100);
        let (fixed, token) = pace.line().unwrap();
        assert!((fixed - 5_000.0).abs() < 1.0 && (token - 100.0).abs() < 0.1, "{fixed} {token}");
        assert_eq!([pace.fits(5_999), pace.fits(15_010), pace.fits(4_000)], [9, 100, 0]);
        // Contexts grow: a token takes twice as long.
        for step in 0..64 {
            pace.observe(step % 3 * 32, 6_000 + (step % 3 * 32) as u64 * 200);
        }
        let (fixed, token) = pace.line().unwrap();
        assert!((fixed - 6_000.0).abs() < 60.0 && (token - 200.0).abs() < 4.0, "{fixed} {token}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_the_tokens() {
        let mut pace = Pace::default();
        (0..9).for_each(|_| pace.observe(10, 1_000));
        assert_eq!((pace.fits(500), pace.fits(1_001)), (5, 10));
        // A stall in a step without a prompt cannot make prompts free.
        let mut pace = Pace::default();
        pace.observe(100, 10_000);
        pace.observe(0, 50_000);
        assert_eq!(pace.fits(20_000), 0, "the fixed part is what such steps took");
        // Nor can prompts have taken less than nothing.
        let mut pace = Pace::default();
        pace.observe(10, 1_000);
        pace.observe(20, 4_000);
        assert!(pace.line().unwrap().0 >= 0.0);
        // Chunks of nearly the same size say nothing about other sizes: the difference is noise.
        let mut pace = Pace::default();
        pace.observe(10_000, 40_000);
        pace.observe(10_012, 10_000);
        assert!(pace.line().is_some_and(|(fixed, token)| fixed == 0.0 && token < 4.0), "{:?}", pace.line());
    }

    #[test]
    fn a_single_token_of_a_prompt_says_something() {
        let mut pace = Pace::default();
        pace.observe(1, 100);
        assert_eq!(pace.fits(1_000), 10);
        pace.observe(0, 20);
        assert_eq!(pace.fits(1_000), usize::MAX, "less than a token is left of it");
    }
}
