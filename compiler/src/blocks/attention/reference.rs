//! The reference of attention, written as plainly as possible.

use super::graph::{Attention, KeepContext};
use crate::blocks::Computed;
use crate::reference::{Evaluation, Side};
use monomorph_formats::dot;

/// Keys and values of a sequence in one layer.
#[derive(Clone, Debug, Default)]
struct State {
    /// `[tokens, kv_heads * head_dim]`.
    keys: Vec<f32>,
    /// Same shape as the keys.
    values: Vec<f32>,
}

impl Computed for Attention {
    /// Takes q, k and v, one row per token.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [q, k, v] = [0, 1, 2].map(|input| it.input(input));
        let first = it.first_position();
        let (k, v) = (it.stored(Side::Keys, self.head_dim, k), it.stored(Side::Values, self.head_dim, v));
        let rows = q.len() / (self.heads * self.head_dim);
        let last = |row| if self.image_spans { it.image_end(row) } else { row };
        let last: Vec<usize> = (0..rows).map(|row| first + last(row)).collect();
        let State { keys, values } = it.state::<State>();
        keys.extend(k);
        values.extend(v);
        attend(self, q, keys, values, first, &last)
    }
}

impl Computed for KeepContext {
    /// Takes k, v and what is passed on, one row per token.
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [k, v, context] = [0, 1, 2].map(|input| it.input(input));
        let (k, v) = (it.stored(Side::Keys, self.head_dim, k), it.stored(Side::Values, self.head_dim, v));
        let State { keys, values } = it.state::<State>();
        keys.extend(k);
        values.extend(v);
        context.to_vec()
    }
}

/// `q` is `[tokens, heads * head_dim]`; `keys` and `values` hold `first_position + tokens` rows, of which a
/// token attends to those up to its `last`.
fn attend(
    op: &Attention,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    first_position: usize,
    last: &[usize],
) -> Vec<f32> {
    let Attention { heads, kv_heads, head_dim, scale, window, .. } = *op;
    let kv_width = kv_heads * head_dim;
    let mut out = Vec::with_capacity(q.len());
    for (i, q) in q.chunks_exact(head_dim).enumerate() {
        let (token, head) = (i / heads, i % heads);
        let kv_head = head * kv_heads / heads;
        let row = |cache: &'_ [f32], position: usize| -> std::ops::Range<usize> {
            let start = position * kv_width + kv_head * head_dim;
            debug_assert!(start + head_dim <= cache.len());
            start..start + head_dim
        };
        let own = first_position + token;
        let first = window.map_or(0, |window| (own + 1).saturating_sub(window));
        let scores: Vec<f64> =
            (first..=last[token]).map(|p| f64::from(scale) * dot(q, &keys[row(keys, p)])).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut mixed = vec![0.0f64; head_dim];
        for (position, weight) in (first..).zip(&weights) {
            for (sum, v) in mixed.iter_mut().zip(&values[row(values, position)]) {
                *sum += weight * f64::from(*v);
            }
        }
        out.extend(mixed.iter().map(|sum| (sum / total) as f32));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_formats::cached::{Cached, KvFormats};

    /// One head of one element.
    fn one_wide(window: Option<usize>, image_spans: bool) -> Attention {
        let kv = KvFormats::both(Cached::F32);
        let of_drafter = false;
        Attention { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window, image_spans, of_drafter, kv }
    }

    #[test]
    fn a_query_sees_nothing_after_itself() {
        let op = one_wide(None, false);
        assert_eq!(attend(&op, &[0.0, 0.0], &[1.0, 1.0], &[3.0, 5.0], 0, &[0, 1]), [3.0, 4.0]);
    }

    #[test]
    fn a_query_sees_itself_and_what_else_its_window_holds() {
        let op = one_wide(Some(2), false);
        let (keys, values) = ([1.0; 4], [1.0, 3.0, 5.0, 9.0]);
        assert_eq!(attend(&op, &[0.0; 4], &keys, &values, 0, &[0, 1, 2, 3]), [1.0, 2.0, 4.0, 7.0]);
        // The same, decoded.
        assert_eq!(attend(&op, &[0.0], &keys, &values, 3, &[3]), [7.0]);
    }

    #[test]
    fn an_image_sees_all_of_itself_and_of_what_is_before_only_its_window() {
        let op = one_wide(Some(2), true);
        let (keys, values) = ([1.0; 4], [1.0, 3.0, 5.0, 9.0]);
        // Tokens 1 to 3 are an image.
        assert_eq!(attend(&op, &[0.0; 4], &keys, &values, 0, &[0, 3, 3, 3]), [1.0, 4.5, 17.0 / 3.0, 7.0]);
    }
}
