//! Additions to the logits of single tokens: a request's own biases, and penalties on tokens that would
//! continue a repetition, by DRY's rule and by [compression](crate::lz).

use crate::lz::{Lz, MAX_LZ_WINDOW};
use crate::mask::TokenMask;
use crate::repeats::common_prefixes;
use std::cmp::Reverse;
use std::sync::Arc;

/// Most biases that a request may ask for.
pub const MAX_FIXED: usize = 1024;
/// Most biases of a row: those of the request, and the strongest penalties.
pub const MAX_BIASES: usize = 2 * MAX_FIXED;

// Each penalty fits beside the biases of a request.
const _: () = assert!(MAX_LZ_WINDOW <= MAX_FIXED && MAX_FIXED + MAX_LZ_WINDOW <= MAX_BIASES);

/// An addition to the logit of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBias {
    /// The token.
    pub id: u32,
    /// Added to the logit; must be finite.
    pub bias: f32,
}

/// The biases of a request. The default is none.
#[derive(Clone, Debug, Default)]
pub struct Biases {
    /// Independent of the tokens generated: each id once, at most [`MAX_FIXED`].
    pub fixed: Arc<[TokenBias]>,
    /// The penalty on repetition.
    pub dry: Option<Dry>,
    /// The penalty on what compresses.
    pub lz: Option<Lz>,
}

/// "Don't repeat yourself" (p-e-w, text-generation-webui pull request 5677): a token that would extend a
/// repetition of `length` tokens loses `multiplier * base^(length - allowed)` of its logit, if
/// `length >= allowed`.
///
/// A repetition of `length` exists if the last `length` tokens also occur earlier, followed by the token in
/// question. It contains no breaker.
#[derive(Clone, Debug)]
pub struct Dry {
    /// Above 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions shorter than this are free; at least 1.
    pub allowed: usize,
    /// Number of latest tokens to consider; `usize::MAX` for all.
    pub window: usize,
    /// Tokens that no repetition crosses.
    pub breakers: TokenMask,
}

/// Adds biases to a row's logits. Ids outside the row are ignored.
pub(crate) fn apply(logits: &mut [f32], biases: &[TokenBias]) {
    for bias in biases {
        if let Some(logit) = logits.get_mut(bias.id as usize) {
            *logit += bias.bias;
        }
    }
}

impl Biases {
    /// Whether nothing is ever added.
    pub fn is_none(&self) -> bool {
        self.fixed.is_empty() && !self.needs_tokens()
    }

    /// Whether the biases depend on the tokens so far.
    pub fn needs_tokens(&self) -> bool {
        self.dry.is_some() || self.lz.is_some()
    }

    /// The biases for the token after `tokens`: each id once, in order, at most [`MAX_BIASES`].
    pub fn after(&self, tokens: &[u32]) -> Arc<[TokenBias]> {
        let mut biases = match (&self.dry, &self.lz) {
            (None, None) => return Arc::clone(&self.fixed),
            (Some(dry), None) => dry.penalties(tokens),
            (None, Some(lz)) => of_losses(lz, tokens),
            (Some(dry), Some(lz)) => {
                let mut both = added_up([dry.penalties(tokens), of_losses(lz, tokens)].concat());
                strongest(&mut both);
                both
            }
        };
        biases.extend_from_slice(&self.fixed);
        added_up(biases).into()
    }
}

/// The penalties by compression.
fn of_losses(lz: &Lz, tokens: &[u32]) -> Vec<TokenBias> {
    lz.losses(tokens).into_iter().map(|(id, loss)| TokenBias { id, bias: -loss }).collect()
}

/// The biases by id, each once with its sum.
fn added_up(mut biases: Vec<TokenBias>) -> Vec<TokenBias> {
    biases.sort_by_key(|one| one.id);
    // Of two entries for one token, the first stays and takes the sum.
    biases.dedup_by(|second, first| {
        let same = first.id == second.id;
        first.bias += if same { second.bias } else { 0.0 };
        same
    });
    biases
}

