//! Random schemas, expressions and grammars: each compiles or is refused in bounded time and memory.
//!
//! Planted, and caught here: sources of any size are compiled (`large_ones_are_bounded`); a `$ref` that is no
//! string panics (`schemas`). Planted and not caught: the library's own limits a hundred times as large; it
//! works lazily, and none of these comes near them.

use monomorph_grammar::{Grammars, Source, Token};
use monomorph_weights::hostile::{Counting, measured};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How long one may take to compile and to follow, unoptimised and on a machine that others use too.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much memory it may take.
const MOST_BYTES: usize = 256 << 20;
/// Tokens of an answer that are followed.
const FOLLOWED: u32 = 24;

/// All bytes, and an end.
fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    static BYTES: OnceLock<Vec<[u8; 1]>> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let bytes = BYTES.get_or_init(|| (0..=255u8).map(|byte| [byte]).collect());
        let token = |id: u32| match bytes.get(id as usize) {
            Some(byte) => Some(Token { bytes: byte, special: false }),
            None => Some(Token { bytes: b"<end>", special: true }),
        };
        Grammars::new(257, token, &[256]).expect("a vocabulary")
    })
}

/// Compiles it and follows an answer of what is allowed.
fn follow(source: &Source) -> bool {
    let Ok(mut constraint) = grammars().compile(source) else { return false };
    let mut masks = Vec::new();
    for step in 0..FOLLOWED {
        masks.clear();
        if constraint.masks(&[], &mut masks).is_err() {
            return true;
        }
        let Some(mask) = masks.first() else { return true };
        let allowed: Vec<u32> = (0..256).filter(|id| mask.allows(*id)).collect();
        let Some(id) = allowed.get(step as usize * 7 % allowed.len().max(1)) else { return true };
        if constraint.take(*id).is_err() {
            return true;
        }
    }
    true
}

fn check(source: &Source) -> Result<bool, TestCaseError> {
    grammars();
    let began = Instant::now();
    let (taken, claimed) = measured(|| follow(source));
    let took = began.elapsed();
    prop_assert!(took < PATIENCE, "{took:?}: {source:?}");
    prop_assert!(claimed < MOST_BYTES, "{claimed} bytes claimed: {source:?}");
    Ok(taken)
}

/// Keywords with values that may be theirs, or not.
fn schema() -> impl Strategy<Value = Value> {
    let numbers = || {
        prop_oneof![
            Just(json!(0)),
            Just(json!(1)),
            Just(json!(-1)),
            Just(json!(1e9)),
            Just(json!(0.1)),
            Just(json!(u64::MAX)),
            Just(json!(i64::MIN)),
            Just(json!(1e308)),
            Just(json!(1e-300)),
            (0u32..20_000).prop_map(Value::from),
        ]
    };
    let kind = prop::sample::select(vec![
        "object", "array", "string", "number", "integer", "boolean", "null", "any", "",
    ]);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        kind.prop_map(|kind| json!({ "type": kind })),
        Just(json!({})), Just(json!(null)), Just(json!({"$ref": "#"})), Just(json!({"$ref": "#/$defs/a"})), Just(json!({"$ref": "other"})),
        prop::sample::select(vec![json!({"$ref": 5}), json!({"format": []}), json!({"properties": 1}), json!({"anyOf": {}}), json!({"items": "a"})]),
        Just(json!({"const": {"a": [1, "é\u{0}"]}})), Just(json!({"enum": []})), Just(json!({"enum": [1, "a", null, {}]})),
        (prop::sample::select(vec!["minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "multipleOf", "minItems", "maxItems", "minProperties"]), numbers())
            .prop_map(|(name, number)| json!({name: number, "type": if name.contains("Length") { "string" } else if name.contains("Items") { "array" } else { "number" }})),
        prop::sample::select(PATTERNS.to_vec()).prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        prop::sample::select(vec!["date-time", "email", "uri", "uuid", "ipv6", "nobody's"]).prop_map(|format| json!({"type": "string", "format": format})),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        let named = prop::collection::vec((prop::sample::select(vec!["a", "b", "c", "", "é\"\\\n", "$ref"]), inner.clone()), 0..6)
            .prop_map(|members| members.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect::<Map<_, _>>());
        let list = prop::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            (named.clone(), any::<bool>(), prop::collection::vec(prop::sample::select(vec!["a", "b", "z"]), 0..3), inner.clone()).prop_map(
                |(members, closed, required, more)| {
                    let more = if closed { json!(false) } else { more };
                    json!({"type": "object", "properties": members, "required": required, "additionalProperties": more})
                }
            ),
            (prop::sample::select(vec!["anyOf", "oneOf", "allOf", "prefixItems"]), list).prop_map(|(name, schemas)| json!({ name: schemas })),
            (inner.clone(), numbers(), numbers()).prop_map(|(items, least, most)| json!({"type": "array", "items": items, "minItems": least, "maxItems": most})),
            (named, inner.clone()).prop_map(|(definitions, schema)| {
                let mut schema = if schema.is_object() { schema } else { json!({}) };
                schema["$defs"] = definitions.into();
                schema
            }),
            (prop::sample::select(PATTERNS.to_vec()), inner).prop_map(|(pattern, schema)| json!({"type": "object", "patternProperties": {pattern: schema}})),
        ]
    })
}

