//! A temperature that follows the entropy of each row, as DynaTemp has it (kalomaze; KoboldCpp pull request
//! 600, llama.cpp pull requests 4972 and 5352): near `temperature - range`, and no lower than 0, where the
//! model is sure, and near `temperature + range` where it is not.
//!
//! With `H` the entropy, in nats, of the row's probabilities at temperature 1 and `n` the number of tokens
//! that it has (those that neither the mask nor top-n-sigma took out), the temperature is
//!
//! ```text
//! low + (high - low) * (H / ln n)^exponent,  low = max(0, temperature - range),  high = temperature + range
//! ```
//!
//! llama.cpp filters before it takes the entropy; here filters follow the temperature, so that `n` and `H`
//! are of the whole row. A temperature of 0 stays greedy.

use crate::Sampling;
use crate::numeric::{ln, power, weight};

/// The temperature of a row whose largest logit is `best`; 0 is greedy.
pub(crate) fn temperature(logits: &[f32], best: f32, sampling: &Sampling) -> f32 {
    if !sampling.is_adaptive() {
        return sampling.temperature;
    }
    let low = (sampling.temperature - sampling.dynatemp_range).max(0.0);
    let high = sampling.temperature + sampling.dynatemp_range;
    let warmth = power(evenness(logits, best) as f32, sampling.dynatemp_exponent);
    (low + (high - low) * warmth).min(high)
}

/// The entropy of a row over the largest that so many tokens may have: from 0, where one token is certain, to
/// 1, where all are alike. 0 for a row of one token.
fn evenness(logits: &[f32], best: f32) -> f64 {
    let (mut tokens, mut total, mut below) = (0u32, 0.0, 0.0);
    for &logit in logits.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
        tokens += 1;
        let weight = f64::from(weight(logit, best, 1.0));
        total += weight;
        // Infinite logits are alike; a token that weighs nothing adds nothing, however far below it is.
        if weight > 0.0 && logit < best {
            below += weight * f64::from(best - logit);
        }
    }
    if tokens < 2 {
        return 0.0;
    }
    // Of p = w / total with w = exp(logit - best): -sum p ln p = ln total + sum p (best - logit).
    let entropy = ln(total) + below / total;
    (entropy / ln(f64::from(tokens))).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::top_n_sigma;
    use crate::sample;
    use proptest::prelude::*;

    fn adaptive(temperature: f32, range: f32, exponent: f32) -> Sampling {
        let sampling = Sampling { temperature, dynatemp_range: range, ..Sampling::default() };
        Sampling { dynatemp_exponent: exponent, ..sampling }
    }

    fn of(row: &[f32], sampling: &Sampling) -> f32 {
        temperature(row, row.iter().copied().fold(f32::NEG_INFINITY, f32::max), sampling)
    }

    /// Straight from the definition, by sorting nothing and in f64.
    fn naive(row: &[f32], sampling: &Sampling) -> f64 {
        let row: Vec<f64> = row.iter().filter(|x| **x > f32::NEG_INFINITY).map(|x| f64::from(*x)).collect();
        let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|x| (x - best).exp()).sum();
        let p = row.iter().map(|x| (x - best).exp() / total).filter(|p| *p > 0.0);
        let entropy = -p.map(|p| p * p.ln()).sum::<f64>();
        let even = if row.len() > 1 { entropy / (row.len() as f64).ln() } else { 0.0 };
        let [temperature, range, exponent] =
            [sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent].map(f64::from);
        let low = (temperature - range).max(0.0);
        low + (temperature + range - low) * even.max(0.0).powf(exponent)
    }

    /// Infinite logits share what there is: the others weigh nothing, however far below they are.
    #[test]
    fn infinite_logits_are_alike() {
        let row = [f32::INFINITY, 0.0, f32::INFINITY];
        let wanted = 2.0f64.ln() / 3.0f64.ln();
        assert!((evenness(&row, f32::INFINITY) - wanted).abs() < 1e-12);
        assert_eq!(evenness(&[f32::INFINITY, 0.0], f32::INFINITY), 0.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_the_definitions(
            row in proptest::collection::vec(
                prop_oneof![6 => -30f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(f32::NAN)], 1..400,
            ),
            base in 0.01f32..2.0, range in 0.01f32..2.0, exponent in prop_oneof![Just(1f32), 0.5f32..4.0],
        ) {
            prop_assume!(row.iter().any(|x| x.is_finite()));
            let sampling = adaptive(base, range, exponent);
            let (found, expected) = (of(&row, &sampling), naive(&row, &sampling));
            prop_assert!((f64::from(found) - expected).abs() < 2e-3, "{} and not {}", found, expected);
            let (low, high) = ((base - range).max(0.0), base + range);
            prop_assert!((low..=high).contains(&found), "{} of {}..{}", found, low, high);
        }

        /// A draw is the one at the temperature of its row, which top-n-sigma was taken out of.
        #[test]
        fn a_draw_is_the_one_at_that_temperature(
            row in proptest::collection::vec(-8f32..8.0, 1..200), top_p in prop_oneof![Just(1f32), 0.1f32..1.0],
            sigmas in prop_oneof![Just(0f32), 0.5f32..3.0], base in 0.1f32..2.0, range in 0.01f32..2.0, draw: u64,
        ) {
            let sampling = Sampling { top_p, top_n_sigma: sigmas, ..adaptive(base, range, 1.5) };
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut left = row.clone();
            if sigmas > 0.0 {
                top_n_sigma(&mut left, best, sigmas);
            }
            let plain = Sampling { temperature: of(&left, &sampling), dynatemp_range: 0.0, ..sampling.clone() };
            let id = |sampling: &Sampling| sample(&mut row.clone(), sampling, draw, &[]).id;
            prop_assert_eq!(id(&sampling), id(&plain));
        }

        /// Where one token pulls ahead, the temperature falls.
        #[test]
        fn the_surer_the_colder(
            tokens in 2usize..200, step in 0.1f32..3.0, base in 0.1f32..2.0, range in 0.1f32..2.0,
        ) {
            let sampling = adaptive(base, range, 1.0);
            let ahead = |by: f32| {
                let mut row = vec![0.0; tokens];
                row[tokens / 2] = by;
                of(&row, &sampling)
            };
            let temperatures: Vec<f32> = (0..6).map(|steps| ahead(steps as f32 * step)).collect();
            prop_assert!(temperatures.is_sorted_by(|a, b| *b <= a + 1e-5), "{:?}", temperatures);
        }
    }

    #[test]
    fn the_ends_are_those_of_the_range() {
        let sampling = adaptive(0.8, 0.5, 1.0);
        let close =
            |found: f32, wanted: f32| assert!((found - wanted).abs() < 1e-5, "{found} and not {wanted}");
        close(of(&[2.0; 50], &sampling), 1.3);
        close(of(&[2.0], &sampling), 0.3);
        close(of(&[200.0, 0.0, f32::NEG_INFINITY, f32::NAN], &sampling), 0.3);
        // Beyond the temperature the lower end is greedy.
        assert_eq!(of(&[200.0, 0.0], &adaptive(0.8, 1.0, 1.0)), 0.0);
        close(of(&[f32::INFINITY, f32::INFINITY], &sampling), 1.3);
        // Off, it is the temperature, whatever the exponent.
        assert_eq!(of(&[2.0, 1.0], &adaptive(0.8, 0.0, 3.0)), 0.8);
        assert!(!adaptive(0.0, 1.0, 1.0).is_adaptive(), "greedy stays greedy");
    }
}
