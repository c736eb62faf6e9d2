//! Bounds of JSON schemas.

use super::{
    COMBINATIONS, MAX_ALL_OF, MAX_ANY_OF, MAX_COMBINATIONS, MAX_JSON_LEVELS, MAX_LEVELS, MAX_ONE_OF,
    MAX_OPTIONAL, MAX_PATTERN_PROPERTIES, MAX_PROPERTIES, MAX_SCHEMAS, MAX_VALUES, Size, at_most, regex,
};
use crate::error::GrammarError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Limits of a clearly small schema, in total: schemas, levels, properties, values of `enum`, patterns.
const SMALL: Found = Found { schemas: 400, levels: 200, properties: 400, values: 500, patterns: 16 };
/// Most options in `anyOf`, `oneOf` and arrays of items of a small schema.
const SMALL_OPTIONS: usize = 24;
/// Largest count of characters, items or properties in a small schema.
const SMALL_COUNT: f64 = 1000.0;

/// Whether a keyword neither constrains values nor makes the library merge two schemas.
fn is_annotation(keyword: &str) -> bool {
    keyword == "$schema" || ANNOTATIONS.contains(&keyword)
}

/// Measures a schema and everything it refers to.
pub(crate) fn schema(value: &Value) -> Result<Size, GrammarError> {
    json_levels(value)?;
    let mut walk = Walk::default();
    walk.add(value, None, Step::Root);
    let mut at = 0;
    // References may lead to places that no keyword reaches. The loop ends because each place is visited
    // once.
    loop {
        while at < walk.places.len() {
            walk.look(at)?;
            at += 1;
        }
        walk.follow(value);
        if at == walk.places.len() {
            break;
        }
    }
    walk.judge()
}

