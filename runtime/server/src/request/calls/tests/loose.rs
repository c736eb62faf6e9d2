//! Schemas that cannot be enforced in full.

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
fn strict_arguments_have_the_members_that_are_declared_and_no_others() {
    let world = World::new(ToolFormat::Hermes, true);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for (arguments, strict, fits) in [
        (json!({"a": 1}), true, true),
        (json!({"a": 1, "b": 2}), true, false),
        (json!({"a": 1, "b": 2}), false, true),
    ] {
        let wanted = world.wanted(&[("f", schema.clone(), strict)], true, true);
        let (mut held, loose) = world.held(&wanted, None).expect("compiled");
        assert!(loose.is_empty());
        let taken = follow(&mut held, &world.ids(&written(&world, "f", &arguments))).1;
        assert_eq!(taken, fits, "{arguments}, strict: {strict}");
    }
}

#[test]
fn numbers_that_are_not_kept_are_left_out_or_refused() {
    let world = World::new(ToolFormat::Hermes, true);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 10_000_000_000_000_000_001_u64}}});
    let path = "tools[0].parameters.properties.a.minimum";
    let loose =
        world.held(&world.wanted(&[("f", schema.clone(), false)], true, true), None).expect("compiled").1;
    assert_eq!(loose, [path]);
    let strict = world.held(&world.wanted(&[("f", schema, true)], true, true), None);
    assert_eq!(strict.expect_err("refused").path, path);
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
            // Of arguments that are too much for the library, strict ones are searched.
            let searched = if path.is_empty() { ".properties.a" } else { path };
            let [searched, path] = [searched, path].map(|path| format!("tools[0].parameters{path}"));
            let strict = world.held(&world.wanted(&[("f", schema.clone(), true)], true, false), None);
            let loose = world.held(&world.wanted(&[("f", schema, false)], true, false), None);
            let loose = loose.unwrap_or_else(|error| panic!("{told}: {error}")).1;
            if in_all || xml {
                assert_eq!(strict.expect_err(&told).path, searched, "{told}");
                assert_eq!(loose, [path], "{told}");
            } else {
                assert!(strict.is_ok() && loose.is_empty(), "{told}");
            }
        }
    }
}
