//! Sources just within and just beyond every bound.

use super::*;
use serde_json::{Map, Value, json};

/// A kind of source, parameterised by its size, that a bound limits.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The largest accepted size.
    pub(super) most: usize,
    /// The path in the error for the next larger size.
    pub(super) path: &'static str,
    /// The bound that the error names.
    pub(super) bound: u64,
    pub(super) source: fn(usize) -> Source,
}

fn schema(value: Value) -> Source {
    Source::JsonSchema(value)
}

/// `count` definitions, each leading to the next, and a string at the end.
fn chain(count: usize, link: impl Fn(Value) -> Value) -> Source {
    let next = |at: usize| json!({"$ref": format!("#/$defs/d{at}")});
    let mut definitions: Map<String, Value> =
        (1..count).map(|at| (format!("d{at}"), link(next(at + 1)))).collect();
    definitions.insert(format!("d{count}"), json!({"type": "string"}));
    schema(json!({"$ref": "#/$defs/d1", "$defs": definitions}))
}

/// `count` rules or terminals, each leading to the next, and a text at the end.
fn rules(letter: &str, count: usize) -> Source {
    let next = |at: usize| format!("{letter}{at}: \"a\" {letter}{}\n", at + 1);
    let all: String = (1..count - 1).map(next).collect();
    Source::Lark(format!("start: {letter}1\n{all}{letter}{}: \"b\"\n", count - 1))
}

/// An object with `count` members.
fn members(count: usize, name: &str, value: &Value) -> Map<String, Value> {
    (0..count).map(|at| (format!("{name}{at}"), value.clone())).collect()
}

/// A text within `count` nested pairs of brackets.
fn nested(count: usize, open: &str, within: &str, close: &str) -> String {
    format!("{}{within}{}", open.repeat(count), close.repeat(count))
}

