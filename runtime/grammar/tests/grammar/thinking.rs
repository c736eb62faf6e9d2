//! Reasoning before an answer: allowed tokens, and the budget.

use crate::support::{
    CLOSED, END, OPENED, Random, VOCABULARY, compiled, draw, grammars, ids, next, text, word,
};
use monomorph_grammar::{Constraint, Source, Tags, Thinking};
use monomorph_sampling::TokenMask;
use std::sync::Arc;

/// `</think>` and `<think>` as tokens of their own.
fn tags() -> Arc<Tags> {
    grammars().tags(&[OPENED], &[CLOSED])
}

fn letters(constraint: &mut Constraint, text: &str) {
    for byte in text.bytes() {
        assert!(next(constraint).allows(byte.into()), "{:?} of {text:?}", char::from(byte));
        constraint.take(byte.into()).expect("allowed");
    }
}

#[test]
fn reasoning_is_free_and_the_answer_is_not() {
    let held = |opened, budget| {
        let constraint = compiled(&Source::Regex("[0-9]{2}".into()));
        constraint.after(Thinking::new(&tags(), opened, budget))
    };
    let mut open = held(true, None);
    letters(&mut open, "any {\"thing\"} < </thin <think> at all");
    let within = next(&mut open);
    assert!(within.allows(CLOSED) && within.allows(OPENED), "tags may come");
    assert!(!within.allows(END), "an answer has to come");
    open.take(CLOSED).expect("allowed");
    // Spacing, but not for ever.
    let gap = next(&mut open);
    assert!(gap.allows(b'\n'.into()) && gap.allows(word("\n\n")) && gap.allows(b'1'.into()));
    assert!(!gap.allows(b'a'.into()) && !gap.allows(END) && !gap.allows(CLOSED));
    letters(&mut open, "\n \n ");
    assert!(!next(&mut open).allows(b' '.into()), "enough");
    letters(&mut open, "12");
    assert!(ids(&next(&mut open)).contains(&END));
    assert!(!next(&mut open).allows(b'3'.into()));

    // The closing tag in letters, and what would run on behind it.
    let mut spelled = held(true, None);
    letters(&mut spelled, "so.</thin");
    let before = next(&mut spelled);
    assert!(before.allows(b'k'.into()) && before.allows(word("k>\n")), "spacing may follow within a token");
    spelled.take(b'k'.into()).expect("allowed");
    assert!(!next(&mut spelled).allows(word(">{")), "the grammar would miss the brace");
    assert!(next(&mut spelled).allows(b'>'.into()));
    letters(&mut spelled, ">12");
    assert!(ids(&next(&mut spelled)).contains(&END));

    // A prompt that did not open it: reasoning, or the answer at once.
    let mut shut = held(false, None);
    let start = next(&mut shut);
    assert!(
        start.allows(OPENED) && start.allows(b'1'.into()) && !start.allows(b'a'.into()) && !start.allows(END)
    );
    let mut at_once = shut.clone();
    letters(&mut at_once, "12");
    assert_eq!(ids(&next(&mut at_once)).len(), 2, "only the ends");
    shut.take(OPENED).expect("allowed");
    letters(&mut shut, "hm</think>34");
    assert!(ids(&next(&mut shut)).contains(&END));
}

#[test]
fn a_budget_ends_reasoning() {
    for (opened, budget) in [(true, 0), (true, 1), (true, 7), (false, 0), (false, 3)] {
        let constraint = compiled(&Source::Regex("[0-9]".into()));
        let mut held = constraint.after(Thinking::new(&tags(), opened, Some(budget)));
        if !opened {
            held.take(OPENED).expect("allowed");
        }
        for at in 0..budget {
            assert!(ids(&next(&mut held)).len() > 200, "{at} of {budget}");
            held.take(b'x'.into()).expect("allowed");
        }
        assert_eq!(ids(&next(&mut held)), [CLOSED], "{budget}");
        held.take(CLOSED).expect("allowed");
        letters(&mut held, "1");
        assert!(ids(&next(&mut held)).contains(&END));
    }
}

#[test]
fn a_budget_without_a_grammar_leaves_the_rest_free() {
    let tags = grammars().tags(&[OPENED], &[u32::from(b'<'), u32::from(b'>')]);
    let mut masks = Vec::new();
    let mut held = grammars().thinking(Thinking::new(&tags, true, Some(3)));
    assert_eq!(held.free_for(), 3);
    held.masks(&[7, 7], &mut masks).expect("anything");
    assert!(masks.is_empty(), "two drafts are within it");
    held.masks(&[7, 7, 7, 7], &mut masks).expect("anything");
    let counts: Vec<usize> = masks.iter().map(TokenMask::count).collect();
    assert_eq!(
        counts,
        [VOCABULARY, VOCABULARY, VOCABULARY, 1],
        "the fourth is no tag, and nothing is asked behind it"
    );
    for _ in 0..3 {
        held.take(7).expect("anything");
    }
    assert_eq!((held.free_for(), ids(&next(&mut held))), (0, vec![u32::from(b'<')]));
    held.take(b'<'.into()).expect("allowed");
    assert_eq!(ids(&next(&mut held)), [u32::from(b'>')]);
    held.take(b'>'.into()).expect("allowed");
    assert_eq!(held.free_for(), usize::MAX);
    held.masks(&[END, 7], &mut masks).expect("anything");
    assert!(masks.is_empty());

    // No constraint without reasoning, or after it ended by itself.
    for said in ["hello", "<think>a<>b"] {
        let mut held = grammars().thinking(Thinking::new(&tags, false, Some(3)));
        if said.starts_with("<think>") {
            held.take(OPENED).expect("anything");
        }
        said.trim_start_matches("<think>").bytes().for_each(|byte| held.take(byte.into()).expect("anything"));
        assert_eq!(held.free_for(), usize::MAX, "{said}");
    }
}

#[test]
fn drawn_at_random_an_answer_is_what_follows_the_tag() {
    let mut random = Random(5);
    for (opened, budget) in [(true, Some(40)), (false, Some(40))] {
        let constraint = compiled(&Source::Regex("[0-9]{4}".into()));
        let constraint = constraint.after(Thinking::new(&tags(), opened, budget));
        for _ in 0..40 {
            let answer = draw(&mut constraint.clone(), &mut random);
            let bytes: Vec<u8> = answer.iter().flat_map(|id| crate::support::bytes(*id)).collect();
            let tag = bytes.windows(8).position(|window| window == b"</think>");
            let tail = tag.map_or(&bytes[..], |at| &bytes[at + 8..]);
            let tail = String::from_utf8_lossy(tail).trim().to_owned();
            assert!(tail.len() == 4 && tail.bytes().all(|byte| byte.is_ascii_digit()), "{tail:?}");
        }
    }
    assert_eq!(text(&[CLOSED]), "</think>");
}
