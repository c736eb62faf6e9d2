//! The command line of the tuner, on the machine that has the card.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure the variants that `cargo xtask tune` gathered, and choose among them.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Targets that were gathered, as hardware/model/quant
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<String>,
    /// Where they were gathered [default: the directory of this program]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Where figures and tuning files go [default: the same]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Tokens cached of each sequence in decode: the mean counts, the middle one for phases alone
    #[arg(long, value_delimiter = ',', default_value = "128,1024,4096")]
    contexts: Vec<usize>,
    /// Tokens of the prompt in prefill
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    /// Print where a step's time goes instead: targets gathered with --trace, after the first of the contexts
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), monomorph_tune::Error> {
    let beside = std::env::current_exe()?.parent().map(PathBuf::from).unwrap_or_default();
    let from = options.from.as_ref().unwrap_or(&beside);
    let workload =
        monomorph_tune::bench::Workload { contexts: options.contexts.clone(), tokens: options.tokens };
    for target in &options.targets {
        let directory = from.join(target);
        if options.trace {
            monomorph_tune::trace(&directory, &workload)?;
        } else {
            monomorph_tune::tune(&directory, options.out.as_ref().unwrap_or(from), &workload)?;
        }
    }
    Ok(())
}
