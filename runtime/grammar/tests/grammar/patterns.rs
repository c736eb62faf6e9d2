//! Patterns: which texts fit each kind, and what is refused.

use crate::support::{END, TOOL, grammars, next, word};
use monomorph_grammar::{Body, End, Pattern, Schema, Source};
use serde_json::json;

/// Whether the pattern allows an answer of these tokens.
fn takes(pattern: &Pattern, tokens: &[u32]) -> bool {
    let mut constraint =
        grammars().compile_pattern(pattern).unwrap_or_else(|error| panic!("{pattern:?}: {error}"));
    for id in tokens {
        if !next(&mut constraint).allows(*id) {
            return false;
        }
        constraint.take(*id).expect("allowed");
    }
    next(&mut constraint).allows(END)
}

/// A text as tokens; `\u{1}` is the control token.
fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| if byte == 1 { TOOL } else { byte.into() }).collect()
}

fn text(text: &str) -> Pattern {
    Pattern::text(text)
}

fn until(body: Body, end: End) -> Pattern {
    Pattern::Until(body, end)
}

fn regex(text: &str) -> Source {
    Source::Regex(text.into())
}

#[test]
fn each_pattern_takes_what_it_describes() {
    let end = || End::Text("</".into());
    let boolean = || Schema::new(&json!({"type": "boolean"})).expect("a schema");
    for (pattern, good, bad) in [
        (text("a\"b\\\n"), &["a\"b\\\n"][..], &["", "a", "a\"b\\n"][..]),
        (Pattern::Token(TOOL), &["\u{1}"], &["", "<tool>"]),
        // Of free text up to its end.
        (
            until(Body::Free(0, None), end()),
            &["</", "any\n\"thing\" < / ></"],
            &["", "any", "</</", "a</b</", "a</b"],
        ),
        (until(Body::Free(2, None), end()), &["ab</", "abc</"], &["</", "a</"]),
        (until(Body::Free(1, Some(3)), end()), &["a</", "abc</", "\n\n</"], &["</", "abcd</"]),
        (until(Body::Regex("[a-z]+/[0-9]".into()), end()), &["ab/1</"], &["ab1</", "ab/</", "ab/1"]),
        (until(Body::Regex("a\nb|c\\/".into()), end()), &["a\nb</", "c/</"], &["ab</", "c</"]),
        (until(Body::Choice(vec!["a".into(), "\"b".into()]), end()), &["a</", "\"b</"], &["</", "b</"]),
        (
            until(Body::Free(0, None), End::Line("</".into())),
            &["a</", "a\n</", "a\n\n</", "</", "\n</"],
            &["a</b</"],
        ),
        (
            until(Body::Choice(vec!["a".into()]), End::Line("</".into())),
            &["a</", "a\n</"],
            &["a\n\n</", "a </"],
        ),
        (until(Body::Choice(vec!["a".into()]), end()), &["a</"], &["a\n</"]),
        (
            until(Body::Free(0, None), End::Token(TOOL, "<tool>".into())),
            &["\u{1}", "a < b\u{1}", "<too\u{1}"],
            &["a", "a<tool>\u{1}", "a<tool>b\u{1}", "a\u{1}b\u{1}"],
        ),
        // Sources of all kinds.
        (Pattern::Json(boolean()), &["true", "false"], &["1", ""]),
        (Pattern::Source(Source::JsonObject), &["{}", "{\"a\": 1}"], &["[]", "1"]),
        (Pattern::Source(Source::JsonSchema(json!({"type": "null"}))), &["null"], &["true"]),
        (Pattern::Source(regex("[ab]{2}")), &["ab", "ba"], &["a", "abc"]),
        (Pattern::Source(Source::Lark("start: \"a\" B\nB: /b+/\n".into())), &["ab", "abb"], &["a", "b"]),
        (Pattern::Source(Source::Choice(vec!["a\"".into(), "b".into()])), &["a\"", "b"], &["", "a", "a\"b"]),
        // Several.
        (Pattern::All(Vec::new()), &[""], &["a"]),
        (Pattern::All(vec![text("a"), text("b"), text("c")]), &["abc"], &["a", "ab", "acb", "abcc"]),
        (Pattern::OneOf(vec![text("a"), text("bc")]), &["a", "bc"], &["", "abc", "b"]),
        (
            Pattern::All(vec![text("a"), Pattern::OneOf(vec![text("b"), text("c")])]),
            &["ab", "ac"],
            &["a", "c"],
        ),
        (Pattern::Maybe(Box::new(text("a"))), &["", "a"], &["aa"]),
        (Pattern::Any(Box::new(text("ab"))), &["", "ab", "abab"], &["aba"]),
        (
            Pattern::Some(Box::new(text("a")), ", ".into()),
            &["a", "a, a", "a, a, a"],
            &["", "aa", "a, ", ", a"],
        ),
        (Pattern::Some(Box::new(text("a")), String::new()), &["a", "aaa"], &["", "a, a"]),
        // Rules of the same name are not mixed up.
        (
            Pattern::All(vec![
                Pattern::Json(boolean()),
                until(Body::Free(0, None), end()),
                Pattern::Json(Schema::new(&json!({"const": 7})).expect("a schema")),
                Pattern::Json(boolean()),
                Pattern::Some(Box::new(Pattern::Source(regex("x"))), ";".into()),
            ]),
            &["truea</7falsex;x"],
            &["truea</7falsea</", "truea</truefalsex", "7a</7falsex"],
        ),
    ] {
        for text in good {
            assert!(takes(&pattern, &tokens(text)), "{pattern:?} takes {text:?}");
        }
        for text in bad {
            assert!(!takes(&pattern, &tokens(text)), "{pattern:?} does not take {text:?}");
        }
    }
}

#[test]
fn a_token_of_several_bytes_may_reach_over_the_parts() {
    let pattern = Pattern::All(vec![text("think>"), text("{"), text("a"), text("b")]);
    assert!(takes(&pattern, &[word("think"), word(">{"), word("ab")]));
}

#[test]
fn patterns_have_the_bounds_of_their_parts() {
    let refused = |pattern: &Pattern| {
        grammars().compile_pattern(pattern).err().unwrap_or_else(|| panic!("{pattern:?} was taken")).message
    };
    let deep = "(".repeat(100) + &")".repeat(100);
    let wide = Schema::new(&json!({"enum": [1]})).expect("a schema");
    for wrap in [
        |part| part,
        |part| Pattern::All(vec![Pattern::text("a"), part]),
        |part| Pattern::OneOf(vec![part, Pattern::text("a")]),
        |part| Pattern::Maybe(Box::new(part)),
        |part| Pattern::Any(Box::new(part)),
        |part| Pattern::Some(Box::new(part), ",".into()),
    ] as [fn(Pattern) -> Pattern; 6]
    {
        assert!(refused(&wrap(Pattern::Source(regex(&deep)))).contains("deeper than 64"));
        assert!(refused(&wrap(until(Body::Regex(deep.clone()), End::Text("b".into())))).contains("deeper"));
        assert!(
            takes(&wrap(Pattern::Json(wide.clone())), &tokens("1"))
                || takes(&wrap(Pattern::Json(wide.clone())), &tokens("a1"))
        );
    }
    let long = |bytes: usize| Pattern::OneOf(vec![text(&"a".repeat(bytes)), text("b")]);
    let error = refused(&long(1_048_577));
    assert!(error.contains("at most 1048576"), "{error}");
}
