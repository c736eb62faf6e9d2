//! What a grammar of calls takes is what the reader of that format reads, with the same name and arguments; and the arguments are valid.
//!
//! Planted, one at a time, and caught by `text_is_free_and_calls_in_it_are_not`: drafts whose calls are not taken back; tokens that complete a tag
//! and run on as no call does. By `a_call_ends_reasoning`: all tags that begin calls looked for there; reasoning that goes on behind a call. By
//! `what_is_drawn_at_random_is_read_and_valid` and `what_is_no_valid_call_is_not_taken`: a closing tag within the text that it ends; several calls where
//! one is asked for; no parameter required; a bounded text without the line end that is read off it. By `beside_a_format_there_is_a_call_or_an_answer`:
//! the answer where a call is required.

mod bare;

use super::{Form, Tool, Wanted};
use monomorph_grammar::{Constraint, GrammarError, Grammars, Source, Tags, Thinking, Token};
use monomorph_sampling::TokenMask;
use monomorph_text::{AnswerEvent, AnswerParser, CallOutcome, ReasoningFormat, ToolFormat, ToolSet};
use serde_json::{Value, json};
use std::sync::Arc;

/// What ends an answer.
const END: u32 = 256;
/// Tags that some vocabularies have as control tokens.
const CONTROLS: [&str; 10] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
];
/// Tokens of several bytes: those that end something, and others.
const ENDS: [&str; 9] =
    ["</parameter>", "\n</parameter>\n", "</parameter>\n", "\"}", "\"", "}", "]", "<|\"|>", "</function>"];
const WORDS: [&str; 9] = [">\n", ">{", "l>\n", ">x", "ab", " the", "</", "parameter", "\", "];

/// A vocabulary with the control tokens or without, and a format.
struct World {
    grammars: Grammars,
    form: Form,
    special: bool,
}

fn bytes(id: u32, special: bool) -> Vec<u8> {
    let at = id.wrapping_sub(257) as usize;
    let mut words = ENDS.iter().chain(&WORDS);
    match id {
        0..256 => vec![id as u8],
        END => b"<|end|>".to_vec(),
        _ if special && at < CONTROLS.len() => CONTROLS[at].as_bytes().to_vec(),
        _ if at < CONTROLS.len() => Vec::new(),
        _ => words.nth(at - CONTROLS.len()).map(|word| word.as_bytes().to_vec()).unwrap_or_default(),
    }
}

const VOCABULARY: usize = 257 + CONTROLS.len() + ENDS.len() + WORDS.len();

impl World {
    fn new(format: ToolFormat, special: bool) -> World {
        let all: Vec<Vec<u8>> = (0..VOCABULARY as u32).map(|id| bytes(id, special)).collect();
        let control = |id: u32| (257..257 + CONTROLS.len() as u32).contains(&id);
        let token = |id: u32| {
            let token = Token { bytes: &all[id as usize], special: control(id) };
            Some(token).filter(|token| !token.bytes.is_empty())
        };
        let grammars = Grammars::new(VOCABULARY, token, &[END]).expect("a vocabulary");
        let controls =
            (257..).zip(CONTROLS).filter(|(_, name)| special && format.control_tokens().contains(name));
        World { grammars, form: Form { format, controls: controls.collect() }, special }
    }

    /// All formats, with control tokens and without.
    fn all() -> impl Iterator<Item = World> {
        let each = |(_, format)| [World::new(format, false), World::new(format, true)];
        ToolFormat::NAMES.into_iter().flat_map(each)
    }

    fn held(
        &self,
        wanted: &Wanted,
        format: Option<&Source>,
    ) -> Result<(Constraint, Vec<String>), GrammarError> {
        wanted.compile(&self.grammars, &self.grammars.openers(&self.form.openers()), format)
    }

    fn wanted(&self, tools: &[(&str, Value, bool)], required: bool, one: bool) -> Wanted {
        let tool = |(at, (name, schema, strict)): (usize, &(&str, Value, bool))| Tool {
            name: (*name).to_owned(),
            schema: schema.clone(),
            strict: *strict,
            path: format!("tools[{at}].parameters"),
        };
        let set = Arc::new(ToolSet::new(tools.iter().map(|(name, schema, _)| (*name, schema))));
        let tools = tools.iter().enumerate().map(tool).collect();
        Wanted { form: self.form.clone(), tools, set, required, one }
    }

    /// The tokens of a text: bytes, and control tokens.
    fn ids(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.chars().next() {
            let control = self.form.controls.iter().find(|(_, name)| rest.starts_with(name));
            let taken = control.map_or(first.len_utf8(), |(_, name)| name.len());
            match control {
                Some((id, _)) => ids.push(*id),
                None => ids.extend(rest.as_bytes()[..taken].iter().map(|byte| u32::from(*byte))),
            }
            rest = &rest[taken..];
        }
        ids
    }