pub(super) const CASES: &[Case] = &[
    Case { name: "references", most: 1023, path: "", bound: 1024, source: |size| chain(size, |next| next) },
    // Each has two levels; so have the last one and the root.
    Case {
        name: "arrays by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"type": "array", "items": next})),
    },
    Case {
        name: "objects by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"type": "object", "properties": {"a": next}})),
    },
    Case {
        name: "required objects by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| {
            chain(
                size,
                |next| json!({"type": "object", "properties": {"a": next}, "required": ["a"], "additionalProperties": false}),
            )
        },
    },
    Case {
        name: "further properties by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"type": "object", "additionalProperties": next})),
    },
    Case {
        name: "options by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"anyOf": [{"type": "null"}, next]})),
    },
    Case {
        name: "one option by reference",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"oneOf": [next]})),
    },
    Case {
        name: "references that are put together",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| chain(size, |next| json!({"allOf": [next, {"type": ["string", "array"]}]})),
    },
    Case {
        name: "references beside other keywords",
        most: 1023,
        path: "",
        bound: 1024,
        source: |size| {
            chain(size, |mut next| {
                next["type"] = json!("string");
                next
            })
        },
    },
    Case {
        name: "schemas within one another",
        most: 55,
        path: "",
        bound: 112,
        // An object and its properties are two levels of JSON, and so are the innermost schema and its type.
        source: |size| {
            let nest = |within: Value, _| json!({"type": "object", "properties": {"a": within}});
            schema((0..size).fold(json!({"type": "string"}), nest))
        },
    },
    Case {
        name: "optional properties",
        most: 480,
        path: ".properties",
        bound: 480,
        source: |size| {
            schema(json!({"type": "object", "properties": members(size, "p", &json!({"type": "integer"}))}))
        },
    },
    Case {
        name: "required properties",
        most: 2000,
        path: ".required",
        bound: 4000,
        source: |size| {
            let all = members(size, "p", &json!({"type": "integer"}));
            let names: Vec<&String> = all.keys().collect();
            schema(json!({"type": "object", "properties": all, "required": names}))
        },
    },
    Case {
        name: "required names",
        most: 4000,
        path: ".required",
        bound: 4000,
        source: |size| {
            schema(
                json!({"type": "object", "required": (0..size).map(|at| format!("p{at}")).collect::<Vec<_>>()}),
            )
        },
    },
    Case {
        name: "patterns of properties",
        most: 32,
        path: ".patternProperties",
        bound: 32,
        source: |size| {
            schema(
                json!({"type": "object", "patternProperties": (0..size).map(|at| (format!("^x{at}$"), json!({"type": "string"}))).collect::<Map<_, _>>()}),
            )
        },
    },
    Case {
        name: "values",
        most: 10_000,
        path: ".enum",
        bound: 10_000,
        source: |size| schema(json!({"enum": (0..size).map(|at| format!("value {at}")).collect::<Vec<_>>()})),
    },
    Case {
        name: "options",
        most: 2000,
        path: ".anyOf",
        bound: 2000,
        source: |size| {
            schema(json!({"anyOf": (0..size).map(|at| json!({"const": at.to_string()})).collect::<Vec<_>>()}))
        },
    },
    Case {
        name: "items",
        most: 2000,
        path: ".prefixItems",
        bound: 2000,
        source: |size| {
            schema(json!({"type": "array", "prefixItems": vec![json!({"type": "integer"}); size]}))
        },
    },
    Case {
        name: "options that exclude each other",
        most: 512,
        path: ".oneOf",
        bound: 512,
        source: |size| {
            schema(json!({"oneOf": (0..size).map(|at| json!({"const": at.to_string()})).collect::<Vec<_>>()}))
        },
    },
    Case {
        name: "schemas that all hold",
        most: 128,
        path: ".allOf",
        bound: 128,
        source: |size| {
            schema(json!({"allOf": (0..size).map(|at| json!({"maxLength": at + 5})).collect::<Vec<_>>()}))
        },
    },
    Case {
        name: "patterns that all hold",
        most: 6,
        path: "",
        bound: 1_000_000,
        source: |size| schema(json!({"allOf": vec![json!({"pattern": "abcdefghi"}); size]})),
    },
    Case {
        name: "patterns of one property that all hold",
        most: 6,
        path: "",
        bound: 1_000_000,
        source: |size| {
            let one = |at| json!({"properties": {"a": {"$ref": format!("#/$defs/d{at}")}}});
            let all: Vec<Value> = (0..size).map(one).collect();
            schema(json!({"allOf": all, "$defs": members(size, "d", &json!({"pattern": "abcdefghi"}))}))
        },
    },
    Case {
        name: "expressions that all match",
        most: 1,
        path: "",
        bound: 1_000_000,
        source: |size| {
            let all = vec!["/[ab]*a[ab]{4}c?/"; size * 12].join(" | ");
            Source::Lark(format!("start: A\nA: ({all}){}\n", " & /[ab]+/".repeat(size)))
        },
    },
    Case {
        name: "schemas",
        most: 9993,
        path: "",
        bound: 10_000,
        source: |size| {
            let string = json!({"type": "string"});
            // Seven more: the root, the definition, and five lists of options.
            let options = |at| json!({"anyOf": vec![string.clone(); usize::min(2000, size - at)]});
            let all: Vec<Value> = (0..size).step_by(2000).map(options).collect();
            schema(json!({"$defs": {"a": {"prefixItems": all}}, "type": "string"}))
        },
    },
    Case {
        name: "bytes of an expression",
        most: 16 * 1024,
        path: "",
        bound: 16 * 1024,
        source: |size| Source::Regex("a".repeat(size)),
    },
    Case {
        name: "bytes of a pattern",
        most: 16 * 1024,
        path: ".pattern",
        bound: 16 * 1024,
        source: |size| schema(json!({"type": "string", "pattern": "a".repeat(size)})),
    },
    Case {
        name: "groups of an expression",
        most: 31,
        path: "",
        bound: 64,
        // A group, and the sequence in it.
        source: |size| Source::Regex(nested(size, "(a?", "b", ")")),
    },
    Case {
        name: "repetitions of an expression",
        most: 1000,
        path: "",
        bound: 100_000,
        source: |size| Source::Regex(format!("(a{{1,100}}){{1,{size}}}")),
    },
    Case {
        name: "repetitions of an expression in Lark",
        most: 1000,
        path: "",
        bound: 100_000,
        source: |size| Source::Lark(format!("start: /(a{{1,100}}){{1,{size}}}/")),
    },
    Case { name: "rules", most: 1024, path: "", bound: 1024, source: |size| rules("r", size) },
    Case { name: "terminals", most: 1024, path: "", bound: 1024, source: |size| rules("T", size) },
    Case {
        name: "brackets",
        most: 1023,
        path: "",
        bound: 1024,
        source: |size| Source::Lark(format!("start: {}\n", nested(size, "(\"a\" ", "\"b\"", ")"))),
    },
    Case {
        name: "options in brackets",
        most: 1023,
        path: "",
        bound: 1024,
        source: |size| Source::Lark(format!("start: {}\n", nested(size, "[", "\"b\"", "]"))),
    },
    Case {
        name: "negations",
        most: 18,
        path: "",
        bound: 1_000_000,
        source: |size| Source::Lark(format!("start: T\nT: {}\n", nested(size, "~", "\"b\"", ""))),
    },
    Case {
        name: "rules with brackets",
        most: 256,
        path: "",
        bound: 1024,
        source: |size| {
            let rule = |at: usize| format!("r{at}: (\"a\" [(r{})])\n", at + 1);
            // Four levels each, and two at the ends.
            let rules: String = (1..size).map(rule).collect();
            Source::Lark(format!("start: r1\n{rules}r{size}: \"b\"\n"))
        },
    },
    Case {
        name: "parts",
        most: 10_000,
        path: "",
        bound: 20_000,
        // Each is a name and a text.
        source: |size| {
            let options: Vec<String> = (0..size * 2 - 1).map(|at| format!("\"{at}\"")).collect();
            Source::Lark(format!("start: {}\n", options.join(" | ")))
        },
    },
    Case {
        name: "counts",
        most: 100_000,
        path: "",
        bound: 100_000,
        source: |size| Source::Lark(format!("start: \"a\"~{size}\n")),
    },
    Case {
        name: "a schema in a grammar",
        most: 512,
        path: "",
        bound: 1024,
        source: |size| {
            let Source::JsonSchema(schema) = chain(size, |next| json!({"type": "array", "items": next}))
            else {
                return Source::JsonObject;
            };
            Source::Lark(format!("start: %json {schema}\n"))
        },
    },
];
