//! A request to `/v1/completions`.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::{self, any_of};
use crate::request::fields::{Fields, wrong_type};
use crate::request::generation::{GenerationParams, MAX_CHOICES, ids, token_ids};
use crate::request::limits::RequestLimits;
use serde_json::{Value, json};

/// Most alternatives a text completion reports, as OpenAI has it.
pub(crate) const MAX_LOGPROBS: i64 = 5;

/// A prompt to continue.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Its size in bytes, or a comparable measure.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Prompt::Text(text) => text.len(),
            Prompt::Tokens(ids) => ids.len(),
        }
    }
}

/// A text completion request, checked.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    /// What it shares with chats.
    pub(crate) params: GenerationParams,
    /// The prompts to continue, each with its path in the body.
    pub(crate) prompts: Vec<(String, Prompt)>,
    /// Whether each answer begins with its prompt.
    pub(crate) echo: bool,
    /// The text behind each answer, which fills in what stands between it and the prompt.
    pub(crate) suffix: Option<String>,
}

impl CompletionRequest {
    /// Reads a body.
    pub(crate) fn read(body: &Value, limits: &RequestLimits) -> Result<CompletionRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let prompts = read_prompts(&mut fields, limits)?;
        // With an echo no token need be generated.
        let mut params = GenerationParams::of_at_least(0, &mut fields, limits)?;
        params.sampling.top_logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|count| count as u8);
        fields.about("The answer begins with the prompt, and with `logprobs` so do they.");
        let echo = fields.boolean("echo")?.unwrap_or(false);
        params.prompt_logprobs = params.sampling.top_logprobs.filter(|_| echo);
        let suffix = read_suffix(&mut fields, echo)?;
        params.best_of = read_best_of(&mut fields, &params)?;
        params.ignored = fields.finish()?;
        let field = if params.best_of.is_some() { "best_of" } else { "n" };
        check_choices(field, prompts.len(), params.generated())?;
        Ok(CompletionRequest { params, prompts, echo, suffix })
    }
}

/// A string, an array of strings, an array of ids, or an array of arrays of ids.
fn read_prompts(fields: &mut Fields, limits: &RequestLimits) -> Result<Vec<(String, Prompt)>, ApiError> {
    const NAME: &str = "prompt";
    let text = |path: String, value: &Value| match value {
        Value::String(text) => Ok((path, Prompt::Text(text.clone()))),
        other => Err(wrong_type(&path, "a string, as the prompts before it are", other)),
    };
    let tokens = |path: String, value: &Value| match value {
        Value::Array(_) => {
            let ids = token_ids(&path, value, limits.vocabulary)?;
            Ok((path, Prompt::Tokens(ids)))
        }
        other => Err(wrong_type(&path, "an array of token ids, as the prompts before it are", other)),
    };
    let at = |index: usize| format!("{NAME}[{index}]");
    fields.of(|| {
        let several =
            |items: Value| json!({"type": "array", "items": items, "minItems": 1, "maxItems": MAX_CHOICES});
        let ids = || ids(limits.vocabulary);
        any_of([schema::text(), ids(), several(schema::text()), several(ids())])
    });
    fields.about(format_args!(
        "A text, or ids that are taken as they are; or several of one kind, of which choice `index` answers number `index / n`. Prompts times `n` \
         are at most {MAX_CHOICES}."
    ));
    let value = fields.required(NAME)?;
    match value {
        Value::String(_) => Ok(vec![text(NAME.to_owned(), value)?]),
        Value::Array(prompts) => match prompts.first() {
            Some(Value::String(_) | Value::Array(_)) if prompts.len() > MAX_CHOICES as usize => {
                Err(wrong!(NAME, "has {} prompts; at most {MAX_CHOICES}", prompts.len()))
            }
            Some(Value::String(_)) => (0..).map(at).zip(prompts).map(|(path, one)| text(path, one)).collect(),
            Some(Value::Array(_)) => {
                (0..).map(at).zip(prompts).map(|(path, one)| tokens(path, one)).collect()
            }
            _ => Ok(vec![tokens(NAME.to_owned(), value)?]),
        },
        other => Err(wrong_type(
            NAME,
            "a string, an array of strings or of token ids, or an array of such arrays",
            other,
        )),
    }
}

fn read_suffix(fields: &mut Fields, echo: bool) -> Result<Option<String>, ApiError> {
    const NAME: &str = "suffix";
    fields.about("The text behind the answer, for models that were trained to fill in.");
    match fields.string(NAME)?.filter(|suffix| !suffix.is_empty()) {
        Some(_) if echo => Err(wrong!(NAME, "contradicts `echo`: the answer stands between two texts")),
        suffix => Ok(suffix.map(str::to_owned)),
    }
}

