//! Fields that routers in front of servers add to every request. None changes an answer at the value that
//! they add, and at any other each is refused.
//!
//! Seen of sglang-router 0.3.2 and vllm-router 0.1.17.

use super::fields::{Fields, Neutral};
use crate::error::ApiError;

/// Reads those that stand in requests for answers of chats and of texts.
pub(crate) fn read_common(fields: &mut Fields) -> Result<(), ApiError> {
    let [off, on] = [false, true].map(|value| Neutral::Only(value.into()));
    for (name, neutral, what) in [
        ("no_stop_trim", &off, "stop strings at the end of an answer"),
        ("return_hidden_states", &off, "hidden states"),
        ("skip_special_tokens", &on, "special tokens in the text of an answer"),
    ] {
        fields.refuse_unless(name, neutral, what)?;
    }
    Ok(())
}

/// Reads those of chats alone.
pub(crate) fn read_chat(fields: &mut Fields) -> Result<(), ApiError> {
    let on = Neutral::Only(true.into());
    for (name, neutral, what) in [
        ("include_reasoning", &on, "an answer without the model's reasoning"),
        ("separate_reasoning", &on, "reasoning in the text of an answer"),
        ("stream_reasoning", &on, "a stream without the model's reasoning"),
    ] {
        fields.refuse_unless(name, neutral, what)?;
    }
    Ok(())
}

/// Reads those of responses, which have no other sampling parameters than OpenAI's.
pub(crate) fn read_responses(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, neutral, what) in [
        ("top_k", -1.0, "a `top_k` for responses"),
        ("min_p", 0.0, "a `min_p` for responses"),
        ("repetition_penalty", 1.0, "a `repetition_penalty` for responses"),
        ("priority", 0.0, "a priority for responses"),
    ] {
        fields.refuse_unless(name, &Neutral::Number(neutral), what)?;
    }
    Ok(())
}
