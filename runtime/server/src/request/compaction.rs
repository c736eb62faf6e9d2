//! Shortening a conversation that leaves too little of the context for an answer.
//!
//! What goes, in this order, until enough has gone:
//!
//! 1. results of tools, the oldest first: a note takes the place of the text;
//! 2. turns before the last one, the oldest first, each whole: a message of the user with what follows it;
//! 3. of the last turn, its rounds, the oldest first: a message of the assistant with the results of its
//!    calls.
//!
//! Instructions at the beginning, the last message of the user and, if the conversation ends with results of
//! tools, those with their calls stay whole. A note says where messages went. So a call and its result are
//! always both there or both gone.
//!
//! How much goes is rounded up to quarters of the context: of a conversation that grows from request to
//! request, the same is left out for many of them, and the prefix cache holds what was kept.

use crate::request::message::append;
use serde_json::Value;
use std::ops::Range;

/// The part of the context, as a divisor, by whose multiples conversations are shortened.
const STEP: usize = 4;
/// The part of the context, as a divisor, that is left for an answer.
const RESERVE: usize = 8;
/// In place of a result.
const NOTE: &str = "[This result was removed: the conversation is longer than the context.]";

/// What was left out of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// Whole messages.
    pub(crate) messages: usize,
    /// Results of tools in the messages that stayed.
    pub(crate) results: usize,
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
}

/// The room that a prompt has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Tokens of the prompt that leave enough for the answer.
    pub(crate) prompt: usize,
    /// Tokens by whose multiples a longer one is shortened.
    pub(crate) step: usize,
}

impl Room {
    /// Of a context of so many tokens, for an answer of at most `max_tokens`, if that is known.
    pub(crate) fn of(context: usize, max_tokens: Option<usize>) -> Room {
        let most = context / RESERVE;
        let answer = max_tokens.map_or(most, |asked| asked.min(most)).max(1);
        Room { prompt: context.saturating_sub(answer), step: (context / STEP).max(1) }
    }

    /// Tokens that must go from a prompt of so many.
    pub(crate) fn excess(&self, prompt: usize) -> usize {
        prompt.saturating_sub(self.prompt).next_multiple_of(self.step)
    }
}

/// Something that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cut {
    /// The text of this message.
    Result(usize),
    /// These messages, before the last turn.
    Turn(Range<usize>),
    /// These messages, within it.
    Round(Range<usize>),
}

/// Everything that may go, in order.
fn cuts(messages: &[Value]) -> Vec<Cut> {
    let is = |at: usize, role: &str| messages[at]["role"] == role;
    let all = 0..messages.len();
    let head = all.clone().find(|at| !is(*at, "system")).unwrap_or(all.end);
    // Without a message of the user nothing says where a turn begins.
    let Some(last) = (head..all.end).rfind(|at| is(*at, "user")) else { return Vec::new() };
    // Calls whose results are the end.
    let begins_results = (last..all.end).rfind(|at| !is(*at, "tool")).filter(|at| at + 1 < all.end);
    let open = begins_results.filter(|at| *at > last).unwrap_or(all.end);
    let results = (head..open).filter(|at| is(*at, "tool")).map(Cut::Result);
    let parts = |within: Range<usize>, role: &str| {
        let begins = within.clone().filter(|at| *at == within.start || is(*at, role)).collect::<Vec<_>>();
        let ends = begins.iter().skip(1).copied().chain([within.end]).collect::<Vec<_>>();
        begins.into_iter().zip(ends).map(|(begin, end)| begin..end)
    };
    let turns = parts(head..last, "user").map(Cut::Turn);
    let rounds = parts(last + 1..open, "assistant").map(Cut::Round);
    results.chain(turns).chain(rounds).collect()
}

/// A conversation's messages with the tokens of each, and what may go.
pub(crate) struct Compaction<'a> {
    messages: &'a [Value],
    tokens: Vec<usize>,
    /// Tokens of the note in place of a result.
    note: usize,
    cuts: Vec<Cut>,
}

