//! `retrieval`: whether the stack finds again what stands far back in a context, to compare formats of keys
//! and values with each other.
//!
//! The context is facts, each a name and its code; behind it some are asked for in the words in which they
//! were told, and the code is judged. A model that copies knows it; nothing else in a text tells it.

use crate::failure::Failure;
use crate::process::out;
use crate::request::text::Text;
use crate::start::alone::AloneArgs;
use crate::start::hosts::Work;
use crate::verbs::feeding::{feed_alone, log_probability};
use monomorph_model::{Model, ModelSpec};
use monomorph_text::Special;
use serde_json::json;
use std::num::NonZero;
use std::ops::Range;

/// Flags of `retrieval`.
#[derive(Debug, clap::Args)]
pub(crate) struct RetrievalArgs {
    /// Tokens of the context, to the end of a fact.
    #[arg(long, value_name = "N", default_value = "2048")]
    tokens: NonZero<usize>,
    /// Facts that are asked for, from all parts of the context.
    #[arg(long, value_name = "N", default_value = "32")]
    questions: NonZero<usize>,
    /// Feed the tokens one at a time instead of as many at once as a step takes.
    #[arg(long)]
    decode: bool,
    /// Print one JSON object, with each question.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) model: AloneArgs,
}

/// What a fact may be about: a word of each list.
const WORDS: [[&str; 16]; 3] = [
    [
        "red", "blue", "green", "grey", "old", "new", "small", "long", "heavy", "quiet", "round", "broken",
        "empty", "warm", "third", "last",
    ],
    [
        "door", "box", "boat", "gate", "lamp", "safe", "bag", "car", "house", "key", "room", "well", "chest",
        "train", "desk", "shed",
    ],
    [
        "Kiel", "Oslo", "Lima", "Cairo", "Paris", "Quito", "Delhi", "Turin", "Perth", "Kyoto", "Dakar",
        "Boston", "Lyon", "Seoul", "Bergen", "Porto",
    ],
];

/// Facts that there are.
const FACTS: usize = 16 * 16 * 16;

/// A fact's question and its answer; neighbours have little in common.
fn fact(number: usize) -> [String; 2] {
    // Odd, so that each number below `FACTS` comes once.
    let mixed = number * 2_477 % FACTS;
    let [how, what, place] = [WORDS[0][mixed % 16], WORDS[1][mixed / 16 % 16], WORDS[2][mixed / 256]];
    let code = 1_000 + ((mixed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24) % 9_000;
    [format!("\nThe code of the {how} {what} in {place} is"), format!(" {code}")]
}

/// A context with questions behind it.
#[derive(Debug)]
struct Asked {
    tokens: Vec<u32>,
    /// Tokens of the facts.
    context: usize,
    /// Where the asked fact stands, as a part of the facts, and the tokens of its answer.
    answers: Vec<(f64, Range<usize>)>,
}

/// Facts of at least so many tokens, and questions about some of them.
fn ask(text: &Text, context: usize, questions: usize) -> Result<Asked, String> {
    let encode = |it: String| text.tokenizer.encode(&it, Special::Plain).map_err(|error| error.to_string());
    let mut tokens = text.tokenizer.encode_prompt("").map_err(|error| error.to_string())?;
    let mut facts = Vec::new();
    while tokens.len() < context {
        if facts.len() == FACTS {
            return Err(format!("--tokens {context}: there are facts of {} tokens", tokens.len()));
        }
        let [question, answer] = fact(facts.len());
        let (question, answer) = (encode(question)?, encode(answer)?);
        if answer.is_empty() {
            return Err("the tokenizer has no tokens for numbers".to_owned());
        }
        tokens.extend(question.iter().chain(&answer));
        facts.push((question, answer));
    }
    if questions > facts.len() {
        return Err(format!("--questions {questions}: {context} tokens hold {} facts", facts.len()));
    }
    let (context, mut answers) = (tokens.len(), Vec::new());
    for number in 0..questions {
        let at = (2 * number + 1) * facts.len() / (2 * questions);
        let (question, answer) = &facts[at];
        tokens.extend(question);
        let begin = tokens.len();
        tokens.extend(answer);
        answers.push((at as f64 / facts.len() as f64, begin..tokens.len()));
    }
    Ok(Asked { tokens, context, answers })
}

/// Runs a context and its questions through the kernels and the cache that serving uses.
pub(crate) fn retrieval<M: Model>(args: &RetrievalArgs) -> Result<(), Failure> {
    let spec = M::SPEC;
    let opened = args.model.open(spec)?;
    let asked = ask(&opened.1, args.tokens.get(), args.questions.get())?;
    let (longest, most) = (asked.tokens.len(), spec.context);
    if longest > most {
        let tokens = args.tokens;
        let why = format!("{longest} with the questions, and the model's context is {most}");
        return Err(format!("--tokens {tokens}: {why}").into());
    }
    args.model.drive::<M>(&opened, longest, Retrieval { args, asked })
}

struct Retrieval<'a> {
    args: &'a RetrievalArgs,
    asked: Asked,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    /// Whether every token of the answer was the likeliest.
    whole: bool,
    /// Sum of the negative logarithms of their probabilities.
    nats: f64,
}

