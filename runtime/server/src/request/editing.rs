//! Edits of a conversation that a client asks for with it, before its prompt is rendered: old reasoning and
//! old results of tools go.

use serde_json::{Value, json};
use std::collections::BTreeSet;

/// In place of a result.
const NOTE: &str = "[This result was removed, as the client asked.]";

/// One entry of a request's list; they are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Reasoning goes from all turns with some, but from the last so many.
    Reasoning {
        /// How many.
        keep: usize,
    },
    /// Results of tools go.
    Results(Results),
}

/// Which results of tools go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Results {
    /// From where on.
    pub(crate) trigger: Trigger,
    /// Of the last so many calls they stay.
    pub(crate) keep: usize,
    /// Unless the prompt gets shorter by so many tokens, nothing goes.
    pub(crate) at_least: usize,
    /// Tools whose results stay.
    pub(crate) exclude: Vec<String>,
    /// Whether the calls' arguments go with them.
    pub(crate) arguments: bool,
}

/// What a conversation must have more of, for results to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Tokens of its prompt.
    Tokens(usize),
    /// Calls of tools.
    Calls(usize),
}

/// What an edit took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edited {
    /// Whether reasoning; otherwise results of tools.
    pub(crate) reasoning: bool,
    /// Turns whose reasoning went, or results.
    pub(crate) count: usize,
    /// Tokens that the prompt became shorter by.
    pub(crate) tokens: usize,
}

/// A conversation without what an edit takes.
#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) messages: Vec<Value>,
    /// Images of the conversation that went, by their order in it.
    pub(crate) images: BTreeSet<usize>,
    /// As of [`Edited`].
    pub(crate) count: usize,
}

impl Edit {
    /// Tokens that it must take, or nothing.
    pub(crate) fn at_least(&self) -> usize {
        match self {
            Edit::Reasoning { .. } => 0,
            Edit::Results(results) => results.at_least,
        }
    }

    /// What it took, if the prompt became so many tokens shorter.
    pub(crate) fn edited(&self, count: usize, tokens: usize) -> Edited {
        Edited { reasoning: matches!(self, Edit::Reasoning { .. }), count, tokens }
    }

    /// The conversation without what it takes of messages whose prompt has so many tokens; `None` if nothing
    /// goes.
    pub(crate) fn of(&self, messages: &[Value], tokens: usize) -> Option<Change> {
        let change = match self {
            Edit::Reasoning { keep } => without_reasoning(messages, *keep),
            Edit::Results(results) => results.taken(messages, tokens)?,
        };
        (change.count > 0).then_some(change)
    }
}

/// A turn begins with a message of the user, and has the calls and results behind it.
fn without_reasoning(messages: &[Value], keep: usize) -> Change {
    let reasons =
        |message: &Value| message["reasoning_content"].as_str().is_some_and(|text| !text.is_empty());
    let mut turn = 0;
    let turns: Vec<usize> = messages
        .iter()
        .map(|message| {
            turn += usize::from(message["role"] == "user");
            turn
        })
        .collect();
    let reasoned: BTreeSet<usize> =
        messages.iter().zip(&turns).filter(|(message, _)| reasons(message)).map(|(_, turn)| *turn).collect();
    let gone: BTreeSet<usize> = reasoned.iter().take(reasoned.len().saturating_sub(keep)).copied().collect();
    let mut kept = messages.to_vec();
    for (message, _) in kept.iter_mut().zip(&turns).filter(|(_, turn)| gone.contains(turn)) {
        if let Value::Object(message) = message {
            message.remove("reasoning_content");
        }
    }
    Change { messages: kept, images: BTreeSet::new(), count: gone.len() }
}

impl Results {
    fn taken(&self, messages: &[Value], tokens: usize) -> Option<Change> {
        let results: Vec<usize> = (0..messages.len()).filter(|at| messages[*at]["role"] == "tool").collect();
        let (found, most) = match self.trigger {
            Trigger::Tokens(most) => (tokens, most),
            Trigger::Calls(most) => (results.len(), most),
        };
        if found <= most {
            return None;
        }
        let excluded = |at: &usize| {
            let name = messages[*at]["name"].as_str();
            self.exclude.iter().any(|tool| Some(tool.as_str()) == name)
        };
        let old = results.iter().take(results.len().saturating_sub(self.keep));
        let gone: Vec<usize> = old.copied().filter(|at| !excluded(at)).collect();
        let mut kept = messages.to_vec();
        if self.arguments {
            let ids: Vec<&Value> = gone.iter().map(|at| &messages[*at]["tool_call_id"]).collect();
            let calls = kept.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut());
            for call in calls.flatten().filter(|call| ids.contains(&&call["id"])) {
                call["function"]["arguments"] = json!({});
            }
        }
        let mut images = BTreeSet::new();
        let mut before = 0;
        for (at, message) in kept.iter_mut().enumerate() {
            let here = images_in(message);
            if gone.binary_search(&at).is_ok() {
                images.extend(before..before + here);
                message["content"] = NOTE.into();
            }
            before += here;
        }
        Some(Change { messages: kept, images, count: gone.len() })
    }
}

