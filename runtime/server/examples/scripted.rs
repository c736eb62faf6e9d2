//! A server without a model, to try clients against: `scripted checkpoint DIR` writes the checkpoint it
//! wants, `scripted serve --weights DIR` serves. `tests/scripted` says what it answers.

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
        [_, verb, directory] if verb == "checkpoint" => {
            match scripted::write_checkpoint(Path::new(directory)) {
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
