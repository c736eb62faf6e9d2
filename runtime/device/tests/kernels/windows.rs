//! Attention within a window, with norms of values and keys as values, and phases over whole rows, each
//! against what does without.

use crate::common::{Owned, Random, close, progress, sequence};
use monomorph_abi::sliding::Sliding;
use monomorph_device::cpu::*;
use monomorph_formats::Format;
use monomorph_model::{Output, SlidingId, SlidingTable, Step};
use std::path::Path;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 20;
const BLOCK: usize = 16;
const OUT: usize = HEADS * DIM;
/// Queries, keys and values; or queries and keys.
const WHOLE: usize = (HEADS + 2 * KV_HEADS) * DIM;
const KEYS: usize = (HEADS + KV_HEADS) * DIM;
const EPS: f32 = 1e-6;

/// Attention of one sequence whose heads are not turned, fed `most` tokens at a time.
fn attend<V: HeadNorm<DIM>, const QKV: usize>(
    rows: &[Vec<f32>],
    v_norm: &V,
    window: usize,
    cut: (usize, usize),
) -> Vec<Vec<f32>> {
    attend_in::<V, QKV>(rows, v_norm, window, cut, None)
}

/// The same in the blocks of layers with a sliding window, of which there are only `sliding`: a block that is
/// behind the window is the sequence's next.
fn attend_in<V: HeadNorm<DIM>, const QKV: usize>(
    rows: &[Vec<f32>],
    v_norm: &V,
    window: usize,
    (lanes, most): (usize, usize),
    sliding: Option<usize>,
) -> Vec<Vec<f32>> {
    let team = Team::new(lanes).unwrap();
    let blocks = rows.len().div_ceil(BLOCK);
    let limits =
        BatchLimits { tokens: 512, sequences: 1, vocabulary: 10, context: 1024, block_tokens: BLOCK, blocks };
    let it = Sliding { window, block_tokens: BLOCK };
    let mut batch = Batch::new(limits).slides(sliding.map(|blocks| (it, blocks)));
    let cache = match sliding {
        Some(blocks) => KvCache::<f32, KV_HEADS, DIM, BLOCK>::sliding(1, blocks).unwrap(),
        None => KvCache::<f32, KV_HEADS, DIM, BLOCK>::new(&[0], blocks).unwrap(),
    };
    let scratch = AttentionScratch::<HEADS, KV_HEADS, DIM>::new(lanes, 1024);
    let (mut qkv, mut out, angles) = (Rows::<QKV>::new(512), Rows::<OUT>::new(512), Rows::<2>::new(512));
    let ids: Vec<u32> = (0..blocks as u32).rev().collect();
    let (mut done, mut found) = (0, Vec::new());
    while done < rows.len() {
        let count = most.min(rows.len() - done);
        let known = &ids[..(done + count).div_ceil(BLOCK)];
        let first = it.first(done);
        let table = sliding.map(|blocks| {
            let ids = (first..known.len()).map(|block| SlidingId((block % blocks) as u32));
            assert!(ids.len() <= blocks, "a sequence of {window} and {count} tokens in {blocks} blocks");
            SlidingTable { first, blocks: ids.collect() }
        });
        let step = Step {
            sequences: vec![sequence(done, vec![1; count], known, Output::None)],
            sliding: table.into_iter().collect(),
            ..Step::default()
        };
        (0..count).for_each(|row| qkv.row_mut(row).copy_from_slice(&rows[done + row]));
        batch.fill(&step, &Outputs::<0>::default());
        team.run(|lane| {
            rotary_angles(lane, &batch, &[0.0], 1.0, &angles);
            attention_within(
                lane, &batch, 0, &qkv, &NoNorm, &NoNorm, v_norm, &angles, Halves, 1.0, window, &cache,
                &scratch, &out,
            );
        });
        found.extend((0..count).map(|row| out.row(row).to_vec()));
        done += count;
    }
    found
}

