//! Streams of whatever an answer may hold, as a reader sees them that keeps to the standard of server-sent
//! events, however they are cut.
//!
//! Planted, and caught here: carriage returns within strings written as they are (events and chats).

use crate::answer::part::{AnswerPart, End, EndReason, Piece, TokenLogprob, Usage};
use crate::answer::writer::{Writer, event, named_event};
use crate::anthropic::answers::MessageWriter;
use crate::anthropic::thinking::Display;
use crate::openai::answers::{AnswerWriter, Endpoint};
use crate::openai::responses::answers::ResponseWriter;
use crate::openai::responses::request::ResponsesRequest;
use crate::openai::responses::store::Store;
use crate::request::generation::GenerationParams;
use crate::request::limits::RequestLimits;
use axum::body::Bytes;
use monomorph_sampling::Sampling;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

/// A reader as the HTML standard describes it; takes bytes in any pieces.
#[derive(Default)]
struct Reader {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, behind which a line feed is none of its own.
    returned: bool,
    begun: bool,
    data: Option<String>,
    name: String,
    /// Names and data.
    events: Vec<(String, String)>,
}

impl Reader {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' if self.returned => self.returned = false,
                b'\n' | b'\r' => {
                    self.returned = *byte == b'\r';
                    self.end_line();
                }
                _ => {
                    self.returned = false;
                    self.line.push(*byte);
                }
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        let line = if self.begun { line.as_str() } else { line.strip_prefix('\u{feff}').unwrap_or(&line) };
        self.begun = true;
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            if let Some(data) = self.data.take() {
                self.events.push((name, data));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => data.extend(["\n", value]),
                none => *none = Some(value.to_owned()),
            },
            _ => {}
        }
    }
}

/// Reads chunks, put together and cut again after so many bytes each, in turn.
fn read(chunks: &[Bytes], cuts: &[usize]) -> Vec<(String, String)> {
    let all: Vec<u8> = chunks.concat();
    let mut reader = Reader::default();
    let (mut rest, mut turns) = (all.as_slice(), cuts.iter().cycle());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((*turns.next().unwrap_or(&1)).clamp(1, rest.len()));
        reader.push(piece);
        rest = after;
    }
    reader.events
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..40, 1..6)
}

/// Text with what readers of lines trip over.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        prop::sample::select(vec![
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "\r\r",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "\0",
            "data: x\n\n",
            ": comment\n",
            "[DONE]",
            "\"",
            "\\",
            "é🦀",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// What an answer may be made of, in pieces.
fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let part = || {
        prop_oneof![
            4 => text().prop_map(AnswerPart::Text),
            2 => text().prop_map(AnswerPart::Reasoning),
            1 => Just(AnswerPart::ReasoningEnd),
            1 => text().prop_map(AnswerPart::Rejected),
        ]
    };
    let call = (text(), prop::collection::vec(text(), 0..4));
    (
        prop::collection::vec(prop::collection::vec(part(), 0..4), 0..6),
        prop::collection::vec(call, 0..3),
        any::<bool>(),
    )
        .prop_map(|(parts, calls, told)| {
            let mut pieces: Vec<Piece> =
                parts.into_iter().map(|parts| Piece { parts, ..Piece::default() }).collect();
            for (index, (name, deltas)) in calls.iter().enumerate() {
                let mut parts =
                    vec![AnswerPart::CallBegin { index, id: format!("call_{index}"), name: name.clone() }];
                parts.extend(
                    deltas.iter().map(|delta| AnswerPart::CallArguments { index, delta: delta.clone() }),
                );
                parts.push(AnswerPart::CallEnd { index });
                pieces.push(Piece { parts, ..Piece::default() });
            }
            if told && let Some(first) = pieces.first_mut() {
                first.logprobs.push(TokenLogprob {
                    bytes: b"\xff\n".to_vec(),
                    logprob: -0.5,
                    top: vec![(b"\r".to_vec(), f32::NEG_INFINITY)],
                });
            }
            let end =
                End { reason: EndReason::Stop, calls: calls.len(), usage: Usage::default(), timings: None };
            pieces.push(Piece { end: Some(end), ..Piece::default() });
            pieces
        })
}

/// What was said in them: text, reasoning, arguments.
fn said(pieces: &[Piece]) -> [String; 3] {
    let mut said = [const { String::new() }; 3];
    for part in pieces.iter().flat_map(|piece| &piece.parts) {
        match part {
            AnswerPart::Text(text) => said[0] += text,
            AnswerPart::Reasoning(text) => said[1] += text,
            AnswerPart::CallArguments { delta, .. } => said[2] += delta,
            _ => {}
        }
    }
    said
}

fn streamed(mut writer: impl Writer, pieces: &[Piece]) -> Vec<Bytes> {
    let mut chunks = writer.opening();
    for piece in pieces {
        chunks.push(writer.idle());
        chunks.extend(writer.piece(0, piece));
    }
    chunks.extend(writer.closing(Usage::default()));
    chunks
}

