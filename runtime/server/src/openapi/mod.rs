//! The OpenAPI document: all paths, and every field of requests and answers.
//!
//! Requests are described by their readers ([`crate::request::described`]): to add a field, read it. Answers
//! are written here by hand, and routes in `paths.rs`.

mod answers;
mod anthropic;
mod examples;
mod paths;
mod requests;
mod responses;
pub(crate) mod schema;

use serde_json::{Map, Value, json};

/// What depends on the model and on how the server was started.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// What clients call the model.
    pub(crate) model: &'a str,
    /// All names that it is known by.
    pub(crate) names: &'a [&'a str],
    /// Longest sequence in tokens, prompt and answer.
    pub(crate) context: usize,
    /// Ids below this one exist.
    pub(crate) vocabulary: usize,
    /// Whether the model takes images.
    pub(crate) images: bool,
    /// Whether the server requires keys.
    pub(crate) keys: bool,
}

/// The document, OpenAPI 3.2.
pub(crate) fn document(facts: &Facts) -> Value {
    let itself = schema::any_object();
    let schemas = [
        requests::schemas(facts),
        answers::schemas(facts),
        responses::schemas(facts),
        anthropic::schemas(facts),
        vec![("OpenApi", itself)],
    ]
    .concat();
    let schemas: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    let mut document = json!({
        "openapi": "3.2.0",
        "info": {
            "title": format!("Monomorph: {}", facts.model),
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths::paths(facts),
        "components": {"schemas": schemas},
    });
    if facts.keys {
        document["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            "basic": {"type": "http", "scheme": "basic", "description": "The password is the key."},
        });
        document["security"] = json!([{"bearer": []}, {"header": []}, {"basic": []}]);
    }
    document
}

const DESCRIPTION: &str = "One model behind OpenAI's and Anthropic's APIs. A field that is null is as one that is not there; a field \
     that nobody knows is refused by its name. Every response has an `x-request-id`; fields that were given and change nothing are named in \
     `x-monomorph-ignored`; what of the tools' schemas arguments are not held to in \
     `x-monomorph-not-held`. Paths that are none are answered 404 and methods that a path does not take 405, a head \
     that is too large 431, one that is no HTTP 400, one that does not arrive 408, a connection too many 503, all in the envelope `Error`.";
