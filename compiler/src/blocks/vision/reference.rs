//! The reference of towers, written as plainly as possible.

use super::graph::{
    AddImageRows, ImageRows, LayerNorm, MergePatches, Merged, PatchAxis, PatchPositions, PatchRotary,
    PositionTable, SegmentAttention, Standardise,
};
use crate::blocks::Computed;
use crate::reference::Evaluation;
use monomorph_formats::dot;

impl Computed for LayerNorm {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (weight, bias) = (it.weight(self.weight), it.weight(self.bias));
        let norm = |row: &[f32]| {
            let count = row.len() as f64;
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
            let inverse = 1.0 / (variance + f64::from(self.eps)).sqrt();
            let one = |((x, w), b): ((&f32, &f32), &f32)| {
                ((f64::from(*x) - mean) * inverse * f64::from(*w) + f64::from(*b)) as f32
            };
            row.iter().zip(weight).zip(bias).map(one).collect::<Vec<_>>()
        };
        it.input(0).chunks_exact(weight.len()).flat_map(norm).collect()
    }
}

impl Computed for PatchPositions {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (table, width) = (it.weight(self.table), it.out_width());
        let entry = |at: usize| &table[at * width..][..width];
        let mut out = it.input(0).to_vec();
        for (row, patch) in out.chunks_exact_mut(width).zip(it.patches()) {
            let parts: Vec<(usize, f64)> = match self.form {
                PositionTable::Axes { entries } => vec![(patch.column, 1.0), (entries + patch.row, 1.0)],
                PositionTable::Square { side } => {
                    let place = |at: usize, of: usize| (at * (side - 1)) as f64 / (of - 1).max(1) as f64;
                    let between = |place: f64| {
                        let (low, part) = (place.floor() as usize, place.fract());
                        [(low, 1.0 - part), ((low + 1).min(side - 1), part)]
                    };
                    let rows = between(place(patch.row, patch.rows));
                    let columns = between(place(patch.column, patch.columns));
                    let four =
                        rows.into_iter().flat_map(|(r, y)| columns.map(|(c, x)| (r * side + c, x * y)));
                    four.collect()
                }
            };
            for (at, x) in row.iter_mut().enumerate() {
                let sum: f64 = parts.iter().map(|(of, part)| part * f64::from(entry(*of)[at])).sum();
                *x += sum as f32;
            }
        }
        out
    }
}

impl Computed for PatchRotary {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let mut out = it.input(0).to_vec();
        for (row, patch) in out.chunks_exact_mut(self.heads * self.head_dim).zip(it.patches()) {
            for head in row.chunks_exact_mut(self.head_dim) {
                for turn in &self.turns {
                    let position = match turn.axis {
                        PatchAxis::Row => patch.row,
                        PatchAxis::Column => patch.column,
                    };
                    let (sin, cos) = (position as f32 * turn.inverse).sin_cos();
                    let [a, b] = turn.pair;
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        }
        out
    }
}

impl Computed for SegmentAttention {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let [q, k, v] = [0, 1, 2].map(|input| it.input(input));
        let patches = it.patches();
        let (heads, dim) = (self.heads, self.head_dim);
        let of = |rows: &'_ [f32], row: usize, head: usize| -> Vec<f32> {
            rows[(row * heads + head) * dim..][..dim].to_vec()
        };
        let mut out = Vec::with_capacity(q.len());
        for (row, patch) in patches.iter().enumerate() {
            let seen: Vec<usize> =
                (0..patches.len()).filter(|other| patches[*other].segment == patch.segment).collect();
            for head in 0..heads {
                let query = of(q, row, head);
                let score = |other: &usize| f64::from(self.scale) * dot(&query, &of(k, *other, head));
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut mixed = vec![0.0f64; dim];
                for (other, weight) in seen.iter().zip(&weights) {
                    for (sum, value) in mixed.iter_mut().zip(of(v, *other, head)) {
                        *sum += weight * f64::from(value);
                    }
                }
                out.extend(mixed.iter().map(|sum| (sum / total) as f32));
            }
        }
        out
    }
}

impl Computed for MergePatches {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (merged, width) = (self.merged, it.width(0));
        let merge = |rows: &[f32]| -> Vec<f32> {
            let channel = |channel: usize| (0..merged).map(move |patch| rows[patch * width + channel]);
            match self.form {
                Merged::SideBySide => rows.to_vec(),
                Merged::ByChannel => (0..width).flat_map(channel).collect(),
                Merged::Mean => {
                    let mean = |at| channel(at).map(f64::from).sum::<f64>() / merged as f64;
                    (0..width).map(|at| mean(at) as f32).collect()
                }
            }
        };
        it.input(0).chunks_exact(merged * width).flat_map(merge).collect()
    }
}

impl Computed for Standardise {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let both = || it.weight(self.bias).iter().zip(it.weight(self.scale)).cycle();
        it.input(0).iter().zip(both()).map(|(x, (bias, scale))| (x - bias) * scale).collect()
    }
}

impl Computed for ImageRows {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (mut out, width) = (it.input(0).to_vec(), it.out_width());
        for (token, row) in out.chunks_exact_mut(width).enumerate() {
            if let Some(image) = it.image_row(token, None) {
                row.copy_from_slice(image);
            }
        }
        out
    }
}

impl Computed for AddImageRows {
    fn run(&self, it: &mut Evaluation) -> Vec<f32> {
        let (mut out, width) = (it.input(0).to_vec(), it.out_width());
        for (token, row) in out.chunks_exact_mut(width).enumerate() {
            let image = it.image_row(token, Some(self.tap)).unwrap_or_default();
            row.iter_mut().zip(image).for_each(|(x, image)| *x += image);
        }
        out
    }
}