const LIMITS: RequestLimits =
    RequestLimits { context: 100, vocabulary: 10, on_gpu: false, images: false, sampling: Sampling::GREEDY };

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_are_read_as_they_were_written(values in prop::collection::vec((value(), any::<bool>()), 0..6), cuts in cuts()) {
        let mut chunks = Vec::new();
        for (value, named) in &values {
            chunks.push(Bytes::from_static(b": keep-alive\n\n"));
            chunks.push(if *named { named_event(&json!({"type": "a.b_c", "it": value})) } else { event(value) });
        }
        let events = read(&chunks, &cuts);
        prop_assert_eq!(events.len(), values.len());
        for ((name, data), (value, named)) in events.iter().zip(&values) {
            prop_assert_eq!(name.as_str(), if *named { "a.b_c" } else { "" });
            let read: Value = serde_json::from_str(data).expect("JSON");
            prop_assert_eq!(if *named { &read["it"] } else { &read }, value);
        }
    }

    #[test]
    fn chats_are_read_as_they_were_written(pieces in pieces(), cuts in cuts()) {
        let params = GenerationParams::of_defaults(&LIMITS);
        let mut events = read(&streamed(AnswerWriter::new(Endpoint::Chat, "m", None, &params), &pieces), &cuts);
        prop_assert_eq!(events.pop(), Some((String::new(), "[DONE]".to_owned())));
        let mut found = [const { String::new() }; 3];
        for (_, data) in events {
            let chunk: Value = serde_json::from_str(&data).expect("JSON");
            let delta = &chunk["choices"][0]["delta"];
            found[0] += delta["content"].as_str().unwrap_or_default();
            found[1] += delta["reasoning_content"].as_str().unwrap_or_default();
            found[2] += delta["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default();
        }
        prop_assert_eq!(found, said(&pieces));
    }

    #[test]
    fn messages_are_read_as_they_were_written(pieces in pieces(), cuts in cuts()) {
        let params = GenerationParams::of_defaults(&LIMITS);
        let mut found = [const { String::new() }; 3];
        for (name, data) in read(&streamed(MessageWriter::new("m", 1, &params, Display::Shown), &pieces), &cuts) {
            let event: Value = serde_json::from_str(&data).expect("JSON");
            prop_assert_eq!(event["type"].as_str(), Some(name.as_str()));
            for (at, name) in ["text", "thinking", "partial_json"].into_iter().enumerate() {
                found[at] += event["delta"][name].as_str().unwrap_or_default();
            }
        }
        prop_assert_eq!(found, said(&pieces));
    }

    #[test]
    fn responses_are_read_as_they_were_written(pieces in pieces(), cuts in cuts()) {
        let store = Arc::new(Store::new(1 << 20));
        let mut request = ResponsesRequest::read(&json!({"input": "x"}), &LIMITS, &store).expect("a request");
        let mut found = [const { String::new() }; 3];
        for (number, (name, data)) in read(&streamed(ResponseWriter::new("m", &mut request, &store), &pieces), &cuts).into_iter().enumerate() {
            let event: Value = serde_json::from_str(&data).expect("JSON");
            prop_assert_eq!(event["type"].as_str(), Some(name.as_str()));
            prop_assert_eq!(event["sequence_number"].as_u64(), Some(number as u64));
            let kinds = ["response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta"];
            if let Some(at) = kinds.iter().position(|kind| *kind == name) {
                found[at] += event["delta"].as_str().unwrap_or_default();
            }
        }
        prop_assert_eq!(found, said(&pieces));
    }
}

/// Of whole responses each text has its tokens, the last one also those of which it has only a part or none.
#[test]
fn whole_responses_have_all_tokens() {
    let text = |text: &str| AnswerPart::Text(text.to_owned());
    let call = [
        AnswerPart::CallBegin { index: 0, id: "call_0".to_owned(), name: "f".to_owned() },
        AnswerPart::CallEnd { index: 0 },
    ];
    let token =
        |bytes: &&str| TokenLogprob { bytes: bytes.as_bytes().to_vec(), logprob: -0.5, top: Vec::new() };
    for (parts, tokens, wanted) in [
        (vec![text("Hello x")], &["\n\nHello", " x", ""][..], &[("Hello x", 3)][..]),
        ([&[text("ab")][..], &call, &[text("c")]].concat(), &["a", "b", "c"], &[("ab", 2), ("c", 1)]),
    ] {
        let end = End { reason: EndReason::Stop, calls: 0, usage: Usage::default(), timings: None };
        let logprobs = tokens.iter().map(token).collect();
        let piece = Piece { parts, logprobs, end: Some(end), ..Piece::default() };
        let store = Arc::new(Store::new(0));
        let mut request = ResponsesRequest::read(&json!({"input": "x"}), &LIMITS, &store).expect("a request");
        let whole = ResponseWriter::new("m", &mut request, &store).whole(&[piece]);
        let items = whole["output"].as_array().expect("items").iter();
        let parts = items.map(|item| &item["content"][0]).filter(|part| part["type"] == "output_text");
        let found: Vec<(&str, usize)> = parts
            .map(|part| {
                (part["text"].as_str().expect("text"), part["logprobs"].as_array().map_or(0, Vec::len))
            })
            .collect();
        assert_eq!(found, wanted);
    }
}
