//! What a grammar of calls takes is what the reader of that format reads, with the same name and arguments;
//! and the arguments are valid.
//!
//! Planted, one at a time, and caught by `text_is_free_and_calls_in_it_are_not`: drafts whose calls are not
//! taken back; tokens that complete a tag and run on as no call does. By `a_call_ends_reasoning`: all tags
//! that begin calls looked for there; reasoning that goes on behind a call. By
//! `what_is_drawn_at_random_is_read_and_valid` and `what_is_no_valid_call_is_not_taken`: a closing tag within
//! the text that it ends; several calls where one is asked for; no parameter required; a bounded text without
//! the line end that is read off it. By `beside_a_format_there_is_a_call_or_an_answer`: the answer where a
//! call is required.

mod bare;
mod free;
mod loose;
mod required;

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

/// Behind each of the drafts, all of which may come, it allows what it does when they have.
fn looks_behind_drafts(constraint: &mut Constraint, drafts: &[u32]) {
    let mut masks = Vec::new();
    constraint.masks(drafts, &mut masks).expect("something may come");
    assert_eq!(masks.len(), drafts.len() + 1);
    let mut plain = constraint.clone();
    for (at, id) in drafts.iter().enumerate() {
        let expected = next(&mut plain);
        assert_eq!(masks[at].count(), expected.map_or(VOCABULARY, |mask| mask.count()), "{at}");
        plain.take(*id).expect("allowed");
    }
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
