//! The bytes of tokens.

/// How a vocabulary spells bytes in its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's: every byte is one printable character.
    ByteLevel,
    /// SentencePiece's: `▁` is a space, `<0x0A>` is a byte.
    SentencePiece,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No token has this id.
    #[default]
    Absent,
    /// Ordinary text.
    Normal,
    /// A control token: parsed only in texts that may contain them, and left out of text for readers.
    Special,
}

/// The bytes and kinds of all tokens, by id.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// The end of each token's bytes; they begin at the previous one's end.
    ends: Vec<usize>,
    kinds: Vec<Kind>,
}

impl Vocabulary {
    /// Adds the next id.
    pub(crate) fn push(&mut self, bytes: &[u8], kind: Kind) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let id = usize::try_from(id).ok()?;
        if *self.kinds.get(id)? == Kind::Absent {
            return None;
        }
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..self.ends[id]])
    }

    /// The kind of a token; [`Kind::Absent`] if no token has this id.
    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or_default()
    }
}

/// Converts spelled tokens to bytes.
#[derive(Debug)]
pub(crate) struct Speller {
    spelling: Spelling,
    /// The byte that each character below U+0144 represents.
    bytes: [Option<u8>; 0x144],
    /// The character of each byte.
    characters: [char; 256],
}

impl Speller {
    pub(crate) fn new(spelling: Spelling) -> Speller {
        let mut bytes = [None; 0x144];
        let mut characters = ['\0'; 256];
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            // GPT-2's table: printable Latin-1 characters represent themselves, the others follow from U+0100
            // on.
            let character = match byte {
                b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
                _ => {
                    next += 1;
                    char::from_u32(next - 1).unwrap_or_default()
                }
            };
            bytes[character as usize] = Some(byte);
            characters[usize::from(byte)] = character;
        }
        Speller { spelling, bytes, characters }
    }

    /// The byte-level spelling of a token's bytes.
    pub(crate) fn write(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|&byte| self.characters[usize::from(byte)]).collect()
    }

    /// The bytes of a token other than an added one.
    pub(crate) fn spell(&self, token: &str) -> Vec<u8> {
        match self.spelling {
            // As in the `tokenizers` library: one character outside the table makes the token plain text.
            Spelling::ByteLevel => token
                .chars()
                .map(|character| self.bytes.get(character as usize).copied().flatten())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::SentencePiece => {
                let byte = token
                    .strip_prefix("<0x")
                    .and_then(|rest| rest.strip_suffix('>'))
                    .filter(|digits| {
                        digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
                    })
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                match byte {
                    Some(byte) => vec![byte],
                    None => token.replace('\u{2581}', " ").into_bytes(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_covers_every_byte_once() {
        let speller = Speller::new(Spelling::ByteLevel);
        let mut found: Vec<u8> = speller.bytes.iter().flatten().copied().collect();
        found.sort_unstable();
        assert_eq!(found, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(speller.spell(&speller.write(&found)), found);
        assert_eq!(speller.spell("Ġhé"), b" h\xE9");
        assert_eq!(speller.spell("ĊĉÄł"), b"\n\t\xC4\xA0");
        assert_eq!(speller.spell("plain space"), b"plain space");
    }

    #[test]
    fn sentencepiece() {
        let speller = Speller::new(Spelling::SentencePiece);
        assert_eq!(speller.spell("▁the"), b" the");
        assert_eq!(speller.spell("<0xE2>"), [0xE2]);
        assert_eq!(speller.spell("<0xZZ>"), b"<0xZZ>");
        assert_eq!(speller.spell("<0x+F>"), b"<0x+F>");
    }
}
