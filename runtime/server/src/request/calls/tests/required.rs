//! Calls that are required, in all forms: as templates write them, drawn at random, and wrong ones.

use super::*;

#[test]
fn calls_as_templates_write_them_are_taken_and_read_back() {
    let mut random = Random(11);
    for world in World::all() {
        let told = format!("{:?}, control tokens: {}", world.form.format, world.special);
        let tools = tools();
        let wanted = world.wanted(&tools, true, false);
        let (required, loose) = world.held(&wanted, None).unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(loose.is_empty(), "{told}: {loose:?}");
        let auto = world.held(&world.wanted(&tools, false, false), None).expect("compiled").0;
        for _ in 0..60 {
            let (name, ..) = random.pick(&tools);
            let arguments = arguments(name, &mut random);
            let ids = world.ids(&written(&world, name, &arguments));
            let (calls, only) = world.calls(&wanted, &ids);
            assert!(
                only && calls == [((*name).to_owned(), arguments.clone())],
                "{told}: {arguments} is read as {calls:?}"
            );
            let taken = follow(&mut required.clone(), &ids);
            assert_eq!(taken, (ids.len(), true), "{told}: {}", written(&world, name, &arguments));
            let mut free = auto.clone();
            if world.form.format == ToolFormat::BareJson {
                assert!(
                    follow(&mut free, &[&ids[..], &world.ids("; "), &ids[..], &world.ids("Text")].concat()).1,
                    "{told}"
                );
            } else {
                let text = world.ids("I look <tool. ");
                assert!(follow(&mut free, &[&text[..], &ids[..], &text[..], &ids[..]].concat()).1, "{told}");
            }
        }
    }
}

#[test]
fn what_is_drawn_at_random_is_read_and_valid() {
    let ends: Vec<u32> = (0..ENDS.len() as u32).map(|at| 257 + CONTROLS.len() as u32 + at).collect();
    let mut random = Random(12);
    for world in World::all() {
        let tools = tools();
        for one in [false, true] {
            let wanted = world.wanted(&tools, true, one);
            let constraint = world.held(&wanted, None).expect("compiled").0;
            for _ in 0..25 {
                let (mut constraint, mut ids) = (constraint.clone(), Vec::new());
                loop {
                    let mask = next(&mut constraint).expect("held");
                    let all: Vec<u32> = (0..VOCABULARY as u32).filter(|id| mask.allows(*id)).collect();
                    if all.contains(&END) && (all.len() == 1 || random.below(2) == 0) {
                        break;
                    }
                    let closing: Vec<u32> = all
                        .iter()
                        .copied()
                        .filter(|id| ends.contains(id) || (257..267).contains(id))
                        .collect();
                    let from = if closing.is_empty() || random.below(3) > 0 { &all } else { &closing };
                    let id = *random.pick(from);
                    if id != END {
                        constraint.take(id).expect("allowed");
                        ids.push(id);
                    }
                    assert!(ids.len() < 20_000, "no end");
                }
                let told = || {
                    let text: Vec<u8> = ids.iter().flat_map(|id| bytes(*id, world.special)).collect();
                    format!("{:?}, {}: {}", world.form.format, world.special, String::from_utf8_lossy(&text))
                };
                let (calls, only) = world.calls(&wanted, &ids);
                assert!(only && !calls.is_empty() && (!one || calls.len() == 1), "{}: {calls:?}", told());
                for (name, arguments) in calls {
                    let tool = tools.iter().find(|(known, ..)| *known == name);
                    let (_, schema, _) = tool.unwrap_or_else(|| panic!("{}: {name}", told()));
                    let valid = jsonschema::validate(schema, &arguments);
                    assert!(valid.is_ok(), "{}: {arguments}: {valid:?}", told());
                }
            }
        }
    }
}

#[test]
fn what_is_no_valid_call_is_not_taken() {
    let wrong = [
        ("get_wether", json!({})),
        ("get_weather", json!({"city": "x"})),
        ("get_weather", json!({"city": "x", "days": 15})),
        ("get_weather", json!({"city": "x", "days": "two"})),
        ("get_weather", json!({"city": "x", "unit": "k", "days": 1})),
        ("get_weather", json!({"city": "x", "days": 1, "on": "maybe"})),
        ("get_weather", json!({"city": "x", "days": 1, "at": {}})),
        ("get_weather", json!({"city": "x", "days": 1, "more": true})),
        ("get_time", json!({"zone": "x"})),
        ("ns.code/find", json!({"code": "ab1"})),
        ("ns.code/find", json!({"code": "AB1", "name": "longer"})),
        ("ns.code/find", json!({"code": "AB1", "name": ""})),
        ("ns.code/find", json!({"code": "AB1", "day": "2023-02-29"})),
    ];
    for world in World::all() {
        let required = world.held(&world.wanted(&tools(), true, true), None).expect("compiled").0;
        for (name, arguments) in &wrong {
            let ids = world.ids(&written(&world, name, arguments));
            let (at, ends) = follow(&mut required.clone(), &ids);
            assert!(at < ids.len() && !ends, "{:?}: {name} {arguments}", world.form.format);
        }
        let good = written(&world, "get_time", &json!({}));
        // One is enough where one is asked for; and text is none.
        assert!(
            follow(&mut required.clone(), &world.ids(&format!("{good}\n{good}"))).0 <= world.ids(&good).len()
        );
        assert!(follow(&mut required.clone(), &world.ids("Hello, I look")).0 < 13);
        let mut wanted = world.wanted(&tools(), true, true);
        wanted.tools.truncate(1);
        let only = world.held(&wanted, None).expect("compiled").0;
        assert!(follow(&mut only.clone(), &world.ids(&good)).0 < world.ids(&good).len(), "another tool");
    }
}

#[test]
fn beside_a_format_there_is_a_call_or_an_answer() {
    let schema = json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}});
    for world in World::all().filter(|world| world.form.format != ToolFormat::BareJson) {
        for (source, good, bad) in [
            (Source::JsonSchema(schema.clone()), "{\"x\": 5}", "{\"x\": true}"),
            (Source::JsonObject, "{\"y\": [1]}", "[1]"),
            (Source::Regex("[a-c]{2}/[0-9]".into()), "ab/7", "ab/a"),
            (
                Source::Lark("start: \"(\" WORD (\",\" WORD)* \")\"\nWORD: /[a-z]{1,3}/\n".into()),
                "(ab,c)",
                "(ab,)",
            ),
            (Source::Choice(vec!["yes".into(), "no \"never\"".into()]), "no \"never\"", "nono"),
        ] {
            let both = world.held(&world.wanted(&tools(), false, false), Some(&source)).expect("compiled").0;
            let call = world.ids(&written(&world, "get_time", &json!({})));
            for (ids, fits) in [(world.ids(good), true), (call, true), (world.ids(bad), false)] {
                assert_eq!(follow(&mut both.clone(), &ids).1, fits, "{:?}: {source:?}", world.form.format);
            }
            let required =
                world.held(&world.wanted(&tools(), true, false), Some(&source)).expect("compiled").0;
            assert!(!follow(&mut required.clone(), &world.ids(good)).1, "a call is required");
        }
    }
}