    /// What the reader makes of tokens.
    fn read(&self, wanted: &Wanted, ids: &[u32]) -> Vec<AnswerEvent> {
        let format = Some(self.form.format);
        let mut parser =
            AnswerParser::new(format, Some(ReasoningFormat::Think), Arc::clone(&wanted.set), false);
        let (mut events, mut text) = (Vec::new(), Vec::new());
        for id in ids {
            match self.form.controls.iter().find(|(control, _)| control == id) {
                None => text.extend(bytes(*id, self.special)),
                Some((_, name)) => {
                    events.extend(parser.push(&String::from_utf8(std::mem::take(&mut text)).expect("text")));
                    events.extend(parser.push_control(name));
                }
            }
        }
        events.extend(parser.push(&String::from_utf8(text).expect("text")));
        events.extend(parser.finish());
        events
    }

    /// The calls that the reader finds, each with its arguments, and whether there is nothing else.
    fn calls(&self, wanted: &Wanted, ids: &[u32]) -> (Vec<(String, Value)>, bool) {
        let (mut calls, mut only): (Vec<(String, String)>, bool) = (Vec::new(), true);
        for event in self.read(wanted, ids) {
            match event {
                AnswerEvent::CallBegin { name, known, .. } => {
                    only &= known;
                    calls.push((name, String::new()));
                }
                AnswerEvent::CallArguments { delta, .. } => calls.last_mut().expect("one").1.push_str(&delta),
                AnswerEvent::CallEnd { outcome, .. } => only &= outcome == CallOutcome::Complete,
                other => only &= matches!(&other, AnswerEvent::Text(text) if text.trim().is_empty()),
            }
        }
        let read = |(name, text): (String, String)| {
            let arguments = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text));
            (name, arguments)
        };
        (calls.into_iter().map(read).collect(), only)
    }
}

/// What may come next; `None` is anything.
fn next(constraint: &mut Constraint) -> Option<TokenMask> {
    let mut masks = Vec::new();
    constraint.masks(&[], &mut masks).expect("something may come");
    masks.pop()
}

/// How many of the tokens may come, and whether the answer may end there.
fn follow(constraint: &mut Constraint, ids: &[u32]) -> (usize, bool) {
    for (at, id) in ids.iter().enumerate() {
        if next(constraint).is_some_and(|mask| !mask.allows(*id)) {
            return (at, false);
        }
        constraint.take(*id).expect("allowed");
    }
    (ids.len(), next(constraint).is_none_or(|mask| mask.allows(END)))
}

/// xorshift64 (Marsaglia 2003): the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as usize % bound
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

fn tools() -> Vec<(&'static str, Value, bool)> {
    let weather = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
            "at": {"$ref": "#/$defs/point"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "on": {"type": "boolean"},
        },
        "$defs": {"point": {
            "type": "object", "required": ["lat"], "additionalProperties": false,
            "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}, "name": {"type": "string", "maxLength": 4}},
        }},
    });
    let code = json!({
        "type": "object", "required": ["code"], "additionalProperties": false,
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}\\d{1,3}$"}, "name": {"type": "string", "minLength": 1, "maxLength": 5}, "day": {"type": "string", "format": "date"}},
    });
    vec![
        ("get_weather", weather, true),
        ("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false}), true),
        ("ns.code/find", code, true),
    ]
}

/// Arguments that are valid, at random, with texts that formats may stumble over.
fn arguments(tool: &str, random: &mut Random) -> Value {
    let texts = [
        "",
        "Paris",
        "Zürich 🌊",
        "a\nb",
        "\n",
        "{\"x\": 1}",
        "</parameter",
        "it's \"so\" \\ ",
        " null",
        "<b>&amp;</b>",
        "ends\n",
    ];
    let mut made = serde_json::Map::new();
    match tool {
        "get_time" => {}
        "ns.code/find" => {
            made.insert("code".to_owned(), (*random.pick(&["AB1", "XY999"])).into());
            if random.below(2) == 0 {
                made.insert("name".to_owned(), (*random.pick(&["a", "four4", "é\nx"])).into());
                made.insert("day".to_owned(), "2024-02-29".into());
            }
        }
        _ => {
            let point = json!({"lat": *random.pick(&[1.5, -90.0, 33.25]), "name": *random.pick(&["", "ab"])});
            let all = [
                ("city", Value::from(*random.pick(&texts))),
                ("unit", (*random.pick(&["c", "f"])).into()),
                ("days", (1 + random.below(14)).into()),
                ("tags", random.pick(&[json!([]), json!(["a", "b\"c"]), json!(["\n"])]).clone()),
                ("at", point),
                ("note", random.pick(&[json!(null), json!("text"), json!("a<b")]).clone()),
                ("on", (random.below(2) == 0).into()),
            ];
            let chosen =
                all.into_iter().filter(|(name, _)| ["city", "days"].contains(name) || random.below(2) == 0);
            made.extend(chosen.map(|(name, value)| (name.to_owned(), value)));
        }
    }
    made.into()
}

