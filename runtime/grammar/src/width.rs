//! Bounds how many alternatives of a schema may be open at one point. The library follows all alternatives
//! that the text so far matches, in parallel, and gives up if there are too many; this module detects such
//! schemas before an answer begins.
//!
//! A schema is walked as its answers are written: after a bracket, the possible items of each array that may
//! have begun; after a name, the possible values of that member in each object. Texts, numbers and constants
//! of an alternative are a single expression to the library, whatever their number.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Most places of the grammar to follow at once, as estimated here; an array that has begun counts as four.
const MOST: usize = 4_000;
/// Most steps of the walk.
const MOST_STEPS: usize = 1_000_000;
/// Places that an array, an object, each possible next member, and an unconstrained value count as.
const OF_ARRAY: usize = 4;
const OF_OBJECT: usize = 3;
const OF_MEMBER: usize = 3;
const OF_ANYTHING: usize = 30;

/// An alternative at a place.
#[derive(Clone, Copy)]
enum Node<'a> {
    Schema(&'a Value),
    Constant(&'a Value),
}

impl Node<'_> {
    /// Its identity.
    fn id(&self) -> (usize, bool) {
        match self {
            Node::Schema(value) => (std::ptr::from_ref(*value).addr(), false),
            Node::Constant(value) => (std::ptr::from_ref(*value).addr(), true),
        }
    }
}

/// The alternatives at one place, how often each occurs, and the path of the place.
#[derive(Clone, Default)]
struct Alternatives<'a> {
    nodes: Vec<(Node<'a>, usize)>,
    path: String,
}

/// Arrays and objects that may have begun.
#[derive(Default)]
struct Begun<'a> {
    leaves: Vec<(Node<'a>, usize)>,
    places: usize,
    shared: BTreeSet<&'a str>,
}

struct Walk<'a> {
    definitions: Option<&'a Map<String, Value>>,
    steps: usize,
}

/// The path of a place with too many open alternatives, as far as it is known, and the reason; `None` for
/// most schemas.
pub(crate) fn too_wide(schema: &Value) -> Option<(String, String)> {
    let definitions = schema.get("$defs").and_then(Value::as_object);
    let mut walk = Walk { definitions, steps: 0 };
    let mut waiting = vec![Alternatives { nodes: vec![(Node::Schema(schema), 1)], path: String::new() }];
    let mut seen = BTreeSet::new();
    while let Some(place) = waiting.pop() {
        let mut begun = Begun::default();
        for (node, times) in &place.nodes {
            walk.begin(*node, *times, &mut begun, 0);
        }
        if begun.places > MOST {
            let why = format!(
                "has too many alternatives that may have begun at one time: about {} places of the grammar, and at most {MOST} \
                 are followed; an array counts {OF_ARRAY} and an object {OF_OBJECT} and {OF_MEMBER} for each member that may come first",
                begun.places
            );
            return Some((place.path, why));
        }
        let within = walk.within(&begun.leaves, &place.path);
        if walk.steps > MOST_STEPS {
            return Some((
                place.path,
                "has too many alternatives within alternatives to be followed".to_owned(),
            ));
        }
        for next in within {
            let mut id: Vec<_> = next.nodes.iter().map(|(node, times)| (node.id(), *times)).collect();
            id.sort_unstable();
            walk.steps += id.len();
            if !id.is_empty() && seen.insert(id) {
                waiting.push(next);
            }
        }
    }
    None
}

/// Whether a schema allows a type.
fn may_be(map: &Map<String, Value>, wanted: &str) -> bool {
    match map.get("type") {
        Some(Value::Array(types)) => types.iter().any(|one| one == wanted),
        Some(one) => one == wanted,
        None => true,
    }
}

