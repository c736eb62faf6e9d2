//! Masks behind drafts are those that come when the drafts do, and leave no trace.

use crate::support::{END, Random, VOCABULARY, compiled, draw, grammars, ids, next};
use monomorph_grammar::{Constraint, Source, Thinking};
use monomorph_sampling::TokenMask;
use serde_json::json;

/// Follows an answer with drafts of all kinds at every token; each mask is that of a constraint that was
/// never asked about drafts.
fn follow(mut asked: Constraint, mut plain: Constraint, answer: &[u32], random: &mut Random) -> usize {
    let mut kinds = [0; 4];
    for at in 0..=answer.len() {
        let mut drafts: Vec<u32> =
            answer[at..].iter().copied().chain([END]).take(1 + random.below(4)).collect();
        if random.below(2) == 0 {
            let wrong = random.below(drafts.len());
            drafts[wrong] = random.below(VOCABULARY) as u32;
        }
        let mut masks = Vec::new();
        asked.masks(&drafts, &mut masks).expect("something may come");
        let mut expected: Vec<TokenMask> = vec![next(&mut plain)];
        let mut way = plain.clone();
        for draft in &drafts {
            if *draft == END || !expected[expected.len() - 1].allows(*draft) || draft_ends(&way, *draft) {
                break;
            }
            way.take(*draft).expect("allowed");
            expected.push(next(&mut way));
        }
        kinds[masks.len().min(4) - 1] += 1;
        assert_eq!(masks, expected, "{drafts:?} at {at} of {answer:?}");
        let Some(id) = answer.get(at) else { break };
        asked.take(*id).expect("allowed");
        plain.take(*id).expect("allowed");
    }
    kinds[1..].iter().sum()
}

fn draft_ends(constraint: &Constraint, id: u32) -> bool {
    constraint.end_ids().contains(&id)
}

#[test]
fn masks_behind_drafts_are_those_that_come() {
    let mut random = Random(77);
    let mut looked = 0;
    for source in [
        Source::JsonObject,
        Source::JsonSchema(json!({"type": "array", "items": {"enum": ["ab", "name", 12]}, "maxItems": 5})),
        Source::Regex("(ab|the|[0-9]{3}){1,20}".into()),
        Source::Choice(vec!["true".into(), "the name".into(), "the".into()]),
    ] {
        let constraint = compiled(&source);
        for _ in 0..12 {
            let answer = draw(&mut constraint.clone(), &mut random);
            let answer = &answer[..answer.len().min(60)];
            looked += follow(constraint.clone(), constraint.clone(), answer, &mut random);
        }
    }
    assert!(looked > 300, "{looked}");
}

#[test]
fn so_are_those_around_reasoning() {
    let tags = grammars().tags(&[crate::support::OPENED], &[u32::from(b'<'), u32::from(b'>')]);
    let mut random = Random(78);
    for (opened, budget) in [(true, Some(30)), (true, Some(5)), (false, Some(9))] {
        let constraint = compiled(&Source::Regex("(ab|the){1,9}".into()));
        let constraint = constraint.after(Thinking::new(&tags, opened, budget));
        for _ in 0..8 {
            let answer = draw(&mut constraint.clone(), &mut random);
            let answer = &answer[..answer.len().min(80)];
            follow(constraint.clone(), constraint.clone(), answer, &mut random);
        }
    }
}

#[test]
fn an_end_is_the_last_draft_that_is_looked_at() {
    let mut constraint = compiled(&Source::Regex("a+".into()));
    let a = u32::from(b'a');
    let mut masks = Vec::new();
    constraint.masks(&[a, END, a], &mut masks).expect("something may come");
    assert_eq!(masks.len(), 2);
    assert!(ids(&masks[1]).contains(&END));
    constraint.masks(&[u32::from(b'b'), a], &mut masks).expect("something may come");
    assert_eq!(masks.len(), 1);
}
