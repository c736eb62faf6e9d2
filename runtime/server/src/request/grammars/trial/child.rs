//! The child process that tries grammars.

use crate::process::allocator;
use monomorph_grammar::{Grammars, Token};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Most memory of a compilation, beside its stack and the process itself.
pub(super) const MEMORY: u64 = 256 << 20;
/// The stack of a compilation, with some margin.
const STACK: u64 = 260 << 20;
/// Longest message: above what a source may have.
const LONGEST: usize = 16 << 20;

/// Tries the grammars that arrive on standard input, a socket, until it closes.
///
/// # Errors
/// When standard input is not such a socket: only the server runs this.
pub(crate) fn run() -> Result<(), String> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let socket = UnixStream::from(socket);
    if socket.peer_addr().is_err() {
        return Err(format!("`{}` is run by the server itself", super::VERB));
    }
    let mut writer = socket.try_clone().map_err(|error| error.to_string())?;
    // Others reserve more addresses than the limit has.
    allocator::share(1);
    limit()?;
    // Compiles on another thread, so that this one notices when the server has gone.
    let (send, messages) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = socket;
        while let Some(message) = message(&mut reader) {
            if send.send(message).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    let mut grammars: Option<Grammars> = None;
    for message in messages {
        let before = allocator::allocated();
        let tried = match &grammars {
            None => {
                grammars = Some(read(&message)?);
                Ok(0)
            }
            Some(grammars) => grammars.attempt(&message, || allocator::allocated().saturating_sub(before)),
        };
        let (bytes, said) = tried.map_or_else(|error| (0, error.message), |bytes| (bytes, String::new()));
        let answer = [&(bytes as u64).to_le_bytes()[..], said.as_bytes()].concat();
        let length = u32::try_from(answer.len()).map_err(|error| error.to_string())?;
        let answer = [&length.to_le_bytes()[..], &answer].concat();
        writer.write_all(&answer).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The next message, if there is one.
fn message(reader: &mut UnixStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    reader.read_exact(&mut length).ok()?;
    let length = u32::from_le_bytes(length) as usize;
    let mut message = vec![0; Some(length).filter(|length| *length <= LONGEST)?];
    reader.read_exact(&mut message).ok()?;
    Some(message)
}

/// Grammars over the tokens of the first message.
fn read(message: &[u8]) -> Result<Grammars, String> {
    let told: Value = serde_json::from_slice(message).map_err(|error| error.to_string())?;
    let number =
        |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
    let list = |name: &str| told[name].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let ends: Vec<u32> = list("ends").iter().map(number).collect();
    let token = |token: &Value| {
        let bytes = token[1].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let bytes: Vec<u8> = bytes.iter().map(|byte| number(byte) as u8).collect();
        (number(&token[0]), (bytes, token[2] == true))
    };
    let tokens: HashMap<u32, (Vec<u8>, bool)> = list("tokens").iter().map(token).collect();
    let token = |id: u32| tokens.get(&id).map(|(bytes, special)| Token { bytes, special: *special });
    Grammars::new(number(&told["vocabulary"]) as usize, token, &ends)
}

/// Limits the memory of this process, and disables core dumps.
fn limit() -> Result<(), String> {
    let taken = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages: u64 = taken.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or_default();
    // SAFETY: it only reads a constant of the system.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    for (which, bytes) in [(libc::RLIMIT_AS, pages * page + STACK + MEMORY), (libc::RLIMIT_CORE, 0)] {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: the limit is read and nothing kept of it.
        if unsafe { libc::setrlimit(which, &limit) } != 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
    }
    Ok(())
}
