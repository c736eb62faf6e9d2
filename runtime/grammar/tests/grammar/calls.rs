//! Calls within answers: text is free up to a tag or a name that begins a call, the call follows its grammar,
//! and the text behind it is free again.

use crate::support::{CLOSED, DOUBLE, END, OPENED, TOOL, VOCABULARY, grammars, ids, word};
use monomorph_grammar::{Constraint, Opener, Pattern, Source, Thinking};
use monomorph_sampling::TokenMask;
use serde_json::json;
use std::sync::Arc;

/// The mask of the next token; `None` allows anything.
fn mask(constraint: &mut Constraint) -> Option<TokenMask> {
    let mut masks = Vec::new();
    constraint.masks(&[], &mut masks).expect("something may come");
    masks.pop()
}

/// The ids that may not come next.
fn forbidden(constraint: &mut Constraint) -> Vec<u32> {
    let mask = mask(constraint);
    (0..VOCABULARY as u32).filter(|id| mask.as_ref().is_some_and(|mask| !mask.allows(*id))).collect()
}

/// Takes tokens that are allowed.
fn take(constraint: &mut Constraint, ids: &[u32]) {
    for id in ids {
        assert!(mask(constraint).is_none_or(|mask| mask.allows(*id)), "{id} of {ids:?}");
        constraint.take(*id).expect("allowed");
    }
}

fn letters(constraint: &mut Constraint, text: &str) {
    take(constraint, &text.bytes().map(u32::from).collect::<Vec<_>>());
}

/// Whether a call has begun that goes on with one of these digits only.
fn is_in_call(constraint: &mut Constraint) -> bool {
    let next = mask(constraint).map(|mask| ids(&mask));
    next.is_some_and(|next| {
        !next.is_empty() && next.iter().all(|id| (b'0'..=b'9').map(u32::from).any(|it| it == *id))
    })
}

/// `<k>{D}</`; `<<th` and an `e` with a digit and a dot; or `<tool>` and a digit, where it is one token.
fn calls() -> Constraint {
    let digit = || Pattern::Source(Source::Regex("[0-9]".into()));
    let text = |text: &str| Pattern::text(text);
    let call = Pattern::OneOf(vec![
        Pattern::All(vec![text("<k>"), text("{"), digit(), text("}</")]),
        Pattern::All(vec![text("<<th"), text("e"), digit(), text(".")]),
        Pattern::All(vec![Pattern::Token(TOOL), digit()]),
    ]);
    grammars().compile_pattern(&Pattern::Any(Box::new(call))).expect("it compiles")
}

fn watched(free: bool) -> Constraint {
    let opener = |text, token| Opener { text, token };
    let openers = [opener("<k>", None), opener("<<th", None), opener("<tool>", Some(TOOL))];
    calls().watching(&grammars().openers(&openers), free)
}

#[test]
fn text_is_free_up_to_a_tag_and_behind_the_call() {
    let mut answer = watched(true);
    for _ in 0..2 {
        assert_eq!((mask(&mut answer), answer.free_for()), (None, 1), "one token may complete a tag");
        letters(&mut answer, "any {\"thing\"} k> </ > <k <<");
        letters(&mut answer, "k>{");
        assert!(is_in_call(&mut answer));
        assert_eq!(answer.free_for(), 0);
        take(&mut answer, &[u32::from(b'7')]);
        assert_eq!(ids(&mask(&mut answer).expect("a call")), [u32::from(b'}'), word("},")][..1]);
        take(&mut answer, &[u32::from(b'}'), word("</")]);
    }
    // The second tag begins calls as the first does.
    letters(&mut answer, "<<the");
    assert!(is_in_call(&mut answer));
    letters(&mut answer, "5.");
    assert_eq!(mask(&mut answer), None);
}

#[test]
fn a_token_completes_a_tag_only_if_the_call_may_go_on_as_it_does() {
    let mut answer = watched(true);
    letters(&mut answer, "<");
    assert_eq!(forbidden(&mut answer), [OPENED, word("k>\n")]);
    letters(&mut answer, "<");
    // `the` completes the second tag, and its `e` is the call's; `think` and the line end are no call's.
    assert_eq!(forbidden(&mut answer), [OPENED, word("think"), word("k>\n")]);
    assert_eq!(answer.free_for(), 0);
    let mut other = answer.clone();
    take(&mut other, &[word("the")]);
    assert!(is_in_call(&mut other), "the `e` was told to the grammar");
    letters(&mut answer, "k");
    assert!(forbidden(&mut answer).is_empty());
    assert_eq!(answer.free_for(), 1);
    take(&mut answer, &[word(">{")]);
    assert!(is_in_call(&mut answer), "the brace was told to the grammar");
}

