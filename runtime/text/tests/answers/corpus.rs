//! The corpora.

use monomorph_text::{ReasoningFormat, ToolFormat, ToolSet};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The formats of a case, and whether its prompt ends within the reasoning.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) reasoning: Option<ReasoningFormat>,
    pub(crate) opened: bool,
}

/// An answer with what is expected of it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) answer: String,
    pub(crate) expect: Vec<Value>,
}

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn tools() -> Arc<ToolSet> {
    static TOOLS: OnceLock<Arc<ToolSet>> = OnceLock::new();
    let read = || {
        let tools = read("tools.json");
        let tools = tools
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| (tool["name"].as_str().unwrap(), &tool["parameters"]));
        Arc::new(ToolSet::new(tools))
    };
    TOOLS.get_or_init(read).clone()
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let formats = ToolFormat::NAMES.iter().map(|(name, _)| *name);
    for file in formats.chain(["reasoning"]) {
        let corpus = read(&format!("{file}.json"));
        for case in corpus["cases"].as_array().unwrap() {
            cases.push(Case {
                name: format!("{file}: {}", case["name"].as_str().unwrap()),
                protocol: Protocol {
                    tools: corpus["tools"].as_str().map(|name| ToolFormat::from_name(name).unwrap()),
                    reasoning: corpus["reasoning"]
                        .as_str()
                        .map(|name| ReasoningFormat::from_name(name).unwrap()),
                    opened: case["opened"].as_bool().unwrap_or(false),
                },
                answer: case["answer"].as_str().unwrap().to_owned(),
                expect: case["expect"].as_array().unwrap().clone(),
            });
        }
    }
    cases
}
