//! A model that verifies what the engine looks up: the same answers in fewer steps where text comes again,
//! and plain steps where it does not.
//!
//! Planted, one at a time, and caught: an answer's own tokens that are not learned, and a model that samples
//! behind drafts at the place of the random stream before them (`what_is_said_again_…` and others); the last
//! token wanted drafted for (`an_end_is_…`); blocks of a sequence without drafts that end with its token (the
//! scripted model, in `crowded_answers_…` and others). Drafts that outlive a pre-emption are caught by the
//! walks of `forward/walk.rs` only.

use crate::support::*;
use monomorph_engine::scripted::{Breach, Controls, Script, Scripted, Shape, Small, Tokens, Verifying};
use monomorph_engine::{EngineHandle, EngineOptions, FinishReason, LookupOptions, Request, start};
use std::sync::Arc;

fn verifying<const DRAFTS: usize>(script: Script) -> (EngineHandle, Controls) {
    let options = EngineOptions::new(script.blocks, 4096, 256);
    let model = Scripted::<Verifying<Small, DRAFTS>>::new(script);
    let controls = model.controls();
    (start(model, options).unwrap(), controls)
}

/// Tokens that mostly follow from the one before, and now and then from how many were said.
fn phrases() -> Tokens {
    Tokens::Function(Arc::new(|context, draw| {
        let last = *context.last().expect("a prompt has tokens");
        if (draw + u64::from(last)).is_multiple_of(11) {
            3 + (draw % 40) as u32
        } else {
            3 + (last * 7 + 5) % 23
        }
    }))
}

fn crowded_answers_equal_plain_lone_ones<const DRAFTS: usize>() {
    let requests = requests(64);
    for (blocks, crowded) in [(256, false), (14, true)] {
        let (engine, _) = verifying::<DRAFTS>(Script { tokens: phrases(), blocks, ..Script::default() });
        let stats = crowded_answers(&engine, &requests, &phrases(), &format!("{DRAFTS} drafts"));
        assert_eq!(stats.preemptions > 0, crowded, "{stats:?}");
        let (verified, accepted) = (stats.drafts_verified, stats.drafts_accepted);
        assert!(verified > 200 && verified / 8 < accepted && accepted < verified, "{stats:?}");
    }
}

#[test]
fn crowded_answers_equal_plain_lone_ones_with_one_draft() {
    crowded_answers_equal_plain_lone_ones::<1>();
}

#[test]
fn crowded_answers_equal_plain_lone_ones_with_four_drafts() {
    crowded_answers_equal_plain_lone_ones::<4>();
}

#[test]
fn what_is_said_again_is_said_in_fewer_steps() {
    let says: Vec<u32> = [5, 6, 7, 8, 9, 10, 11, 12].repeat(4);
    let tokens = Tokens::Fixed(says.clone());
    let (engine, controls) = verifying::<3>(Script { tokens, ..Script::default() });
    let (ids, _) = answer(engine.submit(Request::new(vec![3], says.len())).unwrap());
    assert_eq!(ids, says);
    // The first eight, and two of the same again, a token a step; then four a step, the last of which has two
    // left to give.
    assert_eq!((controls.steps(), engine.stats().drafts_accepted), (10 + 6, 16 + 1));
    // What the prompt says is as good; the first step gives one token.
    let before = controls.steps();
    let (ids, _) = answer(engine.submit(Request::new(vec![5, 6, 7, 8, 9, 10, 11, 12, 4], 8)).unwrap());
    assert_eq!((ids.as_slice(), controls.steps() - before), (&says[..8], 2 + 2));
}

#[test]
fn where_nothing_comes_again_nothing_is_drafted() {
    let tokens = Tokens::Function(Arc::new(|context, _| 3 + context.len() as u32));
    let (engine, controls) = verifying::<3>(Script { tokens, ..Script::default() });
    let (ids, _) = answer(engine.submit(Request::new(vec![1, 2], 50)).unwrap());
    assert_eq!((ids.len(), controls.steps(), engine.stats().drafts_verified), (50, 50, 0));
}

#[test]
fn an_end_is_where_it_would_be_and_nothing_is_drafted_for_the_last_token() {
    let tokens = Tokens::Fixed(vec![5, 6, 7, 8, 5, 6, 7, 8]);
    let (engine, controls) = verifying::<3>(Script { tokens, ..Script::default() });
    let ask = |request: Request| {
        let before = controls.steps();
        let (ids, end) = answer(engine.submit(request).unwrap());
        (ids.len(), finished(end).reason, controls.steps() - before)
    };
    let (stop, length) = (FinishReason::Stop { id: 2 }, FinishReason::Length);
    // Behind the second 6 the drafts are 7, 8 and 5; the stop id is in the place of the last of them.
    assert_eq!(ask(Request::new(vec![3], 20)), (8, stop, 7));
    let stops = Request { stop_ids: vec![8], ..Request::new(vec![3, 8], 20) };
    assert_eq!(ask(stops), (3, FinishReason::Stop { id: 8 }, 4));
    assert_eq!(ask(Request::new(vec![3], 8)), (8, length, 7));
    let verified = engine.stats().drafts_verified;
    assert_eq!(ask(Request::new(vec![3], 7)), (7, length, 7));
    assert_eq!(engine.stats().drafts_verified, verified, "one token is wanted behind the second 6");
}

#[test]
fn the_context_is_less_by_what_is_verified() {
    let spec = Verifying::<Small, 3>::SPEC;
    assert_eq!((spec.drafts(), spec.drafted(), spec.reach(), spec.usable_context()), (3, 0, 3, 4093));
    assert_eq!((spec.ahead(0), spec.ahead(3)), (3, 0));
    let tokens = || Tokens::Function(Arc::new(|_, _| 7));
    for (blocks, context) in [(300, 4093), (4, 61)] {
        let script = Script { tokens: tokens(), blocks, ..Script::default() };
        let model = Scripted::<Verifying<Small, 3>>::new(script);
        let engine = start(model, EngineOptions::new(blocks, 9999, 256)).unwrap();
        assert_eq!(engine.context(), context);
        for room in 1..=9 {
            let request = Request::new(vec![7; context - room], 100);
            let (ids, end) = answer(engine.submit(request).unwrap());
            assert_eq!((ids.len(), finished(end).reason), (room, FinishReason::Length));
        }
    }
}

#[test]
fn options_that_look_nothing_up_are_refused() {
    let lookup = LookupOptions { most: 2, least: 3 };
    let model = Scripted::<Verifying<Small, 3>>::new(Script::default());
    let error =
        start(model, EngineOptions { lookup, ..EngineOptions::new(256, 4096, 256) }).unwrap_err().to_string();
    assert!(error.contains("n-grams of 3 to 2 tokens"), "{error}");
}

#[test]
fn breaches_of_the_contract_are_named() {
    for (breach, word) in [
        (Breach::AcceptsTooMany, "accepted 4 drafts in row 0, which was fed 3"),
        (Breach::SamplesNothing, "row 0 asked the model for a sampled token"),
        (Breach::SamplesStranger, "sampled token 49152 of a vocabulary of 49152 in row 0"),
        (Breach::DraftsTooMany, "drafted 1 tokens in row 0, and 0 are due"),
        (Breach::DoesNotVerify, "row 0 asked the model for verified drafts and got a sampled token"),
    ] {
        let tokens = Tokens::Function(Arc::new(|_, _| 7));
        let (engine, controls) = verifying::<3>(Script { tokens, ..Script::default() });
        controls.breach_next(breach);
        check_fault(&engine, vec![7; 3], &format!("{breach:?}"), word);
    }
}
