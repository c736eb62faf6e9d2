//! What is enforced of a schema, and what is left out of it or refused, with its path.

use monomorph_grammar::{GrammarError, Schema};
use serde_json::{Value, json};

fn relaxed(schema: &Value) -> (Value, Vec<String>) {
    let (read, errors) = Schema::relaxed(schema);
    (read.value().clone(), errors.into_iter().map(|error| error.path).collect())
}

fn refused(schema: &Value) -> GrammarError {
    Schema::new(schema).err().unwrap_or_else(|| panic!("{schema} was taken"))
}

#[test]
fn what_is_not_enforced_is_left_out_by_its_path() {
    for (schema, left, paths) in [
        (
            json!({"type": "string", "format": "iri", "not": {}}),
            json!({"type": "string"}),
            &[".format", ".not"][..],
        ),
        (
            json!({"type": "object", "properties": {"a": {"items": {"uniqueItems": true}}}}),
            json!({"type": "object", "properties": {"a": {"items": {}}}}),
            &[".properties.a.items.uniqueItems"],
        ),
        (json!({"anyOf": [{}, {"x": 1}]}), json!({"anyOf": [{}, {}]}), &[".anyOf[1].x"]),
        (json!({"minLength": -1}), json!({}), &[".minLength"]),
        (json!({"minItems": 1e10}), json!({}), &[".minItems"]),
        (json!({"minItems": 1_u64 << 31, "maxItems": 1_u64 << 31}), json!({}), &[".minItems"]),
        (
            json!({"minItems": (1_u64 << 31) - 1, "maxItems": (1_u64 << 31) - 1}),
            json!({"minItems": (1_u64 << 31) - 1, "maxItems": (1_u64 << 31) - 1}),
            &[],
        ),
        (json!({"minimum": 1e300}), json!({}), &[".minimum"]),
        (json!({"multipleOf": 0.57}), json!({}), &[".multipleOf"]),
        (json!({"const": [9_007_199_254_740_993_u64]}), json!({}), &[".const[0]"]),
        (json!({"pattern": "a(?=b)"}), json!({}), &[".pattern"]),
        (
            json!({"patternProperties": {"a(": {}, "b": {"x": 1}}}),
            json!({"patternProperties": {"b": {}}}),
            &[".patternProperties.a(", ".patternProperties.b.x"],
        ),
        (json!({"$ref": "#/gone"}), json!({}), &[".$ref"]),
        (
            json!({"prefixItems": [{}], "additionalItems": {}}),
            json!({"additionalItems": {}}),
            &[".prefixItems"],
        ),
        (json!({"if": {}, "then": {}}), json!({}), &[".if", ".then"]),
        (json!({"if": {}, "else": {}}), json!({}), &[".if", ".else"]),
        // What says nothing is no loss.
        (json!({"if": {"not": 5}}), json!({}), &[]),
        (json!({"then": {"not": 5}, "else": 5}), json!({}), &[]),
        (json!({"uniqueItems": false, "exclusiveMaximum": false, "exclusiveMinimum": false}), json!({}), &[]),
        (json!({"title": 5, "discriminator": 5, "default": [5]}), json!({}), &[]),
        (json!({"$schema": "x"}), json!({"$schema": "x"}), &[]),
        (json!({"$schema": 5}), json!({}), &[]),
        // What is enforced stays.
        (json!({"prefixItems": [{}]}), json!({"prefixItems": [{}]}), &[]),
        (json!({"format": "email"}), json!({"format": "email"}), &[]),
        (json!({"type": ["null", "string"]}), json!({"type": ["null", "string"]}), &[]),
        // What is referred to is read too.
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}, "type": "null"}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}),
            &[".$defs.a.not"],
        ),
        // What is no schema is not enforced at all.
        (json!({"type": "strin", "minLength": 3}), json!({"type": "object"}), &[".type"]),
        (
            json!({"required": (0..4001).map(|at| at.to_string()).collect::<Vec<_>>()}),
            json!({"type": "object"}),
            &[".required"],
        ),
    ] {
        assert_eq!(
            relaxed(&schema),
            (left, paths.iter().map(|path| (*path).to_owned()).collect()),
            "{schema}"
        );
        match paths {
            [] => assert!(Schema::new(&schema).is_ok(), "{schema}"),
            [first, ..] => assert_eq!(refused(&schema).path, *first, "{schema}"),
        }
    }
}

#[test]
fn formats_of_time_are_patterns_beside_all_that_must_hold() {
    for (format, begins) in [("date", "^(([0-9]{3}"), ("time", "^([01][0-9]"), ("date-time", "^(([0-9]{3}")] {
        for all in [json!([]), json!([{"minLength": 3}])] {
            let (left, paths) = relaxed(&json!({"format": format, "allOf": all}));
            let parts = left["allOf"].as_array().expect("they must all hold");
            let (pattern, others) = parts.split_last().expect("a pattern");
            assert_eq!((json!(others), left.get("format"), paths.len()), (all, None, 0));
            assert!(
                pattern["pattern"].as_str().is_some_and(|it| it.starts_with(begins)),
                "{format}: {pattern}"
            );
            assert_eq!(relaxed(&json!({"format": format})).0, json!({"allOf": [pattern]}));
        }
    }
}

