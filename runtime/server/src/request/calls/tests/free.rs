//! Calls in text that is free, which tags begin; and in reasoning.

use super::*;

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
    looks_behind_drafts(&mut auto, &rest);
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
