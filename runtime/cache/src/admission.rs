//! How many blocks sequences need: arithmetic shared by the scheduler and the block tables.

/// Blocks that hold `tokens` tokens, in blocks of `block_tokens` (at least 1) tokens.
///
/// ```
/// use monomorph_cache::admission::blocks_for;
/// assert_eq!([blocks_for(0, 16), blocks_for(1, 16), blocks_for(16, 16), blocks_for(17, 16)], [0, 1, 1, 2]);
/// ```
pub fn blocks_for(tokens: usize, block_tokens: usize) -> usize {
    tokens.div_ceil(block_tokens.max(1))
}

/// Blocks that must be free to admit a sequence: those of the `tokens` to prefill and one to grow into, but
/// never more than it fills when it ends after `limit` tokens.
///
/// The extra block keeps a sequence from being admitted only to be pre-empted at its first answer token. The
/// cap keeps a sequence that needs the whole pool admissible.
pub fn admission_need(tokens: usize, limit: usize, block_tokens: usize) -> usize {
    (blocks_for(tokens, block_tokens) + 1).min(blocks_for(limit.max(tokens), block_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_is_prompt_plus_one_block_within_the_limit() {
        assert_eq!(admission_need(1, 100, 16), 2);
        assert_eq!(admission_need(16, 100, 16), 2);
        assert_eq!(admission_need(17, 100, 16), 3);
        assert_eq!(admission_need(96, 100, 16), 7, "the seventh block is the last it can fill");
        assert_eq!(admission_need(97, 100, 16), 7, "and there is no eighth");
        assert_eq!(admission_need(5, 8, 16), 1, "ends inside its first block");
        assert_eq!(admission_need(20, 3, 16), 2, "a limit below the prompt cannot lower the prompt's need");
    }
}
