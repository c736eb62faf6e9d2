//! Requests to `/v1/chat/completions` and `/v1/completions`, to `/tokenize` and `/detokenize`.

use super::Facts;
use super::schema::{
    Properties, about, above_zero, any, any_object, any_of, array, boolean, empty, integer, of, only,
    request, some, text, unsupported, within, words,
};
use crate::openai::chat::EFFORTS;
use crate::openai::completions::MAX_LOGPROBS;
use crate::request::biases;
use crate::request::generation::{MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS};
use crate::request::tools;
use monomorph_sampling::{MAX_FIXED, MAX_TOP_LOGPROBS};
use serde_json::{Value, json};

/// Most that 32 bits hold.
pub(super) const U32: i64 = u32::MAX as i64;

/// The components.
pub(super) fn schemas(facts: &Facts) -> Properties {
    vec![
        ("ChatRequest", chat(facts)),
        ("CompletionRequest", completion(facts)),
        ("TokenizeRequest", tokenize(facts)),
        ("DetokenizeRequest", detokenize(facts)),
        ("StreamOptions", request(&[], vec![("include_usage", boolean()), ("include_obfuscation", any())])),
        ("ResponseFormat", response_format()),
        ("StructuredOutputs", structured_outputs()),
        ("ChatMessage", message()),
        ("ChatTextPart", request(&["type", "text"], vec![("type", only("text")), ("text", text())])),
        ("ChatCall", call()),
        ("ChatTool", tool()),
    ]
}

/// What bounds an answer.
pub(super) fn length(facts: &Facts) -> Value {
    integer(1..=facts.context as i64)
}

/// One stop string, or several.
pub(super) fn stops() -> Value {
    let one = json!({"type": "string", "minLength": 1, "maxLength": MAX_STOP_BYTES});
    let mut several = array(one.clone());
    several["maxItems"] = MAX_STOPS.into();
    any_of([one, several])
}

/// Which model is meant; there is one.
pub(super) fn model(facts: &Facts) -> Value {
    json!({"type": "string", "enum": names(facts)})
}

/// The names of the one model, each once.
pub(super) fn names<'a>(facts: &Facts<'a>) -> Vec<&'a str> {
    let mut names = facts.names.to_vec();
    names.sort_unstable();
    names.dedup();
    names
}

/// Ids of the vocabulary.
fn ids(facts: &Facts) -> Value {
    array(integer(0..=facts.vocabulary.saturating_sub(1) as i64))
}

fn logit_bias() -> Value {
    json!({
        "type": "object", "maxProperties": MAX_FIXED, "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": within(-biases::LARGEST, biases::LARGEST),
    })
}

fn breakers() -> Value {
    let one = json!({"type": "string", "minLength": 1, "maxLength": biases::LONGEST_BREAKER});
    at_most(biases::MOST_BREAKERS, one)
}

