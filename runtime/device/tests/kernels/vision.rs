//! The phases of towers against their definitions in f64: odd widths, one block, long and wide images,
//! frames, more patches than a segment of keys has, and any number of lanes.

use crate::common::{Owned, Random, Rounds, close, product, progress};
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::Grid;
use std::path::Path;

/// Images: one block, a tall and a wide one, a video of two frames, and one of more patches than a query's
/// keys are taken at a time and than queries share keys.
const GRIDS: [Grid; 5] = [
    Grid { frames: 1, rows: 2, columns: 2 },
    Grid { frames: 1, rows: 12, columns: 2 },
    Grid { frames: 1, rows: 2, columns: 6 },
    Grid { frames: 2, rows: 4, columns: 6 },
    Grid { frames: 1, rows: 14, columns: 22 },
];

/// Patches of a side of a block, and of a block.
const MERGE: usize = 2;
const MERGED: usize = 4;

fn patches(grid: Grid) -> Patches {
    let mut patches = Patches::new(MERGE, 400);
    patches.fill(grid);
    patches
}

/// The places of a grid's patches in merge order, by arithmetic on their indices.
fn places(grid: Grid) -> Vec<[usize; 2]> {
    let across = grid.columns / MERGE;
    let place = |at: usize| {
        let (block, within) = (at / MERGED % (grid.rows / MERGE * across), at % MERGED);
        [block / across * MERGE + within / MERGE, block % across * MERGE + within % MERGE]
    };
    (0..grid.patches()).map(place).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn vector<const N: usize>(of: &Owned) -> Vector<N> {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("test"), &progress);
    Vector::load(&loader, &[Part::new(of.tensor())]).unwrap()
}

fn matrix<F: WeightFormat, const ROWS: usize, const N: usize>(of: &Owned) -> Matrix<F, ROWS, N> {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("test"), &progress);
    Matrix::load(&loader, &[Part::new(of.tensor())]).unwrap()
}

fn layer_normed(x: &[f32], weight: &[f32], bias: &[f32], eps: f64) -> Vec<f64> {
    let x = wide(x);
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let unit = x.iter().map(|x| (x - mean) / (variance + eps).sqrt());
    unit.zip(wide(weight)).zip(wide(bias)).map(|((x, w), b)| x * w + b).collect()
}

/// Rows far from zero: squares of the numbers themselves would leave no digit of the variance. Planted: a
/// variance that counts the padding of a row.
#[test]
fn layer_norms_are_those_of_their_definition_alone_and_before_products() {
    fn check<const N: usize, const ROWS: usize>() {
        let mut random = Random(N as u64);
        let [weight, bias] =
            ["weight", "bias"].map(|name| Owned::random(&mut random, name, &[N], Format::F32));
        let weights = Owned::random(&mut random, "matrix", &[ROWS, N], Format::Bf16);
        let (w, b): (Vector<N>, Vector<N>) = (vector(&weight), vector(&bias));
        let matrix = matrix::<InF16<Bf16>, ROWS, N>(&weights);
        let norm = LayerNorm(&w, &b, 1e-6);
        let rows = 5;
        let mut x = Rows::<N>::new(rows);
        random.fill(&mut x, rows, 1.0);
        for row in 1..rows {
            let by = 10f32.powi(row as i32 - 2);
            x.row_mut(row).iter_mut().for_each(|x| *x = *x * by + 100.0 * by);
        }
        let before: Vec<[f32; N]> = (0..rows).map(|row| *x.row(row)).collect();
        let team = Team::new(2).unwrap();
        let (staging, mut out) = (Staging::<InF16<Bf16>, N>::new(2, rows), Rows::<ROWS>::new(rows));
        team.run(|lane| {
            norm_linear(lane, rows, &x, &norm, &staging, &matrix, Store(&out));
            norm_in_place(lane, rows, &norm, &x);
        });
        for (row, before) in before.iter().enumerate() {
            let expected = layer_normed(before, &weight.values(), &bias.values(), 1e-6);
            // The mean is a hundred times the deviation.
            close(x.row(row), &expected, 2e-5, "a normed row");
            let normed: Vec<f32> = expected.iter().map(|x| *x as f32).collect();
            let products = product(&weights, Rounds::ToF16, &normed);
            close(out.row(row), &products, 1e-3, "a product of it");
        }
    }
    check::<144, 40>();
    check::<21, 7>();
}

