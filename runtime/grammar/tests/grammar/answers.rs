//! Texts that may be answered, and those that may not; what is refused.

use crate::support::{DOUBLE, END, OTHER_END, TOOL, accepts, compiled, grammars, ids, next, word};
use monomorph_grammar::Source;
use serde_json::{Value, json};

fn schema(schema: Value) -> Source {
    Source::JsonSchema(schema)
}

#[test]
fn what_fits_may_be_answered_and_nothing_else() {
    let person = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    });
    let choices = Source::Choice(vec!["yes".into(), "no \"quoted\"\n".into(), "yes, both".into()]);
    for (source, good, bad) in [
        (
            schema(person),
            &[
                "{\"name\":\"ab\"}",
                "{\"name\": \"\", \"age\": 120}",
                "{\n  \"name\": \"é\",\n  \"age\": 7\n}",
            ][..],
            &[
                "",
                "{}",
                "{\"name\":\"abcdef\"}",
                "{\"name\":\"a\",\"age\":121}",
                "{\"name\":\"a\",\"size\":1}",
                "{\"name\":\"a\"} ",
            ][..],
        ),
        (Source::JsonObject, &["{}", "{\"a\": [1, {\"b\": null}]}"], &["[]", "1", "\"a\"", "{\"a\":}"]),
        (Source::Regex("[a-c]{2,3}|[0-9]+".into()), &["ab", "abc", "0", "123456"], &["a", "abcd", "1a", ""]),
        (choices, &["yes", "no \"quoted\"\n", "yes, both"], &["", "ye", "yes,", "no"]),
        (
            Source::Lark("start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n".into()),
            &["1", "12+3", "1+2+3"],
            &["", "+", "1+", "1++2", "a"],
        ),
        (schema(json!(true)), &["1", "{\"a\":2}", "null"], &["", "nul", "{"]),
        (
            schema(json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})),
            &["1", "0.5"],
            &["0", "1.5", "-1"],
        ),
    ] {
        for text in good {
            assert!(accepts(&source, text), "{source:?} allows {text:?}");
        }
        for text in bad {
            assert!(!accepts(&source, text), "{source:?} does not allow {text:?}");
        }
    }
}

#[test]
fn dates_and_times_are_ones_there_are() {
    let string = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        Source::JsonSchema(schema)
    };
    for (format, good, bad) in [
        (
            "date",
            &["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"][..],
            &["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "0000-01-01", "24-01-01"][..],
        ),
        (
            "time",
            &["23:59:59Z", "00:00:00.123456789+05:30"],
            &["24:00:00Z", "12:00:60Z", "12:00Z", "12:00:00.1234567890Z"],
        ),
        (
            "date-time",
            &["2024-02-29T12:00:00Z"],
            &["2024-02-29 12:00:00Z", "2024-02-29", "2023-02-29T12:00:00Z", "2024-02-29T"],
        ),
    ] {
        let source = string(json!({"format": format}));
        for (text, fits) in good.iter().map(|text| (text, true)).chain(bad.iter().map(|text| (text, false))) {
            assert_eq!(accepts(&source, &format!("\"{text}\"")), fits, "{format}: {text}");
        }
    }
    // Beside a pattern of the schema's own, and beside other conditions; what is no string has no format.
    let source = string(json!({"format": "date", "pattern": "^20", "allOf": [{"maxLength": 10}]}));
    assert!(
        accepts(&source, "\"2024-01-31\"")
            && !accepts(&source, "\"1999-01-31\"")
            && !accepts(&source, "\"2024-02-31\"")
    );
    let source = Source::JsonSchema(json!({"format": "date", "type": ["string", "null"]}));
    assert!(accepts(&source, "null") && accepts(&source, "\"2024-01-31\"") && !accepts(&source, "\"x\""));
}

#[test]
fn a_complete_answer_ends_and_an_incomplete_one_does_not() {
    let mut constraint = compiled(&Source::Regex("a(bab)?".into()));
    assert_eq!(ids(&next(&mut constraint)), [u32::from(b'a'), word("ab"), DOUBLE]);
    constraint.take(b'a'.into()).expect("allowed");
    // Both ends, both tokens of these bytes, one of which is the beginning only; control tokens never.
    let b = u32::from(b'b');
    assert_eq!(ids(&next(&mut constraint)), [b, END, OTHER_END], "the text may end or go on");
    constraint.take(b).expect("allowed");
    assert_eq!(ids(&next(&mut constraint)), [u32::from(b'a'), word("ab"), DOUBLE]);
    for (then, ends) in [(word("ab"), true), (DOUBLE, true), (u32::from(b'a'), false)] {
        let mut way = constraint.clone();
        way.take(then).expect("allowed");
        assert_eq!(ids(&next(&mut way)) == [END, OTHER_END], ends, "{then}");
        assert!(way.take(TOOL).is_err(), "a control token is no text");
    }
    assert_eq!(constraint.end_ids(), [END, OTHER_END]);
    assert_eq!(constraint.free_for(), 0);
}

#[test]
fn a_grammar_may_ask_for_control_tokens() {
    let mut constraint = compiled(&Source::Lark("start: <tool> \"a\"".into()));
    assert_eq!(ids(&next(&mut constraint)), [TOOL]);
    constraint.take(TOOL).expect("allowed");
    assert_eq!(ids(&next(&mut constraint)), [u32::from(b'a')]);
}

#[test]
fn what_is_not_followed_is_refused_with_its_path() {
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    for (source, path, word) in [
        (
            schema(json!({"properties": {"a": {"items": {"uniqueItems": true}}}})),
            ".properties.a.items.uniqueItems",
            "not supported",
        ),
        (schema(json!({"anyOf": [{}, {"format": "iri"}]})), ".anyOf[1].format", "\"iri\""),
        (schema(json!({"$defs": {"a": {"not": {}}}})), ".$defs.a.not", "not supported"),
        (schema(json!({"$ref": "file:///etc/passwd"})), ".$ref", "leads out"),
        (schema(json!({"x-guidance": {"lenient": true}})), ".x-guidance", "not supported"),
        (schema(json!({"properties": 5})), ".properties", "object"),
        (schema(json!({"items": "a"})), ".items", "object or a boolean"),
        (schema(json!([])), "", "object or a boolean"),
        (schema(deep), "", "deeper"),
        (schema(json!({"$ref": "#/$defs/gone"})), "", "cannot be used"),
        (schema(json!({"type": "strin"})), "", "cannot be used"),
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 4})), "", "cannot be used"),
        (schema(json!(false)), "", "cannot be used"),
        (schema(json!({"enum": ["a".repeat(600_000)]})), "", "bytes"),
        (Source::Regex("a(".into()), "", "cannot be used"),
        (Source::Lark("start: missing".into()), "", "cannot be used"),
        (Source::Lark(String::new()), "", "cannot be used"),
        (Source::Choice(Vec::new()), "", "0 texts"),
        (Source::Choice(vec!["a".into(), String::new()]), "[1]", "empty"),
    ] {
        let Err(error) = grammars().compile(&source) else { panic!("{source:?} is not refused") };
        assert!(
            error.path.ends_with(path) && (path.is_empty() || error.path == path),
            "{source:?}: {error:?}"
        );
        assert!(error.message.contains(word), "{source:?}: {error:?}");
    }
}