fn schemas<'a>(map: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    map.get(keyword).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl<'a> Walk<'a> {
    /// In how many ways a schema may be satisfied when it is merged with others.
    fn ways(&mut self, schema: &'a Value, depth: usize) -> usize {
        self.steps += 1;
        let Some(map) = schema.as_object() else { return 1 };
        // Circular references are left to the library to reject.
        if depth > 64 || self.steps > MOST_STEPS {
            return 1;
        }
        let mut ways = 1usize;
        for keyword in ["anyOf", "oneOf"] {
            let options = schemas(map, keyword);
            if !options.is_empty() {
                let sum =
                    options.iter().map(|option| self.ways(option, depth + 1)).fold(0, usize::saturating_add);
                ways = ways.saturating_mul(sum);
            }
        }
        for part in schemas(map, "allOf") {
            ways = ways.saturating_mul(self.ways(part, depth + 1));
        }
        if let Some(target) = self.target(map).filter(|_| map.len() > 1) {
            ways = ways.saturating_mul(self.ways(target, depth + 1));
        }
        ways
    }

    fn target(&self, map: &Map<String, Value>) -> Option<&'a Value> {
        let name = map.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        self.definitions?.get(name)
    }

    /// Records what may begin at a node, `times` as often.
    fn begin(&mut self, node: Node<'a>, times: usize, begun: &mut Begun<'a>, depth: usize) {
        self.steps += 1;
        if depth > 64 || self.steps > MOST_STEPS || begun.places > MOST {
            return;
        }
        let schema = match node {
            Node::Constant(Value::Array(items)) => {
                return begun.note(node, times, if items.is_empty() { 1 } else { 2 });
            }
            Node::Constant(Value::Object(_)) => return begun.note(node, times, 2),
            Node::Constant(_) => return,
            Node::Schema(schema) => schema,
        };
        let Some(map) = schema.as_object() else {
            begun.places += usize::from(*schema == true) * OF_ANYTHING;
            return;
        };
        // A reference alone is one rule, however often it is used.
        if let Some(name) = map
            .get("$ref")
            .and_then(Value::as_str)
            .filter(|_| map.keys().all(|it| it == "$ref" || it == "$defs"))
        {
            begun.places += times;
            if let Some(target) = self.target(map)
                && begun.shared.insert(name)
            {
                self.begin(Node::Schema(target), 1, begun, depth + 1);
            }
            return;
        }
        let own = self.ways(schema, depth);
        let times = times.saturating_mul(own);
        let mut parts = Vec::new();
        // Each counts as often as all the others may be satisfied.
        for keyword in ["anyOf", "oneOf"] {
            let options = schemas(map, keyword);
            let sum = options.iter().map(|it| self.ways(it, depth + 1)).fold(0, usize::saturating_add);
            parts.extend(options.iter().map(|option| (option, times / sum.max(1))));
        }
        for part in schemas(map, "allOf") {
            let ways = self.ways(part, depth + 1);
            parts.push((part, times / ways.max(1)));
        }
        if let Some(target) = self.target(map) {
            let ways = self.ways(target, depth + 1);
            parts.push((target, times / ways.max(1)));
        }
        let plain = parts.is_empty();
        for (part, times) in parts {
            self.begin(Node::Schema(part), times.max(1), begun, depth + 1);
        }
        let constants = map.get("const").into_iter().chain(schemas(map, "enum"));
        let mut is_constant = false;
        for constant in constants {
            is_constant = true;
            self.begin(Node::Constant(constant), times, begun, depth + 1);
        }
        let says = |keywords: &[&str]| keywords.iter().any(|keyword| map.contains_key(*keyword));
        if is_constant {
            return;
        }
        let mut places = 0;
        let of_arrays = says(&["items", "prefixItems", "minItems", "maxItems"]);
        if may_be(map, "array") && (plain || of_arrays) {
            places += OF_ARRAY;
        }
        let of_objects = says(&[
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "minProperties",
            "maxProperties",
        ]);
        if may_be(map, "object") && (plain || of_objects) {
            let required = schemas(map, "required");
            let members = map.get("properties").and_then(Value::as_object);
            let first = members.map_or(0, |members| {
                let is_required = |name: &String| required.iter().any(|it| it == name.as_str());
                (members.keys().take_while(|name| !is_required(name)).count() + 1).min(members.len())
            });
            places += OF_OBJECT + OF_MEMBER * first;
        }
        if places > 0 {
            begun.note(node, times, places);
        }
    }

    /// The places within what has begun: items by index, and members by name.
    fn within(&mut self, leaves: &[(Node<'a>, usize)], path: &str) -> Vec<Alternatives<'a>> {
        let mut places = Vec::new();
        let longest = leaves.iter().map(|(leaf, _)| match leaf {
            Node::Schema(schema) => {
                let prefix = schema.get("prefixItems").or_else(|| schema.get("items"));
                prefix.and_then(Value::as_array).map_or(0, Vec::len) + 1
            }
            Node::Constant(value) => value.as_array().map_or(0, Vec::len),
        });
        for at in 0..longest.max().unwrap_or(0) {
            let mut place = Alternatives::default();
            for (leaf, times) in leaves {
                self.steps += 1;
                match leaf {
                    Node::Schema(schema) => {
                        let Some((item, keyword)) = item(schema, at) else { continue };
                        place.add(Node::Schema(item), *times, || format!("{path}.{keyword}"));
                    }
                    Node::Constant(value) => {
                        let Some(item) = value.get(at) else { continue };
                        place.add(Node::Constant(item), *times, || path.to_owned());
                    }
                }
            }
            if self.steps > MOST_STEPS {
                return places;
            }
            places.push(place);
        }
        // `None` is any undeclared name.
        let mut names: BTreeSet<Option<&str>> = BTreeSet::from([None]);
        for (leaf, _) in leaves {
            let members = match leaf {
                Node::Schema(schema) => schema.get("properties"),
                Node::Constant(value) => Some(*value),
            };
            names.extend(
                members.and_then(Value::as_object).into_iter().flatten().map(|(name, _)| Some(name.as_str())),
            );
        }
        for name in names {
            let mut place = Alternatives::default();
            for (leaf, times) in leaves {
                self.steps += 1;
                match leaf {
                    Node::Schema(schema) => place.add_member(schema, name, *times, path),
                    Node::Constant(value) => {
                        let Some(member) = name.and_then(|name| value.get(name)) else { continue };
                        place.add(Node::Constant(member), *times, || path.to_owned());
                    }
                }
            }
            // Each pattern counts, too.
            self.steps += place.nodes.len();
            if self.steps > MOST_STEPS {
                return places;
            }
            places.push(place);
        }
        places
    }
}

/// The schema of an item, and the path of its keyword.
fn item(schema: &Value, at: usize) -> Option<(&Value, String)> {
    let (items, prefix) = (schema.get("items"), schema.get("prefixItems"));
    let (prefix, keyword, rest) = match (items, prefix) {
        (Some(Value::Array(items)), _) => (items.as_slice(), "items", schema.get("additionalItems")),
        (rest, Some(Value::Array(prefix))) => (prefix.as_slice(), "prefixItems", rest),
        (rest, _) => (&[][..], "", rest),
    };
    match prefix.get(at) {
        Some(item) => Some((item, format!("{keyword}[{at}]"))),
        None => rest.map(|rest| (rest, "items".to_owned())),
    }
}

impl<'a> Begun<'a> {
    /// Records an array or an object that begins.
    fn note(&mut self, leaf: Node<'a>, times: usize, places: usize) {
        self.leaves.push((leaf, times));
        self.places = self.places.saturating_add(times.saturating_mul(places));
    }
}

impl<'a> Alternatives<'a> {
    /// Adds the alternatives of a member; without a name, of an undeclared one.
    fn add_member(&mut self, schema: &'a Value, name: Option<&str>, times: usize, path: &str) {
        let declared = name.and_then(|name| Some((schema.get("properties")?.get(name)?, name)));
        if let Some((member, name)) = declared {
            return self.add(Node::Schema(member), times, || format!("{path}.properties.{name}"));
        }
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        for (pattern, member) in patterns.into_iter().flatten() {
            self.add(Node::Schema(member), times, || format!("{path}.patternProperties.{pattern}"));
        }
        if let Some(other) = schema.get("additionalProperties").filter(|it| **it != false) {
            self.add(Node::Schema(other), times, || format!("{path}.additionalProperties"));
        }
    }

    fn add(&mut self, node: Node<'a>, times: usize, path: impl FnOnce() -> String) {
        if self.nodes.is_empty() {
            self.path = path();
        }
        self.nodes.push((node, times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn begun(schema: &Value) -> (Walk<'_>, Begun<'_>) {
        let definitions = schema.get("$defs").and_then(Value::as_object);
        let (mut walk, mut begun) = (Walk { definitions, steps: 0 }, Begun::default());
        walk.begin(Node::Schema(schema), 1, &mut begun, 0);
        (walk, begun)
    }

    #[test]
    fn what_may_begin_counts_as_often_as_it_may() {
        let (array, object) = (json!({"type": "array"}), json!({"type": "object"}));
        let two = json!({"anyOf": [array, array]});
        let members = |required: Value| json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": required});
        let by_name = |mut schema: Value| {
            schema["$defs"] = json!({"a": {"type": "array"}, "two": two});
            schema
        };
        for (schema, places) in [
            (json!(true), 30),
            (json!(false), 0),
            (json!({}), 7),
            (json!({"type": "string"}), 0),
            (json!({"type": ["string", "null"]}), 0),
            (array.clone(), 4),
            (json!({"type": ["null", "array"]}), 4),
            (object.clone(), 3),
            (json!({"type": ["array", "object"]}), 7),
            // Of members those may come first that stand before the first that must come, and it.
            (members(json!([])), 12),
            (members(json!(["a"])), 6),
            (members(json!(["b", "c"])), 9),
            (members(json!(["c"])), 12),
            (members(json!(["other"])), 12),
            (json!({"type": "object", "properties": {}}), 3),
            // Constants that are no text or number.
            (json!({"const": 5}), 0),
            (json!({"const": "a"}), 0),
            (json!({"const": []}), 1),
            (json!({"const": [1, 2]}), 2),
            (json!({"const": {}}), 2),
            (json!({"enum": [[1], {"a": 1}, 5, []]}), 5),
            (json!({"enum": [[1], [2]], "type": "array", "items": {}}), 4),
            // Alternatives.
            (two.clone(), 8),
            (json!({"oneOf": [array, object]}), 7),
            (json!({"anyOf": [array, {"type": "null"}]}), 4),
            (json!({"anyOf": [two, two]}), 16),
            // What stands beside them counts with each.
            (json!({"anyOf": [array, array], "items": {}}), 16),
            (json!({"anyOf": [array, array], "minItems": 1}), 16),
            (json!({"anyOf": [array, array], "maxItems": 1}), 16),
            (json!({"anyOf": [array, array], "prefixItems": []}), 16),
            (json!({"anyOf": [array, array], "type": "string", "items": {}}), 8),
            (json!({"anyOf": [array, array], "required": []}), 14),
            (json!({"anyOf": [array, array], "minProperties": 1}), 14),
            (json!({"anyOf": [array, array], "maxProperties": 1}), 14),
            (json!({"anyOf": [array, array], "patternProperties": {}}), 14),
            (json!({"anyOf": [array, array], "additionalProperties": true}), 14),
            (json!({"anyOf": [array, array], "properties": {"a": {}}}), 20),
            (json!({"anyOf": [array, array], "oneOf": [array, array, array]}), 4 * (2 * 3 + 3 * 2)),
            (json!({"anyOf": [array, array], "const": []}), 8 + 2),
            (json!({"allOf": [array, array]}), 8),
            (json!({"allOf": [two, array]}), 8 + 8),
            (json!({"allOf": [two, two]}), 4 * (2 * 2) * 2),
            // A reference alone is a rule: it counts one each time, and what it leads to once.
            (by_name(json!({"$ref": "#/$defs/a"})), 5),
            (by_name(json!({"$ref": "#/$defs/two"})), 9),
            (by_name(json!({"$ref": "#/$defs/gone"})), 1),
            (by_name(json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]})), 6),
            (by_name(json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/two"}]})), 14),
            // One beside other keywords is put together with them.
            (by_name(json!({"$ref": "#/$defs/a", "type": "array"})), 4),
            (by_name(json!({"$ref": "#/$defs/two", "type": "array"})), 8),
            (by_name(json!({"$ref": "#/$defs/two", "items": {}})), 16),
            (by_name(json!({"$ref": "#/$defs/two", "allOf": [two]})), 32),
        ] {
            assert_eq!(begun(&schema).1.places, places, "{schema}");
        }
    }

    /// The places within what may begin: the path of each, and how often each of its alternatives occurs.
    fn within(schema: &Value) -> Vec<(String, Vec<usize>)> {
        let (mut walk, begun) = begun(schema);
        let all = walk.within(&begun.leaves, ".x");
        let all = all.into_iter().filter(|place| !place.nodes.is_empty());
        all.map(|place| (place.path, place.nodes.iter().map(|(_, times)| *times).collect())).collect()
    }

    #[test]
    fn what_follows_is_looked_at_item_by_item_and_member_by_member() {
        let two = json!({"anyOf": [{"type": "array", "items": {}}, {"type": "array", "prefixItems": [{}]}]});
        for (schema, places) in [
            (json!({"type": "array"}), &[][..]),
            (json!({"type": "string", "items": {}, "properties": {"a": {}}}), &[]),
            (json!({"type": "array", "items": {}}), &[(".x.items", &[1][..])]),
            (
                json!({"type": "array", "prefixItems": [{}, {}], "items": {}}),
                &[(".x.prefixItems[0]", &[1]), (".x.prefixItems[1]", &[1]), (".x.items", &[1])],
            ),
            (json!({"type": "array", "prefixItems": [{}]}), &[(".x.prefixItems[0]", &[1])]),
            (
                json!({"type": "array", "items": [{}], "additionalItems": {}}),
                &[(".x.items[0]", &[1]), (".x.items", &[1])],
            ),
            (json!({"const": [1, [2], 3]}), &[(".x", &[1]), (".x", &[1]), (".x", &[1])]),
            (json!({"const": {"a": 1, "b": [2]}}), &[(".x", &[1]), (".x", &[1])]),
            (json!({"enum": [[1, 2], [3]]}), &[(".x", &[1, 1]), (".x", &[1])]),
            (
                json!({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false}),
                &[(".x.properties.a", &[1]), (".x.properties.b", &[1])],
            ),
            (
                json!({"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": {}}),
                &[(".x.patternProperties.^b", &[1, 1]), (".x.properties.a", &[1])],
            ),
            // A name that one declares may be any name to the other.
            (
                json!({"anyOf": [
                    {"type": "object", "properties": {"a": {}}, "additionalProperties": false},
                    {"type": "object", "patternProperties": {"^b": {}, "^c": {}}, "additionalProperties": {}},
                ]}),
                &[(".x.patternProperties.^b", &[1, 1, 1]), (".x.properties.a", &[1, 1, 1, 1])],
            ),
            (
                json!({"anyOf": [{"const": {"a": 1}}, {"type": "object", "properties": {"a": {}}}]}),
                &[(".x", &[1, 1])],
            ),
            (two.clone(), &[(".x.items", &[1, 1]), (".x.items", &[1])]),
            (
                json!({"allOf": [two, {"type": "array", "items": {}}]}),
                &[(".x.items", &[1, 1, 2]), (".x.items", &[1, 2])],
            ),
        ] {
            let found = within(&schema);
            let found: Vec<(&str, &[usize])> =
                found.iter().map(|(path, times)| (&**path, &**times)).collect();
            assert_eq!(found, places, "{schema}");
        }
    }

    #[test]
    fn as_many_places_as_are_followed_may_be_open() {
        let arrays = |count: usize| json!({"anyOf": vec![json!({"type": "array"}); count]});
        assert_eq!(too_wide(&arrays(1000)), None);
        let (path, why) = too_wide(&arrays(1001)).expect("4004 places");
        assert!(path.is_empty() && why.contains("about 4004 places"), "{path} {why}");
        let within = json!({"properties": {"a": {"items": arrays(1001)}, "b": {}}});
        assert_eq!(too_wide(&within).map(|(path, _)| path), Some(".properties.a.items".to_owned()));
        // Alternatives that are put together multiply.
        let together = |count: usize| json!({"allOf": [arrays(count), arrays(count)]});
        assert_eq!(too_wide(&together(22)), None);
        assert!(too_wide(&together(23)).is_some());
    }

    #[test]
    fn circles_and_alternatives_within_alternatives_come_to_an_end() {
        let circle =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "type": "array"}}});
        assert_eq!(too_wide(&circle), None);
        let bare = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a", "type": "array"}}});
        assert_eq!(too_wide(&bare), None);
        // Of 2,702 steps each.
        let items =
            |count| json!({"type": "array", "prefixItems": vec![json!({"anyOf": vec![false; 900]}); count]});
        assert_eq!(too_wide(&items(300)), None);
        assert!(too_wide(&items(500)).is_some_and(|(_, why)| why.contains("within alternatives")));
        // Each level doubles what is to be looked at.
        let doubled = (0..40).fold(json!({"type": "null"}), |inner, _| {
            json!({"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "allOf": [{"anyOf": [inner, {"type": "null"}]}]})
        });
        assert_eq!(too_wide(&doubled), None);
        let wide = json!({"enum": (0..1_000).map(|at| json!({format!("m{at}"): [at]})).collect::<Vec<_>>()});
        let (_, why) = too_wide(&wide).expect("a million members to look at");
        assert!(why.contains("within alternatives"), "{why}");
    }

    #[test]
    fn ways_are_counted_up_to_the_last_step_and_the_deepest_level() {
        let two = json!({"anyOf": [{}, {}]});
        let four = json!({"anyOf": [two, two]});
        let product = json!({"allOf": [two, two]});
        let referring = json!({"$ref": "#/$defs/two", "items": {}});
        // A rule, however much it leads to.
        let alone = json!({"$ref": "#/$defs/two"});
        let defined = json!({"two": two});
        let ways = |schema: &Value, steps, depth| {
            let mut walk = Walk { definitions: defined.as_object(), steps };
            (walk.ways(schema, depth), walk.steps - steps)
        };
        // What a step more would find counts as one.
        for (schema, steps, depth, found) in [
            (&four, 0, 0, (4, 7)),
            (&four, MOST_STEPS - 1, 0, (2, 3)),
            (&four, MOST_STEPS, 0, (1, 1)),
            (&four, 0, 62, (4, 7)),
            (&four, 0, 63, (4, 7)),
            (&four, 0, 64, (2, 3)),
            (&four, 0, 65, (1, 1)),
            (&product, 0, 0, (4, 7)),
            (&product, 0, 64, (1, 3)),
            (&referring, 0, 0, (2, 4)),
            (&alone, 0, 0, (1, 1)),
            (&referring, 0, 64, (1, 2)),
        ] {
            assert_eq!(ways(schema, steps, depth), found, "{schema} from step {steps}, level {depth}");
        }
    }

    #[test]
    fn what_begins_is_recorded_up_to_the_last_step_and_the_deepest_level() {
        let array = json!({"type": "array"});
        let arrays = json!({"anyOf": [array, array]});
        let two = json!({"anyOf": [{}, {}]});
        let nested = json!({"anyOf": [two, two], "items": {}});
        let constants = json!({"enum": [[1], [2]]});
        let both = json!({"allOf": [nested, nested]});
        let one_of = json!({"anyOf": [nested]});
        let referring = json!({"$ref": "#/$defs/nested", "minProperties": 1});
        let alone = json!({"$ref": "#/$defs/arrays"});
        let defined = json!({"arrays": arrays, "nested": nested});
        let places = |schema: &Value, steps, depth, times, places| {
            let mut walk = Walk { definitions: defined.as_object(), steps };
            let mut begun = Begun { places, ..Begun::default() };
            walk.begin(Node::Schema(schema), times, &mut begun, depth);
            (begun.places - places, walk.steps - steps)
        };
        for (schema, [steps, depth, times, before], found) in [
            (&array, [0, 0, 1, 0], (4, 2)),
            (&array, [MOST_STEPS - 1, 0, 1, 0], (4, 2)),
            (&array, [MOST_STEPS, 0, 1, 0], (0, 1)),
            (&array, [0, 64, 1, 0], (4, 2)),
            (&array, [0, 65, 1, 0], (0, 1)),
            (&array, [0, 0, 1, MOST], (4, 2)),
            (&array, [0, 0, 1, MOST + 1], (0, 1)),
            (&arrays, [0, 0, 1, 0], (8, 10)),
            (&arrays, [0, 64, 1, 0], (0, 8)),
            (&constants, [0, 0, 1, 0], (4, 4)),
            (&constants, [0, 64, 1, 0], (0, 4)),
            (&alone, [0, 0, 1, 0], (9, 11)),
            (&alone, [0, 64, 1, 0], (1, 2)),
            // What two levels further down would count as two ways counts as one.
            (&both, [0, 63, 1, 0], (32, 30)),
            (&one_of, [0, 63, 8, 0], (64, 16)),
            (&referring, [0, 63, 8, 0], (112, 16)),
            (&referring, [0, 64, 8, 0], (24, 5)),
        ] {
            assert_eq!(places(schema, steps, depth, times, before), found, "{schema}, {steps}, {depth}");
        }
    }

    #[test]
    fn places_within_are_looked_at_up_to_the_last_step() {
        let array = json!({"type": "array", "prefixItems": [{}, {}], "items": {}});
        let object = json!({"type": "object", "properties": {"a": {}, "b": {}}});
        let list = json!([[1], [2]]);
        let map = json!({"a": [1]});
        // Steps of each place, in order: one for each that may have begun, and behind items one for each that
        // the name leads to.
        for (leaf, of_places) in [
            (Node::Schema(&array), &[1, 1, 1, 1][..]),
            (Node::Schema(&object), &[1, 1, 2, 2]),
            (Node::Constant(&list), &[1, 1, 1]),
            (Node::Constant(&map), &[1, 2]),
        ] {
            let all: usize = of_places.iter().sum();
            for left in 0..=all {
                let mut walk = Walk { definitions: None, steps: MOST_STEPS - left };
                let taken = of_places.iter().scan(0, |sum, steps| {
                    *sum += steps;
                    Some(*sum)
                });
                let fit = taken.take_while(|sum| *sum <= left).count();
                assert_eq!(walk.within(&[(leaf, 1)], "").len(), fit, "{left} steps are left");
            }
        }
    }
}
