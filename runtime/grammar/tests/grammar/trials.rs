//! Limits of compilation: trials elsewhere, time, and the search for the part at fault.

use crate::support::{END, VOCABULARY, accepts, bytes, grammars, next};
use monomorph_grammar::{GrammarError, Grammars, Patience, Pattern, Schema, Source, Token, Trial};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Compiles what it is given in this process.
#[derive(Debug, Default)]
struct Here {
    tried: AtomicUsize,
}

impl Trial for Here {
    fn attempt(&self, grammar: &[u8], _: Instant, _: &Patience) -> Result<usize, GrammarError> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        grammars().attempt(grammar, || 7)
    }
}

fn patient() -> (Arc<Here>, Arc<Patience>, Grammars) {
    let here = Arc::new(Here::default());
    let trial: Arc<dyn Trial> = Arc::<Here>::clone(&here);
    let patience = Patience::new(Duration::from_secs(600), Some(trial));
    let within = grammars().within(&patience);
    (here, patience, within)
}

fn digits(most: usize) -> Source {
    Source::Regex(format!("[0-9]{{1,{most}}}"))
}

#[test]
fn only_what_is_not_small_is_tried_first() {
    let (here, patience, within) = patient();
    for (source, tried) in [
        (Source::JsonObject, 0),
        (digits(20), 0),
        (Source::JsonSchema(json!({"type": "string"})), 0),
        (Source::JsonSchema(json!({"type": "string", "maxLength": 5000})), 1),
        (digits(2000), 2),
        (Source::Lark("start: \"a\"".into()), 3),
    ] {
        let mut constraint = within.compile(&source).unwrap_or_else(|error| panic!("{source:?}: {error}"));
        assert!(next(&mut constraint).count() > 0);
        assert_eq!(here.tried.load(Ordering::Relaxed), tried, "{source:?}");
    }
    assert_eq!(patience.bytes(), 3 * 7);
    let many = Pattern::All(vec![Pattern::text("a"); 65]);
    within.compile_pattern(&many).expect("it compiles");
    assert_eq!(here.tried.load(Ordering::Relaxed), 4, "patterns too");
}

#[test]
fn what_is_refused_elsewhere_is_refused() {
    let (here, _, within) = patient();
    let error = within.compile(&Source::Lark("start: missing".into())).expect_err("there is no such name");
    assert!(error.message.contains("unknown name"), "{error}");
    assert_eq!(here.tried.load(Ordering::Relaxed), 1);
    let nonsense = grammars().attempt(b"nonsense", || 7).expect_err("it is no grammar");
    assert!(nonsense.message.starts_with("cannot be used"), "{nonsense}");
}

#[test]
fn nothing_is_compiled_once_patience_is_lost() {
    let (here, patience, within) = patient();
    assert!(!within.is_late() && !grammars().is_late());
    patience.lose();
    assert!(within.is_late() && !grammars().is_late());
    for source in [Source::JsonObject, digits(2000), Source::JsonSchema(json!({"type": "string"}))] {
        let error = within.compile(&source).expect_err("it is late");
        assert!(error.message.contains("takes longer than"), "{error}");
        assert_eq!(error.path, "", "nobody is to blame");
    }
    assert_eq!(here.tried.load(Ordering::Relaxed), 0);
}

/// What `oneOf` of two that may both be is refused for, so many parts deep in a schema with others.
fn faulty(others: usize, more: Value) -> Value {
    let mut properties: serde_json::Map<String, Value> =
        (0..others).map(|at| (format!("a{at:03}"), json!({"type": "null"}))).collect();
    properties.insert("z".into(), json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}));
    let mut schema = json!({"type": "object", "properties": properties});
    schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    schema
}