/// A call as the templates of a format write it.
fn written(world: &World, name: &str, arguments: &Value) -> String {
    let members = arguments.as_object().expect("an object").iter();
    let raw = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match world.form.format {
        ToolFormat::Hermes => {
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
        }
        ToolFormat::QwenXml => {
            let each =
                members.map(|(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value)));
            format!("<tool_call>\n<function={name}>\n{}</function>\n</tool_call>", each.collect::<String>())
        }
        ToolFormat::MiniMax => {
            let each =
                members.map(|(key, value)| format!("<parameter name=\"{key}\">{}</parameter>\n", raw(value)));
            let each = each.collect::<String>();
            format!("<minimax:tool_call>\n<invoke name=\"{name}\">\n{each}</invoke>\n</minimax:tool_call>")
        }
        ToolFormat::Mistral if world.special => format!("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        ToolFormat::Mistral => {
            format!("[TOOL_CALLS][{{\"name\": \"{name}\", \"arguments\": {arguments}}}]")
        }
        ToolFormat::Gemma => {
            fn gemma(value: &Value) -> String {
                match value {
                    Value::String(text) => format!("<|\"|>{text}<|\"|>"),
                    Value::Object(map) => {
                        let first = |name: &String| !["city", "days", "code", "lat"].contains(&name.as_str());
                        let mut members: Vec<_> = map.iter().collect();
                        members.sort_by_key(|(name, _)| first(name));
                        let each = members.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
                        format!("{{{}}}", each.collect::<Vec<_>>().join(","))
                    }
                    other => other.to_string(),
                }
            }
            format!("<|tool_call>call:{name}{}<tool_call|>", gemma(arguments))
        }
        ToolFormat::BareJson => format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}"),
    }
}

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
fn text_is_free_and_calls_in_it_are_not() {
    let world = World::new(ToolFormat::Hermes, false);
    let mut auto = world.held(&world.wanted(&tools(), false, false), None).expect("compiled").0;
    assert!(next(&mut auto).is_none() && auto.free_for() == 1);
    assert_eq!(follow(&mut auto, &world.ids("Say <tool_cal")), (13, true));
    // Tokens that complete the tag and go on: as a call does, or not.
    let word = |word: &str| {
        (257..VOCABULARY as u32).find(|id| bytes(*id, false) == word.as_bytes()).expect("a word")
    };
    let mut way = auto.clone();
    assert!(next(&mut way).is_none());
    way.take(word("l>\n")).expect("allowed");
    assert!(
        next(&mut way)
            .is_some_and(|mask| mask.allows(b'{'.into()) && !mask.allows(END) && !mask.allows(b'a'.into()))
    );
    auto.take(u32::from(b'l')).expect("allowed");
    let mask = next(&mut auto).expect("not anything");
    assert!(
        mask.allows(word(">\n"))
            && mask.allows(b'x'.into())
            && mask.allows(END)
            && mask.allows(word(">{"))
            && !mask.allows(word(">x"))
    );
    assert_eq!(auto.free_for(), 0);
    // Drafts that run into a call and out of it, and leave no trace.
    let rest = world.ids(">\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call> and <tool_call>");
    let mut masks = Vec::new();
    auto.masks(&rest, &mut masks).expect("something may come");
    assert_eq!(masks.len(), rest.len() + 1);
    let mut plain = auto.clone();
    for (at, id) in rest.iter().enumerate() {
        let expected = next(&mut plain);
        assert_eq!(masks[at].count(), expected.map_or(VOCABULARY, |mask| mask.count()), "{at}");
        plain.take(*id).expect("allowed");
    }
    assert_eq!(follow(&mut auto, &rest), (rest.len(), false));
}

#[test]
fn a_call_ends_reasoning() {
    let world = World::new(ToolFormat::QwenXml, true);
    let tags: Arc<Tags> = world.grammars.tags(&world.ids("<think>"), &world.ids("</think>"));
    let call = written(&world, "get_time", &json!({}));
    for required in [false, true] {
        let held = world.held(&world.wanted(&tools(), required, false), None).expect("compiled").0;
        let held = held.after(Thinking::new(&tags, true, None));
        for text in [format!("Well.</think>\n\n{call}"), format!("I forgot. {call}")] {
            let ids = world.ids(&text);
            assert_eq!(follow(&mut held.clone(), &ids), (ids.len(), true), "{required}: {text}");
        }
        // Only the first of the tags that begin calls does.
        let thought = world.ids("<function=f> is how");
        assert_eq!(follow(&mut held.clone(), &thought).0, thought.len());
        let wrong = world.ids("I forgot. <tool_call>\nso");
        assert_eq!(follow(&mut held.clone(), &wrong).0, wrong.len() - 2, "{required}");
        let answer = world.ids("Well.</think>\n\nHello");
        assert_eq!(follow(&mut held.clone(), &answer).1, !required);
    }
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
