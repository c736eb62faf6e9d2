//! How head and worker find out that both hold the token, before anything else that one says is believed.

use crate::hello::PROTOCOL;
use crate::token::{Nonce, Proof, Said, Side, Token};
use crate::wire::{Malformed, Reader, Writer};

/// Begins what a head says first.
const MAGIC: &[u8; 16] = b"monomorph hosts\0";
/// Most bytes of anything that is said here.
pub(crate) const MOST: usize = 512;
/// Most characters of a refusal.
const MOST_WHY: usize = 300;

/// The head's side of one connection.
#[derive(Debug)]
pub struct Door {
    token: Token,
    nonce: Nonce,
}

impl Door {
    /// A door whose challenge nobody has seen.
    pub fn new(token: Token, nonce: Nonce) -> Door {
        Door { token, nonce }
    }

    /// What it says first.
    pub fn challenge(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.0.extend_from_slice(MAGIC);
        to.u32(PROTOCOL);
        to.0.extend_from_slice(&self.nonce);
        to.0
    }

    /// What was said by a worker that holds the token.
    ///
    /// # Errors
    /// When this is no answer, or not one of the same token.
    pub fn check(&self, answer: &[u8]) -> Result<Said, String> {
        let (rank, worker, proof) =
            read_answer(answer).map_err(|why| format!("its answer is malformed: {why}"))?;
        let said = Said { rank, head: self.nonce, worker };
        if self.token.verify(Side::Worker, &said, &proof) {
            return Ok(said);
        }
        Err(format!("rank {rank} has another token: --token-file must name the same file everywhere"))
    }

    /// What it says to a worker that comes in.
    pub fn welcome(&self, said: &Said) -> Vec<u8> {
        let mut to = Writer::default();
        to.flag(true);
        to.0.extend_from_slice(&self.token.prove(Side::Head, said));
        to.0
    }

    /// What it says to any other.
    pub fn refuse(why: &str) -> Vec<u8> {
        let mut to = Writer::default();
        to.flag(false);
        to.text(&why.chars().take(MOST_WHY / 4).collect::<String>());
        to.0
    }
}

/// The worker's side of it.
#[derive(Debug)]
pub struct Visitor {
    token: Token,
    rank: u32,
    nonce: Nonce,
}

impl Visitor {
    /// A worker that comes as `rank`.
    pub fn new(token: Token, rank: u32, nonce: Nonce) -> Visitor {
        Visitor { token, rank, nonce }
    }

    /// What it answers.
    ///
    /// # Errors
    /// When this is no challenge of this protocol and version.
    pub fn answer(&self, challenge: &[u8]) -> Result<(Said, Vec<u8>), String> {
        let (version, head) = read_challenge(challenge).map_err(|why| {
            format!("what listens there is no head of a world: its challenge is malformed: {why}")
        })?;
        if version != PROTOCOL {
            return Err(format!(
                "protocol is {PROTOCOL} here and {version} on the head; both need the same build"
            ));
        }
        let said = Said { rank: self.rank, head, worker: self.nonce };
        let mut to = Writer::default();
        to.u32(self.rank);
        to.0.extend_from_slice(&self.nonce);
        to.0.extend_from_slice(&self.token.prove(Side::Worker, &said));
        Ok((said, to.0))
    }

    /// Whether the head holds the token, and lets it in.
    ///
    /// # Errors
    /// When it does not.
    pub fn enter(&self, said: &Said, verdict: &[u8]) -> Result<(), String> {
        match read_verdict(verdict).map_err(|why| format!("the head's verdict is malformed: {why}"))? {
            Ok(proof) if self.token.verify(Side::Head, said, &proof) => Ok(()),
            Ok(_) => {
                Err("the head has another token: --token-file must name the same file everywhere".to_owned())
            }
            Err(why) => Err(format!("the head refuses this process: {}", why.escape_debug())),
        }
    }
}

fn array<const N: usize>(from: &mut Reader<'_>) -> Result<[u8; N], Malformed> {
    from.take(N)?.try_into().map_err(|_| "it is too short")
}

fn read_challenge(bytes: &[u8]) -> Result<(u32, Nonce), Malformed> {
    let mut from = Reader(bytes);
    if from.take(MAGIC.len())? != MAGIC {
        return Err("it is of another protocol");
    }
    let read = (from.u32()?, array(&mut from)?);
    from.end()?;
    Ok(read)
}

fn read_answer(bytes: &[u8]) -> Result<(u32, Nonce, Proof), Malformed> {
    let mut from = Reader(bytes);
    let read = (from.u32()?, array(&mut from)?, array(&mut from)?);
    from.end()?;
    Ok(read)
}

fn read_verdict(bytes: &[u8]) -> Result<Result<Proof, String>, Malformed> {
    let mut from = Reader(bytes);
    let read = if from.flag()? { Ok(array(&mut from)?) } else { Err(from.text()?) };
    from.end()?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes()).unwrap()
    }

    /// A whole challenge between these tokens: what each side thinks of the other.
    fn meet(head: &str, worker: &str) -> (Result<Said, String>, Result<(), String>) {
        let door = Door::new(token(head), [1; 32]);
        let visitor = Visitor::new(token(worker), 3, [2; 32]);
        let (said, answer) = visitor.answer(&door.challenge()).unwrap();
        let checked = door.check(&answer);
        let verdict = match &checked {
            Ok(said) => door.welcome(said),
            Err(why) => Door::refuse(why),
        };
        (checked, visitor.enter(&said, &verdict))
    }

    #[test]
    fn both_come_in_with_one_token() {
        let (head, worker) = meet("sixteen bytes it is", "sixteen bytes it is");
        assert_eq!((head.map(|said| said.rank), worker), (Ok(3), Ok(())));
    }

    #[test]
    fn a_worker_with_another_token_is_refused_and_told_so() {
        let (head, worker) = meet("sixteen bytes it is", "sixteen bytes it was");
        assert!(head.unwrap_err().starts_with("rank 3 has another token"));
        assert!(worker.unwrap_err().starts_with("the head refuses this process: rank 3 has another token"));
    }

    #[test]
    fn a_head_that_lets_anyone_in_is_refused_by_the_worker() {
        let visitor = Visitor::new(token("sixteen bytes it is"), 3, [2; 32]);
        let other = Door::new(token("sixteen bytes it was"), [1; 32]);
        let (said, answer) = visitor.answer(&other.challenge()).unwrap();
        assert!(visitor.enter(&said, &other.welcome(&said)).unwrap_err().starts_with("the head has another"));
        // Nor may it send the worker's own proof back.
        let mut reflected = vec![1];
        reflected.extend_from_slice(&answer[36..]);
        assert!(visitor.enter(&said, &reflected).unwrap_err().starts_with("the head has another token"));
    }

    #[test]
    fn another_protocol_or_version_is_refused_by_name() {
        let visitor = Visitor::new(token("sixteen bytes it is"), 3, [2; 32]);
        let refused = visitor.answer(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
        assert!(refused.contains("no head of a world"), "{refused}");
        let mut challenge = Door::new(token("sixteen bytes it is"), [1; 32]).challenge();
        challenge[16] = 7;
        let said = format!("protocol is {PROTOCOL} here and 7 on the head");
        assert!(visitor.answer(&challenge).unwrap_err().starts_with(&said));
    }

    #[test]
    fn a_refusal_fits_whatever_its_reason() {
        for why in ["x".repeat(10_000), "é".repeat(10_000), "\u{10FFFF}".repeat(10_000)] {
            assert!(Door::refuse(&why).len() <= MOST);
        }
    }
}
