//! Tests each bound from both sides, with the stack that it was proven against.

use super::Size;
use super::corpus::{CASES, Case};
use crate::stack::{STACK_BYTES, with_stack};
use crate::{Grammars, Source, Token};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Longest time for the largest accepted source to compile or be rejected, unoptimised and without a
/// deadline.
const PATIENCE: Duration = Duration::from_secs(30);

/// A vocabulary of all bytes and an end.
fn grammars() -> Grammars {
    let bytes: Vec<[u8; 1]> = (0..=255u8).map(|byte| [byte]).collect();
    let token = |id: u32| match bytes.get(id as usize) {
        Some(byte) => Some(Token { bytes: byte, special: false }),
        None => Some(Token { bytes: b"<end>", special: true }),
    };
    Grammars::new(257, token, &[256]).expect("a vocabulary")
}

/// Compiles a source, follows it for a while, copies and drops it, on a thread with a default stack.
fn follow(grammars: &Grammars, case: &Case, source: &Source) -> Result<(), crate::GrammarError> {
    let mut constraint = grammars.compile(source)?;
    let walk = move || {
        let mut masks = Vec::new();
        for step in 0..40usize {
            if constraint.masks(&[], &mut masks).is_err() {
                break;
            }
            let Some(mask) = masks.first() else { break };
            let allowed: Vec<u32> = (0..256).filter(|id| mask.allows(*id)).collect();
            let Some(id) = allowed.get(step * 7 % allowed.len().max(1)) else { break };
            if constraint.take(*id).is_err() {
                break;
            }
            drop(constraint.clone());
        }
    };
    with_stack(512 << 10, walk).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    Ok(())
}

#[test]
fn what_is_beyond_a_bound_is_refused_by_name() {
    let grammars = grammars();
    for case in CASES {
        assert!(
            super::source(&(case.source)(case.most)).is_ok(),
            "{} of {}: {:?}",
            case.name,
            case.most,
            super::source(&(case.source)(case.most))
        );
        let error = grammars.compile(&(case.source)(case.most + 1)).err();
        let error = error.unwrap_or_else(|| panic!("{} of {} was taken", case.name, case.most + 1));
        assert_eq!(error.path, case.path, "{}: {error}", case.name);
        let named = error.message.ends_with(&format!("at most {}", case.bound))
            || error.message.contains(&format!("deeper than {} levels", case.bound));
        assert!(named, "{}: {error}", case.name);
    }
}

/// Compiles the largest accepted sources on a quarter of the stack.
#[test]
fn the_stack_holds_what_is_within_the_bounds() {
    let grammars = grammars();
    let stack = STACK_BYTES / 4;
    for case in CASES {
        let began = Instant::now();
        let source = (case.source)(case.most);
        let made = with_stack(stack, || grammars.attempt_here(&source));
        let made = made.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let compiled = began.elapsed();
        let followed = follow(&grammars, case, &source);
        eprintln!(
            "{:40} {compiled:9.1?} {:9.1?} {made:?} {:?}",
            case.name,
            began.elapsed(),
            followed.is_ok()
        );
        assert!(began.elapsed() < PATIENCE, "{}: {:?}", case.name, began.elapsed());
    }
}

#[test]
fn what_people_ask_for_is_small() {
    let tool = serde_json::json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "where"}, "line": {"type": "integer", "minimum": 1},
            "when": {"type": "string", "format": "date-time"}, "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 10},
            "also": {"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}], "title": "Also"},
        },
        "required": ["path"], "additionalProperties": false,
        "$defs": {"one": {"type": "object", "properties": {"next": {"$ref": "#/$defs/one"}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}}}},
    });
    assert_eq!(super::schema(&tool), Ok(Size::Small));
    let read = crate::Schema::new(&tool).expect("a schema");
    assert_eq!(super::schema(read.value()), Ok(Size::Small));
    assert_eq!(super::source(&Source::Regex("[a-z]{1,20}(-[0-9]+)?".to_owned())), Ok(Size::Small));
}