#[test]
fn strict_closes_objects() {
    let closed = json!({"type": "object", "additionalProperties": false});
    assert_eq!(Schema::closed(&json!({"type": "object"})), closed);
}

#[test]
fn members_are_counted_only_where_they_can_be() {
    let two = json!({"a": {}, "b": {}});
    let closed = |more: Value| {
        let mut schema = json!({"properties": two, "additionalProperties": false});
        schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        schema
    };
    let both = ["minProperties", "maxProperties"];
    for (schema, path) in [
        (json!({"minProperties": 1}), None),
        (json!({"minProperties": 2}), Some(".minProperties")),
        (json!({"maxProperties": 2}), None),
        // Among declared members of which none must come: one of them at least, or at most.
        (closed(json!({"minProperties": 1})), None),
        (closed(json!({"maxProperties": 1})), None),
        (closed(json!({"minProperties": 1, "maxProperties": 1})), None),
        (closed(json!({"minProperties": 0})), None),
        (closed(json!({"minProperties": 2})), Some(".minProperties")),
        (closed(json!({"maxProperties": 2})), Some(".maxProperties")),
        (closed(json!({"maxProperties": 0})), Some(".maxProperties")),
        (closed(json!({"minProperties": 1, "maxProperties": 2})), Some(".minProperties")),
        (closed(json!({"minProperties": 1, "additionalProperties": {}})), Some(".minProperties")),
        (closed(json!({"maxProperties": 1, "additionalProperties": true})), Some(".maxProperties")),
        (closed(json!({"minProperties": 1, "patternProperties": {"c": {}}})), Some(".minProperties")),
        (closed(json!({"minProperties": 1, "patternProperties": {}})), None),
        // Those that must come are counted.
        (closed(json!({"minProperties": 2, "required": ["a"]})), None),
        (closed(json!({"maxProperties": 2, "required": ["a"]})), None),
        (closed(json!({"minProperties": 3, "required": ["a"]})), Some(".minProperties")),
        (closed(json!({"minProperties": 9, "required": ["a", "b"]})), None),
        (closed(json!({"maxProperties": 5, "required": ["a", "b"]})), None),
        // Others may come twice, and one of them is enough.
        (json!({"properties": two, "required": ["a", "b"], "minProperties": 3}), None),
        (json!({"properties": two, "required": ["a", "b"], "minProperties": 4}), Some(".minProperties")),
        (json!({"required": ["a"], "minProperties": 2}), None),
        (json!({"required": ["a"], "minProperties": 3}), Some(".minProperties")),
        (json!({"patternProperties": {"a": {}}, "additionalProperties": false, "minProperties": 1}), None),
        (
            json!({"patternProperties": {"a": {}}, "additionalProperties": false, "minProperties": 2}),
            Some(".minProperties"),
        ),
        (json!({"additionalProperties": false, "minProperties": 2}), None),
    ] {
        let (left, paths) = relaxed(&schema);
        assert_eq!(paths, path.into_iter().collect::<Vec<_>>(), "{schema}");
        match path {
            None => assert_eq!(left, schema),
            Some(path) => {
                assert_eq!(refused(&schema).path, path);
                assert!(both.iter().all(|it| left.get(it).is_none()), "{schema}: {left}");
            }
        }
    }
}

#[test]
fn bounds_that_are_not_met_become_the_next_numbers() {
    let (above, below) = (3f64.next_up(), -(3f64.next_up()));
    for (schema, left) in [
        (json!({"exclusiveMinimum": 3}), json!({"minimum": above})),
        (json!({"exclusiveMinimum": 3, "minimum": 1}), json!({"minimum": above})),
        (json!({"exclusiveMinimum": 3, "minimum": 3}), json!({"minimum": above})),
        (json!({"exclusiveMinimum": 3, "minimum": 5}), json!({"minimum": 5})),
        (json!({"exclusiveMaximum": -3}), json!({"maximum": below})),
        (json!({"exclusiveMaximum": -3, "maximum": -1}), json!({"maximum": below})),
        (json!({"exclusiveMaximum": -3, "maximum": -5}), json!({"maximum": -5})),
        (
            json!({"exclusiveMinimum": -3, "exclusiveMaximum": 3}),
            json!({"exclusiveMinimum": -3, "exclusiveMaximum": 3}),
        ),
        (json!({"exclusiveMinimum": 0.5}), json!({"exclusiveMinimum": 0.5})),
        (
            json!({"type": "integer", "exclusiveMinimum": 3}),
            json!({"type": "integer", "exclusiveMinimum": 3}),
        ),
        (json!({"type": "number", "exclusiveMinimum": 3}), json!({"type": "number", "minimum": above})),
    ] {
        assert_eq!(relaxed(&schema), (left, Vec::new()), "{schema}");
    }
}

