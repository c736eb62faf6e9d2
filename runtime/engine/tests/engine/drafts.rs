//! A model that drafts: the same answers in fewer steps, and no step from an answer that breaks the contract.

use crate::support::*;
use monomorph_engine::scripted::{
    Breach, Controls, Drafting, Script, Scripted, Shape, Skipping, Small, Tokens,
};
use monomorph_engine::{EngineHandle, EngineOptions, FinishReason, Request, SubmitError, start};
use monomorph_model::ModelSpec;

fn drafting<const DRAFTS: usize>(
    script: Script,
    options: EngineOptions,
) -> (EngineHandle, Controls, &'static ModelSpec) {
    let model = Scripted::<Drafting<Small, DRAFTS>>::new(script);
    let controls = model.controls();
    (start(model, options).unwrap(), controls, Drafting::<Small, DRAFTS>::SPEC)
}

fn crowded_answers_equal_plain_lone_ones<const DRAFTS: usize>() {
    let requests = requests(64);
    for (blocks, crowded) in [(256, false), (14, true)] {
        let script = Script { blocks, right_drafts: 0.7, ..Script::default() };
        let (engine, ..) = drafting::<DRAFTS>(script, EngineOptions::new(blocks, 4096, 256));
        let stats = crowded_answers(&engine, &requests, &Tokens::Hash, &format!("{DRAFTS} drafts"));
        assert_eq!(stats.preemptions > 0, crowded, "{stats:?}");
        assert!(stats.drafts_accepted > stats.drafts_verified / 4, "{stats:?}");
    }
}

#[test]
fn crowded_answers_equal_plain_lone_ones_with_one_draft() {
    crowded_answers_equal_plain_lone_ones::<1>();
}

#[test]
fn crowded_answers_equal_plain_lone_ones_with_two_drafts() {
    crowded_answers_equal_plain_lone_ones::<2>();
}

#[test]
fn crowded_answers_equal_plain_lone_ones_with_three_drafts() {
    crowded_answers_equal_plain_lone_ones::<3>();
}

#[test]
fn answers_end_between_drafts_that_hold() {
    let tokens = Tokens::Fixed(vec![7, 8, 9, 10, 11]);
    let script = Script { tokens, blocks: 4, right_drafts: 1.0, ..Script::default() };
    let (engine, controls, _) = drafting::<3>(script, EngineOptions::new(4, 40, 8));
    let ask = |request: Request| {
        let before = controls.steps();
        let (ids, end) = answer(engine.submit(request).unwrap());
        let end = finished(end);
        (ids, end.reason, end.generated_tokens, controls.steps() - before)
    };
    // One token after the prompt, then four a step: 8, 9, 10, 11, and behind them the stop id.
    let (stop, length) = (FinishReason::Stop { id: 2 }, FinishReason::Length);
    assert_eq!(ask(Request::new(vec![5], 20)), (vec![7, 8, 9, 10, 11], stop, 6, 3));
    let stops = Request { stop_ids: vec![9], ..Request::new(vec![5], 20) };
    assert_eq!(ask(stops), (vec![7, 8], FinishReason::Stop { id: 9 }, 3, 2));
    assert_eq!(ask(Request::new(vec![5], 3)), (vec![7, 8, 9], length, 3, 2));
    assert_eq!(ask(Request::new(vec![5], 1)), (vec![7], length, 1, 1));
    let stats = engine.stats();
    assert_eq!(stats.tokens_generated, 6 + 3 + 3 + 1);
    assert_eq!((stats.drafts_verified, stats.drafts_accepted), (12, 12), "all held, some behind an end");
}

#[test]
fn the_context_is_less_by_what_drafts_reach() {
    let spec = Drafting::<Small, 3>::SPEC;
    assert_eq!((spec.context, spec.reach(), spec.usable_context()), (4096, 5, 4091));
    assert_eq!((Small::SPEC.reach(), Small::SPEC.usable_context()), (0, 4096));
    // The model's own layers are fed the token sampled last, which a draft head's rows do not stand at.
    let skipping = Skipping::<Small, 3>::SPEC;
    assert_eq!((spec.ahead(3), skipping.ahead(3)), (2, 3));
    assert_eq!((skipping.drafted(), skipping.reach(), skipping.usable_context()), (3, 6, 4090));
    // All drafts hold up to the end, so that the last step writes as far as one can.
    let script = || Script { blocks: 300, right_drafts: 1.0, ..Script::default() };
    for (blocks, context) in [(300, 4091), (4, 59)] {
        let options = EngineOptions::new(blocks, 9999, 2);
        let (engine, ..) = drafting::<3>(script(), options);
        assert_eq!(engine.context(), context);
        let long = engine.submit(Request::new(vec![5; context], 4)).unwrap_err();
        assert_eq!(long, SubmitError::PromptTooLong { prompt: context, context });
        for room in 1..=9 {
            let request = Request::new(vec![5; context - room], 100);
            let (ids, end) = answer(engine.submit(request).unwrap());
            assert_eq!((ids.len(), finished(end).reason), (room, FinishReason::Length));
        }
    }
    let refused = |options| start(Scripted::<Drafting<Small, 9>>::new(script()), options).unwrap_err();
    let error = refused(EngineOptions::new(1, 9, 2)).to_string();
    assert!(error.contains("drafts take 17"), "{error}");
}

#[test]
fn breaches_of_the_contract_are_named() {
    // A row whose drafts all hold, and one whose first does not.
    for (right_drafts, breach, word) in [
        (1.0, Breach::AcceptsTooMany, "accepted 3 drafts in row 0, which was fed 2"),
        (0.0, Breach::AcceptsTooMany, "accepted draft 0 of row 0 as token"),
        (0.5, Breach::SamplesNothing, "row 0 asked the model for a sampled token"),
        (0.5, Breach::SamplesStranger, "sampled token 49152 of a vocabulary of 49152 in row 0"),
        (0.5, Breach::DraftsTooFew, "drafted 1 tokens in row 0, and 2 are due"),
        (0.5, Breach::DraftsTooMany, "drafted 3 tokens in row 0, and 2 are due"),
        (0.5, Breach::DraftsStranger, "drafted token 49152 of a vocabulary of 49152 in row 0"),
        (0.5, Breach::DoesNotVerify, "row 0 asked the model for verified drafts and got a sampled token"),
    ] {
        let script = Script { blocks: 16, right_drafts, ..Script::default() };
        let (engine, controls, _) = drafting::<2>(script, EngineOptions::new(16, 200, 2));
        controls.breach_next(breach);
        check_fault(&engine, vec![5; 3], &format!("{breach:?}"), word);
    }
    let (engine, controls) = with_blocks::<1>(16);
    controls.breach_next(Breach::Verifies);
    check_fault(
        &engine,
        vec![5; 3],
        "Verifies",
        "row 0 asked the model for a sampled token and got verified drafts",
    );
}
