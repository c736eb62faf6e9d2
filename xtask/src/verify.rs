//! `cargo xtask verify`: whether a server computes what a reference does, as far as the reference can tell.

mod judge;
mod reference;

use crate::judged::{self, Server, run};
use clap::Args;
use judge::{Distance, Verdict};
use reference::Reference;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = "\
PASS          the server is as near the reference as the reference in bf16 is to itself, within a factor of two
FAIL          it is further than four times that, or another token leads where no rounding makes one
INCONCLUSIVE  neither; or the reference does not say how far rounding moves it

xtask/verify/reference.py makes a reference with transformers, of the same checkpoint.")]
pub struct Options {
    #[command(flatten)]
    server: Server,
    /// Logits of the reference.
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn verify(options: Options) -> Result<(), String> {
    let reference = Reference::read(&options.reference)?;
    let target = options.server.target.target.clone();
    let mut command = judged::verb("logits", &options.server)?;
    let scratch = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let [tokens, found] = ["tokens.json", "logits.safetensors"].map(|name| scratch.path().join(name));
    std::fs::write(&tokens, json!(reference.tokens).to_string())
        .map_err(|error| format!("{}: {error}", tokens.display()))?;
    run(command.arg("--tokens").arg(&tokens).arg("--out").arg(&found))?;
    let found = reference.like(&found)?;
    let distance = Distance::between(&found, &reference.logits, reference.vocabulary);
    let noise = reference.rounded.as_ref();
    let noise = noise.map(|rounded| Distance::between(rounded, &reference.logits, reference.vocabulary));
    let verdict = judge::judge(&distance, noise.as_ref());
    if options.json {
        let report = json!({
            "target": target, "verdict": verdict.word(), "why": verdict.why(),
            "found": distance, "noise": noise,
        });
        println!("{report:#}");
    } else {
        println!("{:<10} {}", "", Distance::HEAD);
        println!("{:<10} {distance}", "found");
        if let Some(noise) = &noise {
            println!("{:<10} {noise}", "noise");
        }
        println!("{}: {}", verdict.word(), verdict.why());
    }
    match verdict {
        Verdict::Pass(_) => Ok(()),
        Verdict::Fail(_) | Verdict::Inconclusive(_) => Err(format!("{target} is not verified")),
    }
}
