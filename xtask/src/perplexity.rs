//! `cargo xtask perplexity`: how well a server foretells a text.

use crate::judged::{self, Server};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    server: Server,
    /// A text in UTF-8.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// What else the server's verb takes, such as `--window 512 --windows 8 --json`.
    #[arg(last = true)]
    more: Vec<String>,
}

pub fn perplexity(options: Options) -> Result<(), String> {
    let mut verb = judged::verb("perplexity", options.server)?;
    judged::run(verb.arg("--text").arg(options.text).args(options.more))
}
