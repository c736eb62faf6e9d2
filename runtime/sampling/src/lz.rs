//! A penalty on repetition by compression, after the LZ penalty of Ginart et al. ("LZ Penalty: An
//! information-theoretic repetition penalty for autoregressive language models", 2025, arXiv 2504.20131): a
//! token loses a part of what an LZ77 coder would save on it, so that what is left is drawn from what the
//! coder does not foresee.

use crate::numeric::ln;
use crate::repeats::common_prefixes;

/// Most tokens that are searched.
pub const MAX_LZ_WINDOW: usize = 1024;

/// What a token costs after a text, in nats, with `V` tokens in the vocabulary and the last `W` tokens of the
/// text to point at:
///
/// * one that followed the last `n >= 1` tokens earlier makes the coder's match one longer:
///   `ln((n + 1) / n)`;
/// * another that the text has begins a match: `ln W`, of its place;
/// * one that it has not is written out: `ln V`.
///
/// Its logit loses `strength` times what that is below `ln V`.
#[derive(Clone, Debug)]
pub struct Lz {
    /// Above 0; the paper's is 0.15.
    pub strength: f32,
    /// `W`, at most [`MAX_LZ_WINDOW`]; the paper's is 512.
    pub window: usize,
    /// `V`, which must be above 0.
    pub vocabulary: usize,
}

impl Lz {
    /// What tokens lose after `tokens`, each id once, in order; at most [`MAX_LZ_WINDOW`] of them.
    pub(crate) fn losses(&self, tokens: &[u32]) -> Vec<(u32, f32)> {
        let window = self.window.min(MAX_LZ_WINDOW);
        let text = &tokens[tokens.len() - window.min(tokens.len())..];
        let backwards: Vec<u32> = text.iter().rev().copied().collect();
        let matches = common_prefixes(&backwards);
        // Of each token the longest match that it followed.
        let followed = |at: usize| matches.get(at + 1).copied().unwrap_or(0);
        let mut longest: Vec<(u32, usize)> =
            backwards.iter().enumerate().map(|(at, id)| (*id, followed(at))).collect();
        longest.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        longest.dedup_by_key(|(id, _)| *id);
        let written = ln(self.vocabulary as f64);
        let loss = |length: usize| {
            let cost = match length {
                0 => ln(window as f64),
                length => ln((length + 1) as f64) - ln(length as f64),
            };
            (f64::from(self.strength) * (written - cost).max(0.0)) as f32
        };
        longest.into_iter().map(|(id, length)| (id, loss(length))).filter(|(_, loss)| *loss > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lz(window: usize, vocabulary: usize) -> Lz {
        Lz { strength: 0.5, window, vocabulary }
    }

    /// Straight from the definition: for every token of the text, each length that it followed.
    fn by_definition(lz: &Lz, tokens: &[u32]) -> Vec<(u32, f64)> {
        let text = &tokens[tokens.len() - lz.window.min(tokens.len())..];
        let losses = (0..lz.vocabulary as u32).filter(|id| text.contains(id)).map(|id| {
            let follows = |length: &usize| {
                let again = [&text[text.len() - length..], &[id]].concat();
                text.windows(length + 1).any(|part| part == again)
            };
            let cost = match (1..text.len()).filter(follows).max() {
                Some(length) => ((length + 1) as f64 / length as f64).ln(),
                None => (lz.window as f64).ln(),
            };
            (id, f64::from(lz.strength) * ((lz.vocabulary as f64).ln() - cost))
        });
        losses.filter(|(_, loss)| *loss > 1e-9).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_the_definitions(
            (vocabulary, tokens) in (2u32..9).prop_flat_map(|most| {
                (Just(most), proptest::collection::vec(0..most, 0..40))
            }),
            window in prop_oneof![Just(MAX_LZ_WINDOW), 1usize..30],
        ) {
            let lz = lz(window, vocabulary as usize);
            let (found, expected) = (lz.losses(&tokens), by_definition(&lz, &tokens));
            let found: Vec<(u32, f32)> = found.into_iter().filter(|(_, loss)| *loss > 1e-9).collect();
            prop_assert_eq!(found.len(), expected.len(), "{:?} and not {:?}", found, expected);
            for ((id, loss), (expected_id, expected)) in found.into_iter().zip(expected) {
                prop_assert_eq!(id, expected_id);
                prop_assert!((f64::from(loss) - expected).abs() < 1e-5, "{} loses {} and not {}", id, loss, expected);
            }
        }

        /// What goes on with a cycle loses the more the longer it has gone on, and most of all tokens.
        #[test]
        fn what_goes_round_is_worn_out(length in 2usize..12, turns in 2usize..12) {
            let lz = lz(512, 1000);
            let cycle: Vec<u32> = (0..length * turns).map(|at| (at % length) as u32).collect();
            let of_next = |tokens: &[u32]| {
                let losses = lz.losses(tokens);
                let next = losses.iter().find(|(id, _)| *id == 0).expect("it was seen").1;
                (next, losses.iter().filter(|(id, _)| *id != 0).map(|(_, loss)| *loss).fold(0.0, f32::max))
            };
            let ((now, others), (later, _)) = (of_next(&cycle), of_next(&[&cycle[..], &cycle[..]].concat()));
            prop_assert!(now > others && later > now, "{} {} {}", now, others, later);
        }
    }

    #[test]
    fn the_costs_are_those_of_the_definition() {
        assert_eq!(lz(512, 100).losses(&[]), []);
        let loss = |cost: f64| (0.5 * (100f64.ln() - cost)) as f32;
        // 9 followed 7 8, and 8 followed no 8: it begins a match, as 7 does.
        let found = lz(10, 100).losses(&[7, 8, 9, 7, 8]);
        let wanted = [(7, loss(10f64.ln())), (8, loss(10f64.ln())), (9, loss(1.5f64.ln()))];
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for ((id, loss), (wanted_id, wanted)) in found.into_iter().zip(wanted) {
            assert_eq!(id, wanted_id);
            assert!((loss - wanted).abs() < 1e-6, "{id}: {loss} and not {wanted}");
        }
        // Where there are as many places as tokens, to begin a match saves nothing.
        assert_eq!(lz(512, 100).losses(&[5, 6, 7, 8]), []);
        // What is outside the window is not seen.
        assert_eq!(lz(2, 100).losses(&[7, 8, 9, 7, 8]).len(), 2);
    }
}
