//! Answers of chats and completions, and the server's own state.

use super::Facts;
use super::schema::{
    Properties, about, also, answer, any_object, any_of, array, boolean, count, integer, object, of, only,
    or_null, properties, text, whole, within, words,
};
use serde_json::{Value, json};

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    let message = chat_choice("message", chat_message());
    let delta = chat_choice("delta", chat_delta());
    properties! {
        Error: error(),
        ChatAnswer: with_prompt(envelope(facts, "chat.completion", message, usage(true))),
        ChatChunk: with_prompt(chunk(facts, "chat.completion.chunk", delta, usage(true))),
        CompletionAnswer: envelope(facts, "text_completion", text_choice(), usage(false)),
        CompletionChunk: chunk(facts, "text_completion", text_choice(), usage(false)),
        ChatAnswerCall: chat_call(), Tokens: tokens(), Rendered: object! { token_ids: array(count()) }, Text: object! { prompt: text() }, Model: model(facts),
        ModelList: object! { object: only("list"), data: array(of("Model")) },
        Info: info(facts), Liveness: object! { status: status(), reason: or_null(text()) },
        Health: health(facts), Version: object! { version: text() },
    }
}

fn error() -> Value {
    let kinds = ["rate_limit_error", "service_unavailable_error", "server_error", "invalid_request_error"];
    let error = object! { message: text(), type: words(&kinds), param: or_null(text()), code: text() };
    object! { error: error }
}

fn common(facts: &Facts, object: &str, choice: Value) -> Properties {
    properties! {
        id: text(), object: only(object), created: count(), model: only(facts.model),
        system_fingerprint: text(), choices: array(choice),
    }
}

fn envelope(facts: &Facts, object: &str, choice: Value, usage: Value) -> Value {
    whole([common(facts, object, choice), vec![("usage", usage)]].concat())
}

/// A chunk of a stream; the last has no choices where usage is wanted.
fn chunk(facts: &Facts, object: &str, choice: Value, usage: Value) -> Value {
    let properties = [common(facts, object, choice), vec![("usage", or_null(usage))]].concat();
    answer(&["id", "object", "created", "model", "system_fingerprint", "choices"], properties)
}

/// Where `return_token_ids` has the prompt's.
fn with_prompt(schema: Value) -> Value {
    also(schema, vec![("prompt_token_ids", array(count()))])
}

/// Where it has the answer's.
fn with_ids(choice: Value) -> Value {
    also(choice, vec![("token_ids", array(count()))])
}

/// Tokens that were left out of a conversation, where some were.
pub(super) fn compacted() -> Value {
    about("Tokens that the prompt leaves out of the conversation; absent where it is whole.", count())
}

fn usage(chat: bool) -> Value {
    let mut details = object! { cached_tokens: count() };
    if chat {
        details = also(details, properties! { compacted_tokens: compacted() });
    }
    let mut properties = properties! {
        prompt_tokens: count(), prompt_tokens_details: details,
        completion_tokens: count(), total_tokens: count(),
    };
    if chat {
        properties.push(("completion_tokens_details", object! { reasoning_tokens: count() }));
    }
    whole(properties)
}

/// A token with its log-probability, as chats and responses have it.
pub(super) fn token_logprob() -> Value {
    let entry = || properties! { token: text(), logprob: logprob(), bytes: array(integer(0..=255)) };
    whole([entry(), vec![("top_logprobs", array(whole(entry())))]].concat())
}

fn chat_choice(name: &'static str, body: Value) -> Value {
    let logprobs = object! { content: array(token_logprob()), refusal: json!({"type": "null"}) };
    with_ids(whole(vec![
        ("index", count()),
        (name, body),
        ("logprobs", or_null(logprobs)),
        ("finish_reason", or_null(words(&["stop", "length", "tool_calls"]))),
    ]))
}

fn text_choice() -> Value {
    let alternatives = json!({"type": "object", "additionalProperties": logprob()});
    let logprobs = object! {
        tokens: array(text()), token_logprobs: array(or_null(logprob())),
        top_logprobs: array(or_null(alternatives)), text_offset: array(count()),
    };
    with_prompt(with_ids(object! {
        index: count(), text: text(), logprobs: or_null(logprobs),
        finish_reason: or_null(words(&["stop", "length"])),
    }))
}

fn logprob() -> Value {
    within(-9999.0, 0.0)
}

fn chat_call() -> Value {
    let function = object! { name: text(), arguments: text() };
    object! { id: text(), type: only("function"), function: function }
}

fn chat_message() -> Value {
    answer(&["role", "content", "refusal"], said(of("ChatAnswerCall")))
}

/// What a message has, and a part of one, with calls of this kind.
fn said(call: Value) -> Properties {
    properties! {
        role: only("assistant"), content: or_null(text()), refusal: json!({"type": "null"}),
        reasoning_content: text(), rejected_markup: text(), tool_calls: array(call),
    }
}

fn chat_delta() -> Value {
    let function = answer(&["arguments"], vec![("name", text()), ("arguments", text())]);
    let call = answer(
        &["index", "function"],
        properties! { index: count(), id: text(), type: only("function"), function: function },
    );
    answer(&[], said(call))
}

