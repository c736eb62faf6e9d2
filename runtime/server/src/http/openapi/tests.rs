//! The document against the router and the readers of requests, which are written apart from it.
//!
//! Readers tell what fields they ask for (`fields::seen`), and are given bodies made of the document: the
//! least that is taken, with each property alone, of each value that is told, and the examples.
//!
//! Planted, and caught here: a field that the document lacks, and one that is not read; a type that the
//! reader refuses; an object read that was none; a route that is not in the document; a query of another
//! name; a status in the sources alone.

use crate::anthropic::request::MessagesRequest;
use crate::error::ApiError;
use crate::http::routes;
use crate::openai::chat::ChatRequest;
use crate::openai::completions::CompletionRequest;
use crate::openai::responses::items::LIST_QUERY;
use crate::openai::responses::request::ResponsesRequest;
use crate::openai::responses::store::Store;
use crate::openai::tokens::{DetokenizeRequest, TokenizeRequest};
use crate::openapi::{Facts, document};
use crate::request::described::seen;
use crate::request::limits::RequestLimits;
use axum::http::StatusCode;
use axum::routing::MethodFilter;
use monomorph_sampling::Sampling;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const FACTS: Facts = Facts {
    model: "m",
    names: &["m", "cpu/m/none"],
    context: 1000,
    vocabulary: 300,
    images: true,
    keys: true,
};
const LIMITS: RequestLimits = RequestLimits {
    context: FACTS.context,
    vocabulary: FACTS.vocabulary,
    on_gpu: false,
    images: FACTS.images,
    sampling: Sampling::GREEDY,
};

/// The message that says where to describe what is missing.
const WHERE: &str = "a sample of `described` is missing (runtime/server/src/openapi/requests.rs)";

type Reader = fn(&Value) -> Result<(), ApiError>;

/// Every route that reads a body, and what reads it.
const READERS: [(&str, Reader); 9] = [
    ("/v1/chat/completions", |body| ChatRequest::read(body, &LIMITS).map(drop)),
    ("/v1/chat/completions/render", |body| ChatRequest::read(body, &LIMITS).map(drop)),
    ("/v1/completions/render", |body| CompletionRequest::read(body, &LIMITS).map(drop)),
    ("/v1/completions", |body| CompletionRequest::read(body, &LIMITS).map(drop)),
    ("/v1/responses", |body| ResponsesRequest::read(body, &LIMITS, &Store::new(0)).map(drop)),
    ("/v1/messages", |body| MessagesRequest::read(body, &LIMITS).map(drop)),
    ("/v1/messages/count_tokens", |body| MessagesRequest::read_to_count(body, LIMITS.images).map(drop)),
    ("/tokenize", |body| TokenizeRequest::read(body, LIMITS.images).map(drop)),
    ("/detokenize", |body| DetokenizeRequest::read(body, LIMITS.vocabulary).map(drop)),
];

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(to) => {
            resolve(document, document.pointer(&to[1..]).unwrap_or_else(|| panic!("there is no {to}")))
        }
        None => schema,
    }
}

/// Every kind of value that a schema takes, other than null.
fn instances(document: &Value, schema: &Value) -> Vec<Value> {
    let schema = resolve(document, schema);
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().flat_map(|option| instances(document, option)).collect();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    match schema["type"].as_str() {
        Some("string") => vec![json!("a")],
        Some("boolean") => vec![json!(false), json!(true)],
        Some("integer") => vec![schema["minimum"].clone(), schema["maximum"].clone()],
        Some("number") => vec![schema["maximum"].clone()],
        Some("null") => Vec::new(),
        Some("array") => {
            instances(document, &schema["items"]).into_iter().map(|item| json!([item])).collect()
        }
        Some("object") => objects(document, schema),
        _ => vec![json!("anything")],
    }
}

/// The least object, and it with each property alone.
fn objects(document: &Value, schema: &Value) -> Vec<Value> {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let of = |name: &str| instances(document, &properties[name]);
    let least: Map<String, Value> = required.map(|name| (name.to_owned(), of(name)[0].clone())).collect();
    let with = |name: &String, value: Value| {
        let mut object = least.clone();
        object.insert(name.clone(), value);
        Value::Object(object)
    };
    let more = properties.keys().flat_map(|name| of(name).into_iter().map(move |value| with(name, value)));
    [Value::Object(least.clone())].into_iter().chain(more).collect()
}

fn body(document: &Value, path: &str) -> Value {
    document["paths"][path]["post"]["requestBody"]["content"]["application/json"].clone()
}

