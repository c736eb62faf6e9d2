//! Constrained answers: they obey, they end, and they fail alone. The walks of the loop
//! (src/forward/walk.rs), where a third of the requests is constrained, cover crowds, drafts and pre-emption.

use crate::support::*;
use monomorph_engine::scripted::{Poison, Script, Shape, Small, Tokens};
use monomorph_engine::{EngineError, EngineOptions, Event, FinishReason, Request, SubmitError};
use monomorph_grammar::{Constraint, Grammars, Source, Token};

/// A constraint over a vocabulary of letters, of which the id 2 is the end.
fn held_to(regex: &str, vocabulary: usize) -> Constraint {
    let letters: Vec<[u8; 1]> = (b'a'..=b'z').map(|letter| [letter]).collect();
    let token = |id: u32| Some(Token { bytes: letters.get(id as usize)?, special: id == 2 });
    let grammars = Grammars::new(vocabulary, token, &[2]).unwrap();
    grammars.compile(&Source::Regex(regex.to_owned())).unwrap()
}

fn asking(regex: &str) -> Request {
    let constraint = Some(held_to(regex, Small::SPEC.vocabulary));
    Request { constraint, ..Request::new(vec![5], 20) }
}

fn says(ids: &[u32]) -> Script {
    Script { tokens: Tokens::Fixed(ids.to_vec()), blocks: 8, ..Script::default() }
}

fn an_answer_that_is_complete_ends<const STEPS: usize>() {
    let (engine, _) = engine::<STEPS>(says(&[9; 30]), EngineOptions::new(8, 40, 8));
    let stop = FinishReason::Stop { id: 2 };
    // The model would say `j` for ever; the constraint makes it say the next allowed id.
    for (regex, expected) in
        [("[a-f]{3}", vec![0; 3]), ("jk(x|y)j", vec![9, 10, 23, 9]), ("j{7}", vec![9; 7])]
    {
        for ignore_eos in [false, true] {
            let (ids, end) = answer(engine.submit(Request { ignore_eos, ..asking(regex) }).unwrap());
            assert_eq!((&ids, finished(end).reason), (&expected, stop), "{regex}");
        }
    }
    let (ids, end) = answer(engine.submit(asking("j+")).unwrap());
    assert_eq!((ids.len(), finished(end).reason), (20, FinishReason::Length));
}

fn what_a_broken_model_says_ends_its_answer_alone<const STEPS: usize>() {
    let (engine, controls) = engine::<STEPS>(says(&[9; 30]), EngineOptions::new(8, 40, 8));
    let beside = engine.submit(Request::new(vec![5], 30)).unwrap();
    controls.poison(Poison::WrongTokens);
    let (ids, end) = answer(engine.submit(asking("j+")).unwrap());
    assert!(ids.is_empty(), "{ids:?}");
    let Event::Failed(EngineError::Lost(why)) = end else { panic!("{end:?}") };
    assert!(why.contains("grammar"), "{why}");
    assert_eq!(finished(answer(beside).1).generated_tokens, 30);
    wait_for(&engine, "all blocks", |stats| stats.free_blocks == stats.total_blocks);
}

at_both_depths!(an_answer_that_is_complete_ends, what_a_broken_model_says_ends_its_answer_alone);

#[test]
fn a_constraint_of_another_vocabulary_is_refused() {
    let (engine, _) = with_blocks::<1>(8);
    let request = Request { constraint: Some(held_to("a", 100)), ..Request::new(vec![5], 4) };
    let refused = engine.submit(request).unwrap_err();
    assert!(matches!(&refused, SubmitError::Constraint(why) if why.contains("100")), "{refused:?}");
}
