//! Schemas of which not all is held to.

use super::*;

#[test]
fn tools_that_are_too_much_together_are_held_to_less() {
    let world = World::new(ToolFormat::Hermes, true);
    let long = |name: &str| json!({"type": "object", "properties": {"a": {"enum": [name.repeat(300_000)]}}, "required": ["a"]});
    let many = |strict| ["a", "b", "c", "d"].map(|name| (name, long(name), strict));
    let (mut held, loose) = world.held(&world.wanted(&many(false), true, false), None).expect("compiled");
    assert_eq!(loose.len(), 4);
    assert!(follow(&mut held, &world.ids(&written(&world, "c", &json!({"a": 5})))).1);
    assert!(world.held(&world.wanted(&many(true), true, false), None).is_err());
}

#[test]
fn what_is_not_held_to_is_told_and_refused_where_it_has_to_be() {
    let of = |part: Value| json!({"type": "object", "properties": {"a": part}, "required": ["a"]});
    for world in World::all() {
        let xml = !world.form.is_json();
        for (schema, path, in_all) in [
            (of(json!({"type": "array", "uniqueItems": true})), ".properties.a.uniqueItems", true),
            (of(json!({"type": "integer", "minimum": 5, "maximum": 4})), "", true),
            (of(json!({"type": "string", "format": "email"})), ".properties.a.format", false),
            (
                json!({"type": "object", "patternProperties": {"^a": {"type": "string"}}}),
                ".patternProperties",
                false,
            ),
        ] {
            let told = format!("{:?}: {schema}", world.form.format);
            let path = format!("tools[0].parameters{path}");
            let strict = world.held(&world.wanted(&[("f", schema.clone(), true)], true, false), None);
            let loose = world.held(&world.wanted(&[("f", schema, false)], true, false), None);
            let loose = loose.unwrap_or_else(|error| panic!("{told}: {error}")).1;
            if in_all || xml {
                assert_eq!(strict.expect_err(&told).path, path, "{told}");
                assert_eq!(loose, [path], "{told}");
            } else {
                assert!(strict.is_ok() && loose.is_empty(), "{told}");
            }
        }
    }
}
