//! Paths of the OpenAPI document: requests, answers, errors.

use super::schema::{Properties, text};
use super::{Facts, anthropic, examples, requests, responses};
use serde_json::{Map, Value, json};

/// A method at a path, with its request and its answers.
pub(super) struct Operation {
    /// In small letters.
    pub(super) method: &'static str,
    /// With its parameters in braces.
    pub(super) path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// What stands in the path at `{id}`.
    place: Option<Value>,
    query: Properties,
    /// The component that the body is, and requests that show what there is.
    request: Option<(&'static str, Value)>,
    answer: Answer,
    /// Statuses of errors, beside [`ANYWHERE`] and, with keys, 401.
    errors: &'static [u16],
    /// Whether it answers anybody: who has no key, and under whatever name.
    open: bool,
    /// The component that errors are.
    error: &'static str,
}

/// The answer of an operation.
enum Answer {
    /// JSON, which is this component.
    Json(&'static str),
    /// JSON, or where `stream` is true events, each of which is the second component.
    JsonOrEvents(&'static str, &'static str),
    /// JSON, which is this component, also where the status is 503.
    Health(&'static str),
    /// Another media type.
    Other(&'static str),
}

/// Errors of those that answer with what the model generates.
const GENERATING: &[u16] = &[400, 404, 408, 413, 415, 429, 500, 503, 504];
/// Of others with a body.
const READING: &[u16] = &[400, 404, 408, 413, 415, 500, 503];

/// Errors of all but those that answer anybody.
const ANYWHERE: &[u16] = &[400, 403, 421];

/// What most operations are, beside what each says of itself.
const PLAIN: Operation = Operation {
    method: "get",
    path: "/",
    id: "",
    summary: "",
    place: None,
    query: Vec::new(),
    request: None,
    answer: Answer::Other(""),
    errors: &[],
    open: false,
    error: "Error",
};

/// Operations, each with its method, path, id, summary, answer, and where it differs from [`PLAIN`].
macro_rules! table {
    ($(
        $method:ident $path:literal $id:ident $summary:literal => $answer:expr
        $(, $field:ident: $value:expr)*;
    )*) => {
        vec![$(Operation {
            method: stringify!($method), path: $path, id: stringify!($id), summary: $summary, answer: $answer,
            $($field: $value,)* ..PLAIN
        }),*]
    };
}

/// All of them.
pub(super) fn operations(facts: &Facts) -> Vec<Operation> {
    use Answer::{Health, Json, JsonOrEvents, Other};
    let mut named = requests::names(facts);
    named.retain(|name| !name.contains('/'));
    let named = json!({"type": "string", "enum": named});
    let kept = || Some(text());
    table! {
        get "/" page "The chat page." => Other("text/html");
        get "/openapi.json" openapi "This document." => Json("OpenApi"), errors: &[503];
        get "/health" health "As `/health/ready`." => Health("Health"), open: true;
        get "/health/ready" ready "Whether a request would be answered." => Health("Health"), open: true;
        get "/health/live" live "Whether the process is worth keeping." => Health("Liveness"), open: true;
        get "/ping" ping "As `/health/ready`." => Health("Health"), open: true;
        get "/version" version "The server's version." => Json("Version");
        get "/metrics" metrics "OpenMetrics text." => Other("application/openmetrics-text"), open: true;
        get "/info" info "The build, and what this start of it has." => Json("Info");
        post "/tokenize" tokenize "The tokens of a text or a conversation." => Json("Tokens"),
            request: Some(("TokenizeRequest", examples::tokenize())), errors: READING;
        post "/detokenize" detokenize "The text of tokens." => Json("Text"),
            request: Some(("DetokenizeRequest", examples::detokenize())), errors: READING;
        get "/v1/models" listModels "The one model, in a list." => Json("ModelList");
        get "/v1/models/{id}" retrieveModel "The one model." => Json("Model"),
            place: Some(named), errors: &[400, 404];
        post "/v1/chat/completions" createChatCompletion "Answers a conversation."
            => JsonOrEvents("ChatAnswer", "ChatChunk"),
            request: Some(("ChatRequest", examples::chat())), errors: GENERATING;
        post "/v1/chat/completions/render" renderChat "The tokens that a model would be fed of a conversation."
            => Json("Rendered"), request: Some(("ChatRequest", examples::chat())), errors: READING;
        post "/v1/completions" createCompletion "Continues a text."
            => JsonOrEvents("CompletionAnswer", "CompletionChunk"),
            request: Some(("CompletionRequest", examples::completion())), errors: GENERATING;
        post "/v1/completions/render" renderCompletion "The tokens that a model would be fed of one text."
            => Json("Rendered"), request: Some(("CompletionRequest", examples::text())), errors: READING;
        post "/v1/responses" createResponse "Answers items, and keeps the response."
            => JsonOrEvents("Response", "ResponseEvent"),
            request: Some(("ResponseRequest", responses::examples())), errors: GENERATING;
        get "/v1/responses/{id}" retrieveResponse "A response that is kept." => Json("Response"),
            place: kept(), errors: &[400, 404];
        delete "/v1/responses/{id}" deleteResponse "Gives a response up." => Json("ResponseDeleted"),
            place: kept(), errors: &[400, 404];
        post "/v1/responses/{id}/cancel" cancelResponse "Ends a response in the background." => Json("Response"),
            place: kept(), errors: &[400, 404, 408, 413, 415];
        get "/v1/responses/{id}/input_items" listInputItems "The items that a response answers."
            => Json("ResponseItemList"), place: kept(), query: responses::list_query(), errors: &[400, 404];
        post "/v1/messages" createMessage "Answers a conversation, in Anthropic's words."
            => JsonOrEvents("AnthropicAnswer", "AnthropicEvent"), error: "AnthropicError",
            request: Some(("MessagesRequest", anthropic::examples(false))), errors: GENERATING;
        post "/v1/messages/count_tokens" countTokens "How many tokens a conversation takes."
            => Json("TokenCount"), error: "AnthropicError",
            request: Some(("CountTokensRequest", anthropic::examples(true))), errors: READING;
    }
}

/// The document's `paths`.
pub(super) fn paths(facts: &Facts) -> Value {
    let mut paths = Map::new();
    for operation in operations(facts) {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = written(&operation, facts.keys);
    }
    Value::Object(paths)
}

fn written(operation: &Operation, keys: bool) -> Value {
    let Operation { id, summary, place, query, request, answer, errors, open, error, .. } = operation;
    let mut written =
        json!({"operationId": id, "summary": summary, "responses": answered(answer, operation.path)});
    let place =
        place.iter().map(|schema| json!({"name": "id", "in": "path", "required": true, "schema": schema}));
    let query = query.iter().map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema}));
    let parameters: Vec<Value> = place.chain(query).collect();
    if !parameters.is_empty() {
        written["parameters"] = parameters.into();
    }
    if let Some((schema, examples)) = request {
        let content = json!({"schema": of(schema), "examples": examples});
        written["requestBody"] = json!({"required": true, "content": {"application/json": content}});
    }
    let unauthorized = keys.then_some(&401);
    let anywhere = ANYWHERE.iter().chain(unauthorized).filter(|_| !open);
    for status in errors.iter().chain(anywhere).copied() {
        written["responses"][status.to_string()] =
            json!({"description": meaning(status), "content": {"application/json": {"schema": of(error)}}});
    }
    if keys && *open {
        written["security"] = json!([]);
    }
    written
}

fn of(name: &str) -> Value {
    super::schema::of(name)
}

fn answered(answer: &Answer, path: &str) -> Value {
    let json = |name: &str| json!({"application/json": {"schema": of(name)}});
    match answer {
        Answer::Json(name) => json!({"200": {"description": "Done.", "content": json(name)}}),
        Answer::JsonOrEvents(name, event) => {
            let mut content = json(name);
            content["text/event-stream"] = json!({"itemSchema": events(event)});
            let mut done = json!({"description": "Done, or begun.", "content": content});
            if path == "/v1/responses" {
                done["links"] = links();
            }
            json!({ "200": done })
        }
        Answer::Health(name) => json!({
            "200": {"description": "It is.", "content": json(name)},
            "503": {"description": "It is not; `reason` says why.", "content": json(name)},
        }),
        Answer::Other(kind) => json!({
            "200": {"description": "Done.", "content": {*kind: {"schema": {"type": "string"}}}},
        }),
    }
}

/// What an event of a stream is: its data is JSON, or for OpenAI's older routes the word that ends them.
fn events(name: &str) -> Value {
    let data = |schema: Value| json!({"type": "string", "contentMediaType": "application/json", "contentSchema": schema});
    let done = json!({"type": "string", "enum": ["[DONE]"]});
    let (named, data) = match name {
        // Named as their `type` is.
        "ResponseEvent" | "AnthropicEvent" => (true, data(of(name))),
        _ => (false, json!({"anyOf": [done, data(json!({"anyOf": [of(name), of("Error")]}))]})),
    };
    let mut event = json!({"type": "object", "required": ["data"], "properties": {"data": data}});
    if named {
        event["properties"]["event"] = json!({"type": "string"});
        event["required"] = json!(["data", "event"]);
    }
    event
}

/// Links from a created response to the operations on it.
fn links() -> Value {
    let operations = ["retrieveResponse", "deleteResponse", "cancelResponse", "listInputItems"];
    let link =
        |id: &str| (id.to_owned(), json!({"operationId": id, "parameters": {"id": "$response.body#/id"}}));
    Value::Object(operations.map(link).into_iter().collect())
}

/// Description of a status.
fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong; `message` names the field and what is wrong with it.",
        401 => "A key is wanted, and none or a wrong one was given.",
        403 => "The page that asks is of an origin that `--cors-origin` does not name.",
        404 => "There is no such model or response.",
        408 => "The body did not arrive in time.",
        413 => "The body is larger than this server takes.",
        415 => "The body does not say that it is JSON: `Content-Type: application/json`.",
        421 => {
            "The header `Host` has a name that this server is not called by: `--allowed-host` tells it more."
        }
        429 => "More requests wait than this server takes; `Retry-After` says when to ask again.",
        500 => "The engine failed.",
        503 => {
            "The server is loading, draining, stopped or short of memory; `Retry-After` says when to ask again."
        }
        504 => "The answer took longer than this server allows.",
        _ => "An error.",
    }
}