/// Planted: a place's part of the patches of a side, not of those but one; rows and columns exchanged.
#[test]
fn tables_of_positions_are_read_by_the_places_of_patches() {
    fn check<F: WeightFormat, const N: usize>() {
        const SIDE: usize = 5;
        const SQUARE: usize = SIDE * SIDE;
        const ENTRIES: usize = 23;
        let mut random = Random(N as u64);
        let square = Owned::random(&mut random, "square", &[SQUARE, N], F::FORMAT);
        let axes = Owned::random(&mut random, "axes", &[2 * ENTRIES, N], F::FORMAT);
        let of_square = matrix::<F, SQUARE, N>(&square);
        let of_axes = matrix::<F, { 2 * ENTRIES }, N>(&axes);
        let team = Team::new(3).unwrap();
        for grid in GRIDS {
            let (patches, count) = (patches(grid), grid.patches());
            let (mut a, mut b) = (Rows::<N>::new(count), Rows::<N>::new(count));
            random.fill(&mut a, count, 1.0);
            (0..count).for_each(|row| *b.row_mut(row) = *a.row(row));
            let before: Vec<Vec<f64>> = (0..count).map(|row| wide(a.row(row))).collect();
            team.run(|lane| {
                patch_square::<F, SIDE, SQUARE, N>(lane, &patches, &of_square, &a);
                patch_axes::<F, ENTRIES, { 2 * ENTRIES }, N>(lane, &patches, &of_axes, &b);
            });
            let (square, axes) = (wide(&square.values()), wide(&axes.values()));
            for (patch, [row, column]) in places(grid).into_iter().enumerate() {
                let place = |at: usize, of: usize| at as f64 * (SIDE - 1) as f64 / (of.max(2) - 1) as f64;
                let (y, x) = (place(row, grid.rows), place(column, grid.columns));
                // A tent over each entry.
                let expected = (0..N).map(|d| {
                    let entries = (0..SQUARE).map(|at| {
                        let apart = [(at / SIDE) as f64 - y, (at % SIDE) as f64 - x];
                        let weight: f64 = apart.iter().map(|apart| (1.0 - apart.abs()).max(0.0)).product();
                        weight * square[at * N + d]
                    });
                    before[patch][d] + entries.sum::<f64>()
                });
                close(a.row(patch), &expected.collect::<Vec<_>>(), 1e-6, "between four entries");
                let entry = |at: usize, d: usize| axes[at * N + d];
                let expected = (0..N).map(|d| before[patch][d] + entry(column, d) + entry(ENTRIES + row, d));
                close(b.row(patch), &expected.collect::<Vec<_>>(), 1e-6, "of two axes");
            }
        }
    }
    check::<Bf16, 144>();
    check::<F32, 20>();
}

/// A norm of heads, and its definition.
trait Norms<const N: usize>: HeadNorm<N> {
    fn expected(&self, head: &[f64]) -> Vec<f64>;
}

impl<const N: usize> Norms<N> for NoNorm {
    fn expected(&self, head: &[f64]) -> Vec<f64> {
        head.to_vec()
    }
}

impl<const N: usize> Norms<N> for BareNorm {
    fn expected(&self, head: &[f64]) -> Vec<f64> {
        let square = head.iter().map(|x| x * x).sum::<f64>() / N as f64;
        head.iter().map(|x| x / (square + f64::from(self.0)).sqrt()).collect()
    }
}

/// Halves of a head by rows and by columns, in the pairs of all families.
fn turns<const PAIRS: usize>(adjacent: bool) -> [PatchTurn; PAIRS] {
    std::array::from_fn(|at| {
        let pair = if adjacent { [2 * at, 2 * at + 1] } else { [at, at + PAIRS] };
        let by = 0.7f32.powi((at % 5) as i32);
        PatchTurn { pair, by: if 2 * at < PAIRS { [by, 0.0] } else { [0.0, by] } }
    })
}

fn attend<
    Q,
    V,
    const HEADS: usize,
    const DIM: usize,
    const PAIRS: usize,
    const QKV: usize,
    const OUT: usize,
>(
    q_norm: &Q,
    v_norm: &V,
    scale: f32,
    adjacent: bool,
) where
    Q: Norms<DIM>,
    V: Norms<DIM>,
{
    let turns = turns::<PAIRS>(adjacent);
    let mut random = Random(DIM as u64);
    for grid in GRIDS {
        let (patches, count) = (patches(grid), grid.patches());
        let given: Vec<Vec<f32>> = (0..count).map(|_| random.vector(QKV, 1.0)).collect();
        let mut all: Vec<Vec<f32>> = Vec::new();
        for lanes in [1, 3] {
            let team = Team::new(lanes).unwrap();
            let (mut qkv, mut out) = (Rows::<QKV>::new(count), Rows::<OUT>::new(count));
            given.iter().enumerate().for_each(|(row, x)| qkv.row_mut(row).copy_from_slice(x));
            let scratch = PatchAttentionScratch::<DIM>::new(lanes);
            team.run(|lane| {
                segment_attention(
                    lane, &patches, &qkv, q_norm, q_norm, v_norm, &turns, scale, &scratch, &out,
                );
            });
            all.push((0..count).flat_map(|row| *out.row(row)).collect());
        }
        assert!(all[0] == all[1], "lanes change nothing");

        let places = places(grid);
        let head =
            |patch: usize, part: usize, head: usize| wide(&given[patch][part * OUT + head * DIM..][..DIM]);
        let turned = |patch: usize, mut x: Vec<f64>| {
            for PatchTurn { pair: [a, b], by } in turns {
                let [row, column] = places[patch].map(|axis| axis as f32);
                let (sin, cos) = f64::from(row * by[0] + column * by[1]).sin_cos();
                (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin);
            }
            x
        };
        let segment = grid.rows * grid.columns;
        for at in 0..HEADS {
            let key = |patch| turned(patch, q_norm.expected(&head(patch, 1, at)));
            let keys: Vec<Vec<f64>> = (0..count).map(key).collect();
            let values: Vec<Vec<f64>> =
                (0..count).map(|patch| v_norm.expected(&head(patch, 2, at))).collect();
            for patch in 0..count {
                let query = turned(patch, q_norm.expected(&head(patch, 0, at)));
                let seen = patch / segment * segment..(patch / segment + 1) * segment;
                let score = |key: &Vec<f64>| {
                    f64::from(scale) * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
                };
                let weights: Vec<f64> = keys[seen.clone()].iter().map(|key| score(key).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut expected = vec![0.0; DIM];
                for (weight, value) in weights.iter().zip(&values[seen]) {
                    expected.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight / total * x);
                }
                let found = &all[0][patch * OUT + at * DIM..][..DIM];
                close(found, &expected, 2e-6, &format!("head {at} of patch {patch} of {grid:?}"));
            }
        }
    }
}

