//! Answers that are drawn from rows of logits, as a device's are.

use crate::support::*;
use monomorph_engine::scripted::{Drafting, Next, Script, Scripted, Small, Tokens};
use monomorph_engine::{EngineHandle, EngineOptions, Event, Generation, Request, start};
use monomorph_sampling::{Sampling, uniform};
use std::iter::repeat_n;
use std::sync::Arc;

at_both_depths!(crowded_answers_are_what_the_sampler_draws, temperatures_follow_the_entropy);

/// Logits behind a context of so many tokens: forty tokens behind ten that are never said, nearly alike, less
/// alike, or with a favourite.
fn row(context: usize) -> Vec<f32> {
    let apart = [0.0625, 0.5, 1.25][context % 3];
    repeat_n(f32::NEG_INFINITY, 10).chain((0..40).map(|place| -apart * place as f32)).collect()
}

fn tokens() -> Tokens {
    Tokens::Rows(Arc::new(|context, _| Next::Logits(row(context.len()))))
}

/// Penalties, temperatures and seeds of all sorts, and drafts that hold or do not.
fn crowded_answers_are_what_the_sampler_draws<const STEPS: usize>() {
    let requests = requests(64);
    let script = Script { tokens: tokens(), blocks: 14, right_drafts: 0.7, ..Script::default() };
    let options = EngineOptions::new(14, 4096, 256);
    let (engine, _) = engine::<STEPS>(script.clone(), options.clone());
    let stats = crowded_answers(&engine, &requests, &tokens(), "without drafts");
    assert!(stats.preemptions > 0, "{stats:?}");
    let drafting = start(Scripted::<Drafting<Small, 2>>::new(script), options).unwrap();
    let stats = crowded_answers(&drafting, &requests, &tokens(), "with drafts");
    assert!(stats.drafts_accepted > 0, "{stats:?}");
}

/// Probabilities at a temperature, of a row whose largest logit is 0.
fn probabilities(row: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = row.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// The token of a row at a place from 0 to 1, where the tokens lie one behind the other.
fn token_at(row: &[f32], temperature: f64, place: f64) -> u32 {
    let mut end = 0.0;
    let holds = |probability: &f64| {
        end += probability;
        place < end
    };
    probabilities(row, temperature).iter().position(holds).expect("a place below 1") as u32
}

/// From the definition.
fn adapted(row: &[f32], temperature: f64, range: f64, exponent: f64) -> f64 {
    let probabilities = probabilities(row, 1.0);
    let possible: Vec<f64> = probabilities.into_iter().filter(|it| *it > 0.0).collect();
    let entropy = -possible.iter().map(|it| it * it.ln()).sum::<f64>();
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    low + (high - low) * (entropy / (possible.len() as f64).ln()).powf(exponent)
}

/// An answer's tokens with their log-probabilities.
fn told(mut generation: Generation) -> Vec<(u32, f32)> {
    let mut told = Vec::new();
    while let Some(event) = generation.blocking_recv() {
        match event {
            Event::Token(sampled) => told.push((sampled.id, sampled.logprob.expect("it is asked for"))),
            end => {
                finished(end);
            }
        }
    }
    told
}

fn temperatures_follow_the_entropy<const STEPS: usize>() {
    let script = Script { tokens: tokens(), ..Script::default() };
    check_temperatures(&engine::<STEPS>(script, EngineOptions::new(256, 4096, 256)).0);
}

#[test]
fn temperatures_follow_the_entropy_behind_drafts() {
    let script = Script { tokens: tokens(), right_drafts: 0.7, ..Script::default() };
    let model = Scripted::<Drafting<Small, 2>>::new(script);
    check_temperatures(&start(model, EngineOptions::new(256, 4096, 256)).unwrap());
}

/// Every token is the one at the temperature of its row, and its log-probability that of the row as it is.
fn check_temperatures(engine: &EngineHandle) {
    let (mut not_plain, mut not_linear) = (0, 0);
    for seed in 0..8 {
        let sampling = Sampling {
            temperature: 0.8,
            dynatemp_range: 0.6,
            dynatemp_exponent: 2.0,
            top_logprobs: Some(0),
            seed,
            ..Sampling::default()
        };
        let answer = told(engine.submit(Request { sampling, ..Request::new(vec![5], 60) }).unwrap());
        assert_eq!(answer.len(), 60);
        for (draw, (id, logprob)) in answer.into_iter().enumerate() {
            let (row, place) = (row(1 + draw), uniform(seed, draw as u64));
            assert_eq!(id, token_at(&row, adapted(&row, 0.8, 0.6, 2.0), place), "{draw} of seed {seed}");
            let exact = probabilities(&row, 1.0)[id as usize].ln();
            assert!((f64::from(logprob) - exact).abs() < 1e-4, "{logprob} and not {exact}");
            not_plain += usize::from(id != token_at(&row, 0.8, place));
            not_linear += usize::from(id != token_at(&row, adapted(&row, 0.8, 0.6, 1.0), place));
        }
    }
    // Of 480: the temperature as it stands, or another exponent, would be noticed.
    assert_eq!((not_plain, not_linear), (244, 125));
}