impl<'a> Compaction<'a> {
    /// `count` counts the tokens of a text.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) fn new<E>(
        messages: &'a [Value],
        count: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<Compaction<'a>, E> {
        let of_one = |message: &Value| {
            let [content, reasoning] =
                ["content", "reasoning_content"].map(|name| message[name].as_str().unwrap_or_default());
            let calls = message.get("tool_calls").map(Value::to_string).unwrap_or_default();
            [content, reasoning, &calls].into_iter().map(&count).sum::<Result<usize, E>>()
        };
        let tokens: Vec<usize> = messages.iter().map(of_one).collect::<Result<_, E>>()?;
        let (note, mut cuts) = (count(NOTE)?, cuts(messages));
        cuts.retain(|cut| !matches!(cut, Cut::Result(at) if tokens[*at] <= note));
        Ok(Compaction { messages, tokens, note, cuts })
    }

    /// The messages without what makes them `excess` tokens fewer, or without all that may go; and whether
    /// that many went. Tokens are those of the messages, without what a template puts between them.
    pub(crate) fn without(&self, excess: usize) -> (Vec<Value>, Compacted, bool) {
        let mut left = self.tokens.clone();
        let (mut gone, mut count) = (0, 0);
        while let Some(cut) = self.cuts.get(count).filter(|_| gone < excess) {
            let (within, stays) = match cut {
                Cut::Result(at) => (*at..at + 1, self.note),
                Cut::Turn(range) | Cut::Round(range) => (range.clone(), 0),
            };
            gone += left[within.clone()].iter().sum::<usize>() - stays;
            // What goes with its turn later is the note only.
            left[within].fill(stays);
            count += 1;
        }
        let (messages, compacted) = self.after(&self.cuts[..count]);
        (messages, compacted, gone >= excess)
    }

    fn after(&self, cuts: &[Cut]) -> (Vec<Value>, Compacted) {
        let mut kept: Vec<Option<Value>> = self.messages.iter().cloned().map(Some).collect();
        // Each kind goes from its oldest on: what goes is without gaps.
        let (mut turns, mut rounds) = (None, None);
        for cut in cuts {
            let (gap, range) = match cut {
                Cut::Result(at) => {
                    if let Some(message) = &mut kept[*at] {
                        message["content"] = NOTE.into();
                    }
                    continue;
                }
                Cut::Turn(range) => (&mut turns, range),
                Cut::Round(range) => (&mut rounds, range),
            };
            let begin = gap.as_ref().map_or(range.start, |gap: &Range<usize>| gap.start);
            *gap = Some(begin..range.end);
            kept[range.clone()].fill(None);
        }
        // Those of messages that went are gone with them.
        let results = cuts.iter().filter(|cut| matches!(cut, Cut::Result(at) if kept[*at].is_some())).count();
        if let Some(gap) = &turns
            && let Some(Some(after)) = kept.get_mut(gap.end)
        {
            let text = after["content"].as_str().unwrap_or_default();
            after["content"] = format!("{}\n\n{text}", removed(gap.len(), "before this one")).into();
        }
        if let Some(gap) = &rounds
            && let Some(Some(before)) = kept.get_mut(gap.start - 1)
        {
            append(before, "content", "\n\n", &removed(gap.len(), "after this one"));
        }
        let messages = [&turns, &rounds].into_iter().flatten().map(ExactSizeIterator::len).sum();
        (kept.into_iter().flatten().collect(), Compacted { messages, results, tokens: 0 })
    }
}

