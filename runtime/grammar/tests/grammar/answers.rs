//! Allowed and forbidden texts, and refused sources.

use crate::support::{
    DOUBLE, END, OTHER_END, Random, TOOL, accepts, compiled, draw, grammars, ids, next, word,
};
use monomorph_grammar::{Source, Stopped};
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
            &["{\"name\":\"ab\"}", "{\"name\": \"\", \"age\": 120}", "{\"name\": \"é\",\"age\":7}"][..],
            &[
                "",
                "{}",
                "{\"name\":\"abcdef\"}",
                "{\"name\":\"a\",\"age\":121}",
                "{\"name\":\"a\",\"size\":1}",
                "{\"name\":\"a\"} ",
                // Spacing is one space or none, behind commas and colons.
                "{ \"name\":\"a\"}",
                "{\"name\" :\"a\"}",
                "{\"name\":  \"a\"}",
                "{\"name\":\"a\", \n\"age\":7}",
                "{\n  \"name\": \"a\"\n}",
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

/// So many arrays to choose from, which all begin alike.
fn wide(arrays: usize) -> Value {
    let array = |least| json!({"type": "array", "items": {"type": "integer", "minimum": least}});
    json!({"anyOf": (0..arrays).map(array).collect::<Vec<_>>()})
}

/// An object of so many members, by names or patterns.
fn names_and(keyword: &str, name: &str, count: usize) -> Value {
    let members = (0..count).map(|at| (format!("{name}{at}x"), json!({"type": "null"})));
    let required: Vec<Value> = if keyword == "properties" { vec![json!("n0x")] } else { Vec::new() };
    json!({"type": "object", keyword: members.collect::<serde_json::Map<_, _>>(), "required": required})
}

#[test]
fn as_many_alternatives_as_are_taken_can_be_followed() {
    for (source, texts) in [
        (wide(1_000), ["[", "7", ",", "999", "]"]),
        (
            json!({"enum": (0..1_900).map(|at| json!([at, {"a": at}])).collect::<Vec<_>>()}),
            ["[", "7", ",", "{\"a\":", "7}]"],
        ),
        (
            json!({"anyOf": (0..600).map(|at| json!({"type": "object", "properties": {"kind": {"const": at}}, "required": ["kind"]})).collect::<Vec<_>>()}),
            ["{\"", "kind", "\": ", "59", "9}"],
        ),
        (
            json!({"type": "object", "properties": (0..480).map(|at| (format!("p{at}"), json!({"type": "integer"}))).collect::<serde_json::Map<_, _>>()}),
            ["{\"", "p7", "\": ", "59", "}"],
        ),
    ] {
        let mut constraint = compiled(&schema(source));
        for text in texts {
            for byte in text.bytes() {
                assert!(next(&mut constraint).allows(byte.into()), "{text}");
                constraint.take(byte.into()).expect("few enough alternatives");
            }
        }
        assert!(next(&mut constraint).allows(END));
    }
}

/// A failure that shows only while an answer is generated is the grammar's fault all the same.
#[test]
fn a_grammar_that_grows_beyond_what_can_be_followed_is_at_fault() {
    let alternatives: Vec<String> = (0..6_000).map(|at| format!("(x{0} y{0})?", at % 50)).collect();
    let terminals: String = (0..50).map(|at| format!("x{at}: \"a{at}\"?\ny{at}: \"b{at}\"?\n")).collect();
    let lark = format!("start: \"z\" body\nbody: {}\n{terminals}", alternatives.join(" | "));
    let mut constraint = compiled(&Source::Lark(lark));
    assert!(next(&mut constraint).allows(b'z'.into()));
    let end = constraint.take(b'z'.into()).and_then(|()| constraint.masks(&[], &mut Vec::new()));
    let Err(Stopped::Grammar(error)) = end else { panic!("{end:?}") };
    assert!(error.to_string().contains("too many of its alternatives"), "{error}");
}

/// A schema with many alternatives, within others or not.
fn union(random: &mut Random, depth: usize) -> Value {
    let count = [2, 7, 40, 200, 700][random.below(if depth > 1 { 3 } else { 5 })];
    let shape = random.below(6);
    let mut option = |at: usize| {
        let mut inner = || if depth < 3 { union(random, depth + 1) } else { json!({"const": at}) };
        match shape {
            0 => {
                json!({"type": "array", "items": {"type": "integer", "minimum": at, "maximum": 2_000}, "maxItems": 2})
            }
            1 => {
                json!({"type": "array", "prefixItems": [{"const": at}, if at == 0 { inner() } else { json!({"type": "null"}) }], "items": false})
            }
            2 => {
                json!({"type": "object", "properties": {"k": {"const": at}, "v": {"type": "null"}}, "additionalProperties": false})
            }
            3 => json!({"const": [at, {"a": [at]}]}),
            4 if at == 0 => inner(),
            4 => {
                json!({"type": "object", "properties": {format!("m{at}"): {"const": at}}, "additionalProperties": false})
            }
            _ => {
                json!({"type": "array", "items": if at < 3 { inner() } else { json!({"const": at}) }, "maxItems": 1})
            }
        }
    };
    let options: Vec<Value> = (0..count).map(&mut option).collect();
    json!({"anyOf": options})
}

#[test]
fn what_is_taken_can_be_followed_to_its_end() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 1..30u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let source = schema(union(&mut random, 0));
        match grammars().compile(&source) {
            Ok(constraint) => {
                taken += 1;
                // No point before it has too many alternatives.
                (0..3).for_each(|_| drop(draw(&mut constraint.clone(), &mut random)));
            }
            Err(error) => {
                refused += 1;
                let known = ["alternatives", "bytes", "too large"];
                assert!(known.iter().any(|known| error.message.contains(known)), "{error}");
            }
        }
    }
    assert!(taken > 8 && refused > 1, "{taken} taken, {refused} refused");
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
        (schema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}})), ".$defs.a.not", "not supported"),
        (schema(json!({"items": {"$ref": "#/$defs/gone"}})), ".items.$ref", "leads to nothing"),
        (schema(json!({"$ref": "#anchor"})), ".$ref", "#/$defs/name"),
        (schema(json!({"const": 9_007_199_254_740_993_u64})), ".const", "2^53"),
        (
            schema(json!({"type": "object", "properties": {"a": {"enum": ["b", "\u{1b}"]}}})),
            ".properties.a.enum",
            "control character",
        ),
        (schema(json!({"enum": ["a", {"b": [1, -9_007_199_254_740_993_i64]}]})), ".enum[1].b[1]", "2^53"),
        (schema(json!({"minimum": 10_000_000_000_000_000_001_u64})), ".minimum", "2^53"),
        (schema(json!({"exclusiveMaximum": 9_007_199_254_740_992_u64})), ".exclusiveMaximum", "2^53"),
        (schema(json!({"maximum": 1e300})), ".maximum", "2^53"),
        (schema(json!({"minimum": 0.123_456_789_012_345_6})), ".minimum", "15 digits"),
        (schema(json!({"minimum": true})), ".minimum", "must be a number, and is a boolean"),
        (schema(json!({"minimum": 1, "exclusiveMinimum": true})), ".exclusiveMinimum", "older drafts"),
        (schema(json!({"multipleOf": -2})), ".multipleOf", "above zero"),
        (schema(json!({"multipleOf": 0})), ".multipleOf", "above zero"),
        (schema(json!({"multipleOf": 0.57})), ".multipleOf", "not kept exactly"),
        (schema(json!({"multipleOf": 4_294_967_296_u64})), ".multipleOf", "not kept exactly"),
        (
            schema(json!({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]})),
            ".allOf[1].multipleOf",
            "common multiple",
        ),
        (schema(json!({"type": "string", "minLength": -1})), ".minLength", "whole number"),
        (schema(json!({"type": "string", "maxLength": 1.5})), ".maxLength", "whole number"),
        (schema(json!({"type": "array", "minItems": 1e10})), ".minItems", "any answer"),
        (schema(json!({"type": "object", "minProperties": 2})), ".minProperties", "may come twice"),
        (
            schema(json!({"properties": {"a": {}, "b": {}}, "minProperties": 1})),
            ".minProperties",
            "not required",
        ),
        (schema(json!({"type": ["integer", "strin"]})), ".type", "must be one of null"),
        (schema(json!({"required": "a"})), ".required", "array of strings"),
        (schema(json!({"enum": []})), ".enum", "at least one"),
        (schema(json!({"anyOf": []})), ".anyOf", "at least one"),
        (schema(json!({"items": {"pattern": "a("}})), ".items.pattern", "unclosed group, at its character 2"),
        (schema(json!({"items": {"pattern": "a(?=b)"}})), ".items.pattern", "not supported"),
        (schema(json!({"patternProperties": {"a(": {}}})), ".patternProperties.a(", "unclosed group"),
        (schema(json!({"if": {}, "then": {}})), ".if", "not supported"),
        (
            schema(
                json!({"properties": {"a": {"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}}),
            ),
            ".properties.a.items",
            "use `anyOf`",
        ),
        (
            schema(
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a", "type": "object"}}}}}),
            ),
            ".$defs.a.properties.b",
            "in a circle",
        ),
        (schema(json!({"type": "string", "pattern": "^a$", "maxLength": 0})), "", "no text fits"),
        (schema(wide(2_000)), "", "alternatives"),
        // What would take long to look through is not begun.
        (
            schema(
                json!({"anyOf": [names_and("properties", "n", 6_000), names_and("patternProperties", "^n", 6_000)]}),
            ),
            ".anyOf[0].properties",
            "at most 4000",
        ),
        (
            schema(json!({"properties": {"a": {"type": "array", "items": wide(2_000)}}})),
            ".properties.a.items",
            "alternatives",
        ),
        (Source::Regex("a\nb(".into()), "", "unclosed group"),
        (schema(json!({"$ref": "file:///etc/passwd"})), ".$ref", "leads out"),
        (schema(json!({"x-guidance": {"lenient": true}})), ".x-guidance", "not supported"),
        (schema(json!({"properties": 5})), ".properties", "object"),
        (schema(json!({"items": "a"})), ".items", "object or a boolean"),
        (schema(json!([])), "", "object or a boolean"),
        (schema(deep), "", "deeper"),
        (schema(json!({"$ref": "#/$defs/gone"})), ".$ref", "leads to nothing"),
        (schema(json!({"type": "strin"})), ".type", "must be one of"),
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 4})), "", "cannot be used"),
        (schema(json!(false)), "", "cannot be used"),
        (schema(json!({"enum": ["a".repeat(600_000)]})), "", "bytes"),
        (Source::Regex("a(".into()), "", "cannot be used"),
        (Source::Lark("start: missing".into()), "", "unknown name: \"missing\", in line 1 at character 8"),
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