fn tokens() -> Value {
    answer(
        &["count", "max_model_len", "tokens"],
        properties! {
            count: count(), max_model_len: count(), tokens: array(count()), token_strs: array(text()),
        },
    )
}

fn number() -> Value {
    json!({"type": "number"})
}

/// What a model's makers recommend.
fn preset() -> Value {
    object! {
        name: text(), temperature: number(), top_p: number(), top_k: count(), min_p: number(),
        repetition_penalty: number(),
    }
}

/// What is in force where a request does not say.
fn sampling() -> Value {
    object! {
        temperature: number(), top_p: number(), top_k: count(), min_p: number(), top_n_sigma: number(),
        repetition_penalty: number(), presence_penalty: number(), frequency_penalty: number(),
        dynatemp_range: number(), dynatemp_exponent: number(),
    }
}

fn weights() -> Value {
    words(&["dummy", "checkpoint"])
}

fn model(facts: &Facts) -> Value {
    object! {
        id: only(facts.model), object: only("model"), created: count(), owned_by: only("monomorph"),
        target: text(), weights: weights(), draft: or_null(any_object()),
        batch_invariant: or_null(any_object()), max_model_len: or_null(count()),
        sampling: sampling(),
    }
}

/// Facts of the build and of this start.
fn info(facts: &Facts) -> Value {
    let speed = || object! { prefill: number(), decode: number() };
    let format = object! { class: text(), stored: text(), compute: text() };
    // By the names of files.
    let digests = || json!({"type": "object", "additionalProperties": text()});
    let hardware = answer(
        &["name", "features"],
        properties! { name: text(), features: array(text()), cuda: any_object() },
    );
    let vision = object! {
        family: words(&["qwen", "gemma", "pixtral"]), patch: count(), merge: count(), most_tokens: count(),
    };
    let images = object! { most_tokens: count(), max_tokens: count(), memory_bytes: count() };
    let build = object! {
        version: text(), commit: or_null(text()), rustc: text(), target: text(), specs: digests(), model: text(), hardware: hardware, ranks: count(), hidden: count(), layers: count(),
        vocabulary: count(), context: count(), usable_context: count(), draft: or_null(any_object()),
        batch_invariant: or_null(any_object()), profiling: boolean(), vision: or_null(vision), block_tokens: count(), block_bytes: count(),
        state_bytes: count(), step_tokens: count(), step_sequences: count(), kv_format: text(),
        kv_exact_layers: count(), kv_scales: or_null(array(text())), kv_bits: or_null(json!({"type": "number"})), kv_tokens_per_gb: or_null(count()),
        formats: array(format), tensors: count(), weight_bytes: count(), scratch_bytes: count(),
        stop_ids: array(count()), canaries: count(),
        digests: digests(),
        chat_template: words(&["build", "checkpoint"]), tools: or_null(text()), reasoning: or_null(text()),
        sampling: array(preset()), limit: speed(), predicted: speed(), weights: text(),
    };
    let kept = object! { blocks: count(), blocks_at_start: count(), snapshots_at_start: count() };
    let reading = object! {
        direct_bytes: count(), cached_bytes: count(), plain_bytes: count(), why_plain: or_null(text()),
    };
    let engine = object! {
        kept_prefixes: or_null(kept), reading: or_null(reading),
        context: count(), blocks: count(), sequences: count(), snapshots: count(), prefix_cache: boolean(),
        swap_host_bytes: count(), tools: or_null(text()), reasoning: or_null(text()), images: or_null(images),
    };
    object! {
        build: build, gpu_ordinals: array(count()), model_name: only(facts.model), weights: weights(), body_limit: count(),
        request_timeout: or_null(json!({"type": "number"})), keys: boolean(), context_compaction: boolean(),
        sampling: sampling(), engine: or_null(engine),
    }
}

fn status() -> Value {
    words(&["ok", "loading", "draining", "stopped", "hung", "poisoned", "dead"])
}

/// The state of the server; what is counted stands in `stats`, by names that operating.md tells.
fn health(facts: &Facts) -> Value {
    let canary = object! { seconds_since_answer: json!({"type": "number"}), known_answers: count() };
    let schedule = object! { policy: text(), tbt_ms: count(), prefill_tokens: or_null(count()) };
    let stats = json!({
        "type": "object", "required": ["running", "waiting", "free_blocks", "total_blocks"],
        "additionalProperties": any_of([json!({"type": "number"}), json!({"type": "null"})]),
    });
    answer(
        &["status", "model", "target", "version", "weights", "draft", "batch_invariant", "uptime_seconds"],
        properties! {
            status: status(), reason: text(), model: only(facts.model), target: text(), version: text(),
            weights: weights(), draft: or_null(any_object()), batch_invariant: or_null(any_object()),
            uptime_seconds: json!({"type": "number"}), canary: canary, schedule: schedule, stats: stats,
            loaded_bytes: count(), total_bytes: count(),
        },
    )
}
