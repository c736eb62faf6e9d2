//! What a client makes of an answer.

use crate::corpus::{Protocol, tools};
use monomorph_text::{AnswerEvent, AnswerParser, CallOutcome, ToolFormat};
use serde_json::{Value, json};

/// Longest tag and the spacing held at the beginning of an answer.
pub(crate) const HELD: usize = "</minimax:tool_call>".len() + 16;

/// What a client makes of the events. Panics where they are not in order.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) parts: Vec<Value>,
    /// The call or reasoning that is open.
    pub(crate) open: bool,
    calls: usize,
}

impl Client {
    pub(crate) fn add(&mut self, event: AnswerEvent) {
        let last = self.parts.last_mut();
        let append = |last: &mut Value, text: &str| *last = json!(last.as_str().unwrap().to_owned() + text);
        match event {
            AnswerEvent::Text(text) => {
                assert!(!self.open && !text.is_empty());
                match last {
                    Some(last) if last.get("text").is_some() => append(&mut last["text"], &text),
                    _ => self.parts.push(json!({"text": text})),
                }
            }
            AnswerEvent::ReasoningBegin => {
                assert!(!self.open);
                self.open = true;
                self.parts.push(json!({"reasoning": "", "closed": null}));
            }
            AnswerEvent::Reasoning(text) => {
                assert!(self.open && !text.is_empty());
                match last {
                    Some(last) if last.get("reasoning").is_some() => append(&mut last["reasoning"], &text),
                    // Behind something rejected within it.
                    _ => self.parts.push(json!({"reasoning": text, "closed": null})),
                }
            }
            AnswerEvent::ReasoningEnd { closed } => {
                assert!(std::mem::take(&mut self.open));
                for part in self.parts.iter_mut().filter(|part| part.get("closed") == Some(&Value::Null)) {
                    part["closed"] = json!(closed);
                }
            }
            AnswerEvent::CallBegin { index, name, known, .. } => {
                assert!(!self.open && index == self.calls);
                self.open = true;
                self.calls += 1;
                self.parts.push(json!({"call": name, "arguments": "", "outcome": null}));
                if !known {
                    self.parts.last_mut().unwrap()["known"] = json!(false);
                }
            }
            AnswerEvent::CallArguments { index, delta } => {
                assert!(self.open && index + 1 == self.calls && !delta.is_empty());
                append(&mut last.unwrap()["arguments"], &delta);
            }
            AnswerEvent::CallEnd { index, outcome } => {
                assert!(index + 1 == self.calls && std::mem::take(&mut self.open));
                last.unwrap()["outcome"] = json!(match outcome {
                    CallOutcome::Complete => "complete",
                    CallOutcome::Truncated => "truncated",
                    CallOutcome::Malformed => "malformed",
                });
            }
            AnswerEvent::Rejected(text) => match last {
                Some(last) if last.get("rejected").is_some() => append(&mut last["rejected"], &text),
                _ => self.parts.push(json!({"rejected": text})),
            },
        }
    }
}

pub(crate) fn parse<'a>(protocol: &Protocol, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
    let mut parser = AnswerParser::new(protocol.tools, protocol.reasoning, tools(), protocol.opened);
    let mut client = Client::default();
    for piece in pieces {
        parser.push(piece).into_iter().for_each(|event| client.add(event));
        assert!(parser.held() <= HELD, "{} bytes held", parser.held());
    }
    parser.finish().into_iter().for_each(|event| client.add(event));
    assert!(!client.open, "not ended: {:?}", client.parts);
    assert!(parser.finish().is_empty() && parser.held() == 0);
    client.parts
}

pub(crate) fn boundaries(text: &str) -> impl Iterator<Item = usize> {
    (0..=text.len()).filter(|&at| text.is_char_boundary(at))
}

pub(crate) fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, character)| &text[at..at + character.len_utf8()])
}

pub(crate) fn all(parts: &[Value], key: &str) -> String {
    parts.iter().filter_map(|part| part.get(key)?.as_str()).collect()
}

pub(crate) fn complete_calls_are_objects(parts: &[Value]) {
    for call in parts.iter().filter(|part| part["outcome"] == "complete") {
        let arguments = call["arguments"].as_str().unwrap();
        match serde_json::from_str::<Value>(arguments) {
            Ok(value) => assert!(value.is_object(), "{arguments}"),
            // JSON, but not among the numbers that are read here.
            Err(error) => assert!(error.to_string().contains("out of range"), "{arguments}: {error}"),
        }
    }
}

/// No tag of the tool format shows in text, nor the one that opens a call in reasoning.
pub(crate) fn no_tag_shows(protocol: &Protocol, parts: &[Value]) {
    let tags: &[&str] = match protocol.tools {
        Some(ToolFormat::Hermes) => &["<tool_call>", "</tool_call>"],
        Some(ToolFormat::QwenXml) => &["<tool_call>", "</tool_call>", "<function=", "</function>"],
        Some(ToolFormat::Mistral) => &["[TOOL_CALLS]"],
        Some(ToolFormat::MiniMax) => &["<minimax:tool_call>", "</minimax:tool_call>"],
        Some(ToolFormat::Gemma) => &["<|tool_call>", "<tool_call|>"],
        Some(ToolFormat::BareJson) | None => &[],
    };
    for part in parts {
        let shows =
            |key: &str, tag: &&str| part.get(key).is_some_and(|text| text.as_str().unwrap().contains(tag));
        assert!(!tags.iter().any(|tag| shows("text", tag)), "{part}");
        assert!(!tags.iter().take(1).any(|tag| shows("reasoning", tag)), "{part}");
    }
}

/// What an answer cut short has is what the whole begins with.
pub(crate) fn is_a_beginning(short: &[Value], whole: &[Value]) {
    let told = format!("{} of {}", json!(short), json!(whole));
    // Spacing before markup is text until the markup is seen; line ends before a closing tag likewise.
    let text = all(short, "text");
    assert!(text.trim().is_empty() || all(whole, "text").starts_with(&text), "{told}");
    assert!(all(whole, "reasoning").starts_with(all(short, "reasoning").trim_end_matches('\n')), "{told}");
    let calls = |parts: &[Value]| parts.iter().filter(|part| part.get("call").is_some()).cloned().collect();
    let (of_short, of_whole): (Vec<Value>, Vec<Value>) = (calls(short), calls(whole));
    assert!(of_short.len() <= of_whole.len(), "{told}");
    for (short, whole) in of_short.iter().zip(&of_whole) {
        assert_eq!(short["call"], whole["call"], "{told}");
        let arguments = short["arguments"].as_str().unwrap();
        let arguments = arguments.strip_suffix("\\n").unwrap_or(arguments);
        assert!(whole["arguments"].as_str().unwrap().starts_with(arguments), "{told}");
    }
}
