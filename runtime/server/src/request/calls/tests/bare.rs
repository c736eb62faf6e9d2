//! Calls in JSON without a tag, where none is required: constrained from the name's end on, which is where
//! the reader takes them for calls.
//!
//! Planted, and caught by `what_the_reader_takes_for_a_call_is_held`: escapes in names left as they are; a
//! `function` that is not looked into; text behind a call taken for the beginning of an answer. By
//! `what_runs_on_as_no_call_does_may_not_come`: tokens that end the name and run on.

use super::{END, Random, World, bytes, follow, looks_behind_drafts, next, tools};
use monomorph_text::{AnswerEvent, ToolFormat};
use serde_json::json;
use std::sync::Arc;

/// Parts of answers that begin like calls, or nearly.
const PARTS: [&str; 34] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    ";",
    " ",
    "\n",
    "\u{c}",
    "\"name\"",
    "\"type\"",
    "\"function\"",
    "\"get_time\"",
    "\"get_weather\"",
    "\"get_wether\"",
    "{\"name\": ",
    "\"name\":",
    "{\"function\": {",
    "{\"type\": \"function\", ",
    "\"parameters\": {}",
    "\"x\"",
    "\"\\\"\"",
    "null",
    "{}",
    "\"n\\u0061me\"",
    "\"get\\u005ftime\"",
    "\"get_time",
    "name",
    "x",
    "\"arguments\": {}",
    "{\"function\": {}, ",
    "\"id\": \"5\"",
    "5",
];

/// Behind how many tokens the reader has begun another call.
fn begun(world: &World, ids: &[u32], calls: usize) -> Option<usize> {
    let wanted = world.wanted(&tools(), false, false);
    let is_call = |event: &AnswerEvent| matches!(event, AnswerEvent::CallBegin { .. });
    let count = |ids: &[u32]| world.read(&wanted, ids).iter().filter(|event| is_call(event)).count();
    (count(ids) > calls).then(|| (1..=ids.len()).find(|at| count(&ids[..*at]) > calls)).flatten()
}

#[test]
fn what_the_reader_takes_for_a_call_is_held() {
    let world = World::new(ToolFormat::BareJson, false);
    let auto = world.held(&world.wanted(&tools(), false, false), None).expect("compiled").0;
    let mut random = Random(21);
    let (mut calls, mut texts) = ([0, 0], 0);
    let first = world.ids("\n{\"name\": \"get_time\", \"parameters\": {}}");
    for round in 0..30_000 {
        let behind = round % 2;
        let mut ids = if behind == 1 { first.clone() } else { Vec::new() };
        let from = ids.len();
        // Most begin well: what is drawn blindly hardly ever does.
        let beginnings = [
            "{\"name\": ",
            "{\"type\": \"function\", ",
            "{\"function\": {",
            "[{",
            "; {\"name\": ",
            "}, {\"name\": ",
            "{",
            "",
            "",
            "{\"name\":\"get_time\"",
        ];
        let mut text = (*random.pick(&beginnings)).to_owned();
        (0..random.below(7)).for_each(|_| text.push_str(random.pick::<&str>(&PARTS)));
        ids.extend(world.ids(&text));
        let mut constraint = auto.clone();
        let held = (0..=ids.len()).find(|at| {
            let ends = next(&mut constraint).is_none_or(|mask| mask.allows(END));
            if let Some(id) = ids.get(*at).filter(|_| ends || *at < from) {
                constraint.take(*id).expect("allowed");
            }
            *at >= from && !ends
        });
        assert_eq!(held, begun(&world, &ids, behind), "{behind}: {text:?}");
        match held {
            Some(_) => calls[behind] += 1,
            None => texts += 1,
        }
    }
    assert!(calls.iter().all(|calls| *calls > 1000) && texts > 10_000, "{calls:?} {texts}");
}