/// What chats and completions have alike; an answer may be bounded to so many tokens at `least`.
fn generation(facts: &Facts, least: i64) -> Properties {
    let length = || integer(least..=facts.context as i64);
    vec![
        ("model", model(facts)),
        ("stream", boolean()),
        ("stream_options", about("With `stream` only.", of("StreamOptions"))),
        ("max_tokens", length()),
        ("max_completion_tokens", about("The newer name of `max_tokens`.", length())),
        ("temperature", within(0.0, 2.0)),
        ("top_p", above_zero(1.0)),
        ("top_k", about("0 and -1: all.", integer(-1..=U32))),
        ("min_p", within(0.0, 1.0)),
        ("repetition_penalty", above_zero(f64::from(f32::MAX))),
        ("presence_penalty", within(-2.0, 2.0)),
        ("frequency_penalty", within(-2.0, 2.0)),
        ("seed", integer(i64::MIN..=i64::MAX)),
        ("stop", stops()),
        ("stop_token_ids", ids(facts)),
        ("ignore_eos", boolean()),
        ("response_format", of("ResponseFormat")),
        ("structured_outputs", of("StructuredOutputs")),
        ("guided_json", about("As `structured_outputs.json`.", schema_or_text())),
        ("guided_regex", about("As `structured_outputs.regex`.", text())),
        ("guided_grammar", about("As `structured_outputs.grammar`.", text())),
        ("guided_choice", about("As `structured_outputs.choice`.", array(text()))),
        ("guided_decoding_backend", unsupported()),
        ("guided_whitespace_pattern", unsupported()),
        ("priority", about("The lower, the earlier.", integer(i64::MIN..=i64::MAX))),
        ("user", text()),
        ("n", about("Answers, of the seeds from `seed` on.", integer(1..=MAX_CHOICES))),
        ("logit_bias", about("By token id.", logit_bias())),
        ("top_n_sigma", about("0 and -1: all.", any_of([within(0.0, f64::from(f32::MAX)), only(-1)]))),
        ("dry_multiplier", about("0: off.", within(0.0, biases::MAX_DRY.into()))),
        ("dry_base", within(1.0, biases::MAX_DRY.into())),
        ("dry_allowed_length", integer(1..=U32)),
        ("dry_penalty_last_n", about("-1: all.", integer(-1..=U32))),
        ("dry_sequence_breakers", breakers()),
        ("return_token_ids", boolean()),
        ("metadata", any()),
        ("store", any()),
        ("service_tier", any()),
        ("safety_identifier", any()),
        ("prompt_cache_key", any()),
        ("prompt_cache_retention", any()),
    ]
}

/// What makes the prompt of a chat.
fn conversation() -> Properties {
    vec![
        ("messages", some(of("ChatMessage"))),
        ("tools", at_most(tools::MOST, of("ChatTool"))),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", boolean()),
        ("reasoning_effort", words(&EFFORTS)),
        ("chat_template_kwargs", about("Variables of the chat template.", any_object())),
    ]
}

fn chat(facts: &Facts) -> Value {
    let own = vec![
        ("logprobs", boolean()),
        ("top_logprobs", about("With `logprobs` only.", integer(0..=i64::from(MAX_TOP_LOGPROBS)))),
        ("thinking_token_budget", about("Tokens that an answer may reason for.", integer(0..=U32))),
        ("functions", empty()),
        ("function_call", words(&["none", "auto"])),
        ("modalities", only(json!(["text"]))),
        ("audio", unsupported()),
        ("prediction", unsupported()),
        ("verbosity", unsupported()),
        ("web_search_options", unsupported()),
    ];
    request(&["messages"], [conversation(), generation(facts, 1), own].concat())
}

fn completion(facts: &Facts) -> Value {
    let several = |one: Value| {
        let mut several = some(one);
        several["maxItems"] = MAX_CHOICES.into();
        several
    };
    let prompt = any_of([text(), ids(facts), several(text()), several(ids(facts))]);
    let of_prompt = format!(
        "A text, or ids that are taken as they are; or several of one kind, of which choice `index` answers number `index / n`. Prompts times `n` \
         are at most {MAX_CHOICES}."
    );
    let own = vec![
        ("prompt", about(&of_prompt, prompt)),
        ("logprobs", integer(0..=MAX_LOGPROBS)),
        ("echo", about("The answer begins with the prompt, and with `logprobs` so do they.", boolean())),
        ("suffix", only("")),
        ("best_of", only(1)),
    ];
    request(&["prompt"], [own, generation(facts, 0)].concat())
}

fn tokenize(facts: &Facts) -> Value {
    let both = || vec![("model", model(facts)), ("return_token_strs", boolean())];
    let of_text = vec![("prompt", text()), ("add_special_tokens", boolean())];
    let of_chat = vec![("add_generation_prompt", boolean())];
    any_of([
        request(&["prompt"], [of_text, both()].concat()),
        request(&["messages"], [conversation(), of_chat, both()].concat()),
    ])
}

fn detokenize(facts: &Facts) -> Value {
    let tokens = ("tokens", ids(facts));
    request(&["tokens"], vec![tokens, ("model", model(facts)), ("skip_special_tokens", boolean())])
}

/// A schema, or its text.
fn schema_or_text() -> Value {
    any_of([any_object(), boolean(), text()])
}

