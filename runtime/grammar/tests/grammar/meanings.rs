//! Keywords that the library reads otherwise, or not at all: answers drawn at random are valid to another
//! implementation, and texts are allowed that are, and not those that are not.

use crate::support::{Random, accepts, draw, grammars, text};
use monomorph_grammar::{Schema, Source};
use serde_json::{Value, json};

/// Schemas, with texts that are allowed, and that are not.
fn cases() -> Vec<(Value, &'static [&'static str], &'static [&'static str])> {
    vec![
        // A name that comes twice is one member.
        (json!({"type": "object", "minProperties": 1}), &["{\"a\":1}"], &["{}"]),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "minProperties": 2}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}", "{\"a\":1,\"\\u0061\":2}"],
        ),
        // However it is spelled.
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
            &["{\"a\": 1, \"ä\\n\": \"x\"}"],
            &["{\"\\u0061\": \"x\"}", "{\"a\": 1, \"\\u0061\": \"x\"}"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}),
            &["{\"ab\": 1, \"b\": \"x\"}"],
            &["{\"\\u0061b\": \"x\"}", "{\"ab\": \"x\"}"],
        ),
        // Where no other names are, characters that only a number spells are spelled so.
        (
            json!({"type": "object", "properties": {"a": {"const": "\u{1b}"}}, "required": ["a"], "additionalProperties": false}),
            &["{\"a\": \"\\u001b\"}"],
            &["{\"a\": \"\"}"],
        ),
        // Keywords that say nothing.
        (
            json!({
                "type": "array", "uniqueItems": false, "then": {"not": {}}, "else": false, "items": {"type": "integer", "minimum": 0, "maximum": 9},
                "maxItems": 3, "discriminator": {"propertyName": "kind"}, "$defs": {"unused": {"not": {"$dynamicRef": "#x"}}},
            }),
            &["[1,1]"],
            &["[\"a\"]"],
        ),
        (json!({"type": "integer", "if": {"minimum": 5}, "minimum": 1, "maximum": 9}), &["3"], &["0"]),
        (
            json!({"type": "integer", "minimum": 1.0, "maximum": 3.0, "exclusiveMaximum": false}),
            &["1", "3"],
            &["0", "4"],
        ),
        (
            json!({"type": "string", "minLength": 1.0, "maxLength": 18_446_744_073_709_551_615_u64}),
            &["\"a\""],
            &["\"\""],
        ),
        (
            json!({"type": "array", "minItems": 1, "maxItems": 1e12, "items": {"type": "null"}}),
            &["[null]"],
            &["[]"],
        ),
        // Pointers, with their escapes.
        (
            json!({
                "type": "object", "required": ["a", "b", "c", "d", "e"], "additionalProperties": false,
                "properties": {
                    "a": {"$ref": "#/$defs/x~1y"}, "b": {"$ref": "#/$defs/x~0y"}, "c": {"$ref": "#/$defs/50%25"},
                    "d": {"$ref": "#/definitions/%C3%A9%20e"}, "e": {"$ref": "#/properties/a"},
                },
                "$defs": {"x/y": {"const": 1}, "x~y": {"const": 2}, "50%": {"const": 3}},
                "definitions": {"é e": {"const": 4}},
            }),
            &["{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":1}"],
            &["{\"a\":2,\"b\":2,\"c\":3,\"d\":4,\"e\":1}"],
        ),
        (
            json!({
                "type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"],
                "additionalProperties": false,
            }),
            &["{\"next\": {\"next\": null}}"],
            &["{\"next\": {}}"],
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"type": "null"}}}),
            &["null"],
            &["1"],
        ),
        // Bounds that are not met, with the other less than one away.
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
            &["0.5", "0.001"],
            &["0", "0.0", "-0", "0.6"],
        ),
        (json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}), &["-0.5"], &["0", "-0", "-0.0"]),
        (
            json!({"allOf": [{"exclusiveMinimum": 3}, {"type": "number", "maximum": 3.5}]}),
            &["3.5", "3.25"],
            &["3", "3.0"],
        ),
        (json!({"type": "number", "exclusiveMinimum": 0, "minimum": 2, "maximum": 5}), &["2"], &["1"]),
        // Each multiple of both.
        (
            json!({"type": "integer", "minimum": 1, "maximum": 5000, "allOf": [{"multipleOf": 6}, {"multipleOf": 4}]}),
            &["12", "24"],
            &["6", "4", "18"],
        ),
        (
            json!({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 2}),
            &["0.25", "1"],
            &["0.255"],
        ),
    ]
}