#[test]
fn text_and_other_json_are_free() {
    let world = World::new(ToolFormat::BareJson, false);
    let auto = world.held(&world.wanted(&tools(), false, false), None).expect("compiled").0;
    for text in [
        "I look. {\"name\": \"get_time\", \"nothing\": 1}",
        " {\"name\": \"get_wether\", \"parameters\": {\"city\": 5}}",
        "{\"city\": \"Bern\", \"name\": \"get_time\"}",
        "[1, {\"name\": \"get_time\"}]",
    ] {
        let ids = world.ids(text);
        let mut way = auto.clone();
        assert_eq!(follow(&mut way, &ids), (ids.len(), true), "{text}");
        assert_eq!(way.free_for(), usize::MAX, "{text}: nothing can be a call any more");
    }
    let call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"x\", \"days\": ";
    for (days, good) in [("5}}", true), ("15}}", false), ("\"5\"}}", false)] {
        let ids = world.ids(&format!("{call}{days}"));
        assert_eq!(
            follow(&mut auto.clone(), &ids),
            (if good { ids.len() } else { follow(&mut auto.clone(), &ids).0 }, good)
        );
    }
    // No reader looks this far for a name.
    let ids = world.ids(&format!("{{{}\"name\": \"get_time\", \"x\": 1}}", " ".repeat(520)));
    assert_eq!(follow(&mut auto.clone(), &ids), (ids.len(), true));
    // A tool that may not be called now is not begun either.
    let mut wanted = world.wanted(&tools(), false, false);
    wanted.tools.truncate(1);
    let only = world.held(&wanted, None).expect("compiled").0;
    let ids = world.ids("{\"name\": \"get_time\"");
    assert_eq!(follow(&mut only.clone(), &ids), (ids.len() - 1, false));
}

#[test]
fn what_runs_on_as_no_call_does_may_not_come() {
    let world = World::new(ToolFormat::BareJson, false);
    let mut auto = world.held(&world.wanted(&tools(), false, false), None).expect("compiled").0;
    let word = |word: &str| {
        (257..super::VOCABULARY as u32).find(|id| bytes(*id, false) == word.as_bytes()).expect("a word")
    };
    assert_eq!(follow(&mut auto, &world.ids("{\"name\": \"get_tim")), (17, true));
    assert!(next(&mut auto).is_none() && auto.free_for() == 0);
    auto.take(u32::from(b'e')).expect("allowed");
    let mask = next(&mut auto).expect("not anything");
    assert!(
        mask.allows(END) && mask.allows(b'x'.into()) && mask.allows(b'"'.into()) && mask.allows(word("\", "))
    );
    assert!(!mask.allows(word("\"}")));
    let mut way = auto.clone();
    way.take(word("\", ")).expect("allowed");
    assert!(
        next(&mut way)
            .is_some_and(|mask| mask.allows(b'"'.into()) && !mask.allows(b'}'.into()) && !mask.allows(END))
    );
    // Drafts that run into a call and out of it, and leave no trace.
    let rest = world
        .ids("\", \"parameters\": {}}; {\"function\": {\"name\": \"get_time\", \"parameters\": {}}} and");
    looks_behind_drafts(&mut auto, &rest);
    assert_eq!(follow(&mut auto, &rest), (rest.len(), true));
    assert_eq!(auto.free_for(), usize::MAX);
    let wanted = world.wanted(&tools(), false, false);
    let ids = [&world.ids("{\"name\": \"get_time")[..], &rest].concat();
    assert_eq!(world.calls(&wanted, &ids).0, vec![("get_time".to_owned(), json!({})); 2]);
}

#[test]
fn reasoning_begins_no_call() {
    let world = World::new(ToolFormat::BareJson, false);
    let tags: Arc<_> = world.grammars.tags(&world.ids("<think>"), &world.ids("</think>"));
    let held = world.held(&world.wanted(&tools(), false, false), None).expect("compiled").0;
    let mut held = held.after(monomorph_grammar::Thinking::new(&tags, true, None));
    let thought = world.ids("{\"name\": \"get_time\", so</think>\n");
    assert_eq!(held.free_for(), 1);
    assert_eq!(follow(&mut held, &thought), (thought.len(), true));
    let call = world.ids("{\"name\": \"get_time\", so");
    assert_eq!(follow(&mut held, &call), (call.len() - 2, false));
}