/// Planted: keys of the first frame for all; the last keys of an image left out where they are no whole
/// vector; queries that turn and keys that do not.
#[test]
fn patches_attend_to_all_of_their_segment_and_to_nothing_else() {
    attend::<_, _, 2, 72, 36, 432, 144>(&NoNorm, &NoNorm, 0.12, false);
    attend::<_, _, 3, 20, 10, 180, 60>(&BareNorm(1e-6), &BareNorm(1e-6), 0.5, true);
}

/// Planted: patches of a block taken from the whole image's first rows; a mean over one patch too few.
#[test]
fn blocks_are_merged_side_by_side_by_channel_and_by_their_mean() {
    fn check<const N: usize, const WIDE: usize>() {
        let mut random = Random(N as u64);
        let [weight, bias, shift, scale] = ["weight", "bias", "shift", "scale"]
            .map(|name| Owned::random(&mut random, name, &[N], Format::F32));
        let (w, b): (Vector<N>, Vector<N>) = (vector(&weight), vector(&bias));
        let (by, times): (Vector<N>, Vector<N>) = (vector(&shift), vector(&scale));
        let norm = LayerNorm(&w, &b, 1e-6);
        for grid in GRIDS {
            let (patches, count, tokens) = (patches(grid), grid.patches(), grid.patches() / MERGED);
            let mut x = Rows::<N>::new(count);
            random.fill(&mut x, count, 1.0);
            let mut wides = [(); 3].map(|()| Rows::<WIDE>::new(tokens));
            let mut narrow = [(); 2].map(|()| Rows::<N>::new(tokens));
            let mut kept = Rows::<N>::new(tokens + 3);
            let team = Team::new(2).unwrap();
            team.run(|lane| {
                merge_patches(lane, &patches, &x, &norm, &wides[0]);
                merge_patches(lane, &patches, &x, &NoNorm, &wides[1]);
                merge_channels(lane, &patches, &x, &norm, &wides[2]);
                pool_patches(lane, &patches, &x, 3.5, &AsPooled, 1e-6, &narrow[0]);
                pool_patches(lane, &patches, &x, 3.5, &Standardise(&by, &times), 1e-6, &narrow[1]);
                keep_image_rows(lane, &patches, &narrow[1], &kept, 3);
            });
            for token in 0..tokens {
                let block: Vec<Vec<f32>> =
                    (0..MERGED).map(|at| x.row(token * MERGED + at).to_vec()).collect();
                let normed: Vec<Vec<f64>> =
                    block.iter().map(|x| layer_normed(x, &weight.values(), &bias.values(), 1e-6)).collect();
                close(wides[0].row(token), &normed.concat(), 2e-6, "side by side");
                assert_eq!(wides[1].row(token)[..], block.concat(), "as they are");
                let by_channel: Vec<f64> = (0..WIDE).map(|at| normed[at % MERGED][at / MERGED]).collect();
                close(wides[2].row(token), &by_channel, 2e-6, "channel by channel");
                let mean = |at: usize| block.iter().map(|x| f64::from(x[at])).sum::<f64>() / MERGED as f64;
                let pooled: Vec<f64> = (0..N).map(|at| 3.5 * mean(at)).collect();
                let parts = wide(&shift.values()).into_iter().zip(wide(&scale.values()));
                let standard: Vec<f64> =
                    pooled.iter().zip(parts).map(|(x, (bias, scale))| (x - bias) * scale).collect();
                for (found, row) in narrow.iter_mut().zip([pooled, standard]) {
                    let square = row.iter().map(|x| x * x).sum::<f64>() / N as f64;
                    let expected: Vec<f64> = row.iter().map(|x| x / (square + 1e-6).sqrt()).collect();
                    close(found.row(token), &expected, 2e-6, "pooled");
                }
                assert_eq!(kept.row(3 + token), narrow[1].row(token));
            }
        }
    }
    check::<144, 576>();
    check::<20, 80>();
}