#[test]
fn a_token_without_the_rest_of_a_tag_begins_no_call() {
    let mut answer = watched(true);
    for (text, bad) in [
        ("<k", &[][..]),
        (" >{", &[]),
        ("< k>", &[]),
        ("<", &[OPENED, word("k>\n")]),
        ("tool", &[word(">{")]),
    ] {
        letters(&mut answer, text);
        assert_eq!(forbidden(&mut answer), bad, "{text:?}");
    }
    // Half of a tag before a call is forgotten behind it.
    letters(&mut answer, "<k");
    take(&mut answer, &[TOOL]);
    letters(&mut answer, "1>{x");
    assert_eq!(mask(&mut answer), None);
}

#[test]
fn a_control_token_begins_a_call_by_itself_and_in_letters() {
    for spelled in [false, true] {
        let mut answer = watched(true);
        if spelled {
            letters(&mut answer, "<tool>");
        } else {
            take(&mut answer, &[TOOL]);
        }
        assert!(is_in_call(&mut answer), "spelled: {spelled}");
        letters(&mut answer, "4");
        assert_eq!(mask(&mut answer), None, "the call is over");
    }
}

#[test]
fn an_answer_of_calls_alone_follows_its_grammar_from_the_first_token() {
    let mut answer = watched(false);
    assert_eq!(answer.free_for(), 0);
    assert_eq!(ids(&mask(&mut answer).expect("calls only")), [u32::from(b'<'), END, END + 1, TOOL]);
    letters(&mut answer, "<k>{1}</");
    assert_eq!(answer.free_for(), 0);
    assert!(forbidden(&mut answer).contains(&u32::from(b'x')), "and behind a call");
    letters(&mut answer, "<<the2.");
    assert!(ids(&mask(&mut answer).expect("calls only")).contains(&END));
}

#[test]
fn reasoning_ends_with_a_call_of_the_first_tag() {
    let tags = grammars().tags(&[OPENED], &[CLOSED]);
    for free in [true, false] {
        let reasoning = watched(free).after(Thinking::new(&tags, true, Some(40)));
        let mut answer = reasoning.clone();
        letters(&mut answer, "hm <<the1 <tool> <");
        // Only the first tag counts.
        let bad = forbidden(&mut answer);
        assert!(bad.contains(&word("k>\n")) && !bad.contains(&word("think")), "{bad:?}");
        assert_eq!(bad.contains(&END), !free, "calls have to come");
        letters(&mut answer, "k>{");
        assert!(is_in_call(&mut answer), "free: {free}");
        letters(&mut answer, "3}</");
        assert_eq!(mask(&mut answer).is_none(), free, "the reasoning is over");
        // Half of a tag within the reasoning is none behind it.
        let mut answer = reasoning.clone();
        letters(&mut answer, "<");
        assert!(!forbidden(&mut answer).contains(&CLOSED));
        take(&mut answer, &[CLOSED]);
        if free {
            assert_eq!(mask(&mut answer), None);
            letters(&mut answer, "k>\n<<the");
            assert!(is_in_call(&mut answer));
        } else {
            assert!(forbidden(&mut answer).contains(&u32::from(b'k')), "a call begins with its tag");
            letters(&mut answer, " <k>{");
            assert!(is_in_call(&mut answer));
        }
    }
    // Where the text is free, the budget of the reasoning is what masks are needed for.
    let mut answer = watched(true).after(Thinking::new(&tags, true, Some(0)));
    assert_eq!((answer.free_for(), ids(&mask(&mut answer).expect("a tag"))), (0, vec![CLOSED]));
}

#[test]
fn masks_behind_drafts_of_calls_are_those_that_come() {
    let text = "so <<k>{1}</ and <<the2.<k>{3}</k>";
    let drafts: Vec<u32> = text.bytes().map(u32::from).collect();
    let tags = grammars().tags(&[OPENED], &[CLOSED]);
    let free = watched(true);
    for answer in [free.clone(), free.after(Thinking::new(&tags, true, None))] {
        for from in 0..drafts.len() {
            let mut asked = answer.clone();
            take(&mut asked, &drafts[..from]);
            let mut plain = asked.clone();
            for ahead in 0..6 {
                let ahead = &drafts[from..drafts.len().min(from + ahead)];
                let mut masks = Vec::new();
                asked.masks(ahead, &mut masks).expect("something may come");
                let mut way = plain.clone();
                let mut expected = vec![mask(&mut way)];
                for id in ahead {
                    take(&mut way, &[*id]);
                    expected.push(mask(&mut way));
                }
                let found: Vec<_> = masks.iter().map(TokenMask::count).collect();
                let counts = expected.iter().map(|mask| mask.as_ref().map_or(VOCABULARY, TokenMask::count));
                let anything = expected.iter().all(Option::is_none);
                let expected: Vec<_> = if anything { Vec::new() } else { counts.collect() };
                assert_eq!(found, expected, "{ahead:?} at {from} of {text:?}");
            }
            assert_eq!(mask(&mut asked), mask(&mut plain), "drafts leave no trace");
        }
    }
}