/// How many answers are generated to each prompt, if more than are returned.
fn read_best_of(fields: &mut Fields, params: &GenerationParams) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "best_of";
    fields.about("Answers to each prompt, of which the `n` likeliest a token are returned; not streamed.");
    let best_of = fields.integer(NAME, 1..=MAX_CHOICES)?.map(|count| count as usize);
    let choices = params.choices;
    match best_of {
        Some(count) if count < choices => {
            Err(wrong!(NAME, "is {count}, and must be at least `n`, which is {choices}"))
        }
        Some(count) if count > choices && params.stream => {
            Err(wrong!(NAME, "contradicts `stream`: the best is known when all {count} are complete"))
        }
        best_of => Ok(best_of.filter(|count| *count > choices)),
    }
}

/// Checks that the prompts' answers, so `each` by a `field`, are not too many in all.
fn check_choices(field: &str, prompts: usize, each: usize) -> Result<(), ApiError> {
    let all = prompts.saturating_mul(each);
    if all <= MAX_CHOICES as usize {
        return Ok(());
    }
    Err(wrong!(
        field,
        "is {each} for each of the {prompts} prompts, which makes {all} answers; a request has at most {MAX_CHOICES}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_sampling::Sampling;

    const LIMITS: RequestLimits = RequestLimits {
        context: 100,
        vocabulary: 10,
        on_gpu: false,
        images: false,
        sampling: Sampling::GREEDY,
    };

    #[test]
    fn every_shape_of_prompt() {
        let read = |prompt: Value| {
            CompletionRequest::read(&json!({"prompt": prompt}), &LIMITS).map(|request| request.prompts)
        };
        let text = |text: &str| Prompt::Text(text.to_owned());
        let at = |path: &str, prompt| (path.to_owned(), prompt);
        assert_eq!(read(json!("a")).expect("text"), [at("prompt", text("a"))]);
        assert_eq!(read(json!(["a"])).expect("text"), [at("prompt[0]", text("a"))]);
        let two = [at("prompt[0]", text("a")), at("prompt[1]", text(""))];
        assert_eq!(read(json!(["a", ""])).expect("texts"), two);
        let ids = |ids: &[u32]| Prompt::Tokens(ids.to_vec());
        assert_eq!(read(json!([1, 9])).expect("ids"), [at("prompt", ids(&[1, 9]))]);
        assert_eq!(read(json!([])).expect("ids"), [at("prompt", ids(&[]))]);
        assert_eq!(read(json!([[1, 9]])).expect("ids"), [at("prompt[0]", ids(&[1, 9]))]);
        let two = [at("prompt[0]", ids(&[1, 9])), at("prompt[1]", ids(&[]))];
        assert_eq!(read(json!([[1, 9], []])).expect("ids"), two);
        assert_eq!(read(json!(vec!["a"; 128])).expect("many").len(), 128);
        for (bad, named) in [
            (json!([1, 10]), "prompt[1]"),
            (json!([[10]]), "prompt[0][0]"),
            (json!([[1], [2, 3, 10]]), "prompt[1][2]"),
            (json!(["a", [1]]), "prompt[1]"),
            (json!(["a", "b", 3]), "prompt[2]"),
            (json!([[1], "a"]), "prompt[1]"),
            (json!([1, "a"]), "prompt[1]"),
            (json!([null]), "prompt[0]"),
            (json!(vec!["a"; 129]), "prompt"),
            (json!(1), "prompt"),
        ] {
            assert_eq!(read(bad).expect_err("refused").param.as_deref(), Some(named));
        }
    }

    #[test]
    fn answers_are_counted_over_all_prompts() {
        let read = |prompts: usize, n: usize| {
            CompletionRequest::read(&json!({"prompt": vec!["a"; prompts], "n": n}), &LIMITS).map(drop)
        };
        for (prompts, n) in [(1, 128), (128, 1), (64, 2), (2, 64)] {
            read(prompts, n).unwrap_or_else(|error| panic!("{prompts} x {n}: {error:?}"));
        }
        for (prompts, n) in [(65, 2), (2, 65), (128, 128)] {
            let error = read(prompts, n).expect_err("too many");
            assert_eq!(error.param.as_deref(), Some("n"));
            assert!(error.message.contains(&(prompts * n).to_string()), "{}", error.message);
        }
        let many = json!({"prompt": ["a", "b"], "best_of": 65});
        let error = CompletionRequest::read(&many, &LIMITS).expect_err("too many");
        assert_eq!(error.param.as_deref(), Some("best_of"), "{}", error.message);
        let read = |body: Value| CompletionRequest::read(&body, &LIMITS).map(|it| it.params.best_of);
        assert_eq!(read(json!({"prompt": "a", "n": 2, "best_of": 3})).expect("it is read"), Some(3));
        // As many as are returned are no choice, and may be streamed.
        assert_eq!(
            read(json!({"prompt": "a", "n": 2, "best_of": 2, "stream": true})).expect("it is read"),
            None
        );
    }
}
