//! The secret that the processes of a world share, and the proofs that they hold it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Random bytes that a proof is over.
pub type Nonce = [u8; 32];
/// An HMAC-SHA256.
pub type Proof = [u8; 32];

/// Fewest bytes of a token: 16 random ones are beyond guessing.
const LEAST: usize = 16;
/// Most bytes of a token's file.
const MOST: u64 = 4096;
/// Permissions of a file that let others than its owner read it.
const OTHERS: u32 = 0o077;

/// The secret of a world.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// Who makes a proof: one side's is never the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that serves.
    Head,
    /// A process that dials it.
    Worker,
}

/// What was said when a proof is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The worker's rank.
    pub rank: u32,
    /// What the head drew.
    pub head: Nonce,
    /// What the worker drew.
    pub worker: Nonce,
}

impl Token {
    /// The token of these bytes.
    ///
    /// # Errors
    /// When they are too few to keep anyone out.
    pub fn new(bytes: &[u8]) -> Result<Token, String> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < LEAST {
            return Err(format!("a token of {} bytes is guessed; it needs at least {LEAST}", bytes.len()));
        }
        Ok(Token(bytes.to_vec()))
    }

    /// The token of a file, without white space around it. The file must be its owner's alone.
    ///
    /// # Errors
    /// When it cannot be read, others may read it, or it is too short or too long.
    pub fn read(path: &Path) -> Result<Token, String> {
        let named = |why: String| format!("--token-file {}: {why}", path.display());
        let file = File::open(path).map_err(|error| named(error.to_string()))?;
        let mode = file.metadata().map_err(|error| named(error.to_string()))?.permissions().mode();
        if mode & OTHERS != 0 {
            let mode = mode & 0o7777;
            return Err(named(format!(
                "others may read it (mode {mode:04o}); it must be its owner's alone (0600)"
            )));
        }
        let mut bytes = Vec::new();
        file.take(MOST + 1).read_to_end(&mut bytes).map_err(|error| named(error.to_string()))?;
        if bytes.len() as u64 > MOST {
            return Err(named(format!("it is longer than {MOST} bytes, so that it is no token")));
        }
        Token::new(&bytes).map_err(named)
    }

    /// The proof that `side` holds the token.
    pub fn prove(&self, side: Side, said: &Said) -> Proof {
        self.mac(side, said).finalize().into_bytes().into()
    }

    /// Whether `proof` is what `side` would give; takes equally long for all that are not.
    pub fn verify(&self, side: Side, said: &Said, proof: &Proof) -> bool {
        self.mac(side, said).verify_slice(proof).is_ok()
    }

    fn mac(&self, side: Side, said: &Said) -> Hmac<Sha256> {
        // A key of any length is taken, so that this cannot fail.
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("any length is a key's");
        mac.update(match side {
            Side::Head => b"monomorph hosts: head",
            Side::Worker => b"monomorph hosts: worker",
        });
        mac.update(&said.rank.to_le_bytes());
        mac.update(&said.head);
        mac.update(&said.worker);
        mac
    }
}

/// Random bytes of the system.
///
/// # Errors
/// When there are none.
pub fn nonce() -> Result<Nonce, String> {
    let mut nonce = Nonce::default();
    let drawn = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut nonce));
    drawn.map_err(|error| format!("/dev/urandom gives no random bytes: {error}"))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    fn said() -> Said {
        Said { rank: 1, head: [3; 32], worker: [4; 32] }
    }

    #[test]
    fn a_proof_is_of_one_token_one_side_and_what_was_said() {
        let token = Token::new(b"sixteen bytes it is").unwrap();
        let proof = token.prove(Side::Worker, &said());
        assert!(token.verify(Side::Worker, &said(), &proof));
        assert!(!token.verify(Side::Head, &said(), &proof), "reflected");
        let others = [
            Said { rank: 2, ..said() },
            Said { head: [5; 32], ..said() },
            Said { worker: [5; 32], ..said() },
        ];
        assert!(others.iter().all(|said| !token.verify(Side::Worker, said, &proof)), "replayed");
        let other = Token::new(b"sixteen bytes it was").unwrap();
        assert!(!other.verify(Side::Worker, &said(), &proof));
    }

    /// RFC 4231, test case 2, through the same function of the library.
    #[test]
    fn the_library_computes_hmac_sha256() {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let sum = mac.finalize().into_bytes();
        let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_tokens_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let read = |bytes: &[u8], mode| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert!(read(b"  sixteen bytes it is\n", 0o600).is_ok());
        assert!(read(b"sixteen bytes it is", 0o640).unwrap_err().contains("mode 0640"));
        assert!(read(b"short\n", 0o600).unwrap_err().contains("a token of 5 bytes"));
        assert!(read(&[b'x'; 5000], 0o600).unwrap_err().contains("longer than 4096"));
        std::fs::remove_file(&path).unwrap();
        assert!(Token::read(&path).unwrap_err().contains("token: No such file"));
    }
}
