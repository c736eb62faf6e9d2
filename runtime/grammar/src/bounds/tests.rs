//! Tests each bound from both sides, with the stack that it was proven against.

use super::Size;
use super::corpus::{CASES, Case};
use crate::stack::{STACK_BYTES, with_stack};
use crate::{Grammars, Source, Token};
use std::time::{Duration, Instant};

/// Longest time for the largest accepted source to compile or be rejected, unoptimised and without a
/// deadline.
const PATIENCE: Duration = Duration::from_secs(30);

/// A vocabulary of all bytes and an end.
fn grammars() -> Grammars {
    let bytes: Vec<[u8; 1]> = (0..=255u8).map(|byte| [byte]).collect();
    let token = |id: u32| match bytes.get(id as usize) {
        Some(byte) => Some(Token { bytes: byte, special: false }),
        None => Some(Token { bytes: b"<end>", special: true }),
    };
    Grammars::new(257, token, &[256]).expect("a vocabulary")
}

/// Compiles a source, follows it for a while, copies and drops it, on a thread with a default stack.
fn follow(grammars: &Grammars, case: &Case, source: &Source) -> Result<(), crate::GrammarError> {
    let mut constraint = grammars.compile(source)?;
    let walk = move || {
        let mut masks = Vec::new();
        for step in 0..40usize {
            if constraint.masks(&[], &mut masks).is_err() {
                break;
            }
            let Some(mask) = masks.first() else { break };
            let allowed: Vec<u32> = (0..256).filter(|id| mask.allows(*id)).collect();
            let Some(id) = allowed.get(step * 7 % allowed.len().max(1)) else { break };
            if constraint.take(*id).is_err() {
                break;
            }
            drop(constraint.clone());
        }
    };
    with_stack(512 << 10, walk).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    Ok(())
}

#[test]
fn what_is_beyond_a_bound_is_refused_by_name() {
    let grammars = grammars();
    for case in CASES {
        assert!(
            super::source(&(case.source)(case.most)).is_ok(),
            "{} of {}: {:?}",
            case.name,
            case.most,
            super::source(&(case.source)(case.most))
        );
        let error = grammars.compile(&(case.source)(case.most + 1)).err();
        let error = error.unwrap_or_else(|| panic!("{} of {} was taken", case.name, case.most + 1));
        assert_eq!(error.path, case.path, "{}: {error}", case.name);
        let named = error.message.ends_with(&format!("at most {}", case.bound))
            || error.message.contains(&format!("deeper than {} levels", case.bound));
        assert!(named, "{}: {error}", case.name);
    }
}

/// Compiles the largest accepted sources on a quarter of the stack.
#[test]
fn the_stack_holds_what_is_within_the_bounds() {
    let grammars = grammars();
    let stack = STACK_BYTES / 4;
    for case in CASES {
        let began = Instant::now();
        let source = (case.source)(case.most);
        let made = with_stack(stack, || grammars.attempt_here(&source));
        let made = made.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let compiled = began.elapsed();
        let followed = follow(&grammars, case, &source);
        eprintln!(
            "{:40} {compiled:9.1?} {:9.1?} {made:?} {:?}",
            case.name,
            began.elapsed(),
            followed.is_ok()
        );
        assert!(began.elapsed() < PATIENCE, "{}: {:?}", case.name, began.elapsed());
    }
}

#[test]
fn what_people_ask_for_is_small() {
    let tool = serde_json::json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "where"}, "line": {"type": "integer", "minimum": 1},
            "when": {"type": "string", "format": "date-time"}, "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 10},
            "also": {"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}], "title": "Also"},
        },
        "required": ["path"], "additionalProperties": false,
        "$defs": {"one": {"type": "object", "properties": {"next": {"$ref": "#/$defs/one"}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}}}},
    });
    assert_eq!(super::schema(&tool), Ok(Size::Small));
    let read = crate::Schema::new(&tool).expect("a schema");
    assert_eq!(super::schema(read.value()), Ok(Size::Small));
    assert_eq!(super::source(&Source::Regex("[a-z]{1,20}(-[0-9]+)?".to_owned())), Ok(Size::Small));
}