fn images_in(message: &Value) -> usize {
    let parts = message["content"].as_array().into_iter().flatten();
    parts.filter(|part| part["type"] == "image").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn call(id: &str, thought: &str) -> Value {
        let function = json!({"name": "f", "arguments": {"of": id}});
        json!({"role": "assistant", "content": "", "reasoning_content": thought,
               "tool_calls": [{"id": id, "type": "function", "function": function}]})
    }

    fn result(id: &str, name: &str) -> Value {
        json!({"role": "tool", "content": format!("result {id}"), "tool_call_id": id, "name": name})
    }

    fn conversation() -> Vec<Value> {
        vec![
            user("one"),
            call("a", "thought a"),
            result("a", "f"),
            call("b", "thought b"),
            result("b", "g"),
            user("two"),
            call("c", "thought c"),
            result("c", "f"),
        ]
    }

    fn results(trigger: Trigger, keep: usize) -> Results {
        Results { trigger, keep, at_least: 0, exclude: Vec::new(), arguments: false }
    }

    fn contents(messages: &[Value]) -> Vec<&str> {
        messages.iter().filter(|it| it["role"] == "tool").filter_map(|it| it["content"].as_str()).collect()
    }

    #[test]
    fn old_results_go_once_there_are_more_than_asked() {
        let messages = conversation();
        let of = |edit: Results, tokens| Edit::Results(edit).of(&messages, tokens);
        assert_eq!(of(results(Trigger::Tokens(100), 1), 100), None);
        assert_eq!(of(results(Trigger::Calls(3), 1), 0), None);
        assert_eq!(of(results(Trigger::Calls(2), 3), 0), None, "all stay");
        for trigger in [Trigger::Tokens(99), Trigger::Calls(2)] {
            let change = of(results(trigger, 1), 100).expect("some go");
            assert_eq!((contents(&change.messages), change.count), (vec![NOTE, NOTE, "result c"], 2));
            assert_eq!(change.messages[1], messages[1], "arguments stay");
        }
        let none = of(results(Trigger::Calls(0), 0), 0).expect("all go");
        assert_eq!(contents(&none.messages), [NOTE; 3]);
        let exclude = Results { exclude: vec!["f".to_owned()], ..results(Trigger::Calls(0), 0) };
        assert_eq!(contents(&of(exclude, 0).expect("one goes").messages), ["result a", NOTE, "result c"]);
    }

    #[test]
    fn arguments_go_with_their_results_if_asked() {
        let messages = conversation();
        let edit = Results { arguments: true, ..results(Trigger::Calls(0), 2) };
        let change = Edit::Results(edit).of(&messages, 0).expect("one goes");
        let arguments = |at: usize| change.messages[at]["tool_calls"][0]["function"]["arguments"].clone();
        assert_eq!([arguments(1), arguments(3)], [json!({}), json!({"of": "b"})]);
    }

    #[test]
    fn images_of_results_that_go_are_named_by_their_order() {
        let image = json!({"type": "image"});
        let mut messages = conversation();
        messages[0]["content"] = json!([image]);
        messages[2]["content"] = json!([image, image]);
        messages[4]["content"] = json!([image]);
        let change = Edit::Results(results(Trigger::Calls(0), 2)).of(&messages, 0).expect("one goes");
        assert_eq!(change.images, BTreeSet::from([1, 2]));
    }

    #[test]
    fn reasoning_goes_by_turns() {
        let messages = conversation();
        let thoughts = |keep| {
            let change = Edit::Reasoning { keep }.of(&messages, 0)?;
            let left = change.messages.iter().filter_map(|it| it["reasoning_content"].as_str());
            Some((left.map(str::to_owned).collect::<Vec<_>>(), change.count))
        };
        assert_eq!(thoughts(2), None);
        assert_eq!(thoughts(1), Some((vec!["thought c".to_owned()], 1)));
        assert_eq!(thoughts(0), Some((Vec::new(), 2)));
    }
}
