//! The effect of `strict` on a schema: objects have the members they declare, and no others.

use crate::references::{Pointer, parts};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Keywords whose schemas apply to the same value.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords with a schema, or an array of schemas, for other values.
const WITHIN: [&str; 4] = ["items", "prefixItems", "additionalItems", "additionalProperties"];
/// Keywords with schemas by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that constrain the members of an object.
const OF_MEMBERS: [&str; 4] = ["properties", "patternProperties", "required", "additionalProperties"];

/// Closes a schema: objects that do not say which other members they may have may have none. Schemas that
/// apply together (`allOf`; `anyOf`, `oneOf` and `$ref` beside members) stay as they are, because each would
/// forbid the members of the others.
pub(crate) fn closed(schema: &Value) -> Value {
    let mut closing = Closing { open: BTreeSet::new(), waiting: Vec::new() };
    closing.mark(schema, false, true);
    while let Some(pointer) = closing.waiting.pop() {
        if let Some(target) = look_up(schema, &pointer) {
            closing.mark(target, true, false);
        }
    }
    closing.close(schema, &mut Vec::new(), false)
}

/// The value at a pointer.
fn look_up<'a>(root: &'a Value, pointer: &[String]) -> Option<&'a Value> {
    pointer.iter().try_fold(root, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        Value::Object(members) => members.get(part),
        _ => None,
    })
}

/// Whether several parts of a schema apply to one object together.
fn joins(map: &Map<String, Value>) -> bool {
    let has = |keyword: &&str| map.contains_key(*keyword);
    let all = map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = map.contains_key("$ref") || IN_PLACE.iter().any(has);
    all > 1 || (others && OF_MEMBERS.iter().any(has)) || (all > 0 && map.contains_key("$ref"))
}

/// Whether a schema is for objects.
fn is_of_objects(map: &Map<String, Value>) -> bool {
    match map.get("type") {
        Some(Value::Array(types)) => types.iter().any(|one| *one == "object"),
        Some(one) => *one == "object",
        None => map.contains_key("properties"),
    }
}

struct Closing {
    /// Targets of references that are combined with other constraints.
    open: BTreeSet<Pointer>,
    waiting: Vec<Pointer>,
}

impl Closing {
    /// Records the schemas that must stay open. `joined` says whether this schema applies together with
    /// others to one value; `within`, whether to descend into it.
    fn mark(&mut self, schema: &Value, joined: bool, within: bool) {
        let Some(map) = schema.as_object() else { return };
        let joined = joined || joins(map);
        let reference = map.get("$ref").and_then(Value::as_str).filter(|_| joined);
        if let Some(pointer) = reference.and_then(|it| parts(it.strip_prefix('#')?).ok())
            && self.open.insert(pointer.clone())
        {
            self.waiting.push(pointer);
        }
        for (keyword, value) in map {
            let keyword = keyword.as_str();
            let in_place = IN_PLACE.contains(&keyword);
            if !in_place && !within {
                continue;
            }
            match value {
                Value::Array(schemas) if in_place || WITHIN.contains(&keyword) => {
                    schemas.iter().for_each(|schema| self.mark(schema, in_place && joined, within));
                }
                schema if WITHIN.contains(&keyword) => self.mark(schema, false, true),
                Value::Object(members) if NAMED.contains(&keyword) => {
                    members.values().for_each(|schema| self.mark(schema, false, true));
                }
                _ => {}
            }
        }
    }

