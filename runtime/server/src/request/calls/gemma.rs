//! Gemma's arguments: keys without quotes, strings between tags; what has no such form is JSON, which is read
//! as well.

use super::{Form, parameters};
use monomorph_grammar::{Pattern, Schema};
use serde_json::Value;

/// The tag around a string.
const QUOTE: &str = "<|\"|>";
/// Deepest nesting that is written so: references may lead back.
const DEPTH: usize = 8;
/// Most parameters of which none is required: each may be the first.
const MOST_FIRST: usize = 12;

/// A value that is valid under `part` of a schema.
pub(super) fn value(form: &Form, schema: &Schema, part: &Value, depth: usize) -> Pattern {
    let written = if depth < DEPTH { written(form, schema, part, depth + 1) } else { None };
    written.unwrap_or_else(|| Pattern::Json(schema.part(part)))
}

fn written(form: &Form, schema: &Schema, part: &Value, depth: usize) -> Option<Pattern> {
    let map = part.as_object()?;
    let says = |known: &[&str]| map.keys().all(|keyword| known.contains(&keyword.as_str()));
    let texts = map.get("enum").and_then(Value::as_array).is_some_and(|all| all.iter().all(Value::is_string));
    match map.get("type").and_then(Value::as_str) {
        Some("object") => object(form, schema, part, depth),
        Some("array") if says(&["type", "items"]) => {
            let item = value(form, schema, map.get("items")?, depth);
            let items = Pattern::Maybe(Box::new(Pattern::Some(Box::new(item), ",".to_owned())));
            Some(Pattern::All(vec![Pattern::text("["), items, Pattern::text("]")]))
        }
        kind if kind == Some("string") || kind.is_none() && texts => {
            let texts = parameters::texts(schema, part, 0).ok().filter(|texts| !texts.is_empty())?;
            let text = |body| Pattern::Until(body, form.end(QUOTE));
            let texts = Pattern::OneOf(texts.into_iter().map(text).collect());
            Some(Pattern::All(vec![form.tag(QUOTE), texts]))
        }
        None if says(&["$ref"]) => {
            let target = schema.value().pointer(map["$ref"].as_str()?.strip_prefix('#')?)?;
            (depth < DEPTH).then(|| written(form, schema, target, depth + 1)).flatten()
        }
        None if says(&["anyOf"]) => {
            let options = map["anyOf"].as_array()?;
            Some(Pattern::OneOf(options.iter().map(|option| value(form, schema, option, depth)).collect()))
        }
        _ => None,
    }
}

/// An object: what is required first, so that only the first of the others may have no comma before it.
fn object(form: &Form, schema: &Schema, part: &Value, depth: usize) -> Option<Pattern> {
    let part = schema.part(part);
    let mut members = parameters::members(&part)?;
    let fits =
        |name: &str| !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
    if !members.iter().all(|(name, ..)| fits(name)) {
        return None;
    }
    members.sort_by_key(|(_, _, required)| !required);
    let any_first = members.first().is_some_and(|(_, _, required)| !required);
    if any_first && members.len() > MOST_FIRST {
        return None;
    }
    let member = |(name, schema_of, _): &(&str, &Value, bool)| {
        Pattern::All(vec![Pattern::text(format!("{name}:")), value(form, &part, schema_of, depth)])
    };
    let behind = |members: &[(&str, &Value, bool)]| {
        let one = |it: &(&str, &Value, bool)| {
            let one = Pattern::All(vec![Pattern::text(","), member(it)]);
            if it.2 { one } else { Pattern::Maybe(Box::new(one)) }
        };
        members.iter().map(one).collect::<Vec<_>>()
    };
    let beginning = |at: usize| {
        let mut parts = vec![member(&members[at])];
        parts.extend(behind(&members[at + 1..]));
        Pattern::All(parts)
    };
    let inner = if any_first {
        Pattern::Maybe(Box::new(Pattern::OneOf((0..members.len()).map(beginning).collect())))
    } else if members.is_empty() {
        Pattern::All(Vec::new())
    } else {
        beginning(0)
    };
    Some(Pattern::All(vec![Pattern::text("{"), inner, Pattern::text("}")]))
}
