//! Messages on a stream: each is its length and its bytes.

use std::io::{ErrorKind, Read, Write};

/// Bytes that are claimed for a message before any of it has come.
const FIRST: usize = 64 << 10;

/// Sends a message of at most `most` bytes in one write.
///
/// # Errors
/// When it is longer, or cannot be sent.
pub(crate) fn send(stream: &mut impl Write, body: &[u8], most: usize) -> Result<(), String> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= most);
    let Some(length) = length else {
        return Err(format!("a message of {} bytes is longer than {most}", body.len()));
    };
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(body);
    stream.write_all(&frame).map_err(|error| error.to_string())
}

/// Waits for a message of at most `most` bytes. Where the stream has a timeout, it goes on while `waits` says
/// so. Memory is claimed as bytes come.
///
/// # Errors
/// When there is none, it is longer, or the stream ends.
pub(crate) fn receive(
    stream: &mut impl Read,
    most: usize,
    mut waits: impl FnMut() -> bool,
) -> Result<Vec<u8>, String> {
    let mut length = [0; 4];
    fill(stream, &mut length, &mut waits)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(format!("a message of {length} bytes is longer than {most}"));
    }
    let mut body = Vec::new();
    while body.len() < length {
        let have = body.len();
        body.resize(length.min((2 * have).max(FIRST)), 0);
        fill(stream, &mut body[have..], &mut waits)?;
    }
    Ok(body)
}

fn fill(stream: &mut impl Read, mut into: &mut [u8], waits: &mut impl FnMut() -> bool) -> Result<(), String> {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return Err("the connection was closed".to_owned()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if !waits() {
                    return Err("nothing came in time".to_owned());
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_in_their_order() {
        let mut stream = Vec::new();
        let bodies = [vec![], vec![7; 3], vec![8; 200_000]];
        bodies.iter().for_each(|body| send(&mut stream, body, 1 << 20).unwrap());
        let mut from = &stream[..];
        for body in bodies {
            assert_eq!(receive(&mut from, 1 << 20, || false), Ok(body));
        }
        assert_eq!(receive(&mut from, 1 << 20, || false), Err("the connection was closed".to_owned()));
    }

    #[test]
    fn a_length_is_not_believed() {
        assert!(send(&mut Vec::new(), &[0; 9], 8).unwrap_err().contains("9 bytes is longer than 8"));
        let mut long = &[9, 0, 0, 0][..];
        assert!(receive(&mut long, 8, || false).unwrap_err().contains("9 bytes is longer than 8"));
        let mut short = &[8, 0, 0, 0, 1][..];
        assert_eq!(receive(&mut short, 8, || false), Err("the connection was closed".to_owned()));
    }
}