    /// The schema at a pointer, closed.
    fn close(&self, schema: &Value, at: &mut Pointer, joined: bool) -> Value {
        let Some(map) = schema.as_object() else { return schema.clone() };
        let joined = joined || joins(map) || self.open.contains(at);
        let mut closed = Map::new();
        for (keyword, value) in map {
            at.push(keyword.clone());
            let name = keyword.as_str();
            let in_place = IN_PLACE.contains(&name);
            let value = match value {
                Value::Array(schemas) if in_place || WITHIN.contains(&name) => {
                    let mut each = Vec::with_capacity(schemas.len());
                    for (index, schema) in schemas.iter().enumerate() {
                        at.push(index.to_string());
                        each.push(self.close(schema, at, in_place && joined));
                        at.pop();
                    }
                    each.into()
                }
                schema if WITHIN.contains(&name) => self.close(schema, at, false),
                Value::Object(members) if NAMED.contains(&name) => {
                    let mut each = Map::new();
                    for (member, schema) in members {
                        at.push(member.clone());
                        each.insert(member.clone(), self.close(schema, at, false));
                        at.pop();
                    }
                    each.into()
                }
                other => other.clone(),
            };
            at.pop();
            closed.insert(keyword.clone(), value);
        }
        if !joined && is_of_objects(map) && !map.contains_key("additionalProperties") {
            closed.insert("additionalProperties".to_owned(), false.into());
        }
        closed.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_closed_wherever_they_stand() {
        let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let shut = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false});
        let said = json!({"type": "object", "additionalProperties": {"type": "string"}});
        for (schema, expected) in [
            (open.clone(), shut.clone()),
            (json!({"type": "object"}), json!({"type": "object", "additionalProperties": false})),
            (
                json!({"type": ["object", "null"]}),
                json!({"type": ["object", "null"], "additionalProperties": false}),
            ),
            (json!({"items": open}), json!({"items": shut})),
            (json!({"prefixItems": [open, true]}), json!({"prefixItems": [shut, true]})),
            (json!({"anyOf": [open, {"type": "null"}]}), json!({"anyOf": [shut, {"type": "null"}]})),
            (json!({"allOf": [open]}), json!({"allOf": [shut]})),
            (
                json!({"$ref": "#/$defs/o", "$defs": {"o": open}}),
                json!({"$ref": "#/$defs/o", "$defs": {"o": shut}}),
            ),
            // They say which other members they may have, or are not schemas of objects, or are data.
            (said.clone(), said.clone()),
            (json!({"type": "string"}), json!({"type": "string"})),
            (json!({}), json!({})),
            (json!(true), json!(true)),
            (json!({"const": {"type": "object"}}), json!({"const": {"type": "object"}})),
            // They apply together with others.
            (json!({"allOf": [open, {"required": ["b"]}]}), json!({"allOf": [open, {"required": ["b"]}]})),
            (
                json!({"type": "object", "properties": {"k": {"items": open}}, "anyOf": [open, open]}),
                json!({"type": "object", "properties": {"k": {"items": shut}}, "anyOf": [open, open]}),
            ),
            (
                json!({"allOf": [{"$ref": "#/$defs/p"}, open], "$defs": {"p": {"$ref": "#/$defs/o"}, "o": open, "q": open}}),
                json!({"allOf": [{"$ref": "#/$defs/p"}, open], "$defs": {"p": {"$ref": "#/$defs/o"}, "o": open, "q": shut}}),
            ),
            (json!({"properties": {}}), json!({"properties": {}, "additionalProperties": false})),
            (
                json!({"anyOf": [{"$ref": "#/$defs/o"}], "$defs": {"o": open}}),
                json!({"anyOf": [{"$ref": "#/$defs/o"}], "$defs": {"o": shut}}),
            ),
            (
                json!({"patternProperties": {"a": open}, "additionalItems": open}),
                json!({"patternProperties": {"a": shut}, "additionalItems": shut}),
            ),
            // What stands within one that stays open is closed.
            (
                json!({"allOf": [{"$ref": "#/$defs/p"}, {}], "$defs": {"p": {"type": "object", "items": open}}}),
                json!({"allOf": [{"$ref": "#/$defs/p"}, {}], "$defs": {"p": {"type": "object", "items": shut}}}),
            ),
            // Targets of references, wherever they are.
            (
                json!({"allOf": [{"$ref": "#/items/1"}, open], "items": [open, open]}),
                json!({"allOf": [{"$ref": "#/items/1"}, open], "items": [shut, open]}),
            ),
            (
                json!({"allOf": [{"$ref": "#/properties/a/anyOf/0"}, {"$ref": "#/gone/0"}], "properties": {"a": {"anyOf": [open, open]}}}),
                json!({"allOf": [{"$ref": "#/properties/a/anyOf/0"}, {"$ref": "#/gone/0"}], "properties": {"a": {"anyOf": [open, shut]}}}),
            ),
            (
                json!({"allOf": [{"$ref": "#/$defs/p"}, open], "$defs": {"p": {"anyOf": [{"$ref": "#/$defs/o"}]}, "o": open}}),
                json!({"allOf": [{"$ref": "#/$defs/p"}, open], "$defs": {"p": {"anyOf": [{"$ref": "#/$defs/o"}]}, "o": open}}),
            ),
        ] {
            assert_eq!(closed(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn a_target_stays_open_only_if_schemas_join_it() {
        let open = json!({"type": "object", "properties": {"a": {}}});
        let shut = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false});
        let joined = json!({"allOf": [{"$ref": "#/$defs/o"}, {}]});
        // Wherever they stand, and through any number of references.
        for mut schema in [
            json!({"items": joined}),
            json!({"prefixItems": [joined]}),
            json!({"patternProperties": {"a": joined}}),
            json!({"allOf": [{"$ref": "#/prefixItems/0"}, {}], "prefixItems": [{"$ref": "#/$defs/o"}]}),
        ] {
            schema["$defs"] = json!({"o": open});
            assert_eq!(closed(&schema), schema);
        }
        // Data are no schemas.
        for data in [
            json!({"enum": [joined, open]}),
            json!({"default": joined}),
            json!({"default": {"a": joined, "b": open}}),
        ] {
            let with = |definition: &Value| {
                let mut schema = data.clone();
                schema["$defs"] = json!({"o": definition});
                schema
            };
            assert_eq!(closed(&with(&open)), with(&shut));
        }
    }

    #[test]
    fn a_schema_of_several_types_is_of_objects_if_one_is() {
        for (types, is) in [
            (json!(["object"]), true),
            (json!(["null", "object"]), true),
            (json!(["null", "string"]), false),
            (json!([]), false),
        ] {
            assert_eq!(closed(&json!({"type": types})).get("additionalProperties").is_some(), is, "{types}");
        }
    }

    #[test]
    fn what_applies_together_stays_as_it_is() {
        let open = json!({"type": "object", "properties": {"a": {}}});
        for schema in [
            json!({"$ref": "#/$defs/o", "required": ["b"], "$defs": {"o": open}}),
            json!({"$ref": "#/$defs/o", "properties": {"b": {}}, "$defs": {"o": open}}),
            json!({"$ref": "#/$defs/o", "patternProperties": {"b": {}}, "$defs": {"o": open}}),
            json!({"$ref": "#/$defs/o", "additionalProperties": {}, "$defs": {"o": open}}),
            json!({"$ref": "#/$defs/o", "allOf": [open], "$defs": {"o": open}}),
            json!({"anyOf": [{"$ref": "#/$defs/o"}, open], "properties": {"b": {}}, "$defs": {"o": open}}),
            json!({"oneOf": [open], "required": ["b"]}),
            json!({"allOf": [open], "required": ["b"]}),
            json!({"allOf": [open, {"allOf": [open]}]}),
        ] {
            assert_eq!(closed(&schema), schema);
        }
    }
}