/// Rejects JSON nested too deep to be serialised for the library.
fn json_levels(value: &Value) -> Result<(), GrammarError> {
    let mut stack = vec![(value, 1)];
    while let Some((value, level)) = stack.pop() {
        at_most(String::new, "levels of JSON or more", level, MAX_JSON_LEVELS)?;
        match value {
            Value::Array(items) => stack.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(map) => stack.extend(map.values().map(|item| (item, level + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// The step from the enclosing place to a place.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    /// Reached only by a reference.
    Reference(&'a str),
    Keyword(&'a str),
    Member(&'a str, &'a str),
    Item(&'a str, usize),
}

/// A schema within the one being measured.
struct Subschema<'a> {
    value: &'a Value,
    around: Option<usize>,
    step: Step<'a>,
    /// Whether a reference leads here.
    target: bool,
    /// Number of parts of its own patterns.
    parts: u64,
    within: Vec<(Join, usize)>,
}

/// The relation of a schema to the one that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// It applies to the same value, together with all others.
    All,
    /// One of these applies.
    One,
    /// It applies to another value.
    Apart,
}

/// Counts over the whole schema.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    schemas: usize,
    levels: usize,
    properties: usize,
    values: usize,
    patterns: usize,
}

#[derive(Default)]
struct Walk<'a> {
    places: Vec<Subschema<'a>>,
    /// Places by the address of their value, which does not move.
    known: HashMap<*const Value, usize>,
    anchors: HashMap<&'a str, usize>,
    /// References: the place that contains each, and its text.
    references: Vec<(usize, &'a str)>,
    followed: usize,
    found: Found,
    /// Whether something may take long to compile.
    unknown: bool,
}

impl<'a> Walk<'a> {
    fn add(&mut self, value: &'a Value, around: Option<usize>, step: Step<'a>) -> usize {
        let next = self.places.len();
        let at = *self.known.entry(std::ptr::from_ref(value)).or_insert(next);
        if at == next {
            self.places.push(Subschema { value, around, step, target: false, parts: 0, within: Vec::new() });
        }
        if let Some(around) = around {
            let join = match step {
                Step::Member("$defs" | "definitions", _) => return at,
                Step::Item("allOf", _) => Join::All,
                Step::Item("anyOf" | "oneOf", _) => Join::One,
                _ => Join::Apart,
            };
            self.places[around].within.push((join, at));
        }
        at
    }

    /// The path of a place.
    fn path(&self, at: usize) -> String {
        let mut steps = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next {
            let Subschema { around, step, .. } = &self.places[at];
            steps.push(match step {
                Step::Root => String::new(),
                Step::Reference(to) => to.trim_start_matches('#').replace('/', "."),
                Step::Keyword(keyword) => format!(".{keyword}"),
                Step::Member(keyword, name) => format!(".{keyword}.{name}"),
                Step::Item(keyword, item) => format!(".{keyword}[{item}]"),
            });
            next = *around;
        }
        steps.reverse();
        steps.concat()
    }

    /// Rejects a quantity beyond its bound, at a place's keyword or at the place itself.
    fn at_most(
        &self,
        at: usize,
        keyword: &str,
        what: &str,
        found: usize,
        most: usize,
    ) -> Result<(), GrammarError> {
        let dot = if keyword.is_empty() { "" } else { "." };
        at_most(|| format!("{}{dot}{keyword}", self.path(at)), what, found, most)
    }

    /// Measures one place.
    fn look(&mut self, at: usize) -> Result<(), GrammarError> {
        self.found.schemas += 1;
        self.at_most(0, "", "schemas or more", self.found.schemas, MAX_SCHEMAS)?;
        let Value::Object(map) = self.places[at].value else { return Ok(()) };
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("$ref", Value::String(to)) => self.references.push((at, to)),
                ("$anchor", Value::String(name)) => drop(self.anchors.insert(name, at)),
                ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(members)) => {
                    self.members(at, keyword, members)?;
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(items)) => {
                    self.items(at, keyword, items)?;
                }
                ("required", Value::Array(names)) => self.properties(at, keyword, names.len())?,
                ("enum", Value::Array(values)) => {
                    self.found.values += values.len();
                    self.at_most(at, keyword, "values or more", self.found.values, MAX_VALUES)?;
                    self.unknown |= values.iter().any(|value| value.is_object() || value.is_array());
                }
                ("pattern", Value::String(pattern)) => self.pattern(at, keyword, pattern)?,
                ("format", _) => self.found.patterns += 1,
                ("const", value) => self.unknown |= value.is_object() || value.is_array(),
                ("multipleOf" | "minProperties" | "maxProperties", _) => self.unknown = true,
                ("minLength" | "maxLength" | "minItems" | "maxItems", Value::Number(count)) => {
                    self.unknown |= count.as_f64().is_none_or(|count| count > SMALL_COUNT);
                }
                (_, Value::Object(_)) if !is_annotation(keyword) => {
                    self.add(value, Some(at), Step::Keyword(keyword));
                }
                _ => {}
            }
        }
        self.unknown |= together(map);
        Ok(())
    }

    fn properties(&mut self, at: usize, keyword: &str, more: usize) -> Result<(), GrammarError> {
        self.found.properties += more;
        let what = "properties and required names or more";
        self.at_most(at, keyword, what, self.found.properties, MAX_PROPERTIES)?;
        Ok(())
    }

    fn members(
        &mut self,
        at: usize,
        keyword: &'a str,
        members: &'a Map<String, Value>,
    ) -> Result<(), GrammarError> {
        match keyword {
            "properties" => {
                self.properties(at, keyword, members.len())?;
                let required = self.places[at].value.get("required").and_then(Value::as_array);
                let optional = members.len().saturating_sub(required.map_or(0, Vec::len));
                self.at_most(at, keyword, "optional properties", optional, MAX_OPTIONAL)?;
            }
            "patternProperties" => {
                self.at_most(at, keyword, "patterns", members.len(), MAX_PATTERN_PROPERTIES)?;
                for name in members.keys() {
                    self.pattern(at, keyword, name)?;
                }
                self.unknown |= members.len() > 1;
            }
            _ => {}
        }
        for (name, member) in members {
            self.add(member, Some(at), Step::Member(keyword, name));
        }
        Ok(())
    }

    fn items(&mut self, at: usize, keyword: &'a str, items: &'a [Value]) -> Result<(), GrammarError> {
        let most = match keyword {
            "allOf" => MAX_ALL_OF,
            "oneOf" => MAX_ONE_OF,
            _ => MAX_ANY_OF,
        };
        self.at_most(at, keyword, "schemas", items.len(), most)?;
        self.unknown |= items.len() > SMALL_OPTIONS;
        for (index, item) in items.iter().enumerate() {
            self.add(item, Some(at), Step::Item(keyword, index));
        }
        Ok(())
    }

    /// Measures a regular expression.
    fn pattern(&mut self, at: usize, keyword: &str, text: &str) -> Result<(), GrammarError> {
        let found = regex(text)
            .map_err(|error| GrammarError { path: format!("{}.{keyword}", self.path(at)), ..error })?;
        self.found.patterns += 1;
        self.unknown |= found.size() != Size::Small;
        let parts = &mut self.places[at].parts;
        *parts = (*parts).max(found.parts as u64);
        Ok(())
    }

    /// Adds the places that unfollowed references lead to.
    fn follow(&mut self, root: &'a Value) {
        while self.followed < self.references.len() {
            let (from, to) = self.references[self.followed];
            self.followed += 1;
            let Some(fragment) = to.strip_prefix('#') else { continue };
            // The library finds places within a schema with its own `$id` there, or at the root.
            let mut bases = vec![root];
            let mut next = Some(from);
            while let Some(at) = next {
                let Subschema { value, around, .. } = self.places[at];
                if value.get("$id").or_else(|| value.get("id")).is_some_and(Value::is_string) {
                    bases.push(value);
                }
                next = around;
            }
            let fragment = percent_decoded(fragment);
            let found = bases.iter().filter_map(|base| base.pointer(&fragment));
            let mut found: Vec<usize> =
                found.map(|value| self.add(value, None, Step::Reference(to))).collect();
            found.extend(self.anchors.get(fragment.as_str()));
            self.unknown |= found.is_empty();
            for at in found {
                self.places[at].target = true;
                self.places[from].within.push((Join::All, at));
            }
        }
    }

    /// Checks, for each place, the most combinations of parts that its patterns have together with all
    /// schemas merged with it.
    fn combinations(&self) -> Result<(), GrammarError> {
        // `None` until computed; a reference that leads back to its own place adds nothing.
        let mut known: Vec<Option<u64>> = vec![None; self.places.len()];
        let mut begun = vec![false; self.places.len()];
        let mut stack: Vec<usize> = (0..self.places.len()).collect();
        while let Some(at) = stack.last().copied() {
            if known[at].is_some() {
                stack.pop();
                continue;
            }
            let within = &self.places[at].within;
            if !begun[at] {
                begun[at] = true;
                stack.extend(within.iter().map(|(_, at)| *at).filter(|at| !begun[*at]));
                continue;
            }
            let of = |at: &usize| known[*at].unwrap_or(1);
            let most = |join: Join| {
                within.iter().filter(|(it, _)| *it == join).map(|(_, at)| of(at)).max().unwrap_or(1)
            };
            let own = (self.places[at].parts + 1).max(most(Join::Apart));
            let all = within.iter().filter(|(join, _)| *join == Join::All).map(|(_, at)| of(at));
            let found = all.fold(own.saturating_mul(most(Join::One)), u64::saturating_mul);
            at_most(|| self.path(at), COMBINATIONS, found, MAX_COMBINATIONS)?;
            known[at] = Some(found);
            stack.pop();
        }
        Ok(())
    }

    /// Computes the levels and decides whether the schema is small.
    fn judge(mut self) -> Result<Size, GrammarError> {
        self.combinations()?;
        // A place comes after the one that contains it, unless only a reference leads to it.
        let mut heights = vec![1usize; self.places.len()];
        for at in (0..self.places.len()).rev() {
            if let Some(around) = self.places[at].around
                && !matches!(self.places[at].step, Step::Member("$defs" | "definitions", _))
            {
                heights[around] = heights[around].max(heights[at] + 1);
            }
        }
        // The library follows each reference once, at worst all nested in one another.
        let targets = self.places.iter().zip(&heights).filter(|(place, _)| place.target);
        self.found.levels = heights[0] + targets.map(|(_, height)| height).sum::<usize>();
        let Found { schemas, levels, properties, values, patterns } = self.found;
        self.at_most(0, "", "levels of schemas within one another and behind `$ref`", levels, MAX_LEVELS)?;
        let small = !self.unknown
            && schemas <= SMALL.schemas
            && levels <= SMALL.levels
            && properties <= SMALL.properties
            && values <= SMALL.values
            && patterns <= SMALL.patterns;
        Ok(if small { Size::Small } else { Size::Unknown })
    }
}

/// Whether the library merges several schemas here, which may cost as much as everything in them, again at
/// each level.
fn together(map: &Map<String, Value>) -> bool {
    let mut says = map.keys().map(String::as_str).filter(|keyword| !is_annotation(keyword));
    let one = says.clone().count() <= 1;
    let all = map.get("allOf").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
    let flat = |schema: &Value| {
        schema.as_object().is_some_and(|map| {
            !map.values().any(|it| it.is_object() || it.is_array()) && !map.contains_key("$ref")
        })
    };
    let simple = one && all.len() <= 1 || all.len() <= 2 && all.iter().all(flat);
    says.any(|keyword| match keyword {
        "allOf" => !simple,
        "$ref" | "oneOf" | "anyOf" => !one,
        "pattern" => {
            map.contains_key("format") || map.contains_key("minLength") || map.contains_key("maxLength")
        }
        _ => false,
    })
}

/// A decoded fragment: `%25` is a percent sign.
fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| *byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Keywords that constrain nothing; they are dropped. The contents of `$defs` are read when something refers
/// to them.
pub(crate) const ANNOTATIONS: &[&str] = &[
    "$id",
    "id",
    "$comment",
    "$anchor",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];