/// Expressions that grow, that are none, or that readers get wrong.
const PATTERNS: [&str; 20] = [
    "a",
    "[a-z]{1,9}",
    "(a|b)*",
    "(a*)*b",
    "(a|a)*",
    "(a{1,1000}){1,1000}",
    "((a{100}){100}){100}",
    "[^\\x00-\\x7f]{5000}",
    "(?=a)b",
    "a(?!b)",
    "\\p{L}+",
    "\\1",
    "(",
    "[",
    "a{5,2}",
    "^$",
    ".*.*.*.*x",
    "(?i)[a-zà-ÿ]{0,50}",
    "(.{0,200}a){40}",
    "\\u{1F30A}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn schemas(schema in schema()) {
        check(&Source::JsonSchema(schema))?;
    }

    #[test]
    fn expressions(pieces in prop::collection::vec(
        prop_oneof![
            prop::sample::select(PATTERNS.to_vec()).prop_map(str::to_owned),
            prop::sample::select(vec!["(", ")", "|", "*", "+", "?", "{2,500}", "{9999}", "[^a]", ".", "\\d", "\\", "^", "$", "&", "~"]).prop_map(str::to_owned),
            any::<char>().prop_map(String::from),
        ],
        1..8,
    )) {
        check(&Source::Regex(pieces.concat()))?;
    }

    #[test]
    fn grammars_in_lark_s_notation(pieces in prop::collection::vec(
        prop::sample::select(vec![
            "start: ", "start", "a", "a: ", "B: ", "B", "\"x\"", "/[a-z]+/", "/(a|b)*/", " | ", "\n", "(", ")", "*", "+", "?", "~100000", "{1,9}", "\"\"",
            "%json {\"type\": \"object\"}", "%regex {}", "%ignore /\\s+/", "%import common.INT", "<think>", "<[1-5]>", "@", "[lazy]", "[capture]", "&", "~",
        ]),
        1..20,
    ), whole in any::<bool>()) {
        let text = format!("{}{}", if whole { "start: " } else { "" }, pieces.concat());
        check(&Source::Lark(text))?;
    }
}

/// Those that are known to be large.
#[test]
fn large_ones_are_bounded() {
    let wide: Map<String, Value> =
        (0..2000).map(|at| (format!("p{at}"), json!({"type": "string", "maxLength": 5000}))).collect();
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"anyOf": [deep.clone(), {"type": "array", "items": {"type": "integer"}}]});
    }
    for source in [
        Source::JsonSchema(json!({"type": "object", "properties": wide})),
        Source::JsonSchema(deep),
        Source::JsonSchema(
            json!({"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 1_000_000}}),
        ),
        Source::JsonSchema(json!({"type": "string", "minLength": 1_000_000_000u64})),
        Source::Regex("(a{1,1000}){1,1000}".into()),
        Source::Regex("a".repeat(500_000)),
        Source::Regex("a".repeat(8 << 20)),
        Source::Regex("(".repeat(100_000)),
        Source::Lark(format!("start: {}", "(".repeat(100_000))),
        Source::Lark("start: start start | \"a\"".into()),
        // Whether both can be met takes as many states as there are words of so many letters.
        Source::Lark("start: A\nA: /[ab]*a[ab]{22}/ & /[ab]*b[ab]{22}c?/ & /[ab]*a[ab]{21}/\n".into()),
        Source::JsonSchema(
            json!({"type": "integer", "allOf": [{"multipleOf": 999_983}, {"multipleOf": 999_979}], "minimum": 1}),
        ),
        Source::JsonSchema(
            json!({"type": "number", "multipleOf": 0.000_001_7, "minimum": 0.1, "maximum": 1e9}),
        ),
        Source::Choice((0..4096).map(|at| format!("{at:0100}")).collect()),
    ] {
        check(&source)
            .unwrap_or_else(|error| panic!("{}", error.to_string().chars().take(300).collect::<String>()));
    }
}
