//! Histories of rows that are sampled after drafts.

use crate::TokenUse;

/// `history` extended by the generated `ids`; each id still occurs once. Rows after drafts are sampled with
/// it: the step's history plus the drafts fed before the row.
///
/// Takes time proportional to `history.len() * ids.len()`; drafts are few.
///
/// ```
/// use monomorph_sampling::{TokenUse, with_generated};
/// let seen = |id, generated| TokenUse { id, generated };
/// assert_eq!(with_generated(&[seen(5, 0), seen(7, 2)], &[7, 9, 9]), [seen(5, 0), seen(7, 3), seen(9, 2)]);
/// ```
pub fn with_generated(history: &[TokenUse], ids: &[u32]) -> Vec<TokenUse> {
    let mut longer = Vec::with_capacity(history.len() + ids.len());
    longer.extend_from_slice(history);
    for &id in ids {
        match longer.iter_mut().find(|seen| seen.id == id) {
            Some(seen) => seen.generated += 1,
            None => longer.push(TokenUse { id, generated: 1 }),
        }
    }
    longer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The history of a prompt and an answer, counted from nothing for every token.
    fn from_scratch(prompt: &[u32], answer: &[u32]) -> Vec<TokenUse> {
        let mut ids: Vec<u32> = Vec::new();
        for &id in prompt.iter().chain(answer) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let uses = |&id: &u32| answer.iter().filter(|&&other| other == id).count() as u32;
        ids.iter().map(|id| TokenUse { id: *id, generated: uses(id) }).collect()
    }

    #[test]
    fn drafts_join_a_history_as_if_it_were_counted_from_scratch() {
        // Few ids, so that drafts occur in the prompt, in the answer, in both, in neither, and twice.
        let mut state = 0x9E37_79B9_u64;
        let mut some = |most: u64| -> Vec<u32> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 40
            };
            (0..next() % most).map(|_| (next() % 9) as u32).collect()
        };
        let mut drafted = 0;
        for _ in 0..2_000 {
            let (prompt, mut answer, drafts) = (some(12), some(12), some(4));
            let base = from_scratch(&prompt, &answer);
            for count in 0..=drafts.len() {
                let before = answer.len();
                answer.extend_from_slice(&drafts[..count]);
                assert_eq!(with_generated(&base, &drafts[..count]), from_scratch(&prompt, &answer));
                answer.truncate(before);
                drafted += count;
            }
        }
        assert!(drafted > 2_000);
    }
}
