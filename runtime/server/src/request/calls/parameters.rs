//! The parameters of a tool one by one, for formats that write each by itself, strings without quotes.

use monomorph_grammar::{Body, GrammarError, Schema};
use monomorph_text::ToolSet;
use serde_json::Value as Json;

/// References and unions followed.
const DEPTH: usize = 8;
/// Keywords about all parameters together.
const OF_ALL: [&str; 8] =
    ["type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"];

/// What a parameter may be.
pub(super) enum Value {
    /// Any text.
    Free,
    /// A text of these.
    Texts(Vec<Body>),
    /// JSON that follows this schema.
    Json(Schema),
}

/// A parameter: its name, its schema, whether it is required.
type Member<'a> = (&'a str, &'a Json, bool);

/// The parameters in their order; `None` where they may be any.
pub(super) fn members(schema: &Schema) -> Option<Vec<Member<'_>>> {
    let map = schema.value().as_object()?;
    let is_plain = map.keys().all(|keyword| OF_ALL.contains(&keyword.as_str()));
    let properties = map.get("properties")?.as_object().filter(|_| is_plain)?;
    let required: Vec<&str> =
        map.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str).collect();
    if !required.iter().all(|name| properties.contains_key(*name)) {
        return None;
    }
    let is_required = |name: &String| required.contains(&name.as_str());
    Some(properties.iter().map(|(name, schema)| (name.as_str(), schema, is_required(name))).collect())
}

/// The parts of the parameters' schemas that do not constrain them.
pub(super) fn not_held(schema: &Schema, set: &ToolSet, tool: &str) -> Vec<GrammarError> {
    let refused = |path: String, message: &str| GrammarError { path, message: message.to_owned() };
    let Some(members) = members(schema) else {
        let map = schema.value().as_object();
        let says = |keyword: &&String| !OF_ALL.contains(&keyword.as_str());
        let keyword = map.and_then(|map| map.keys().find(says));
        let path = keyword.map_or_else(String::new, |keyword| format!(".{keyword}"));
        let nothing = keyword.is_none() && map.is_some_and(|map| !map.contains_key("required"));
        let message = "is not followed in this model's form of calls, which has parameters by their names";
        return if nothing { Vec::new() } else { vec![refused(path, message)] };
    };
    let text = |(name, part, _): Member| {
        let fits = !name.is_empty() && !name.contains(['<', '>', '"', '\'', '\n']) && name.trim() == name;
        let path = format!(".properties.{name}");
        if !fits {
            return Some(refused(path, "has a name that cannot be written in this model's form of calls"));
        }
        if !set.reads_text(tool, name) {
            return None;
        }
        match texts(schema, part, 0) {
            Ok(texts) if texts.is_empty() => Some(refused(path, "has no text that is valid")),
            Ok(_) => None,
            Err(keyword) => {
                let message =
                    "is not followed in this model's form of calls, where texts stand without quotes";
                Some(refused(format!("{path}.{keyword}"), message))
            }
        }
    };
    members.into_iter().filter_map(text).collect()
}

/// What a parameter may be that is read as a text, or not.
pub(super) fn value(schema: &Schema, part: &Json, text: bool) -> Value {
    if !text {
        return Value::Json(schema.part(part));
    }
    match texts(schema, part, 0) {
        Ok(texts) if !texts.is_empty() && !texts.contains(&Body::Free(0, None)) => Value::Texts(texts),
        _ => Value::Free,
    }
}

