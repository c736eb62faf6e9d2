//! The index beside a search of all that came before.
//!
//! Planted, one at a time, and caught by `drafts_are_those_of_a_search`: the first place kept in place of the
//! last; the shortest n-gram taken in place of the longest; an n-gram found where it stands itself; drafts
//! that end where the tokens do; of several tokens that come at once only the last indexed; equal hashes (of
//! one byte) taken for equal n-grams. Drafts without a rest are caught by
//! `drafts_that_never_hold_become_rare`.

use super::{LONGEST_REST, Lookup, LookupOptions};
use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_assert_eq, proptest};

/// What came after the longest n-gram at the end of `tokens` when it last came before.
fn search(tokens: &[u32], options: LookupOptions, drafts: usize) -> Vec<u32> {
    let end = tokens.len();
    for n in (options.least..=options.most.min(end)).rev() {
        let earlier = (n..end).rev().find(|&behind| tokens[behind - n..behind] == tokens[end - n..]);
        if let Some(behind) = earlier {
            return tokens[behind..].iter().copied().cycle().take(drafts).collect();
        }
    }
    Vec::new()
}

/// Tokens of few kinds, so that much comes again, in pieces as steps bring them.
fn pieces() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1u32..9).prop_flat_map(|kinds| vec(vec(0..kinds, 1..12), 1..30))
}

proptest! {
    #[test]
    fn drafts_are_those_of_a_search(pieces in pieces(), least in 1usize..5, more in 0usize..4, drafts in 1usize..8) {
        let options = LookupOptions { most: least + more, least };
        let mut lookup = Lookup::new(options, drafts);
        let mut tokens = Vec::new();
        for piece in pieces {
            tokens.extend(piece);
            lookup.learn(&tokens);
            prop_assert_eq!(lookup.draft(&tokens, false), search(&tokens, options, drafts));
        }
    }
}

#[test]
fn what_repeats_goes_on_repeating() {
    let mut lookup = Lookup::new(LookupOptions { most: 3, least: 2 }, 7);
    let tokens = [9, 1, 2, 3, 1, 2];
    lookup.learn(&tokens);
    assert_eq!(lookup.draft(&tokens, false), [3, 1, 2, 3, 1, 2, 3]);
    assert!(lookup.draft(&tokens, true).is_empty(), "the last token wanted needs no drafts behind it");
    // Two of one kind are no pair that came before, three are.
    let mut lookup = Lookup::new(LookupOptions::default(), 2);
    lookup.learn(&[5, 5]);
    assert!(lookup.draft(&[5, 5], false).is_empty());
    lookup.learn(&[5, 5, 5]);
    assert_eq!(lookup.draft(&[5, 5, 5], false), [5, 5]);
}

#[test]
fn drafts_that_never_hold_become_rare() {
    let mut lookup = Lookup::new(LookupOptions::default(), 1);
    let tokens = [1; 9];
    lookup.learn(&tokens);
    // Steps between two with drafts.
    let mut pause = |held: usize| {
        lookup.judge(held);
        (0..).find(|_| !lookup.draft(&tokens, false).is_empty()).expect("it rests for a while")
    };
    let most = LONGEST_REST as usize;
    assert_eq!([0; 7].map(&mut pause), [1, 3, 7, 15, most, most, most]);
    assert_eq!([1, 0, 0, 2, 0].map(pause), [0, 1, 3, 0, 1]);
}

#[test]
fn options_that_say_nothing_are_refused() {
    for (most, least, sound) in
        [(4, 2, true), (1, 1, true), (8, 8, true), (9, 2, false), (2, 3, false), (3, 0, false)]
    {
        let options = LookupOptions { most, least };
        assert_eq!(options.check().is_ok(), sound, "{options:?}");
    }
}