/// An array of so many equal values.
fn many(count: usize, value: Value) -> Value {
    vec![value; count].into()
}

#[test]
fn a_schema_is_small_up_to_each_of_its_limits() {
    let names = |count: usize| (0..count).map(|at| format!("p{at}")).collect::<Vec<_>>();
    let definitions = |count: usize| json!({"$defs": names(count).into_iter().map(|name| (name, json!({}))).collect::<Map<_, _>>()});
    let chain = |count: usize| {
        let to = |at: usize| json!({"$ref": format!("#/$defs/d{at}")});
        let all = (1..=count).map(|at| (format!("d{at}"), if at < count { to(at + 1) } else { json!({}) }));
        json!({"$ref": "#/$defs/d1", "$defs": all.collect::<Map<_, _>>()})
    };
    for (small, large) in [
        (definitions(399), definitions(400)),
        (chain(199), chain(200)),
        (json!({"required": names(400)}), json!({"required": names(401)})),
        (json!({"enum": many(500, json!(1))}), json!({"enum": many(501, json!(1))})),
        (
            json!({"prefixItems": many(16, json!({"format": "date"}))}),
            json!({"prefixItems": many(17, json!({"format": "date"}))}),
        ),
        (
            json!({"prefixItems": many(16, json!({"pattern": "a"}))}),
            json!({"prefixItems": many(17, json!({"pattern": "a"}))}),
        ),
        (json!({"anyOf": many(24, json!({}))}), json!({"anyOf": many(25, json!({}))})),
        (json!({"minLength": 1000}), json!({"minLength": 1001})),
        (json!({"maxLength": 1000}), json!({"maxLength": 1001})),
        (json!({"minItems": 1000}), json!({"minItems": 1001})),
        (json!({"maxItems": 1000}), json!({"maxItems": 1001})),
        (json!({"enum": ["a", 1, null]}), json!({"enum": ["a", [1]]})),
        (json!({"enum": [true]}), json!({"enum": [{}]})),
        (json!({"const": "a"}), json!({"const": []})),
        (json!({"const": 5}), json!({"const": {}})),
        (json!({"minimum": 5}), json!({"multipleOf": 5})),
        (json!({"required": []}), json!({"minProperties": 1})),
        (json!({"required": []}), json!({"maxProperties": 1})),
        (json!({"pattern": "a{1000}"}), json!({"pattern": "a{1001}"})),
        (json!({"patternProperties": {"a": {}}}), json!({"patternProperties": {"a": {}, "b": {}}})),
        (json!({"patternProperties": {"a{9}": {}}}), json!({"patternProperties": {"a{1001}": {}}})),
        // What is put together.
        (json!({"allOf": [{"items": {}}]}), json!({"allOf": [{"items": {}}], "type": "array"})),
        (
            json!({"allOf": [{"minLength": 3}], "type": "string"}),
            json!({"allOf": [{"items": [{}]}], "type": "string"}),
        ),
        (
            json!({"allOf": many(2, json!({"minLength": 3}))}),
            json!({"allOf": many(3, json!({"minLength": 3}))}),
        ),
        (json!({"allOf": many(1, json!(true))}), json!({"allOf": many(2, json!(true))})),
        (
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {}}}),
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {}}}),
        ),
        (
            json!({"$ref": "#/$defs/a", "title": "t", "$schema": "s", "$defs": {"a": {}}}),
            json!({"$ref": "#/$defs/a", "type": "null", "$defs": {"a": {}}}),
        ),
        (json!({"anyOf": [{}], "description": "d"}), json!({"anyOf": [{}], "type": "null"})),
        (json!({"oneOf": [{}], "default": 5}), json!({"oneOf": [{}], "type": "null"})),
        (json!({"pattern": "a", "type": "string"}), json!({"pattern": "a", "format": "date"})),
        (json!({"minLength": 1, "maxLength": 2}), json!({"pattern": "a", "minLength": 1})),
        (json!({"minLength": 1, "maxLength": 2}), json!({"pattern": "a", "maxLength": 1})),
    ] {
        assert_eq!(super::schema(&small), Ok(Size::Small), "{small}");
        assert_eq!(super::schema(&large), Ok(Size::Unknown), "{large}");
        // Wherever it stands.
        for within in [
            json!({"items": large}),
            json!({"not": {"if": large}}),
            json!({"properties": {"a": large}}),
            json!({"$defs": {"a": large}}),
        ] {
            assert_eq!(super::schema(&within), Ok(Size::Unknown), "{within}");
        }
        for data in [json!({"default": large}), json!({"examples": [large]}), json!({"x-data": [large]})] {
            assert_eq!(super::schema(&data), Ok(Size::Small), "{data}");
        }
    }
}

