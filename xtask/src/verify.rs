//! `cargo xtask verify`: whether a server computes what a reference does, as far as the reference can tell.

mod judge;
mod reference;

use crate::{BuildOptions, TargetOptions, build, fetch};
use clap::Args;
use judge::{Distance, Verdict};
use monomorph_compiler::toolchain::python::run;
use reference::Reference;
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

#[derive(Args)]
#[command(after_help = "\
PASS          the server is as near the reference as the reference in bf16 is to itself, within a factor of two
FAIL          it is further than four times that, or another token leads where no rounding makes one
INCONCLUSIVE  neither; or the reference does not say how far rounding moves it

xtask/verify/reference.py makes a reference with transformers, of the same checkpoint.")]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Weights that the reference was made of [default: fetched].
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Logits of the reference.
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,
    /// Take this server instead of building one.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn verify(options: Options) -> Result<(), String> {
    let reference = Reference::read(&options.reference)?;
    let server = match options.server {
        Some(server) => server,
        None => build::server(&options.target, options.build)?,
    };
    let weights = match options.weights {
        Some(path) => path,
        None => fetch::weights(&options.target)?,
    };
    let scratch = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let [tokens, found] = ["tokens.json", "logits.safetensors"].map(|name| scratch.path().join(name));
    std::fs::write(&tokens, json!(reference.tokens).to_string())
        .map_err(|error| format!("{}: {error}", tokens.display()))?;
    let mut command = Command::new(&server);
    command.arg("logits").arg("--weights").arg(&weights);
    run(command.arg("--tokens").arg(&tokens).arg("--out").arg(&found))?;
    let found = reference.like(&found)?;
    let distance = Distance::between(&found, &reference.logits, reference.vocabulary);
    let noise = reference.rounded.as_ref();
    let noise = noise.map(|rounded| Distance::between(rounded, &reference.logits, reference.vocabulary));
    let verdict = judge::judge(&distance, noise.as_ref());
    if options.json {
        let report = json!({
            "target": options.target.target, "verdict": verdict.word(), "why": verdict.why(),
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
        Verdict::Fail(_) | Verdict::Inconclusive(_) => {
            Err(format!("{} is not verified", options.target.target))
        }
    }
}