#[test]
fn multiples_have_a_common_one_only_where_schemas_are_put_together() {
    let two = json!({"a": {"multipleOf": 65537}, "b": {"multipleOf": 65539}});
    let named = json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": two}}});
    let mut beside = named.clone();
    beside["type"] = json!("object");
    for (schema, path) in [
        (json!({"properties": two}), None),
        (json!({"anyOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}), None),
        (named, None),
        (json!({"properties": two, "allOf": [{}]}), Some(".properties.b.multipleOf")),
        (json!({"properties": two, "items": {"allOf": []}}), Some(".properties.b.multipleOf")),
        (json!({"properties": two, "anyOf": [{}]}), Some(".properties.b.multipleOf")),
        (json!({"properties": two, "oneOf": [{}]}), Some(".properties.b.multipleOf")),
        (beside, Some(".$defs.a.properties.b.multipleOf")),
    ] {
        assert_eq!(Schema::new(&schema).err().map(|error| error.path).as_deref(), path, "{schema}");
    }
}

#[test]
fn control_characters_are_followed_only_where_names_are_declared() {
    for (text, needs) in [
        ("\u{1}", true),
        ("\u{1f}", true),
        ("a\u{7f}", true),
        ("\u{0}b", true),
        (" ~\u{80}", false),
        ("\n\r\t\u{8}\u{c}", false),
    ] {
        for (constant, keyword) in [
            (json!({"const": text}), "const"),
            (json!({"const": ["a", [text]]}), "const"),
            (json!({"const": {"a": text}}), "const"),
            (json!({"enum": [1, text]}), "enum"),
        ] {
            let path = needs.then(|| format!(".items.{keyword}"));
            for open in [
                json!({"items": constant, "properties": {"a": {}}}),
                json!({"items": constant, "required": ["a"]}),
                json!({"items": constant, "patternProperties": {"a": {}}}),
                json!({"items": constant, "properties": {"a": {}}, "additionalProperties": {}}),
            ] {
                assert_eq!(Schema::new(&open).err().map(|error| error.path), path, "{open}");
            }
            for shut in [
                json!({"items": constant}),
                json!({"items": constant, "properties": {}, "required": [], "patternProperties": {}}),
                json!({"items": constant, "properties": {"a": {}}, "additionalProperties": false}),
            ] {
                assert!(Schema::new(&shut).is_ok(), "{shut}");
            }
        }
    }
}

#[test]
fn schemas_are_read_as_deep_as_they_may_be_nested() {
    let nested = |levels: usize| (0..levels).fold(json!({"type": "null"}), |it, _| json!({"items": it}));
    assert!(Schema::new(&nested(64)).is_ok());
    let error = refused(&nested(65));
    assert_eq!((error.path, error.message), (".items".repeat(65), "is nested deeper than 64".to_owned()));
    // Each schema within another is a level, wherever it stands.
    for wrap in [
        |it| json!({"properties": {"a": it}}),
        |it| json!({"patternProperties": {"a": it}}),
        |it| json!({"additionalProperties": it}),
        |it| json!({"anyOf": [it]}),
        |it| json!({"allOf": [it]}),
        |it| json!({"items": [it]}),
    ] as [fn(Value) -> Value; 6]
    {
        assert!(Schema::new(&wrap(nested(63))).is_ok());
        assert!(refused(&wrap(nested(64))).message.contains("nested deeper"));
    }
}

#[test]
fn values_of_other_kinds_are_refused_by_name() {
    for (schema, path, message) in [
        (json!({"enum": 5}), ".enum", "must be an array, and is a number"),
        (json!({"required": [5]}), ".required", "must be an array of strings, and is an array"),
        (json!({"patternProperties": 5}), ".patternProperties", "must be an object, and is a number"),
        (json!({"properties": []}), ".properties", "must be an object, and is an array"),
        (json!({"$ref": 5}), ".$ref", "must be a string, and is a number"),
        (json!({"pattern": null}), ".pattern", "must be a string, and is null"),
        (json!({"format": true}), ".format", "must be a string, and is a boolean"),
        (json!({"anyOf": 5}), ".anyOf", "must be an array, and is a number"),
        (json!({"oneOf": []}), ".oneOf", "must have at least one schema"),
        (json!({"allOf": {}}), ".allOf", "must be an array, and is an object"),
        (json!({"items": [5]}), ".items[0]", "must be an object or a boolean, and is a number"),
        (json!({"type": []}), ".type", "must be one of null, boolean"),
        (json!({"type": ["null", 5]}), ".type", "must be one of null, boolean"),
    ] {
        let error = refused(&schema);
        assert_eq!(error.path, path, "{schema}");
        assert!(error.message.starts_with(message), "{schema}: {error}");
    }
    let long = refused(&json!({"type": "a".repeat(5_000)}));
    assert_eq!(long.message.chars().count(), 300);
}
