//! `health`: asks the server of this machine whether it is ready. Container engines call it: an image has no
//! other program that could.

use crate::process::out;
use monomorph_abi::serve::PORT;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long each part of the exchange may take. A server that is ready answers within a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer that are read; it has about a thousand.
const MOST: u64 = 1 << 16;

/// Flags of `health`.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// Port that the server listens at.
    #[arg(long, value_name = "N", default_value_t = PORT)]
    port: u16,
}

/// Prints what `/health/ready` answers.
///
/// # Errors
/// When nobody answers, or the server is not ready.
pub(crate) fn health(args: &HealthArgs) -> Result<(), String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let answer = ask(address).map_err(|error| format!("no server answers at {address}: {error}"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
    if answer.split(' ').nth(1) == Some("200") {
        out::print(format_args!("{body}"));
        return Ok(());
    }
    Err(format!("the server at {address} is not ready: {body}"))
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MOST).read_to_string(&mut answer)?;
    Ok(answer)
}
