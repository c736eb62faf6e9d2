//! A small vocabulary, and answers drawn at random from what is allowed.

use monomorph_grammar::{Constraint, Grammars, Source, Token};
use monomorph_sampling::TokenMask;
use std::sync::OnceLock;

/// What ends an answer; the vocabulary spells it as if it were text.
pub const END: u32 = 256;
/// Another that does.
pub const OTHER_END: u32 = 257;
/// `<tool>`, a control token.
pub const TOOL: u32 = 258;
/// `</think>`, one token that is text.
pub const CLOSED: u32 = 259;
/// `<think>`.
pub const OPENED: u32 = 260;
/// The first that several bytes have.
const WORDS: [&str; 26] = [
    "{\"", "\":", "\": ", "\",", "\", \"", "\"}", " \"", "true", "false", "null", "12", "00", "},", "[{",
    "}]", "\n\n", "  ", "name", "ab", "the", " of", "</", "think", ">{", "k>\n", "\\u",
];
/// The last id, which stands for the same as `ab`.
pub const DOUBLE: u32 = 261 + WORDS.len() as u32;
/// Ids there are; the last is no token.
pub const VOCABULARY: usize = DOUBLE as usize + 2;

/// The bytes of a token.
pub fn bytes(id: u32) -> Vec<u8> {
    match id {
        0..256 => vec![id as u8],
        END => b"<|end|>".to_vec(),
        OTHER_END => b"<|over|>".to_vec(),
        TOOL => b"<tool>".to_vec(),
        CLOSED => b"</think>".to_vec(),
        OPENED => b"<think>".to_vec(),
        DOUBLE => b"ab".to_vec(),
        _ => WORDS.get(id as usize - 261).copied().unwrap_or_default().into(),
    }
}

/// The id of a word.
pub fn word(word: &str) -> u32 {
    261 + WORDS.iter().position(|one| *one == word).expect("a word of the vocabulary") as u32
}

/// The grammars of the vocabulary.
pub fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    static BYTES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let all = BYTES.get_or_init(|| (0..VOCABULARY as u32).map(bytes).collect());
        let token = |id: u32| {
            let special = id == TOOL;
            Some(Token { bytes: &all[id as usize], special }).filter(|token| !token.bytes.is_empty())
        };
        Grammars::new(VOCABULARY, token, &[END, OTHER_END]).expect("a vocabulary")
    })
}

/// The constraint of a source.
pub fn compiled(source: &Source) -> Constraint {
    grammars().compile(source).unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

/// What may come next.
pub fn next(constraint: &mut Constraint) -> TokenMask {
    let mut masks = Vec::new();
    constraint.masks(&[], &mut masks).expect("something may come");
    assert_eq!(masks.len(), 1);
    masks.remove(0)
}

/// The ids that a mask allows.
pub fn ids(mask: &TokenMask) -> Vec<u32> {
    let beyond = VOCABULARY as u32..VOCABULARY as u32 + 64;
    assert!(beyond.into_iter().all(|id| !mask.allows(id)), "an id that there is not");
    (0..VOCABULARY as u32).filter(|id| mask.allows(*id)).collect()
}

/// Whether a text is one that can be answered, byte by byte.
pub fn accepts(source: &Source, text: &str) -> bool {
    let mut constraint = compiled(source);
    for byte in text.bytes() {
        if !next(&mut constraint).allows(byte.into()) {
            return false;
        }
        constraint.take(byte.into()).expect("allowed");
    }
    next(&mut constraint).allows(END)
}

/// xorshift64 (Marsaglia 2003): the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as usize % bound
    }
}

/// An answer of allowed tokens, drawn at random, ends likelier than others; the tokens, without the end.
pub fn draw(constraint: &mut Constraint, random: &mut Random) -> Vec<u32> {
    let mut answer = Vec::new();
    loop {
        let allowed = ids(&next(constraint));
        let ends = allowed.contains(&END);
        assert_eq!(ends, allowed.contains(&OTHER_END), "one end is as good as another");
        if ends && (random.below(2) == 0 || allowed.len() == 2) {
            return answer;
        }
        let id = allowed[random.below(allowed.len())];
        if id == END || id == OTHER_END {
            continue;
        }
        constraint.take(id).expect("allowed");
        answer.push(id);
        assert!(answer.len() < 20_000, "no end of {} tokens", answer.len());
    }
}

/// The text of tokens.
pub fn text(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| bytes(*id)).collect();
    String::from_utf8(bytes).expect("an answer is text")
}