fn random(tokens: usize, width: usize) -> Vec<Vec<f32>> {
    let mut random = Random(tokens as u64);
    (0..tokens).map(|_| random.vector(width, 1.0)).collect()
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn a_row_sees_the_last_tokens_of_its_window_and_no_others() {
    let rows = random(300, WHOLE);
    for window in [1, 2, 17, 64, 200, 300] {
        let found = attend::<_, WHOLE>(&rows, &NoNorm, window, (2, 512));
        for position in [0, 1, 16, 63, 64, 65, 128, 199, 200, 299] {
            let first = (position + 1usize).saturating_sub(window);
            let alone = attend::<_, WHOLE>(&rows[first..=position], &NoNorm, usize::MAX, (1, 512));
            let what = format!("position {position}, window {window}");
            close(&found[position], &wide(alone.last().unwrap()), 1e-5, &what);
        }
        // The same bits however the prompt is cut and the work shared.
        for cut in [(1, 40), (3, 7), (2, 1)] {
            assert!(found == attend::<_, WHOLE>(&rows, &NoNorm, window, cut), "window {window}, {cut:?}");
        }
    }
}

#[test]
fn blocks_behind_a_window_are_used_again_and_change_no_bit() {
    let rows = random(700, WHOLE);
    for window in [1, 2, 16, 17, 64, 130, 300] {
        let whole = attend::<_, WHOLE>(&rows, &NoNorm, window, (2, 512));
        for (lanes, most) in [(1, 1), (2, 7), (3, 40), (2, 300)] {
            let it = Sliding { window, block_tokens: BLOCK };
            let blocks = it.most(700, 0) + if most > BLOCK { it.fed(most) } else { 0 };
            let found = attend_in::<_, WHOLE>(&rows, &NoNorm, window, (lanes, most), Some(blocks));
            assert!(found == whole, "window {window}, {most} tokens at a time in {blocks} blocks");
        }
    }
}

#[test]
fn a_window_as_long_as_the_context_is_none() {
    let rows = random(150, WHOLE);
    let all = attend::<_, WHOLE>(&rows, &NoNorm, usize::MAX, (2, 64));
    assert!(all == attend::<_, WHOLE>(&rows, &NoNorm, 150, (2, 64)));
    assert!(all != attend::<_, WHOLE>(&rows, &NoNorm, 149, (2, 64)));
}

#[test]
fn keys_are_values_where_a_row_has_none() {
    let rows = random(90, KEYS);
    let doubled: Vec<Vec<f32>> = rows.iter().map(|row| [&row[..], &row[HEADS * DIM..]].concat()).collect();
    let found = attend::<_, KEYS>(&rows, &BareNorm(EPS), 33, (2, 20));
    assert!(found == attend::<_, WHOLE>(&doubled, &BareNorm(EPS), 33, (2, 20)));
}

#[test]
fn values_are_normed_by_heads_without_a_weight() {
    let rows = random(40, WHOLE);
    let normed: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| {
            let (before, values) = row.split_at(KEYS);
            let norm = |head: &[f32]| -> Vec<f32> {
                let mean = head.iter().map(|x| f64::from(x * x)).sum::<f64>() / DIM as f64;
                head.iter().map(|x| (f64::from(*x) / (mean + f64::from(EPS)).sqrt()) as f32).collect()
            };
            [before.to_vec(), values.chunks(DIM).flat_map(norm).collect()].concat()
        })
        .collect();
    let found = attend::<_, WHOLE>(&rows, &BareNorm(EPS), usize::MAX, (2, 40));
    let expected = attend::<_, WHOLE>(&normed, &NoNorm, usize::MAX, (2, 40));
    found.iter().zip(&expected).for_each(|(a, b)| close(a, &wide(b), 1e-5, "values"));
}

#[test]
fn whole_rows_are_normed_added_scaled_and_bounded() {
    const N: usize = 300;
    const ROWS: usize = 5;
    let mut data = Random(3);
    let (team, progress) = (Team::new(3).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let weights = [0, 1].map(|at| Owned::new(["a", "b"][at], &[N], Format::F32, &data.vector(N, 1.0)));
    let [a, b] = weights
        .each_ref()
        .map(|it| RmsNorm::<Plain, N>::load(&loader, &Part::new(it.tensor()), EPS).unwrap());
    let factor = Owned::new("factor", &[1], Format::F32, &[0.7]);
    let factor = Vector::<1>::load(&loader, &[Part::new(factor.tensor())]).unwrap();
    let (mut x, mut y) = (Rows::<N>::new(ROWS), Rows::<N>::new(ROWS));
    data.fill(&mut x, ROWS, 2.0);
    data.fill(&mut y, ROWS, 2.0);
    let before = |rows: &mut Rows<N>| -> Vec<Vec<f64>> { (0..ROWS).map(|row| wide(rows.row(row))).collect() };
    let normed = |row: &[f64], weight: &Owned| -> Vec<f64> {
        let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / N as f64 + f64::from(EPS)).sqrt();
        row.iter().zip(weight.values()).map(|(x, w)| x * scale * f64::from(w)).collect()
    };
    let sum = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let (xs, ys) = (before(&mut x), before(&mut y));
    let check = |rows: &mut Rows<N>, expected: &dyn Fn(usize) -> Vec<f64>, what: &str| {
        (0..ROWS).for_each(|row| close(rows.row(row), &expected(row), 1e-5, what));
    };
    team.run(|lane| add_normed(lane, ROWS, &x, &a, &y));
    let added = |row: usize| sum(&ys[row], &normed(&xs[row], &weights[0]));
    check(&mut y, &added, "added");
    team.run(|lane| sum_normed(lane, ROWS, &x, &a, &y, &b));
    let both = |row: usize| sum(&normed(&added(row), &weights[1]), &normed(&xs[row], &weights[0]));
    check(&mut y, &both, "both");
    team.run(|lane| scale_by(lane, ROWS, &factor, &y));
    let scaled = |row: usize| both(row).iter().map(|x| x * f64::from(0.7f32)).collect::<Vec<_>>();
    check(&mut y, &scaled, "scaled");
    team.run(|lane| cap(lane, ROWS, 0.5, &y));
    let bounded = |row: usize| scaled(row).iter().map(|x| 0.5 * (x / 0.5).tanh()).collect::<Vec<_>>();
    check(&mut y, &bounded, "bounded");
    assert!(y.row(0).iter().all(|x| x.abs() <= 0.5));
}
