//! The sampler against a naive one, and against the distribution it should draw from.

use monomorph_sampling::{
    Conditions, MAX_TOP_LOGPROBS, Sampling, TokenBias, TokenMask, TokenUse, sample, sample_within, score,
    uniform,
};
use proptest::prelude::*;

/// Everything by sorting, in f64: the probabilities after penalties, temperature and filters.
fn naive(logits: &[f32], sampling: &Sampling, history: &[TokenUse]) -> Vec<f64> {
    let mut logits: Vec<f64> =
        logits.iter().map(|&x| if x.is_nan() { f64::NEG_INFINITY } else { f64::from(x) }).collect();
    for used in history {
        let x = &mut logits[used.id as usize];
        let penalty = f64::from(sampling.repetition_penalty);
        *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        if used.generated > 0 {
            *x -= f64::from(sampling.frequency_penalty) * f64::from(used.generated)
                + f64::from(sampling.presence_penalty);
        }
    }
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if sampling.top_n_sigma > 0.0 {
        let finite: Vec<f64> = logits.iter().copied().filter(|x| x.is_finite()).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;
        let deviation =
            (finite.iter().map(|x| x * x).sum::<f64>() / finite.len() as f64 - mean * mean).max(0.0).sqrt();
        for x in &mut logits {
            // Rounding decides nothing that is this near.
            if *x < best - f64::from(sampling.top_n_sigma) * deviation - 1e-5 {
                *x = f64::NEG_INFINITY;
            }
        }
    }
    let temperature =
        if sampling.is_adaptive() { adapted(&logits, best, sampling) } else { sampling.temperature.into() };
    let mut weights: Vec<f64> = logits.iter().map(|x| ((x - best) / temperature).exp()).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k as usize);
    }
    if sampling.top_p < 1.0 {
        let total: f64 = order.iter().map(|&id| weights[id]).sum();
        let mut reached = 0.0;
        let mut keep = 0;
        for &id in &order {
            keep += 1;
            reached += weights[id];
            if reached >= f64::from(sampling.top_p) * total {
                break;
            }
        }
        order.truncate(keep);
    }
    order.retain(|&id| weights[id] >= f64::from(sampling.min_p));
    for (id, weight) in weights.iter_mut().enumerate() {
        if !order.contains(&id) {
            *weight = 0.0;
        }
    }
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// The temperature of a row that follows its entropy.
fn adapted(logits: &[f64], best: f64, sampling: &Sampling) -> f64 {
    let weights: Vec<f64> = logits.iter().filter(|x| x.is_finite()).map(|x| (x - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    let p = weights.iter().map(|weight| weight / total).filter(|p| *p > 0.0);
    let entropy = -p.map(|p| p * p.ln()).sum::<f64>();
    let even = if weights.len() > 1 { entropy / (weights.len() as f64).ln() } else { 0.0 };
    let [temperature, range, exponent] =
        [sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent].map(f64::from);
    temperature - range + 2.0 * range * even.clamp(0.0, 1.0).powf(exponent)
}

fn sampling() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

/// Logits from a coarse grid, so that ties and equal weights occur.
fn logits(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(
        prop_oneof![
            8 => (-40i32..40).prop_map(|x| x as f32 / 4.0),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
        ],
        length,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// The token drawn is the one at the same place of the naive distribution, in order of id.
    #[test]
    fn draws_as_the_naive_sampler_does(
        row in logits(1..700),
        temperature in prop_oneof![Just(0.25f32), Just(1.0), Just(1.7)],
        top_k in prop_oneof![Just(0u32), 1u32..40, 1u32..800],
        top_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
        top_n_sigma in prop_oneof![Just(0.0f32), 0.01f32..3.0],
        penalties in (0.5f32..2.0, -2.0f32..2.0, -2.0f32..2.0),
        used in proptest::collection::btree_map(0u32..700, 0u32..4, 0..5),
        seed: u64,
        draw in 0u64..100,
    ) {
        prop_assume!(row.iter().any(|x| x.is_finite()));
        let history: Vec<TokenUse> = used
            .into_iter()
            .filter(|(id, _)| (*id as usize) < row.len())
            .map(|(id, generated)| TokenUse { id, generated })
            .collect();
        let sampling = Sampling {
            temperature, top_k, top_p, min_p, top_n_sigma, seed,
            repetition_penalty: penalties.0,
            presence_penalty: penalties.1,
            frequency_penalty: penalties.2,
            top_logprobs: None,
            ..Sampling::GREEDY
        };
        let expected = naive(&row, &sampling, &history);
        let id = sample(&mut row.clone(), &sampling, draw, &history).id as usize;
        let before: f64 = expected[..id].iter().sum();
        let at = uniform(seed, draw);
        // Rounding may move a boundary of the distribution, and the edge of the nucleus by one token: both
        // show as a place that is off by far less than the weight of any token that is clearly in or out.
        let slack = 1e-5;
        let in_place = before - slack <= at && at <= before + expected[id] + slack;
        let edge = top_p < 1.0 && (0..20).any(|step| {
            let nudged = Sampling { top_p: top_p * (1.0 + (step as f32 - 10.0) * 1e-7), ..sampling.clone() };
            let expected = naive(&row, &nudged, &history);
            let before: f64 = expected[..id].iter().sum();
            before - slack <= at && at <= before + expected[id] + slack
        });
        prop_assert!(in_place || edge, "id {} at {}, whose place is {}..{}", id, at, before, before + expected[id]);
    }

    #[test]
    fn greedy_is_the_first_of_the_largest(row in logits(1..300)) {
        let id = sample(&mut row.clone(), &Sampling::default(), 0, &[]).id as usize;
        let value = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
        let best = row.iter().copied().map(value).fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(Some(id), row.iter().position(|&x| value(x) == best));
    }

    #[test]
    fn logprobs_are_those_of_the_unmodified_logits(row in logits(1..300), count in 0u8..=20) {
        prop_assume!(row.iter().any(|x| x.is_finite()));
        let plain = naive(&row, &sampling(), &[]);
        let request = Sampling { temperature: 0.3, top_k: 5, repetition_penalty: 1.5, top_logprobs: Some(count), ..sampling() };
        let history = [TokenUse { id: 0, generated: 1 }];
        let sampled = sample(&mut row.clone(), &request, 3, &history);
        let close = |found: f32, p: f64| (f64::from(found) - p.ln()).abs() < 1e-4 || found == p.ln() as f32;
        prop_assert!(close(sampled.logprob.unwrap(), plain[sampled.id as usize]));
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| plain[b].total_cmp(&plain[a]).then(a.cmp(&b)));
        order.truncate(count.into());
        prop_assert_eq!(sampled.top.iter().map(|top| top.0 as usize).collect::<Vec<_>>(), order);
        prop_assert!(sampled.top.iter().all(|top| close(top.1, plain[top.0 as usize])));
    }

    /// Any bits whatever, any parameters whatever: no panic, and an id of the row.
    #[test]
    fn never_panics(
        bits in proptest::collection::vec(any::<u32>(), 0..200),
        floats in proptest::array::uniform10(any::<f32>()),
        top_k: u32, seed: u64, draw: u64, id: u32, generated: u32, top in proptest::option::of(any::<u8>()),
    ) {
        let mut row: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let [temperature, top_p, min_p, top_n_sigma, repetition_penalty, presence_penalty, frequency_penalty, ..] = floats;
        let [.., dynatemp_range, dynatemp_exponent, bias] = floats;
        let sampling = Sampling {
            temperature, top_k, top_p, min_p, top_n_sigma, repetition_penalty, presence_penalty, frequency_penalty, seed,
            dynatemp_range, dynatemp_exponent, top_logprobs: top,
        };
        let (history, biases) = ([TokenUse { id, generated }], [TokenBias { id, bias }]);
        let conditions = Conditions { history: &history, biases: &biases, mask: None };
        let sampled = sample_within(&mut row, &sampling, draw, &conditions);
        prop_assert!((sampled.id as usize) < bits.len().max(1));
    }
}

/// Draws many times and compares frequencies with the naive probabilities.
fn assert_distribution(row: &[f32], sampling: &Sampling, history: &[TokenUse]) {
    const DRAWS: u64 = 40_000;
    let expected = naive(row, sampling, history);
    let mut counts = vec![0u32; row.len()];
    for draw in 0..DRAWS {
        counts[sample(&mut row.to_vec(), sampling, draw, history).id as usize] += 1;
    }
    let mut chi = 0.0;
    let mut degrees = -1.0f64;
    for (&count, &p) in counts.iter().zip(&expected) {
        if p == 0.0 {
            assert_eq!(count, 0, "a token that was filtered out was drawn");
            continue;
        }
        let mean = p * DRAWS as f64;
        chi += (f64::from(count) - mean).powi(2) / mean;
        degrees += 1.0;
    }
    // Five standard deviations above the mean of the chi-squared distribution.
    assert!(
        chi < degrees + 5.0 * (2.0 * degrees).sqrt(),
        "chi-squared {chi} with {degrees} degrees of freedom"
    );
}

#[test]
fn draws_follow_the_distribution() {
    let row: Vec<f32> = (0..60).map(|id| (id as f32 * 0.7).sin() * 2.0).collect();
    let history = [TokenUse { id: 3, generated: 2 }, TokenUse { id: 8, generated: 0 }];
    for seed in [1, u64::MAX] {
        let plain = Sampling { seed, ..sampling() };
        assert_distribution(&row, &plain, &[]);
        assert_distribution(&row, &Sampling { temperature: 0.6, top_k: 20, ..plain.clone() }, &[]);
        assert_distribution(&row, &Sampling { top_p: 0.8, ..plain.clone() }, &[]);
        assert_distribution(&row, &Sampling { min_p: 0.2, ..plain.clone() }, &[]);
        assert_distribution(&row, &Sampling { top_n_sigma: 1.5, top_k: 30, ..plain.clone() }, &[]);
        let adaptive = Sampling { dynatemp_range: 0.8, dynatemp_exponent: 1.5, ..plain.clone() };
        assert_distribution(&row, &Sampling { top_n_sigma: 2.0, ..adaptive }, &[]);
        let penalised =
            Sampling { repetition_penalty: 1.3, presence_penalty: 0.4, frequency_penalty: 0.2, ..plain };
        assert_distribution(&row, &penalised, &history);
    }
}

#[test]
fn a_draw_depends_on_seed_and_number_alone() {
    let row: Vec<f32> = (0..5000).map(|id| ((id * 7919) % 1000) as f32 / 100.0).collect();
    let request = Sampling { seed: 11, top_p: 0.95, ..sampling() };
    let ids = |seed| -> Vec<u32> {
        (0..50)
            .map(|draw| sample(&mut row.clone(), &Sampling { seed, ..request.clone() }, draw, &[]).id)
            .collect()
    };
    assert_eq!(ids(11), ids(11));
    assert_ne!(ids(11), ids(12));
    // Fixed for good, the same on every machine and with every compiler (computed by a script of its own).
    assert_eq!(ids(11)[..6], [4483, 1976, 3016, 3754, 778, 3323]);
}

/// Fixed for good as well, by the same script: rows whose tokens are nearly alike are drawn from warmer than
/// the temperature says, rows with a favourite colder, and an exponent above 1 is colder for all.
#[test]
fn adaptive_draws_are_fixed_too() {
    let row = |apart: f32| -> Vec<f32> { (0..40).map(|id| -apart * id as f32).collect() };
    let ids = |row: &[f32], temperature: f32, dynatemp_range: f32, dynatemp_exponent: f32| -> Vec<u32> {
        let request = Sampling { temperature, dynatemp_range, dynatemp_exponent, seed: 11, ..sampling() };
        (0..8).map(|draw| sample(&mut row.to_vec(), &request, draw, &[]).id).collect()
    };
    let (alike, favourite) = (row(0.0625), row(1.25));
    assert_eq!(ids(&alike, 1.0, 0.0, 1.0), [27, 7, 12, 18, 2, 15, 1, 13]);
    assert_eq!(ids(&alike, 1.0, 0.75, 1.0), [31, 9, 16, 23, 3, 19, 2, 17]);
    assert_eq!(ids(&alike, 1.0, 0.75, 3.0), [31, 9, 16, 22, 3, 18, 2, 16]);
    assert_eq!(ids(&alike, 0.5, 1.0, 1.0), [30, 8, 15, 21, 3, 18, 2, 16], "from 0, not from below it");
    assert_eq!(ids(&favourite, 1.0, 0.0, 1.0), [1, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(ids(&favourite, 1.0, 0.75, 1.0), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ids(&favourite, 1.0, 0.75, 3.0), [0; 8]);
}

#[test]
fn biases_come_behind_the_mask_and_before_penalties() {
    let bias = |id, bias| TokenBias { id, bias };
    let of = |row: [f32; 4], sampling: &Sampling, conditions: &Conditions<'_>| {
        sample_within(&mut row.to_vec(), sampling, 0, conditions).id
    };
    let greedy = Sampling::default();
    let none = Conditions::default();
    let biases = [bias(3, 5.0), bias(9, 100.0), bias(0, -4.0)];
    let conditions = Conditions { biases: &biases, ..none };
    assert_eq!(of([3.0, 1.0, 2.0, -1.0], &greedy, &none), 0);
    assert_eq!(of([3.0, 1.0, 2.0, -1.0], &greedy, &conditions), 3, "-1 + 5; the row has no token 9");
    // What the mask does not allow no bias brings back.
    let mask = TokenMask::of(4, [0, 1]);
    assert_eq!(of([3.0, 1.0, 2.0, -1.0], &greedy, &Conditions { mask: Some(&mask), ..conditions }), 1);
    // 3 + 5 = 8, halved to 4 by a penalty, which would have made 1.5 + 5 = 6.5 of it before.
    let history = [TokenUse { id: 3, generated: 1 }];
    let penalised = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    let conditions = Conditions { history: &history, ..conditions };
    assert_eq!(of([3.0, 1.0, 5.0, 3.0], &penalised, &conditions), 2);
    // Log-probabilities are those of the unmodified logits.
    let told = Sampling { top_logprobs: Some(1), ..Sampling::default() };
    let sampled = sample_within(&mut [3.0, 1.0, 2.0, -1.0], &told, 0, &conditions);
    assert_eq!((sampled.id, sampled.top[0].0), (3, 0));
}

/// Where the entropy leaves no warmth at all, the first of the likeliest is taken, though another is as
/// likely.
#[test]
fn adaptive_draws_without_warmth_are_greedy() {
    let mut row = vec![-50.0; 1_000];
    (row[300], row[700]) = (0.0, 0.0);
    let request = Sampling { dynatemp_range: 1.0, dynatemp_exponent: 100.0, ..sampling() };
    let ids = |request: &Sampling| -> Vec<u32> {
        (0..20).map(|draw| sample(&mut row.clone(), request, draw, &[]).id).collect()
    };
    assert_eq!(ids(&request), [300; 20]);
    assert!(ids(&Sampling { dynatemp_range: 0.5, ..request }).contains(&700), "0.5 is warm enough for both");
}

#[test]
fn a_given_token_scores_as_it_would_have_been_reported() {
    let row = [1.0, f32::NAN, 3.0, 2.0, f32::NEG_INFINITY];
    let request = Sampling { top_logprobs: Some(3), ..Sampling::default() };
    let reported = sample(&mut row.to_vec(), &request, 0, &[]);
    assert_eq!(reported.id, 2);
    assert_eq!(score(&mut row.to_vec(), 2, 3), reported);
    let total = (1f64.exp() + 2f64.exp() + 3f64.exp()).ln();
    for (id, logit) in [(0, 1.0), (2, 3.0), (3, 2.0)] {
        let scored = score(&mut row.to_vec(), id, 1);
        assert_eq!((scored.id, scored.top.len(), scored.top[0].0), (id, 1, 2));
        assert!((f64::from(scored.logprob.expect("it is asked for")) - (logit - total)).abs() < 1e-6);
    }
    for id in [1, 4, 9] {
        assert_eq!(score(&mut row.to_vec(), id, 0).logprob, Some(f32::NEG_INFINITY), "{id} cannot occur");
    }
}

#[test]
fn a_row_of_infinities_is_drawn_from_evenly() {
    let row = [f32::INFINITY, 0.0, f32::INFINITY, f32::NAN];
    let ids: Vec<u32> = (0..40).map(|draw| sample(&mut row.to_vec(), &sampling(), draw, &[]).id).collect();
    assert!(ids.iter().all(|&id| id == 0 || id == 2) && ids.contains(&0) && ids.contains(&2));
}

#[test]
fn validation_names_the_field() {
    assert_eq!(Sampling::default().validate(), Ok(()));
    let base = Sampling::default();
    let cases = [
        (Sampling { temperature: 2.5, ..base.clone() }, "temperature"),
        (Sampling { temperature: f32::NAN, ..base.clone() }, "temperature"),
        (Sampling { top_p: 0.0, ..base.clone() }, "top_p"),
        (Sampling { top_p: 1.01, ..base.clone() }, "top_p"),
        (Sampling { min_p: -0.1, ..base.clone() }, "min_p"),
        (Sampling { top_n_sigma: -0.5, ..base.clone() }, "top_n_sigma"),
        (Sampling { top_n_sigma: f32::INFINITY, ..base.clone() }, "top_n_sigma"),
        (Sampling { repetition_penalty: 0.0, ..base.clone() }, "repetition_penalty"),
        (Sampling { repetition_penalty: f32::INFINITY, ..base.clone() }, "repetition_penalty"),
        (Sampling { presence_penalty: -2.1, ..base.clone() }, "presence_penalty"),
        (Sampling { frequency_penalty: 2.1, ..base.clone() }, "frequency_penalty"),
        (Sampling { dynatemp_range: 2.1, ..base.clone() }, "dynatemp_range"),
        (Sampling { dynatemp_exponent: f32::NAN, ..base.clone() }, "dynatemp_exponent"),
        (Sampling { top_logprobs: Some(MAX_TOP_LOGPROBS + 1), ..base.clone() }, "top_logprobs"),
    ];
    for (sampling, field) in cases {
        assert_eq!(sampling.validate().map_err(|error| error.0), Err(field));
    }
}

#[test]
fn what_a_sampler_needs_to_know_follows_from_what_is_asked_for() {
    let plain = Sampling { temperature: 1.0, ..Sampling::default() };
    assert!(!plain.needs_history() && !plain.is_adaptive());
    for penalised in [
        Sampling { repetition_penalty: 1.1, ..plain.clone() },
        Sampling { presence_penalty: 0.5, ..plain.clone() },
        Sampling { frequency_penalty: -0.5, ..plain.clone() },
    ] {
        assert!(penalised.needs_history());
    }
    let adaptive = Sampling { dynatemp_range: 0.5, ..plain };
    assert!(adaptive.is_adaptive());
    assert!(!Sampling { temperature: 0.0, ..adaptive }.is_adaptive());
}
