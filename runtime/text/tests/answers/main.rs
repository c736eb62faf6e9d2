//! Answers of each tool format and of reasoning (the JSON files beside this one, with what is expected of
//! them), whole, cut at every place, cut short at every place; and answers put together by chance.
//!
//! Planted defects, and the tests that saw them (`each` = each_answer_has_the_events_expected, `short` =
//! an_answer_cut_short_is_a_beginning): the beginning of a tag at the end is text (each, short); the scanner
//! gives up at the end of each piece (cuts, short, both fuzz tests); tags count in JSON strings (each);
//! control characters in strings pass as they are, half a surrogate pair passes, a value of Gemma's without
//! quotes passes unchecked (each, short, damaged_answers); no limit of depth in JSON, in Gemma
//! (depth_is_bounded); strings of parameters wait for their end (arguments_stream, each); the line end before
//! `</parameter>` stays (each); a rejected character is dropped (each, whatever_comes; in JSON
//! depth_is_bounded); what was kept of a call that never began is forgotten (each, whatever_comes); a call
//! within reasoning leaves it open (all but two); strings are parsed as numbers (each, arguments_stream);
//! reasoning tags count within text, every bare JSON object with a name is a call, spacing behind a rejected
//! block is lost (each); a call that its block's end interrupts is complete (each, damaged_answers); spacing
//! at the beginning is held without limit (cuts, short, damaged_answers); two calls have one index, a block
//! that holds no call ends reasoning (all that parse); a second name begins a second call (each); the
//! character behind a block begins no tag (each, both fuzz tests: this one was not planted).

use client::{Client, HELD, all, boundaries, characters, complete_calls_are_objects, is_a_beginning, parse};
use corpus::{Protocol, cases, tools};
use monomorph_text::{AnswerParser, ToolFormat};
use serde_json::json;

mod client;
mod corpus;
mod fuzz;

#[test]
fn each_answer_has_the_events_expected() {
    let cases = cases();
    for (name, _) in ToolFormat::NAMES {
        assert!(cases.iter().filter(|case| case.name.starts_with(name)).count() >= 15, "{name}");
    }
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let parts = parse(&case.protocol, [case.answer.as_str()]);
            let differ = parts != case.expect;
            differ.then(|| format!("{}\n  {}\n  {}", case.name, json!(parts), json!(case.expect)))
        })
        .collect();
    assert!(wrong.is_empty(), "got, expected:\n{}", wrong.join("\n"));
}

#[test]
fn cuts_make_no_difference() {
    for case in cases() {
        let whole = parse(&case.protocol, [case.answer.as_str()]);
        assert_eq!(parse(&case.protocol, characters(&case.answer)), whole, "{}", case.name);
        for at in boundaries(&case.answer) {
            let (left, right) = case.answer.split_at(at);
            assert_eq!(parse(&case.protocol, [left, right]), whole, "{} cut at {at}", case.name);
        }
    }
}

/// An answer cut short has the beginnings of what the whole has, and nothing else: no part of a tag in its
/// text.
#[test]
fn an_answer_cut_short_is_a_beginning() {
    for case in cases() {
        let whole = parse(&case.protocol, [case.answer.as_str()]);
        complete_calls_are_objects(&whole);
        for at in boundaries(&case.answer) {
            let short = parse(&case.protocol, [&case.answer[..at]]);
            complete_calls_are_objects(&short);
            is_a_beginning(&short, &whole);
        }
    }
}

/// A long string goes out as it comes: no more is behind than a tag may be long.
#[test]
fn arguments_stream() {
    let long = "abc <b> ".repeat(500);
    for (format, head) in [
        ("hermes", "<tool_call>{\"name\":\"write_file\",\"arguments\":{\"content\":\""),
        ("qwen-xml", "<tool_call>\n<function=write_file>\n<parameter=content>\n"),
        ("mistral", "[TOOL_CALLS]write_file[ARGS]{\"content\":\""),
        ("mistral", "[TOOL_CALLS][{\"name\":\"write_file\",\"arguments\":{\"content\":\""),
        ("minimax", "<minimax:tool_call><invoke name=\"write_file\"><parameter name=\"content\">"),
        ("gemma", "<|tool_call>call:write_file{content:<|\"|>"),
        ("bare-json", "{\"name\":\"write_file\",\"parameters\":{\"content\":\""),
    ] {
        let mut parser = AnswerParser::new(ToolFormat::from_name(format), None, tools(), false);
        let mut client = Client::default();
        parser.push(head).into_iter().for_each(|event| client.add(event));
        let begun = all(&client.parts, "arguments").len();
        for (count, character) in characters(&long).enumerate() {
            parser.push(character).into_iter().for_each(|event| client.add(event));
            let out = all(&client.parts, "arguments").len();
            assert!(out + HELD >= begun + count, "{format}: {out} of {count}");
        }
    }
}

/// Arguments deeper than readers of JSON go are malformed, and none of them is lost.
#[test]
fn depth_is_bounded() {
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    for (format, head, tail) in [
        ("hermes", "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":", "}}</tool_call>"),
        ("mistral", "[TOOL_CALLS]now[ARGS]{\"a\":", "}"),
        ("gemma", "<|tool_call>call:now{a:", "}<tool_call|>"),
        ("qwen-xml", "<tool_call><function=run><parameter=args>", "</parameter></function></tool_call>"),
    ] {
        let protocol = Protocol { tools: ToolFormat::from_name(format), reasoning: None, opened: false };
        let parts = parse(&protocol, [head, &deep, tail]);
        // Where the value does not parse as an array it is a string.
        let outcome = if format == "qwen-xml" { "complete" } else { "malformed" };
        assert_eq!(parts[0]["outcome"], outcome, "{format}");
        complete_calls_are_objects(&parts);
        let told = ["arguments", "rejected"].map(|key| all(&parts, key)).concat();
        assert_eq!(told.matches('[').count(), 5000, "{format}");
    }
}
