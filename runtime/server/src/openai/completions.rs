//! A request to `/v1/completions`.

use super::fields::{Fields, wrong_type};
use super::generation::{GenerationParams, Limits, token_ids};
use crate::http::error::ApiError;
use serde_json::Value;

/// Most alternatives a text completion reports, as OpenAI has it.
pub(crate) const MAX_LOGPROBS: i64 = 5;

/// What is to be continued.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<u32>),
}

/// A text completion request, checked.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    /// What it shares with chats.
    pub(crate) params: GenerationParams,
    /// What is to be continued.
    pub(crate) prompt: Prompt,
    /// Whether the answer begins with it.
    pub(crate) echo: bool,
}

impl CompletionRequest {
    /// Reads a body.
    pub(crate) fn read(body: &Value, limits: &Limits) -> Result<CompletionRequest, ApiError> {
        let mut fields = Fields::new("", body)?;
        let prompt = read_prompt(&mut fields, limits)?;
        // Of an echo the prompt may be all that is wanted.
        let mut params = GenerationParams::of_at_least(0, &mut fields, limits)?;
        params.sampling.top_logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|count| count as u8);
        let echo = fields.boolean("echo")?.unwrap_or(false);
        params.prompt_logprobs = params.sampling.top_logprobs.filter(|_| echo);
        fields.refuse_unless("suffix", |value| value == "", "a suffix is")?;
        fields.refuse_unless("best_of", |value| value == 1, "choosing the best of several answers is")?;
        params.ignored = fields.finish()?;
        Ok(CompletionRequest { params, prompt, echo })
    }
}

/// A string, an array of one string, an array of ids, or an array of one array of ids.
fn read_prompt(fields: &mut Fields, limits: &Limits) -> Result<Prompt, ApiError> {
    let one = |path: &str, value: &Value| match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(_) => token_ids(path, value, limits.vocabulary).map(Prompt::Tokens),
        other => Err(wrong_type(path, "a string or an array", other)),
    };
    match fields.required("prompt")? {
        Value::Array(prompts) if matches!(prompts.first(), Some(Value::String(_) | Value::Array(_))) => {
            match prompts.as_slice() {
                [prompt] => one("prompt[0]", prompt),
                _ => Err(ApiError::unsupported("prompt", "several prompts a request are")),
            }
        }
        value => one("prompt", value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIMITS: Limits = Limits { context: 100, vocabulary: 10, preset: None };

    #[test]
    fn every_shape_of_prompt() {
        let read = |prompt: Value| {
            CompletionRequest::read(&json!({"prompt": prompt}), &LIMITS).map(|request| request.prompt)
        };
        assert_eq!(read(json!("a")).expect("text"), Prompt::Text("a".to_owned()));
        assert_eq!(read(json!(["a"])).expect("text"), Prompt::Text("a".to_owned()));
        assert_eq!(read(json!([1, 9])).expect("ids"), Prompt::Tokens(vec![1, 9]));
        assert_eq!(read(json!([[1, 9]])).expect("ids"), Prompt::Tokens(vec![1, 9]));
        for (bad, named) in [
            (json!([1, 10]), "prompt[1]"),
            (json!([[10]]), "prompt[0][0]"),
            (json!(["a", "b"]), "prompt"),
            (json!(1), "prompt"),
        ] {
            assert_eq!(read(bad).expect_err("refused").param.as_deref(), Some(named));
        }
    }
}
