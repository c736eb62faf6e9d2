//! Stop strings in a stream of text.

/// Finds stop strings in text that arrives in pieces, holding back only text that could begin one.
///
/// The stream stops where the first stop string is complete (if several end at the same place, the longest
/// counts), which does not depend on how the text was split into pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    /// Each with its index as given.
    stops: Vec<(usize, String)>,
    /// Text not yet emitted: the beginning of a stop string.
    held: String,
}

/// The result of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopOutput {
    /// Emit this text (it may be empty); no stop string was found.
    Emit(String),
    /// A stop string is complete.
    Stopped {
        /// The text before it that was not emitted yet.
        before: String,
        /// The index of the stop string in the list given to [`StopMatcher::new`].
        which: usize,
    },
}

impl StopMatcher {
    /// A matcher for these strings. Empty ones never match; callers should reject them.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        let stops = stops.into_iter().enumerate().filter(|(_, stop)| !stop.is_empty()).collect();
        StopMatcher { stops, held: String::new() }
    }

    /// Consumes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stops.is_empty() {
            return StopOutput::Emit(text.to_owned());
        }
        let mut text = std::mem::take(&mut self.held) + text;
        let first = self
            .stops
            .iter()
            .filter_map(|(index, stop)| {
                text.find(stop.as_str()).map(|start| (start + stop.len(), start, *index))
            })
            // Earliest end, then earliest start, then first in the list.
            .min();
        if let Some((_, start, which)) = first {
            text.truncate(start);
            return StopOutput::Stopped { before: text, which };
        }
        let held = self.stops.iter().map(|(_, stop)| beginning_at_end(&text, stop)).max().unwrap_or(0);
        self.held = text.split_off(text.len() - held);
        StopOutput::Emit(text)
    }

    /// Ends the text; returns the text held back, which began no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `stop`.
fn beginning_at_end(text: &str, stop: &str) -> usize {
    // `stop` begins with a whole character, so a matching suffix of `text` begins at one too.
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&length| text.as_bytes().ends_with(&stop.as_bytes()[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[String], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.to_vec());
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                StopOutput::Emit(text) => out += &text,
                StopOutput::Stopped { before, which } => return (out + &before, Some(which)),
            }
        }
        (out + &matcher.finish(), None)
    }

    /// Byte by byte: the first position where any stop string ends.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let ended = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes()))
                .max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)));
            if let Some((index, stop)) = ended {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn equals_naive_search_however_it_is_cut(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..20),
            stops in proptest::collection::vec("[abé]{0,5}", 0..4),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), naive(&stops, &pieces.concat()));
        }

        /// Only the beginning of a stop string is held back: text is never delayed needlessly.
        #[test]
        fn holds_back_only_beginnings(pieces in proptest::collection::vec("[abé]{0,4}", 0..20), stop in "[abé]{1,5}") {
            let mut matcher = StopMatcher::new(vec![stop.clone()]);
            for piece in pieces {
                if matches!(matcher.push(&piece), StopOutput::Stopped { .. }) {
                    break;
                }
                prop_assert!(matcher.held.len() < stop.len() && stop.starts_with(&matcher.held));
            }
        }
    }

    #[test]
    fn the_longest_of_those_that_end_together() {
        let stops = ["b".to_owned(), "ab".to_owned()];
        assert_eq!(run(&stops, &["xa", "b", "c"]), ("x".to_owned(), Some(1)));
        assert_eq!(run(&[], &["x", "y"]), ("xy".to_owned(), None));
    }
}