#[test]
fn the_part_at_fault_is_looked_for_as_long_as_it_is_worth_it() {
    let path =
        |schema: Value| grammars().compile(&Source::JsonSchema(schema)).expect_err("it is refused").path;
    assert_eq!(path(faulty(4, json!({}))), ".properties.z");
    assert_eq!(
        path(json!({"items": {"anyOf": [{"type": "null"}, faulty(1, json!({}))]}})),
        ".items.anyOf[1].properties.z"
    );
    assert_eq!(
        path(json!({"prefixItems": [{"type": "null"}, faulty(0, json!({}))]})),
        ".prefixItems[1].properties.z"
    );
    assert_eq!(
        path(json!({"patternProperties": {"a": faulty(0, json!({}))}})),
        ".patternProperties.a.properties.z"
    );
    assert_eq!(
        path(json!({"additionalProperties": faulty(0, json!({}))})),
        ".additionalProperties.properties.z"
    );
    // What is referred to is at fault where the reference stands.
    let by_name = json!({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": faulty(0, json!({}))}});
    assert_eq!(path(by_name), ".items");
    // Not among too many parts.
    assert_eq!(path(faulty(60, json!({}))), "");
    // Nor in a large schema.
    let long = "a".repeat(33 * 1024);
    assert_eq!(path(faulty(1, json!({"anyOf": [{"const": long}]}))), "");
}

#[test]
fn a_part_of_a_schema_has_its_definitions() {
    let schema = json!({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "null"}}});
    let schema = Schema::new(&schema).expect("a schema");
    let part = schema.part(&schema.value()["items"]);
    let mut constraint = grammars().compile_pattern(&Pattern::Json(part)).expect("it compiles");
    assert!(next(&mut constraint).allows(b'n'.into()) && !next(&mut constraint).allows(b'['.into()));
}

#[test]
fn sources_have_at_most_so_many_bytes_and_choices() {
    let most = 512 * 1024;
    let refused = |source: &Source| grammars().compile(source).expect_err("it is too large").message;
    let long = |bytes: usize| Source::Choice(vec!["a".repeat(bytes)]);
    assert_eq!(refused(&long(most)), format!("has {} bytes; at most {most}", most + 1));
    assert!(
        !grammars()
            .compile(&long(most - 1))
            .err()
            .is_some_and(|error| error.message.contains("at most 524288"))
    );
    let choice = |count: usize| Source::Choice((0..count).map(|at| at.to_string()).collect());
    assert!(refused(&choice(4097)).contains("1 to 4096"));
    assert!(accepts(&choice(4096), "4095"));
    assert_eq!(refused(&Source::Choice(vec!["a".into(), String::new()])), "is an empty text");
}

#[test]
fn a_vocabulary_has_an_end() {
    let all: Vec<Vec<u8>> = (0..VOCABULARY as u32).map(bytes).collect();
    let token = |id: u32| {
        Some(Token { bytes: &all[id as usize], special: false }).filter(|token| !token.bytes.is_empty())
    };
    let made = |ends: &[u32]| Grammars::new(VOCABULARY, token, ends);
    let beyond = VOCABULARY as u32;
    for ends in [&[][..], &[beyond]] {
        assert!(made(ends).is_err_and(|why| why.contains("no token that ends")));
    }
    let ends = made(&[beyond, END, 7, END]).expect("two ends").compile(&Source::JsonObject);
    assert_eq!(ends.expect("it compiles").end_ids(), [END, 7]);
    assert!(format!("{:?}", made(&[END]).expect("an end")).starts_with("Grammars"));
}

#[test]
fn tokens_with_a_byte_that_is_no_text_are_never_allowed() {
    // No text has the byte 0xFF: by it the library tells tokens that are none.
    let all: [&[u8]; 4] = [b"<end>", b"a", b"\xffa", b"\xff<end>"];
    let token = |id: u32| all.get(id as usize).map(|bytes| Token { bytes, special: false });
    let grammars = Grammars::new(5, token, &[0]).expect("a vocabulary");
    let mut constraint = grammars.compile(&Source::Regex("(?s:.)*".into())).expect("it compiles");
    assert_eq!(constraint.vocabulary(), 5);
    let mut masks = Vec::new();
    constraint.masks(&[], &mut masks).expect("something may come");
    let allowed: Vec<u32> = (0..5).filter(|id| masks[0].allows(*id)).collect();
    assert_eq!(allowed, [0, 1]);
    assert!(format!("{constraint:?}").contains("grammar: true, thinking: false, watch: false"));
}
