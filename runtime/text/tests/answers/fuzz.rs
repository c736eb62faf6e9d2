//! Answers put together by chance, and answers of the corpora with damage.

use crate::client::{
    all, boundaries, characters, complete_calls_are_objects, is_a_beginning, no_tag_shows, parse,
};
use crate::corpus::{Protocol, cases};
use monomorph_text::{ReasoningFormat, ToolFormat};
use proptest::prelude::*;
use std::sync::OnceLock;

fn protocols() -> impl Strategy<Value = Protocol> {
    let tools = prop::sample::select(ToolFormat::NAMES.to_vec()).prop_map(|(_, format)| format);
    let reasoning = prop::sample::select(ReasoningFormat::NAMES.to_vec()).prop_map(|(_, format)| format);
    (prop::option::weighted(0.9, tools), prop::option::of(reasoning), any::<bool>())
        .prop_map(|(tools, reasoning, opened)| Protocol { tools, reasoning, opened })
}

/// Tags, parts of them, pieces of JSON; `W` becomes a word that occurs once.
const PIECES: [&str; 62] = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "<function=now>",
    "</function>",
    "<parameter=",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"now\">",
    "<invoke name=",
    "</invoke>",
    "<parameter name=\"W\">",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "call:",
    "call:now{",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|channel>thought\n",
    "<channel|>",
    "<",
    "</",
    "<|",
    "[",
    "]",
    "{",
    "}",
    "\"",
    ":",
    ",",
    ">",
    "\\",
    "\\\"",
    "\\u00",
    "\\ud83e",
    "{\"name\":\"now\",\"arguments\":{",
    "{\"name\":\"get_weather\",\"parameters\":{",
    "\"name\"",
    "\"arguments\"",
    "\"W\":",
    "\"W\"",
    "W",
    "W",
    "W",
    "12",
    "true",
    "null",
    "-1.5e3",
    " ",
    "\n",
    "é🦀",
    "<tool_",
    "\u{1}",
];

fn answers() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40).prop_map(|pieces| {
        let mut words = 0..;
        let name = |piece: &str| match piece.split_once('W') {
            Some((before, after)) => format!("{before}q{}q{after}", words.next().unwrap_or(0)),
            None => piece.to_owned(),
        };
        pieces.into_iter().map(name).collect()
    })
}

/// An answer of the corpora with damage: pieces put in or in the place of others.
fn damaged() -> impl Strategy<Value = (Protocol, String)> {
    static CASES: OnceLock<Vec<(Protocol, String)>> = OnceLock::new();
    let cases = CASES.get_or_init(|| cases().into_iter().map(|case| (case.protocol, case.answer)).collect());
    let edit = (any::<prop::sample::Index>(), 0usize..12, prop::sample::select(PIECES.to_vec()));
    (prop::sample::select(cases.as_slice()), prop::collection::vec(edit, 1..4)).prop_map(
        |((protocol, answer), edits)| {
            let mut answer: Vec<char> = answer.chars().collect();
            for (at, removed, put) in edits {
                let at = at.index(answer.len() + 1);
                let end = (at + removed).min(answer.len());
                answer.splice(at..end, put.chars());
            }
            (protocol, answer.into_iter().collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// What is nearly a call: no panic, events in order, cuts make no difference, complete calls are JSON
    /// objects, no tag shows.
    #[test]
    fn damaged_answers((protocol, answer) in damaged(), cut in any::<prop::sample::Index>()) {
        let whole = parse(&protocol, [answer.as_str()]);
        complete_calls_are_objects(&whole);
        no_tag_shows(&protocol, &whole);
        prop_assert_eq!(&parse(&protocol, characters(&answer)), &whole);
        let places: Vec<usize> = boundaries(&answer).collect();
        let (left, right) = answer.split_at(places[cut.index(places.len())]);
        prop_assert_eq!(&parse(&protocol, [left, right]), &whole);
        is_a_beginning(&parse(&protocol, [left]), &whole);
    }

    /// No panic, events in order, cuts make no difference, complete calls are JSON objects, no tag shows, and
    /// every word that was written is found once.
    #[test]
    fn whatever_comes(protocol in protocols(), answer in answers()) {
        let whole = parse(&protocol, [answer.as_str()]);
        prop_assert_eq!(&parse(&protocol, characters(&answer)), &whole);
        complete_calls_are_objects(&whole);
        no_tag_shows(&protocol, &whole);
        let told: String = ["text", "reasoning", "call", "arguments", "rejected"].map(|key| all(&whole, key)).concat();
        for word in answer.split(|character: char| !character.is_ascii_alphanumeric()) {
            if word.starts_with('q') && word.ends_with('q') && word.len() > 2 {
                let found = told.matches(word).count();
                // Members of a JSON call that are none of its own, and ids, are read and not told.
                let json = [ToolFormat::Hermes, ToolFormat::BareJson, ToolFormat::Mistral];
                let skipped = protocol.tools.is_some_and(|format| json.contains(&format));
                prop_assert!(found == 1 || found == 0 && skipped, "{} of {}: {:?}", found, word, whole);
            }
        }
    }

    /// Text without any tag is text.
    #[test]
    fn text_is_text(protocol in protocols(), text in "[^<\\[{]{0,60}") {
        let protocol = Protocol { opened: false, ..protocol };
        prop_assert_eq!(all(&parse(&protocol, characters(&text)), "text"), text);
    }
}
