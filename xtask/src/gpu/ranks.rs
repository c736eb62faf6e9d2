//! What is gathered for several GPUs in place of SmolLM2, whose heads two ranks cannot share: servers of one
//! made-up checkpoint.

use super::files::copy;
use super::gathering::{Gathering, JOINED, of_tests};
use super::parts;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_compiler::toolchain::python::run;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A choice that differs from the interpreter's counts as a tie if its margin is at most this: products round
/// their operands to f16.
const TIE: f64 = 0.05;
/// Memory for copies of sequences, in GB.
const SWAP: f64 = 1.0;

/// The checkpoint and its servers, by their paths in the store.
pub(super) struct Servers {
    /// What the tests' crate wrote.
    facts: Value,
    name: String,
    ranks: usize,
    /// Batch-invariant, for a single GPU and for all.
    one: String,
    several: String,
    /// With drafts of its own layers, and looked up: for a single GPU and for all.
    layers: [String; 2],
    lookup: [String; 2],
}

impl Servers {
    /// Writes the checkpoint and builds its servers.
    ///
    /// # Errors
    /// When the checkpoint cannot be written or copied.
    pub(super) fn store(gathering: &mut Gathering, cases: &Path) -> Result<Servers, String> {
        std::fs::create_dir_all(cases).map_err(|error| format!("{}: {error}", cases.display()))?;
        run(of_tests("gpu_ranks").arg(cases))?;
        let text = std::fs::read(cases.join("ranks.json")).map_err(|error| error.to_string())?;
        let facts: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        for kind in ["random", "repeating"] {
            let from = PathBuf::from(facts[kind].as_str().ok_or("ranks.json names no weights")?);
            for file in parts::walk(&from)? {
                let below = file.strip_prefix(&from).expect("it stands there");
                copy(&file, &gathering.store.join("ranks").join(kind).join(below))?;
            }
        }
        let name = facts["name"].as_str().ok_or("ranks.json has no name")?.to_owned();
        let checked = gathering.checked();
        let invariant = BuildOptions { batch_invariant: Some(JOINED), ..checked };
        let draft = |method, drafts| BuildOptions {
            draft: Some(DraftOption { method, drafts, vocabulary: None, forced_acceptance: None }),
            ..checked
        };
        gathering.search.insert(0, cases.join("targets"));
        let mut server = |options: BuildOptions| gathering.server(&name, &options, false);
        let one = server(BuildOptions { ranks: None, ..invariant });
        let several = server(invariant);
        let mut drafting = |method, drafts| {
            let several = draft(method, drafts);
            [BuildOptions { ranks: None, ..several }, several].map(&mut server)
        };
        let layers = drafting(DraftMethod::Layers, 2);
        let lookup = drafting(DraftMethod::Ngram, 3);
        gathering.search.remove(0);
        let ranks = checked.ranks.unwrap_or(1);
        let name = format!("{}+tp{ranks}", gathering.target(&name));
        Ok(Servers { facts, name, ranks, one, several, layers, lookup })
    }

    /// What the manifest says of a piece.
    pub(super) fn piece(&self, piece: &str) -> Value {
        let Servers { facts, name, ranks, one, several, layers, lookup } = self;
        let vocabulary = &facts["vocabulary"];
        match piece {
            "engine" => json!([
                { "check": "cut", "name": name, "server": several, "longest": facts["context"] },
                {
                    "check": "swapped", "name": name, "server": several, "vocabulary": vocabulary,
                    "prompts": [100, 600], "tight": 2048, "space": 0.02,
                },
                {
                    "check": "fewer", "name": name, "server": several, "vocabulary": vocabulary,
                    "prompts": [100, 600],
                },
            ]),
            "served" => json!({
                "name": name, "server": several, "weights": "ranks/random", "crowd": "ranks/repeating", "tie": TIE,
                "context": facts["context"], "texts": facts["crowd"], "names": facts["names"],
                "prompts": facts["prompts"], "ids": facts["ids"], "margins": facts["margins"],
            }),
            "storm" => json!([
                {
                    "name": name, "server": several, "weights": "ranks/random", "vocabulary": vocabulary,
                    "ranks": ranks,
                },
            ]),
            "ranks" => json!([{
                "name": name, "ranks": ranks, "one": one, "several": several,
                "drafting": {
                    "layers": { "one": layers[0], "several": layers[1] },
                    "lookup": { "one": lookup[0], "several": lookup[1] },
                },
                "weights": ["ranks/random", "ranks/repeating"], "swap_gb": SWAP,
                "flags": ["--memory-fraction", "0.2"],
                "context": facts["context"], "vocabulary": vocabulary, "experts": facts["experts"],
            }]),
            // racecheck follows one device, and its kernels take longer than another one waits for them.
            _ => json!([several, &layers[1]].map(|server| json!({
                "name": server.trim_end_matches("/server"), "server": server, "tool": "memcheck",
                "context": 256, "vocabulary": 32,
            }))),
        }
    }
}