/// Keeps the strongest penalties, at most [`MAX_FIXED`]: the strongest first, the smallest id among equals.
fn strongest(penalties: &mut Vec<TokenBias>) {
    penalties.sort_by(|a, b| a.bias.total_cmp(&b.bias).then(a.id.cmp(&b.id)));
    penalties.truncate(MAX_FIXED);
}

impl Dry {
    /// DRY's penalties for the token after `tokens`: the strongest first, the smallest id among equals, at
    /// most [`MAX_FIXED`].
    fn penalties(&self, tokens: &[u32]) -> Vec<TokenBias> {
        let tokens = &tokens[tokens.len() - self.window.min(tokens.len())..];
        // The last tokens, in reverse, back to the breaker.
        let reach = tokens.iter().rev().take_while(|id| !self.breakers.allows(**id)).count();
        if reach < self.allowed {
            return Vec::new();
        }
        let backwards: Vec<u32> = tokens.iter().rev().copied().collect();
        let mut longest: Vec<(u32, usize)> = Vec::new();
        for (at, length) in common_prefixes(&backwards).into_iter().enumerate().skip(1) {
            let length = length.min(reach);
            if length >= self.allowed {
                // The token that followed the repetition; a breaker ends the repetition there, too.
                let next = backwards[at - 1];
                if !self.breakers.allows(next) {
                    longest.push((next, length));
                }
            }
        }
        longest.sort_unstable_by_key(|&(id, length)| (id, Reverse(length)));
        longest.dedup_by_key(|(id, _)| *id);
        let loss = |length: usize| {
            let times = f64::from(self.base).powi(i32::try_from(length - self.allowed).unwrap_or(i32::MAX));
            // A penalty beyond any logit need not be infinite.
            (f64::from(self.multiplier) * times).min(1e30) as f32
        };
        let mut penalties: Vec<TokenBias> =
            longest.into_iter().map(|(id, length)| TokenBias { id, bias: -loss(length) }).collect();
        strongest(&mut penalties);
        penalties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry(allowed: usize, window: usize, breakers: &[u32]) -> Dry {
        let breakers = TokenMask::of(8, breakers.iter().copied());
        Dry { multiplier: 0.5, base: 2.0, allowed, window, breakers }
    }

    /// Without breakers, and over all tokens.
    fn dry_of_all(allowed: usize) -> Dry {
        dry(allowed, usize::MAX, &[])
    }

    /// Straight from the definition: for every token and every length, whether the end repeats something that
    /// the token followed.
    fn by_definition(dry: &Dry, tokens: &[u32], vocabulary: u32) -> Vec<(u32, f32)> {
        let tokens = &tokens[tokens.len() - dry.window.min(tokens.len())..];
        let losses = (0..vocabulary).filter(|id| !dry.breakers.allows(*id)).filter_map(|id| {
            let repeats = |length: &usize| {
                let end = &tokens[tokens.len() - length..];
                let again = [end, &[id]].concat();
                !end.iter().any(|id| dry.breakers.allows(*id))
                    && tokens.windows(length + 1).any(|part| part == again)
            };
            let longest = (dry.allowed..tokens.len()).filter(repeats).max()?;
            Some((id, -dry.multiplier * dry.base.powi((longest - dry.allowed) as i32)))
        });
        losses.collect()
    }

    #[test]
    fn what_repeats_loses_as_the_definition_has_it() {
        let mut state = 0x9E37_79B9_u64;
        let mut next = move |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let mut found = 0;
        for round in 0..3_000 {
            let vocabulary = 2 + next(4) as u32;
            let tokens: Vec<u32> = (0..next(24)).map(|_| next(u64::from(vocabulary)) as u32).collect();
            let window = if round % 3 == 0 { next(12) as usize } else { usize::MAX };
            let breakers: &[u32] = [&[][..], &[1], &[0, 3]][next(3) as usize];
            let dry = dry(1 + next(3) as usize, window, breakers);
            let biases = Biases { dry: Some(dry.clone()), ..Biases::default() };
            let made: Vec<(u32, f32)> = biases.after(&tokens).iter().map(|one| (one.id, one.bias)).collect();
            assert_eq!(made, by_definition(&dry, &tokens, vocabulary), "{dry:?} after {tokens:?}");
            found += made.len();
        }
        assert!(found > 1_000, "{found}");
    }

    #[test]
    fn biases_are_added_up() {
        let fixed: Arc<[TokenBias]> = [(1, 3.0), (5, -1.0)].map(|(id, bias)| TokenBias { id, bias }).into();
        let alone = Biases { fixed: Arc::clone(&fixed), ..Biases::default() };
        assert_eq!(&*alone.after(&[1, 2, 1, 2]), &*fixed);
        assert!(!alone.needs_tokens() && !alone.is_none() && Biases::default().is_none());
        // 1 2 is repeated, followed by 1: at length 2 it loses multiplier * base^0.
        let both = Biases { fixed, dry: Some(dry(2, usize::MAX, &[])), lz: None };
        let made: Vec<_> = both.after(&[1, 2, 1, 2]).iter().map(|one| (one.id, one.bias)).collect();
        assert_eq!(made, [(1, 2.5), (5, -1.0)]);
        assert!(both.needs_tokens() && !both.is_none());
        let mut logits = [0.0; 3];
        apply(&mut logits, &both.after(&[1, 2, 1, 2]));
        assert_eq!(logits, [0.0, 2.5, 0.0]);
        // Two penalties on one token, and its own bias, are one bias.
        let lz = Lz { strength: 1.0, window: 4, vocabulary: 8 };
        let three = Biases { lz: Some(lz.clone()), ..both.clone() };
        let of = |id: u32, biases: &[TokenBias]| biases.iter().find(|one| one.id == id).map(|one| one.bias);
        let (sum, dry) = (three.after(&[1, 2, 1, 2]), both.after(&[1, 2, 1, 2]));
        let alone = of_losses(&lz, &[1, 2, 1, 2]);
        for id in [1, 2, 5] {
            let parts = of(id, &dry).unwrap_or(0.0) + of(id, &alone).unwrap_or(0.0);
            assert!(of(id, &sum).is_some_and(|sum| (sum - parts).abs() < 1e-5), "{id}");
        }
        assert!(of(1, &alone) < Some(0.0) && three.needs_tokens());
        let many: Vec<u32> = (0..4 * MAX_FIXED as u32).map(|at| at / 2).collect();
        let window = usize::MAX;
        let many = Biases { lz: Some(Lz { window, vocabulary: 1 << 20, ..lz }), ..three }.after(&many);
        assert!(many.len() <= MAX_BIASES && many.is_sorted_by_key(|one| one.id));
        // 0 came before each of 1,100 tokens, and 1 0 before the last 60 of them: these lose most, and all
        // the others alike, so the smallest ids are kept.
        let after_zero = (2..1_042).flat_map(|id| [0, id]);
        let tokens: Vec<u32> =
            after_zero.chain((1_042..1_102).flat_map(|id| [1, 0, id])).chain([1, 0]).collect();
        let few: Vec<u32> = Biases { fixed: Arc::default(), dry: Some(dry_of_all(1)), lz: None }
            .after(&tokens)
            .iter()
            .map(|one| one.id)
            .collect();
        let expected: Vec<u32> = (2..2 + MAX_FIXED as u32 - 60).chain(1_042..1_102).collect();
        assert_eq!(few, expected);
        // The penalty is finite for any repetition.
        let long = [7; 2_000];
        let bias = both.after(&long).iter().find(|one| one.id == 7).unwrap().bias;
        assert!(bias.is_finite() && bias < -1e29, "{bias}");
    }
}
