//! The corpus of schemas: every answer parses and is valid, or the schema is refused by name.

use crate::support::{Random, draw, grammars, text};
use monomorph_grammar::Source;
use serde_json::Value;

/// The corpus, by name: schema, and the path that it is refused for.
fn corpus() -> Vec<(String, Value, Option<String>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/schemas/schemas.jsonl");
    let lines = std::fs::read_to_string(path).expect("the corpus");
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of the corpus");
        let refused = line["refused"].as_str().map(str::to_owned);
        (line["name"].as_str().expect("a name").to_owned(), line["schema"].clone(), refused)
    };
    lines.lines().map(read).collect()
}

#[test]
fn every_answer_is_valid_or_its_schema_is_refused_by_name() {
    let corpus = corpus();
    assert_eq!(corpus.len(), 400);
    let (mut answers, mut tokens, mut wrong) = (0, 0, Vec::new());
    for (seed, (name, schema, refused)) in (1..).zip(corpus) {
        let compiled = grammars().compile(&Source::JsonSchema(schema.clone()));
        let constraint = match (compiled, refused) {
            (Ok(constraint), None) => constraint,
            (Err(error), Some(path)) => {
                assert_eq!(error.path, path, "{name}: {error}");
                continue;
            }
            (compiled, refused) => {
                wrong.push(format!("{name}: {refused:?}, and it is {:?}", compiled.err()));
                continue;
            }
        };
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        for draws in 0..4 {
            let mut random = Random(0x9E37_79B9 * (seed + 1000 * draws));
            let answer = draw(&mut constraint.clone(), &mut random);
            let text = text(&answer);
            let value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error} in {text:?}"));
            if let Err(error) = validator.validate(&value) {
                wrong.push(format!("{name}: {error} in {text}"));
            }
            answers += 1;
            tokens += answer.len();
        }
    }
    println!("{answers} answers of {tokens} tokens");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(answers > 1400);
}