/// An answer as it is read; nothing where it has a number that this reader has no room for.
fn read(answer: &str) -> Option<Value> {
    match serde_json::from_str(answer) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("out of range") => None,
        Err(error) => panic!("{error} in {answer:?}"),
    }
}

/// What `strict` makes of schemas.
fn strict_cases() -> Vec<(Value, &'static [&'static str], &'static [&'static str])> {
    let point = json!({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]});
    vec![
        (point.clone(), &["{\"x\": true}"], &["{\"x\": true, \"y\": 1}"]),
        (
            json!({"type": "array", "items": {"$ref": "#/$defs/point"}, "$defs": {"point": point}}),
            &["[{\"x\": true}]"],
            &["[{\"x\": true, \"y\": 1}]"],
        ),
        (
            json!({"allOf": [point, {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}]}),
            &["{\"x\": true, \"y\": null}"],
            &["{\"x\": true}"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "null"}}),
            &["{\"a\": null}"],
            &["{\"a\": 1}"],
        ),
    ]
}

#[test]
fn keywords_mean_what_they_mean_to_others() {
    let mut wrong = Vec::new();
    let strict = strict_cases().into_iter().map(|case| (case, true));
    for (seed, ((schema, good, bad), strict)) in
        (1..).zip(cases().into_iter().map(|case| (case, false)).chain(strict))
    {
        let source = Source::JsonSchema(if strict { Schema::closed(&schema) } else { schema.clone() });
        let constraint = match grammars().compile(&source) {
            Ok(constraint) => constraint,
            Err(error) => {
                wrong.push(format!("{schema}: {error}"));
                continue;
            }
        };
        let texts = good.iter().map(|text| (*text, true)).chain(bad.iter().map(|text| (*text, false)));
        for (text, fits) in texts {
            if accepts(&source, text) != fits {
                wrong.push(format!("{schema}: {text} is {}", if fits { "not allowed" } else { "allowed" }));
            }
        }
        // Other validators say so, too; of what older drafts had they know nothing.
        let mut plain = schema.clone();
        plain
            .as_object_mut()
            .expect("an object")
            .retain(|keyword, value| !(keyword.starts_with("exclusive") && value.is_boolean()));
        let validator = jsonschema::validator_for(&plain).expect("a schema");
        for draws in 0..12 {
            let mut random = Random(0x9E37_79B9 * (seed + 1000 * draws));
            let answer = text(&draw(&mut constraint.clone(), &mut random));
            let Some(value) = read(&answer) else { continue };
            if let Err(error) = validator.validate(&value) {
                wrong.push(format!("{schema}: {error} in {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Members are counted as they are read: of any schema that is taken, an answer has as many as it asks for.
#[test]
fn as_many_members_are_there_as_are_asked_for() {
    let (mut taken, mut refused) = (0, 0);
    for least in 0..4u64 {
        for required in [&[][..], &["a"], &["a", "b"]] {
            for others in [json!({"type": "integer"}), json!(true), json!(false), json!(null)] {
                let properties: serde_json::Map<_, _> =
                    required.iter().map(|name| ((*name).to_owned(), json!({"type": "null"}))).collect();
                let mut schema = json!({"type": "object", "properties": properties, "required": required, "minProperties": least});
                if !others.is_null() {
                    schema["additionalProperties"] = others;
                }
                let Ok(constraint) = grammars().compile(&Source::JsonSchema(schema.clone())) else {
                    refused += 1;
                    continue;
                };
                taken += 1;
                let validator = jsonschema::validator_for(&schema).expect("a schema");
                for seed in 1..40u64 {
                    let answer = text(&draw(
                        &mut constraint.clone(),
                        &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                    ));
                    let Some(value) = read(&answer) else { continue };
                    assert!(validator.is_valid(&value), "{schema}: {answer}");
                }
            }
        }
    }
    assert!(taken >= 25 && refused >= 8, "{taken} taken, {refused} refused");
}