impl Work for Retrieval<'_> {
    fn run<M: Model>(self, mut model: M) -> Result<(), Failure> {
        let Retrieval { args, asked } = self;
        let mut judge = Judge::new(&asked);
        feed_alone(&mut model, &asked.tokens, args.decode, |at, logits| judge.row(at, logits))?;
        print(M::SPEC, args, &asked, &judge.found);
        Ok(())
    }
}

/// Judges rows of logits in their order.
struct Judge<'a> {
    asked: &'a Asked,
    found: Vec<Found>,
}

impl Judge<'_> {
    fn new(asked: &Asked) -> Judge<'_> {
        Judge { asked, found: Vec::new() }
    }

    /// The row behind token `at`, which is about the one after it.
    fn row(&mut self, at: usize, logits: &[f32]) {
        let next = at + 1;
        let answers = &self.asked.answers;
        let of_answer = answers.iter().position(|(_, answer)| answer.contains(&next));
        let Some(number) = of_answer else { return };
        self.found.resize(self.found.len().max(number + 1), Found { whole: true, nats: 0.0 });
        let token = self.asked.tokens[next] as usize;
        let found = &mut self.found[number];
        found.whole &= logits.iter().all(|it| *it <= logits[token]);
        found.nats -= log_probability(logits, token);
    }
}

fn print(spec: &ModelSpec, args: &RetrievalArgs, asked: &Asked, found: &[Found]) {
    let (whole, context) = (found.iter().filter(|it| it.whole).count(), asked.context);
    let tokens: usize = asked.answers.iter().map(|(_, answer)| answer.len()).sum();
    let nats = found.iter().map(|it| it.nats).sum::<f64>() / tokens as f64;
    if args.json {
        let each = asked.answers.iter().zip(found);
        let each = each.map(
            |((at, answer), it)| json!({"at": at, "found": it.whole, "nats": it.nats / answer.len() as f64}),
        );
        out::print(format_args!(
            "{}",
            json!({
                "target": spec.target, "context": context, "questions": found.len(), "found": whole, "nats": nats,
                "answers": each.collect::<Vec<_>>(),
            })
        ));
        return;
    }
    out::print(format_args!(
        "{whole} of {} codes found again in {context} tokens: {nats:.5} nats a token of them",
        found.len()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Scripted, Small};
    use std::collections::BTreeSet;

    #[test]
    fn no_two_facts_are_about_the_same() {
        let questions: BTreeSet<String> = (0..FACTS).map(|number| fact(number)[0].clone()).collect();
        assert_eq!(questions.len(), FACTS);
        let codes: BTreeSet<String> = (0..FACTS).map(|number| fact(number)[1].clone()).collect();
        assert!(codes.len() == FACTS && codes.iter().all(|code| code.len() == 5), "{codes:?}");
    }

    #[test]
    fn questions_are_facts_of_all_parts_and_their_codes_are_judged() {
        let text = Text::stand_in(Scripted::<Small>::SPEC).expect("it needs no files");
        let asked = ask(&text, 3000, 4).expect("there are facts");
        let Asked { tokens, context, answers } = &asked;
        assert!((3000..3100).contains(context) && answers.len() == 4);
        let parts: Vec<usize> = answers.iter().map(|(at, _)| (at * 4.0) as usize).collect();
        assert_eq!(parts, [0, 1, 2, 3]);
        // Tokens are bytes: what is asked was told, answer and all.
        let line = |range: Range<usize>| tokens[range].iter().map(|it| *it as u8).collect::<Vec<_>>();
        let told = line(0..*context);
        let mut begin = *context;
        for (_, answer) in answers {
            let asked = line(begin..answer.end);
            assert!(told.windows(asked.len()).any(|it| it == asked), "{:?}", String::from_utf8(asked));
            begin = answer.end;
        }
        assert_eq!(begin, tokens.len());

        // A model that knows the first answer, and of the second all but the last token.
        let mut judge = Judge::new(&asked);
        let wrong = answers[1].1.end - 1;
        for at in 0..answers[1].1.end {
            let mut logits = vec![0.0; 256];
            let next = tokens.get(at + 1).copied().unwrap_or(0) as usize;
            logits[if at + 1 == wrong { 255 - next } else { next }] = 9.0;
            judge.row(at, &logits);
        }
        let found: Vec<bool> = judge.found.iter().map(|it| it.whole).collect();
        assert_eq!(found, [true, false]);
        assert!(judge.found[0].nats < 0.2 && judge.found[1].nats > 9.0, "{:?}", judge.found);
        let error = ask(&text, 100, 9).unwrap_err();
        assert!(error.starts_with("--questions 9: 100 tokens hold"), "{error}");
    }
}
