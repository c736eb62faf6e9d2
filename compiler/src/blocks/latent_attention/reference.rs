//! The reference of attention over latents, written as plainly as possible: keys and values of all heads are
//! made of what the cache has.

use super::graph::{LatentAttention, Shape};
use super::spec::QueryScale;
use crate::blocks::Computed;
use crate::reference::ops::linear;
use crate::reference::{Evaluation, Side};
use monomorph_formats::cached::{Codec, stored};
use monomorph_formats::dot;

/// What is made of the latents of a sequence in one layer, and their rotated keys.
#[derive(Clone, Debug, Default)]
struct State {
    /// `[tokens, heads * (key_dim + value_dim)]`: each head's key, then its value.
    made: Vec<f32>,
    /// `[tokens, rotated]`.
    rotated: Vec<f32>,
}

impl Computed for LatentAttention {
    /// Takes queries, their rotated parts, latents and rotated keys, one row per token.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [q, q_rotated, latent, k_rotated] = [0, 1, 2, 3].map(|input| it.input(input));
        let first = it.first_position();
        let ((weight, _), values) = (it.experts(self.made), it.weight(self.made));
        let of_latents = linear(&it.stored(Side::Keys, self.shape.latent, latent), weight, values, None);
        let keys = stored(Codec::unscaled(self.rotated_format()), self.shape.rotated, k_rotated);
        let State { made, rotated } = it.state::<State>();
        made.extend(of_latents);
        rotated.extend(keys);
        attend(self, (q, q_rotated), (made, rotated), first)
    }
}

/// What multiplies a query at a position.
fn growth(scale: Option<QueryScale>, position: usize) -> f64 {
    scale.map_or(1.0, |QueryScale { growth, original }| {
        1.0 + f64::from(growth) * ((position / original) as f64).ln_1p()
    })
}

/// Queries and their rotated parts are `[tokens, heads * …]`; what is made and the rotated keys hold
/// `first_position + tokens` rows.
fn attend(
    op: &LatentAttention,
    (q, q_rotated): (&[f32], &[f32]),
    (made, rotated): (&[f32], &[f32]),
    first_position: usize,
) -> Vec<f32> {
    let Shape { heads, key_dim, rotated: turned, value_dim, .. } = op.shape;
    let mut out = Vec::new();
    for (i, (q, q_rotated)) in q.chunks_exact(key_dim).zip(q_rotated.chunks_exact(turned)).enumerate() {
        let (own, head) = (first_position + i / heads, i % heads);
        let of_head = |position: usize| {
            let row = &made[position * op.shape.made()..][..op.shape.made()];
            row[head * (key_dim + value_dim)..][..key_dim + value_dim].split_at(key_dim)
        };
        let scale = f64::from(op.scale) * growth(op.query_scale, own);
        let score = |position: usize| {
            let shared = &rotated[position * turned..][..turned];
            scale * (dot(q, of_head(position).0) + dot(q_rotated, shared))
        };
        let scores: Vec<f64> = (0..=own).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut mixed = vec![0.0f64; value_dim];
        for (position, weight) in weights.iter().enumerate() {
            for (sum, value) in mixed.iter_mut().zip(of_head(position).1) {
                *sum += weight * f64::from(*value);
            }
        }
        out.extend(mixed.iter().map(|sum| (sum / total) as f32));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::WeightId;
    use monomorph_formats::cached::Cached;

    const SHAPE: Shape = Shape { heads: 3, key_dim: 5, rotated: 4, value_dim: 7, latent: 6 };

    fn op(query_scale: Option<QueryScale>) -> LatentAttention {
        LatentAttention { made: WeightId(0), shape: SHAPE, scale: 0.3, query_scale, format: Cached::F32 }
    }

    /// Numbers of -1 to 1 that follow from a seed.
    fn random(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// The same by the other way round: keys multiplied into queries, values into sums of latents.
    fn absorbed(
        op: &LatentAttention,
        q: (&[f32], &[f32]),
        latents: &[f32],
        rotated: &[f32],
        matrix: &[f32],
    ) -> Vec<f64> {
        let Shape { heads, key_dim, rotated: turned, value_dim, latent } = op.shape;
        let mut out = Vec::new();
        for (i, (q, q_rotated)) in q.0.chunks_exact(key_dim).zip(q.1.chunks_exact(turned)).enumerate() {
            let (own, head) = (i / heads, i % heads);
            let of_head = &matrix[head * (key_dim + value_dim) * latent..][..(key_dim + value_dim) * latent];
            let (keys, values) = of_head.split_at(key_dim * latent);
            let mut over_latents = vec![0.0f64; latent];
            for (q, row) in q.iter().zip(keys.chunks_exact(latent)) {
                over_latents.iter_mut().zip(row).for_each(|(sum, k)| *sum += f64::from(*q) * f64::from(*k));
            }
            let scale = f64::from(op.scale) * growth(op.query_scale, own);
            let score = |position: usize| {
                let c = &latents[position * latent..][..latent];
                let by_latent: f64 = over_latents.iter().zip(c).map(|(q, c)| q * f64::from(*c)).sum();
                (scale * (by_latent + dot(q_rotated, &rotated[position * turned..][..turned]))).exp()
            };
            let weights: Vec<f64> = (0..=own).map(score).collect();
            let total: f64 = weights.iter().sum();
            let mut context = vec![0.0f64; latent];
            for (position, weight) in weights.iter().enumerate() {
                let c = &latents[position * latent..][..latent];
                context.iter_mut().zip(c).for_each(|(sum, c)| *sum += weight / total * f64::from(*c));
            }
            let value = |row: &[f32]| row.iter().zip(&context).map(|(v, c)| f64::from(*v) * c).sum::<f64>();
            out.extend(values.chunks_exact(latent).map(value));
        }
        out
    }

    #[test]
    fn keys_and_values_that_are_made_give_what_absorbed_ones_give() {
        let tokens = 9;
        let Shape { heads, key_dim, rotated, latent, .. } = SHAPE;
        let (q, turned) = (random(1, tokens * heads * key_dim), random(2, tokens * heads * rotated));
        let (latents, keys) = (random(3, tokens * latent), random(4, tokens * rotated));
        let matrix = random(5, SHAPE.made() * latent);
        let made: Vec<f32> = latents
            .chunks_exact(latent)
            .flat_map(|c| matrix.chunks_exact(latent).map(|row| dot(c, row) as f32))
            .collect();
        for query_scale in [None, Some(QueryScale { growth: 0.5, original: 3 })] {
            let op = op(query_scale);
            let found = attend(&op, (&q, &turned), (&made, &keys), 0);
            let expected = absorbed(&op, (&q, &turned), &latents, &keys, &matrix);
            assert_eq!(found.len(), expected.len());
            for (a, b) in found.iter().zip(&expected) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{a} {b}");
            }
            // The last token alone, behind the others.
            let last = (&q[q.len() - heads * key_dim..], &turned[turned.len() - heads * rotated..]);
            let decoded = attend(&op, last, (&made, &keys), tokens - 1);
            assert_eq!(decoded, found[found.len() - decoded.len()..]);
        }
    }

    #[test]
    fn queries_grow_from_the_end_of_the_original_context_on() {
        let scale = Some(QueryScale { growth: 0.1, original: 8 });
        assert_eq!([0, 7].map(|position| growth(scale, position)), [1.0, 1.0]);
        let grown = 1.0 + f64::from(0.1f32) * 2f64.ln();
        assert_eq!([8, 15].map(|position| growth(scale, position)), [grown; 2]);
        assert_eq!(growth(None, 1000), 1.0);
    }
}
