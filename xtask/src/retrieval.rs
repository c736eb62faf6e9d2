//! `cargo xtask retrieval`: whether a server finds again what stands far back in a context.

use crate::judged::{self, Server};
use clap::Args;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    server: Server,
    /// What the server's verb takes, such as `--tokens 4096 --questions 64 --json`.
    #[arg(last = true)]
    more: Vec<String>,
}

pub fn retrieval(options: Options) -> Result<(), String> {
    judged::run(judged::verb("retrieval", &options.server)?.args(options.more))
}