#[test]
fn what_the_document_allows_is_read_and_by_every_reader() {
    let document = document(&FACTS);
    let mut wrong = Vec::new();
    for (path, read) in READERS {
        let content = body(&document, path);
        let examples = content["examples"].as_object().into_iter().flatten();
        let examples: Vec<Value> = examples.map(|(_, example)| example["value"].clone()).collect();
        for example in &examples {
            if let Err(error) = read(example) {
                wrong.push(format!("{path}: an example is refused: {}: {example}", error.message));
            }
        }
        for body in instances(&document, &content["schema"]) {
            let Err(error) = read(&body) else { continue };
            // What a schema cannot say (two fields that contradict each other) may be refused, but not a
            // field or its type.
            if ["unknown_parameter", "invalid_type", "invalid_body"].contains(&error.code)
                || error.message.ends_with("is required")
            {
                wrong.push(format!("{path}: the document allows what is refused: {}: {body}", error.message));
            }
        }
    }
    let readers = seen::take();
    for (file, line) in written_readers() {
        if !readers.iter().any(|(at, of)| *of == line && at.ends_with(&file)) {
            wrong.push(format!(
                "{file}:{line} reads an object that no body made of the document reaches: {WHERE}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where the sources read objects, tests aside: files from `src/` on, and lines.
fn written_readers() -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for (file, text) in sources() {
        let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = (1..).zip(own.lines()).filter(|(_, line)| line.contains("Fields::new("));
        found.extend(lines.map(|(at, _)| (file.clone(), at)));
    }
    assert!(found.len() > 15, "{found:?}");
    found
}

/// The crate's sources, this file aside.
fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    walk(&root.join("src"), &mut files);
    let rust = files.into_iter().filter(|file| {
        file.extension().is_some_and(|kind| kind == "rs") && !file.ends_with("openapi/tests.rs")
    });
    let read = |file: PathBuf| {
        let name = file.strip_prefix(root).expect("below it").to_str().expect("UTF-8").to_owned();
        (name, std::fs::read_to_string(&file).expect("readable"))
    };
    rust.map(read).collect()
}

#[test]
fn every_route_is_in_the_document_and_the_reverse() {
    let document = document(&FACTS);
    let methods = [
        ("get", MethodFilter::GET),
        ("post", MethodFilter::POST),
        ("delete", MethodFilter::DELETE),
        ("put", MethodFilter::PUT),
        ("patch", MethodFilter::PATCH),
    ];
    let name = |method: MethodFilter| {
        methods.iter().find(|(_, known)| *known == method).map_or("another", |it| it.0)
    };
    let served: BTreeSet<String> = routes()
        .iter()
        .map(|route| format!("{} {}", name(route.method), route.path.replace("{*", "{")))
        .collect();
    let paths = document["paths"].as_object().expect("paths").iter();
    let told: BTreeSet<String> = paths
        .flat_map(|(path, item)| {
            item.as_object().expect("operations").keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    assert_eq!(served, told, "routes served, and those of the document: runtime/server/src/openapi/paths.rs");
}

#[test]
fn every_route_with_a_body_has_its_reader_tried() {
    let document = document(&FACTS);
    let paths = document["paths"].as_object().expect("paths").iter();
    let told: BTreeSet<&str> = paths
        .filter(|(_, item)| !item["post"]["requestBody"].is_null())
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(READERS.iter().map(|(path, _)| *path).collect::<BTreeSet<_>>(), told, "READERS of this test");
}

#[test]
fn queries_are_those_of_the_document() {
    let document = document(&FACTS);
    let list = &document["paths"]["/v1/responses/{id}/input_items"]["get"]["parameters"];
    let told = list.as_array().expect("parameters").iter().filter(|it| it["in"] == "query");
    assert_eq!(told.map(|it| it["name"].as_str().expect("a name")).collect::<Vec<_>>(), LIST_QUERY);
}

/// Statuses that the sources name are those of the document. That each route has its own is what schemathesis
/// looks at.
#[test]
fn every_status_is_in_the_document_and_the_reverse() {
    let document = document(&FACTS);
    let paths = document["paths"].as_object().expect("paths").values();
    let operations = paths.flat_map(|item| item.as_object().expect("operations").values());
    let told: BTreeSet<u16> = operations
        .flat_map(|operation| operation["responses"].as_object().expect("responses").keys())
        .map(|status| status.parse().expect("a number"))
        .chain([405, 431])
        .collect();
    let sources = sources();
    let named = |status: &StatusCode| {
        let Some(name) = status.canonical_reason() else { return false };
        let name = name.to_uppercase().replace([' ', '-'], "_");
        sources.iter().any(|(_, text)| text.contains(&format!("StatusCode::{name}")))
    };
    let statuses = (100..600).filter_map(|status| StatusCode::from_u16(status).ok());
    let named: BTreeSet<u16> = statuses.filter(named).map(|status| status.as_u16()).collect();
    assert_eq!(named, told, "statuses that the sources name, and those of the document: openapi/paths.rs");
}

/// A server whose model takes no images does not say that it does.
#[test]
fn images_are_in_the_document_where_they_are_taken() {
    let named = |images| {
        let text = document(&Facts { images, ..FACTS }).to_string();
        ["image_url", "input_image", "AnthropicImage"].map(|word| text.contains(word))
    };
    assert_eq!((named(true), named(false)), ([true; 3], [false; 3]));
}

/// The document is whole: references lead somewhere, and nothing is left over.
#[test]
fn components_are_all_used() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    for images in [true, false] {
        let document = document(&Facts { images, ..FACTS });
        let mut used = BTreeSet::new();
        references(&document, &mut used);
        let schemas = document["components"]["schemas"].as_object().expect("schemas").keys();
        let there: BTreeSet<String> = schemas.map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(used, there);
    }
}
