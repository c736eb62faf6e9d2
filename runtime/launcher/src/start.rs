//! How a server is started: to answer a prompt, or to serve.

use std::path::Path;
use std::process::Command;

/// The command of a server: to answer a prompt, or else to serve on a port.
pub fn command(server: &Path, weights: &Path, prompt: Option<&str>, port: u16) -> Command {
    let mut command = Command::new(server);
    match prompt {
        Some(prompt) => command.arg("generate").arg("--weights").arg(weights).arg("--prompt").arg(prompt),
        None => command.arg("serve").arg("--weights").arg(weights).arg("--port").arg(port.to_string()),
    };
    command
}

/// Where a server on a port of this machine is talked to.
pub fn address(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// What can be done at such an address, two lines.
pub fn invitation(address: &str) -> String {
    format!(
        "chat page: {address}/\n\
         try: curl {address}/v1/chat/completions -H 'content-type: application/json' \
         -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}'"
    )
}
