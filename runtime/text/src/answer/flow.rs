//! What every reader of calls answers for a character.

/// Most bytes in the name of a tool or a key; longer names are malformed.
pub(crate) const LONGEST_NAME: usize = 256;

/// The result of reading a character or tag.
pub(crate) enum Flow {
    /// It was consumed.
    Stay,
    /// It was consumed, and the block is over.
    Leave,
    /// The block was over before this character.
    Again(char),
    /// There was no block: the consumed text is plain text, and so is this character.
    Text(char),
}