/// Calls as objects of the tool `ab`; one of `name` is known too, and not to be called.
fn named() -> Constraint {
    let begin = |text: &str| Pattern::text(text.to_owned());
    let call = || {
        Pattern::All(vec![
            begin("{\"name\": \"ab\", \"parameters\": "),
            Pattern::Json(monomorph_grammar::Schema::new(&json!({"type": "boolean"})).expect("a schema")),
            begin("}"),
        ])
    };
    let nested = Pattern::All(vec![begin("{\"function\": "), call(), begin("}")]);
    let calls = Pattern::Any(Box::new(Pattern::OneOf(vec![call(), nested])));
    let names: Arc<[String]> = ["name".to_owned(), "ab".to_owned()].into();
    let compiled = grammars().compile_pattern(&calls).expect("it compiles");
    compiled.watching_names(&grammars().openers(&[Opener { text: "<k>", token: None }]), &names)
}

#[test]
fn a_call_without_tags_begins_with_the_name_of_its_tool() {
    for begin in [
        "{\"name\": \"ab\"",
        " \n[ {\"type\": \"function\",\t\"name\":\"ab\"",
        "{\"n\\u0061me\": \"ab\"",
        "{\"type\": \"x\", \"function\": {\"name\": \"ab\"",
    ] {
        let mut answer = named();
        letters(&mut answer, &begin[..begin.len() - 1]);
        // A quote ends the name of a tool; what a token has behind it must go on with the call.
        let bad = forbidden(&mut answer);
        assert_eq!(bad, [word("\":"), word("\": "), word("\"}")], "{begin}");
        assert_eq!(answer.free_for(), 0);
        letters(&mut answer, "\"");
        assert_eq!(ids(&mask(&mut answer).expect("a call")), [u32::from(b',')], "{begin}");
        let mut quick = named();
        letters(&mut quick, &begin[..begin.len() - 1]);
        take(&mut quick, &[word("\", \"")]);
        assert_eq!(ids(&mask(&mut quick).expect("a call")), [u32::from(b'p')], "{begin}");
        letters(&mut quick, "parameters\": true}");
        if begin.contains("\"function\":") {
            assert_eq!(ids(&mask(&mut quick).expect("the outer object")), [u32::from(b'}')]);
            letters(&mut quick, "}");
        }
        assert_eq!((mask(&mut quick), quick.free_for()), (None, 0), "another may follow");
        letters(&mut quick, "; {\"name\": \"ab\"");
        assert_eq!(ids(&mask(&mut quick).expect("a call")), [u32::from(b',')], "another");
    }
}

#[test]
fn another_call_may_follow_one_that_ends_with_its_name() {
    let call = Pattern::Any(Box::new(Pattern::text("{\"name\": \"ab\"}")));
    let compiled = grammars().compile_pattern(&call).expect("it compiles");
    let mut answer = compiled.watching_names(&grammars().openers(&[]), &["ab".to_owned()].into());
    for _ in 0..3 {
        letters(&mut answer, "{\"name\": \"ab");
        assert_eq!(forbidden(&mut answer), ["\":", "\": ", "\",", "\", \""].map(word));
        take(&mut answer, &[word("\"}")]);
        assert_eq!(mask(&mut answer), None);
    }
}

#[test]
fn a_known_tool_that_may_not_be_called_is_not_named() {
    let mut answer = named();
    letters(&mut answer, "{\"name\": \"name");
    let mut quotes: Vec<u32> = vec![b'"'.into()];
    quotes.extend(["\":", "\": ", "\",", "\", \"", "\"}"].map(word));
    assert_eq!(forbidden(&mut answer), quotes);
    // An unknown one is: then this is no call.
    letters(&mut answer, "d\"");
    assert_eq!((mask(&mut answer), answer.free_for()), (None, usize::MAX));
    letters(&mut answer, "{\"name\": \"ab\": <k>");
    assert_eq!(mask(&mut answer), None, "text that began otherwise has no calls");
}

#[test]
fn two_tokens_of_the_same_bytes_are_alike_in_calls() {
    for id in [word("ab"), DOUBLE] {
        let mut answer = named();
        letters(&mut answer, "{\"name\": \"");
        take(&mut answer, &[id]);
        letters(&mut answer, "\"");
        assert_eq!(ids(&mask(&mut answer).expect("a call")), [u32::from(b',')]);
    }
}

#[test]
fn reasoning_before_calls_without_tags_ends_with_the_first_tag() {
    let tags = grammars().tags(&[OPENED], &[CLOSED]);
    let mut answer = named().after(Thinking::new(&tags, true, None));
    letters(&mut answer, "{\"name\": \"name\", \"name\": \"ab\": hm");
    assert_eq!((forbidden(&mut answer), answer.free_for()), (vec![], 1), "what is thought is no call");
    letters(&mut answer, "<");
    assert_eq!((forbidden(&mut answer), answer.free_for()), (vec![word("k>\n")], 0), "but for the tag");
    take(&mut answer, &[CLOSED]);
    letters(&mut answer, "{\"name\": \"ab");
    assert_eq!(forbidden(&mut answer), ["\":", "\": ", "\"}"].map(word));
    letters(&mut answer, "\"");
    assert_eq!(ids(&mask(&mut answer).expect("a call")), [u32::from(b',')]);
}