/// Whether there is to be a call, and of what.
fn tool_choice() -> Value {
    let function = || {
        let name = request(&["name"], vec![("name", tool_name())]);
        request(&["type", "function"], vec![("type", only("function")), ("function", name)])
    };
    let allowed = request(
        &["mode", "tools"],
        vec![("mode", words(&["auto", "required"])), ("tools", some(function()))],
    );
    let allowed = request(
        &["type", "allowed_tools"],
        vec![("type", only("allowed_tools")), ("allowed_tools", allowed)],
    );
    any_of([words(&["none", "auto", "required"]), function(), allowed])
}

/// A format whose schema stands beside its type.
pub(super) fn flat_format() -> Value {
    let schema = [vec![("type", only("json_schema"))], named_schema()].concat();
    any_of([format_without_schema(), request(&["type", "schema"], schema)])
}

fn response_format() -> Value {
    let schema = request(&["schema"], named_schema());
    any_of([
        format_without_schema(),
        request(&["type", "json_schema"], vec![("type", only("json_schema")), ("json_schema", schema)]),
    ])
}

fn format_without_schema() -> Value {
    request(&["type"], vec![("type", words(&["text", "json_object"]))])
}

/// A schema with what is said of it.
fn named_schema() -> Properties {
    let schema = any_of([any_object(), boolean()]);
    vec![("name", text()), ("description", text()), ("strict", boolean()), ("schema", schema)]
}

fn structured_outputs() -> Value {
    let one = |name: &'static str, schema: Value| request(&[name], vec![(name, schema)]);
    any_of([
        one("json", schema_or_text()),
        one("regex", text()),
        one("grammar", text()),
        one("choice", array(text())),
        one("json_object", only(true)),
    ])
}

/// A message, by who speaks.
fn message() -> Value {
    let of_all = || {
        vec![
            ("name", text()),
            ("function_call", unsupported()),
            ("audio", unsupported()),
            ("refusal", unsupported()),
            ("annotations", any()),
            ("rejected_markup", any()),
        ]
    };
    let content = || ("content", any_of([text(), array(of("ChatTextPart"))]));
    let own = |role: &[&str]| ("role", words(role));
    let thought = || ("reasoning_content", text());
    any_of([
        request(
            &["role", "content"],
            [vec![own(&["system", "developer", "user"]), content(), ("tool_calls", empty())], of_all()]
                .concat(),
        ),
        request(
            &["role", "content"],
            [
                vec![own(&["assistant"]), content(), ("tool_calls", array(of("ChatCall"))), thought()],
                of_all(),
            ]
            .concat(),
        ),
        request(
            &["role", "tool_calls"],
            [vec![own(&["assistant"]), content(), ("tool_calls", some(of("ChatCall"))), thought()], of_all()]
                .concat(),
        ),
        request(
            &["role", "content", "tool_call_id"],
            [vec![own(&["tool"]), content(), ("tool_call_id", text()), ("tool_calls", empty())], of_all()]
                .concat(),
        ),
    ])
}

fn call() -> Value {
    let function = request(&["name"], vec![("name", text()), ("arguments", text())]);
    let own = vec![("id", text()), ("type", only("function")), ("index", any()), ("function", function)];
    request(&["id", "function"], own)
}

/// A tool's name.
pub(super) fn tool_name() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": tools::LONGEST_NAME, "pattern": "^[\\w.:/-]+$"})
}

fn tool() -> Value {
    let function = request(
        &["name"],
        vec![
            ("name", tool_name()),
            ("description", text()),
            ("parameters", about("A JSON schema.", any_object())),
            ("strict", boolean()),
        ],
    );
    request(&["type", "function"], vec![("type", only("function")), ("function", function)])
}

/// An array that is bounded.
pub(super) fn at_most(most: usize, items: Value) -> Value {
    let mut array = array(items);
    array["maxItems"] = most.into();
    array
}

/// Numbers of a vendor's fields that all vendors read alike.
pub(super) fn temperature_and_top_p() -> Properties {
    vec![("temperature", within(0.0, 2.0)), ("top_p", above_zero(1.0))]
}
