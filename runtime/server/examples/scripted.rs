//! A server without a model, to try clients against: `scripted checkpoint DIR` writes the checkpoint it
//! wants, `scripted serve --weights DIR` serves. `scripted talk-checkpoint DIR` and `scripted talk TOOLS
//! REASONING serve --weights DIR` do so for one that calls tools and reasons in these formats, with `agent`
//! in place of `talk` for one with room for what agents ask. Run as `echo-sees`, it has one that takes
//! images, whose checkpoint `sees-checkpoint DIR` writes. `tests/scripted` says what it answers.

#[path = "../tests/scripted/mod.rs"]
mod scripted;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: collecting the arguments is already code compiled for the target's CPU.
    monomorph_server::require_cpu(&<scripted::Echo as monomorph_model::Model>::SPEC.hardware);
    run()
}

#[inline(never)]
fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.as_slice() {
        [name, verb, tools, reasoning, rest @ ..] if verb == "talk" || verb == "agent" => {
            let context = if verb == "talk" { scripted::talk::CONTEXT } else { scripted::talk::AGENT };
            scripted::talk::main(context, tools, reasoning, [name].into_iter().chain(rest).cloned())
        }
        [name, ..] if name == scripted::seeing::NAME => monomorph_server::main::<scripted::seeing::Sees>(),
        [_, verb, directory] if verb.ends_with("checkpoint") => {
            let write = match verb.as_str() {
                "talk-checkpoint" => scripted::talk::write_talking_checkpoint,
                "sees-checkpoint" => scripted::seeing::write_seeing_checkpoint,
                _ => scripted::write_checkpoint,
            };
            match write(Path::new(directory)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{directory}: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => monomorph_server::main::<scripted::Echo>(),
    }
}