#[test]
fn references_lead_to_what_is_measured_too() {
    let large = || json!({"multipleOf": 3});
    for (schema, size) in [
        (json!({"$ref": "#/default/0", "default": [large()]}), Size::Unknown),
        (json!({"$ref": "#/default/0", "default": [{}, large()]}), Size::Small),
        (
            json!({"$ref": "#/default/0", "default": [{"items": {"$ref": "#/default/1"}}, large()]}),
            Size::Unknown,
        ),
        (json!({"$ref": "#/$defs/gone", "$defs": {"a": {}}}), Size::Unknown),
        (json!({"$ref": "other#/$defs/gone"}), Size::Small),
        // By a name.
        (json!({"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}}), Size::Small),
        (json!({"$ref": "#there", "$defs": {"a": {"$anchor": "here"}}}), Size::Unknown),
        // Within a schema of its own.
        (json!({"items": {"$id": "i", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}}), Size::Small),
        (json!({"items": {"id": "i", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}}), Size::Small),
        (json!({"items": {"$id": 5, "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}}), Size::Unknown),
        (json!({"items": {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}}), Size::Unknown),
        // With escapes.
        (json!({"$ref": "#/$defs/5%25%20a", "$defs": {"5% a": {}}}), Size::Small),
        (json!({"$ref": "#/$defs/5%2525", "$defs": {"5%25": {}}}), Size::Small),
        (json!({"$ref": "#/$defs/%zz%", "$defs": {"%zz%": {}}}), Size::Small),
        (json!({"$ref": "#/$defs/%4", "$defs": {"%4": {}}}), Size::Small),
        (json!({"$ref": "#/$defs/%C3%A9b", "$defs": {"\u{e9}b": {}}}), Size::Small),
    ] {
        assert_eq!(super::schema(&schema), Ok(size), "{schema}");
    }
}

#[test]
fn what_is_beyond_a_bound_has_the_path_of_its_place() {
    let wide = || json!({"required": (0..4001).map(|at| at.to_string()).collect::<Vec<_>>()});
    for (schema, path) in [
        (wide(), ".required"),
        (json!({"items": wide()}), ".items.required"),
        (json!({"not": {"items": wide()}}), ".not.items.required"),
        (json!({"properties": {"a": {}, "b": wide()}}), ".properties.b.required"),
        (json!({"anyOf": [{}, {"items": [{}, wide()]}]}), ".anyOf[1].items[1].required"),
        (json!({"$defs": {"a": wide()}}), ".$defs.a.required"),
        (json!({"$ref": "#/x/0", "x": [wide()]}), ".x.0.required"),
        (json!({"items": {"pattern": "a{100001}"}}), ".items.pattern"),
        (json!({"items": {"patternProperties": {"a{100001}": {}}}}), ".items.patternProperties"),
    ] {
        let error = super::schema(&schema).expect_err(path);
        assert_eq!(error.path, path, "{error}");
    }
}

#[test]
fn what_is_to_match_at_once_multiplies_and_what_is_not_does_not() {
    let pattern = |parts: usize| json!({"pattern": "a".repeat(parts)});
    // Each has a combination more than it has parts: a hundred, thrice, are as many as may be.
    let (fits, beyond) = (|| pattern(99), || pattern(100));
    let all = |one: Value, other: Value| json!({"allOf": [one, other, pattern(99)]});
    let beside = |mut schema: Value, keyword: &str, value: Value| {
        schema[keyword] = value;
        schema
    };
    for wrap in [
        (|it| it) as fn(Value) -> Value,
        |it| json!({"items": it}),
        |it| json!({"properties": {"a": it, "b": {"pattern": "b"}}}),
        |it| json!({"anyOf": [it, {"pattern": "b"}]}),
        |it| json!({"oneOf": [{"pattern": "b"}, it]}),
        |it| json!({"allOf": [it]}),
        |it| json!({"pattern": "b", "items": it}),
        |it| json!({"patternProperties": {"b": it}}),
    ] {
        assert!(super::schema(&all(fits(), wrap(fits()))).is_ok());
        let error = super::schema(&all(fits(), wrap(beyond()))).expect_err("1,010,000");
        assert!(error.message.contains("has 1010000 combinations"), "{error}");
    }
    // The longer of two patterns counts, and both where they must match together.
    let names = |mut schema: Value, parts: usize| {
        schema["patternProperties"] = json!({"b".repeat(parts): {}});
        schema
    };
    assert!(super::schema(&all(fits(), names(fits(), 99))).is_ok());
    assert!(super::schema(&all(fits(), names(fits(), 100))).is_err());
    assert!(super::schema(&all(fits(), names(pattern(9), 99))).is_ok());
    let together = |parts: usize| beside(pattern(9), "anyOf", json!([pattern(parts), pattern(2)]));
    assert!(super::schema(&all(fits(), together(9))).is_ok());
    assert!(super::schema(&all(fits(), together(10))).is_err());
    // A reference is one that must match too, unless it leads back.
    let by_name = |parts: usize| {
        beside(
            beside(fits(), "$ref", json!("#/$defs/a")),
            "$defs",
            json!({"a": all(pattern(9), pattern(parts))}),
        )
    };
    assert!(super::schema(&by_name(9)).is_ok());
    assert!(super::schema(&by_name(10)).is_err());
    assert!(super::schema(&beside(pattern(2_000), "allOf", json!([{"$ref": "#"}]))).is_ok());
    // One that stands before what refers to it counts too.
    let before = |parts: usize| json!({"$defs": {"a": pattern(parts)}, "allOf": [{"$ref": "#/$defs/a"}, pattern(999)]});
    assert!(super::schema(&before(999)).is_ok());
    assert!(super::schema(&before(1000)).is_err());
    // Definitions that nothing refers to are not put together.
    assert!(super::schema(&json!({"$defs": {"a": fits(), "b": fits(), "c": fits(), "d": fits()}})).is_ok());
    assert!(
        super::schema(&json!({"definitions": {"a": fits(), "b": fits(), "c": fits(), "d": fits()}})).is_ok()
    );
}

#[test]
fn json_is_nested_as_deep_as_it_can_be_written() {
    for open in [|it| json!([it]), |it| json!({"a": it})] as [fn(Value) -> Value; 2] {
        let nested = |levels: usize| json!({"default": (1..levels).fold(json!(1), |it, _| open(it))});
        assert_eq!(super::schema(&nested(111)), Ok(Size::Small));
        assert!(super::schema(&nested(112)).is_err());
    }
}

#[test]
fn a_choice_is_small_up_to_its_bytes() {
    let choice = |bytes: usize| super::source(&Source::Choice(vec!["a".repeat(bytes), "b".to_owned()]));
    assert_eq!(choice(16 * 1024 - 1), Ok(Size::Small));
    assert_eq!(choice(16 * 1024), Ok(Size::Unknown));
    assert_eq!(super::source(&Source::JsonObject), Ok(Size::Small));
}