/// The texts that a schema allows, and `null`, which is read as that where it is allowed.
///
/// # Errors
/// The keyword that cannot be followed.
pub(super) fn texts(schema: &Schema, part: &Json, depth: usize) -> Result<Vec<Body>, &'static str> {
    let Some(map) = part.as_object() else { return Ok(vec![Body::Free(0, None)]) };
    if depth > DEPTH {
        return Err("$ref");
    }
    let choice = |values: &[Json]| {
        let text = |value: &Json| match value {
            Json::String(text) => Some(text.clone()),
            Json::Null => Some("null".to_owned()),
            _ => None,
        };
        let texts: Vec<String> = values.iter().filter_map(text).collect();
        if texts.is_empty() { Vec::new() } else { vec![Body::Choice(texts)] }
    };
    if let Some(to) = map.get("$ref").and_then(Json::as_str) {
        let target =
            to.strip_prefix('#').and_then(|pointer| schema.value().pointer(pointer)).ok_or("$ref")?;
        return texts(schema, target, depth + 1);
    }
    if let Some(one) = map.get("const") {
        return Ok(choice(std::slice::from_ref(one)));
    }
    if let Some(values) = map.get("enum").and_then(Json::as_array) {
        return Ok(choice(values));
    }
    // As what formats of strings come that are a pattern.
    let only = |all: &Json| match all.as_array().map(Vec::as_slice) {
        Some([one]) if one.as_object().is_some_and(|one| one.len() == 1) => {
            one["pattern"].as_str().map(str::to_owned)
        }
        _ => None,
    };
    let pattern = map.get("allOf").and_then(only);
    let unions =
        ["anyOf", "oneOf", "allOf"].into_iter().filter(|union| *union != "allOf" || pattern.is_none());
    for union in unions {
        let Some(options) = map.get(union).and_then(Json::as_array) else { continue };
        if union == "allOf" && options.len() > 1 || map.contains_key("type") {
            return Err(if union == "allOf" { "allOf" } else { "anyOf" });
        }
        let mut all = Vec::new();
        for option in options {
            all.extend(texts(schema, option, depth + 1)?);
        }
        return Ok(all);
    }
    let types: Vec<&str> = match map.get("type") {
        Some(Json::String(one)) => vec![one],
        Some(Json::Array(some)) => some.iter().filter_map(Json::as_str).collect(),
        _ => vec!["string"],
    };
    let mut all = Vec::new();
    if types.contains(&"null") {
        all.push(Body::Choice(vec!["null".to_owned()]));
    }
    if types.contains(&"string") {
        let length = |keyword| map.get(keyword).and_then(Json::as_u64).map(|length| length as usize);
        let (least, most) = (length("minLength"), length("maxLength"));
        let own = map.get("pattern").and_then(Json::as_str);
        all.push(match own.or(pattern.as_deref()) {
            _ if map.contains_key("format") => return Err("format"),
            _ if own.is_some() && pattern.is_some() => return Err("pattern"),
            None => Body::Free(least.unwrap_or(0), most),
            Some(_) if least.is_some() || most.is_some() => return Err("pattern"),
            Some(pattern) => Body::Regex(whole(pattern).ok_or("pattern")?),
        });
    }
    Ok(all)
}

/// A pattern that is looked for in a text, as an expression of the whole text, with the classes that
/// ECMAScript means.
fn whole(pattern: &str) -> Option<String> {
    let (mut written, mut depth, mut class, mut escaped) = (String::new(), 0i32, false, false);
    let anchored = pattern.starts_with('^');
    let body = pattern.strip_prefix('^').unwrap_or(pattern);
    let ends = body.ends_with('$') && body.len() - body.trim_end_matches(['$']).len() == 1 && {
        let before = &body[..body.len() - 1];
        (before.len() - before.trim_end_matches('\\').len()).is_multiple_of(2)
    };
    let body = if ends { &body[..body.len() - 1] } else { body };
    for character in body.chars() {
        match character {
            'd' if escaped => {
                written.pop();
                written.push_str("[0-9]");
            }
            'w' if escaped => {
                written.pop();
                written.push_str("[a-zA-Z0-9_]");
            }
            // What else is a class or a look about has other meanings here, or none.
            'D' | 'W' | 'S' | 's' | 'b' | 'B' | 'p' | 'P' | 'k' | '1'..='9' if escaped => return None,
            '^' | '$' if !escaped && !class => return None,
            '|' if !escaped && !class && depth == 0 && (anchored || ends) => return None,
            other => written.push(other),
        }
        match character {
            '[' if !escaped => class = true,
            ']' if !escaped => class = false,
            '(' if !escaped && !class => depth += 1,
            ')' if !escaped && !class => depth -= 1,
            _ => {}
        }
        escaped = character == '\\' && !escaped;
    }
    let any = |there: bool| if there { "" } else { "(?s:.*)" };
    Some(format!("{}(?:{written}){}", any(anchored), any(ends)))
}