/// The note where messages went.
fn removed(messages: usize, place: &str) -> String {
    let messages = if messages == 1 { "1 message".to_owned() } else { format!("{messages} messages") };
    format!("[{messages} {place} removed: the conversation is longer than the context.]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::convert::Infallible;

    /// A message in a word: its role, a number that makes it another than all others, and its tokens.
    fn message(role: char, number: usize, tokens: usize) -> Value {
        let content = format!("{number} {}", "word ".repeat(tokens.saturating_sub(1)));
        match role {
            's' => json!({"role": "system", "content": content}),
            'u' => json!({"role": "user", "content": content}),
            'a' => json!({"role": "assistant", "content": content}),
            'c' => json!({
                "role": "assistant", "content": "",
                "tool_calls": [{"id": number.to_string(), "type": "function", "function": {"name": "f", "arguments": {}}}],
            }),
            _ => json!({"role": "tool", "content": content, "tool_call_id": number.to_string(), "name": "f"}),
        }
    }

    /// Tokens of a text are its words.
    #[expect(clippy::unnecessary_wraps, reason = "counts of a tokenizer may fail")]
    fn words(text: &str) -> Result<usize, Infallible> {
        Ok(text.split_whitespace().count())
    }

    fn compaction(messages: &[Value]) -> Compaction<'_> {
        let Ok(compaction) = Compaction::new(messages, words);
        compaction
    }

    fn total(messages: &[Value]) -> usize {
        compaction(messages).tokens.iter().sum()
    }

    /// A conversation by its roles, of messages of 40 tokens.
    fn said(roles: &str) -> Vec<Value> {
        roles.chars().enumerate().map(|(at, role)| message(role, at, 40)).collect()
    }

    #[test]
    fn what_goes_first_is_old_results_then_turns_then_rounds() {
        use Cut::{Result, Round, Turn};
        let of = |roles: &str| cuts(&said(roles));
        assert_eq!(of("suauau"), [Turn(1..3), Turn(3..5)]);
        // The last results stay with their calls, whatever is before them.
        assert_eq!(of("suctauctact"), [Result(3), Result(7), Turn(1..5), Round(6..8), Round(8..9)]);
        assert_eq!(of("ucttct"), [Result(2), Result(3), Round(1..4)]);
        // An answer that goes on is no result.
        assert_eq!(of("ucta"), [Result(2), Round(1..3), Round(3..4)]);
        assert_eq!(of("suct"), []);
        assert_eq!(of("su"), []);
        assert_eq!(of("s"), []);
        assert_eq!(of(""), []);
        assert_eq!(of("auu"), [Turn(0..1), Turn(1..2)]);
    }

    #[test]
    fn notes_say_what_went_and_where() {
        let messages = said("suctauctct");
        let compaction = compaction(&messages);
        let texts = |excess| {
            let (messages, compacted, _) = compaction.without(excess);
            let text = |message: &Value| message["content"].as_str().expect("a text").to_owned();
            (messages.iter().map(text).collect::<Vec<_>>(), (compacted.messages, compacted.results))
        };
        let (all, none) = texts(0);
        assert_eq!((all.len(), none), (10, (0, 0)));
        let (one, counts) = texts(1);
        assert_eq!((one[3].as_str(), counts), (NOTE, (0, 1)));
        let (least, counts) = texts(usize::MAX);
        assert_eq!(counts, (6, 0));
        assert_eq!(least.len(), 4);
        let before =
            "[4 messages before this one removed: the conversation is longer than the context.]\n\n5 ";
        assert!(least[1].starts_with(before), "{}", least[1]);
        let after = "\n\n[2 messages after this one removed: the conversation is longer than the context.]";
        assert!(least[1].ends_with(after), "{}", least[1]);
    }

    #[test]
    fn a_conversation_goes_in_quarters_of_the_context() {
        let room = Room::of(800, None);
        assert_eq!(room, Room { prompt: 700, step: 200 });
        assert_eq!([0, 700, 701, 900, 901].map(|prompt| room.excess(prompt)), [0, 0, 200, 200, 400]);
        assert_eq!(Room::of(800, Some(10)).prompt, 790);
        assert_eq!(Room::of(800, Some(799)).prompt, 700);
        assert_eq!(Room::of(1, None), Room { prompt: 0, step: 1 });
    }

    /// Conversations of turns: a message of the user, and rounds of calls with their results.
    fn conversations() -> impl Strategy<Value = Vec<Value>> {
        let round = (1usize..90, proptest::collection::vec(1usize..90, 0..3));
        let turn = (1usize..60, proptest::collection::vec(round, 0..4), any::<bool>());
        (any::<bool>(), proptest::collection::vec(turn, 1..9)).prop_map(|(system, turns)| {
            let mut messages = Vec::new();
            let mut say = |role, tokens| {
                let number = messages.len();
                messages.push(message(role, number, tokens));
            };
            if system {
                say('s', 30);
            }
            let last = turns.len() - 1;
            for (at, (asked, rounds, answered)) in turns.into_iter().enumerate() {
                say('u', asked);
                for (_, results) in rounds.iter().filter(|(_, results)| !results.is_empty()) {
                    say('c', 1);
                    results.iter().for_each(|tokens| say('t', *tokens));
                }
                if at < last || answered {
                    say('a', 20);
                }
            }
            messages
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn calls_keep_their_results_and_the_ends_stay_whole(messages in conversations(), excess in 0usize..1500) {
            let compaction = compaction(&messages);
            let (kept, compacted, enough) = compaction.without(excess);
            prop_assert_eq!(kept.len() + compacted.messages, messages.len());
            if !enough {
                prop_assert_eq!(&kept, &compaction.without(usize::MAX).0);
            }
            // Each result stands behind its call, as in the whole conversation.
            for (at, message) in kept.iter().enumerate().filter(|(_, message)| message["role"] == "tool") {
                let before = &kept[at - 1];
                prop_assert!(before["role"] == "tool" || before.get("tool_calls").is_some(), "{}", message);
            }
            let calls = |messages: &[Value]| messages.windows(2).filter(|two| {
                two[0].get("tool_calls").is_some() && two[1]["role"] == "tool"
            }).count();
            let with_calls = kept.iter().filter(|message| message.get("tool_calls").is_some()).count();
            prop_assert_eq!(calls(&kept), with_calls);
            // Instructions, and the words of the last message of the user.
            let first = |messages: &[Value]| messages.first().filter(|one| one["role"] == "system").cloned();
            prop_assert_eq!(first(&kept), first(&messages));
            let last = |messages: &[Value]| {
                let last = messages.iter().rfind(|message| message["role"] == "user").expect("there is one");
                last["content"].as_str().expect("a text").to_owned()
            };
            prop_assert!(last(&kept).contains(&last(&messages)));
            if messages.last().is_some_and(|message| message["role"] == "tool") {
                prop_assert_eq!(kept.last(), messages.last());
            }
            if enough && excess > 0 {
                // A note takes 13 words at most twice.
                prop_assert!(total(&kept) <= total(&messages) - excess + 26, "{} of {}", total(&kept), total(&messages));
            }
        }

        /// A conversation that grows keeps what it kept until another step of the context must go.
        #[test]
        fn what_was_kept_stays_as_the_conversation_grows(sizes in proptest::collection::vec(1usize..60, 4..60)) {
            let room = Room { prompt: 300, step: 200 };
            let mut messages = vec![message('s', 0, 20)];
            let mut before: Option<(usize, Vec<Value>)> = None;
            let mut changes = 0;
            for (number, tokens) in (1..).zip(sizes) {
                messages.push(message('u', 2 * number, tokens));
                let excess = room.excess(total(&messages));
                let (kept, _, enough) = compaction(&messages).without(excess);
                prop_assert!(enough);
                match &before {
                    Some((same, earlier)) if *same == excess => prop_assert!(kept.starts_with(earlier)),
                    _ => changes += 1,
                }
                before = Some((excess, kept));
                messages.push(message('a', 2 * number + 1, 9));
            }
            prop_assert!(changes <= 2 + total(&messages) / room.step, "{}", changes);
        }
    }
}
