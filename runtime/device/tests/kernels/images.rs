//! Images among the tokens of a step: rows in place of embeddings, positions of three axes, attention to all
//! of an image.

use crate::common::{Random, close, sequence};
use monomorph_device::cpu::*;
use monomorph_model::{
    FeatureSlot, ImageSpan, ImageTokens, Output, Positions, SequenceImages, SequenceStep, Slot, Step,
    VisionFamily, VisionSpec,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCK: usize = 16;

/// Slots of 200 rows, and of two taps' as many.
const VISION: VisionSpec = VisionSpec {
    family: VisionFamily::Qwen,
    patch: 16,
    frames: 2,
    merge: 2,
    values: 1536,
    taps: 2,
    grid_positions: true,
    whole_spans: true,
    tokens: ImageTokens { image: 9, start: None, end: None, row_end: None },
    most_patches: 800,
    pass_images: 1,
    layers: 2,
    step_patches: 64,
    slots: 3,
};
/// Rows of a slot, and of all slots.
const MOST: usize = 200;
const KEPT: usize = 3 * 3 * MOST;

fn batch(vision: Option<VisionSpec>) -> Batch {
    let limits = BatchLimits {
        tokens: 512,
        sequences: 2,
        vocabulary: 10,
        context: 1024,
        block_tokens: BLOCK,
        blocks: 64,
    };
    Batch::new(limits).sees(vision)
}

fn span(at: usize, count: usize, slot: u32, first: usize) -> ImageSpan {
    ImageSpan { at, count, slot: FeatureSlot(slot), first }
}

/// `count` tokens from `position` on.
fn tokens(position: usize, count: usize) -> SequenceStep {
    let blocks: Vec<u32> = (0..(position + count).div_ceil(BLOCK) as u32).rev().collect();
    sequence(position, vec![1; count], &blocks, Output::None)
}

/// Two sequences, the second behind ten tokens, with these images.
fn step(first: SequenceImages, second: SequenceImages) -> Step {
    let sequences = vec![tokens(0, 6), SequenceStep { slot: Slot(1), ..tokens(10, 3) }];
    Step { sequences, images: vec![first, second], ..Step::default() }
}

/// Planted: a tap's rows from the first slot; rows counted from the slot's first and not the span's.
#[test]
fn rows_of_images_stand_where_their_tokens_do_and_those_of_taps_are_added() {
    const N: usize = 20;
    let (mut random, team) = (Random(5), Team::new(2).unwrap());
    let (mut kept, mut x) = (Rows::<N>::new(KEPT), Rows::<N>::new(9));
    random.fill(&mut kept, KEPT, 1.0);
    random.fill(&mut x, 9, 1.0);
    let before: Vec<[f32; N]> = (0..9).map(|row| *x.row(row)).collect();
    let spans = vec![span(1, 2, 2, 1), span(3, 1, 0, 199)];
    let images = SequenceImages { spans, ..SequenceImages::default() };
    let other = SequenceImages { spans: vec![span(2, 1, 1, 0)], ..SequenceImages::default() };
    let mut batch = batch(Some(VISION));
    // What a step before had is gone.
    for step in [step(other.clone(), SequenceImages::default()), step(images, other)] {
        batch.fill(&step, &Outputs::<0>::default());
    }
    team.run(|lane| {
        image_rows(lane, &batch, &kept, &x);
        add_image_rows(lane, &batch, &kept, 1, &x);
    });
    // Token of the step, slot, row.
    let places = [(1, 2, 1), (2, 2, 2), (3, 0, 199), (8, 1, 0)];
    for (token, before) in before.iter().enumerate() {
        let expected = match places.iter().find(|(at, ..)| *at == token) {
            None => before.map(f64::from).to_vec(),
            Some((_, slot, row)) => {
                let [own, tap] = [0, 2].map(|part| *kept.row((slot * 3 + part) * MOST + row));
                own.iter().zip(tap).map(|(a, b)| f64::from(*a) + f64::from(b)).collect()
            }
        };
        close(x.row(token), &expected, 1e-6, &format!("token {token}"));
    }
}

/// Planted: a shift of the sequence before; heights for widths.
#[test]
fn pairs_turn_by_the_axis_that_they_have() {
    let team = Team::new(2).unwrap();
    let (frequencies, axes) = ([1.0, 0.31, 1e-3, 0.7], [0, 1, 2, 0]);
    let grid: Vec<[u32; 3]> = (0..6).map(|at| [3, 3 + at % 2, 40_000 + at]).collect();
    let spans = Vec::new();
    let mut batch = batch(Some(VISION));
    let images =
        SequenceImages { spans: spans.clone(), positions: Positions::Grid(grid.clone()), following: None };
    let step = step(images, SequenceImages { spans, positions: Positions::Shifted(-3), following: None });
    batch.fill(&step, &Outputs::<0>::default());
    let mut out = Rows::<8>::new(9);
    team.run(|lane| rotary_grid_angles(lane, &batch, &frequencies, &axes, 1.5, &out));
    let positions = grid.into_iter().chain([[7; 3], [8; 3], [9; 3]]);
    for (token, position) in positions.enumerate() {
        for (pair, (frequency, axis)) in frequencies.iter().zip(axes).enumerate() {
            let angle = f64::from(position[axis] as f32 * frequency);
            let [cosine, sine] = [pair, 4 + pair].map(|at| f64::from(out.row(token)[at]));
            assert!((cosine - 1.5 * angle.cos()).abs() < 1e-6, "token {token}, pair {pair}");
            assert!((sine - 1.5 * angle.sin()).abs() < 1e-6, "token {token}, pair {pair}");
        }
    }
}

/// Images within one segment of keys, and over the ends of two; windows within them and around them.
///
/// Planted: the end of an image seen only by its first token; a segment behind a row's own left out.
#[test]
fn tokens_of_an_image_attend_to_all_of_it_and_all_others_to_what_is_before() {
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const DIM: usize = 20;
    const QKV: usize = (HEADS + 2 * KV_HEADS) * DIM;
    const OUT: usize = HEADS * DIM;
    const TOKENS: usize = 300;
    let images = [5..9, 20..21, 100..270];
    let mut random = Random(8);
    let rows: Vec<Vec<f32>> = (0..TOKENS).map(|_| random.vector(QKV, 1.0)).collect();
    for window in [7, 40, usize::MAX] {
        let mut all: Vec<Vec<f32>> = Vec::new();
        for (lanes, cuts) in [(1, &[TOKENS][..]), (3, &[5, 9, 60, 100, 270, TOKENS]), (2, &[99, TOKENS])] {
            let team = Team::new(lanes).unwrap();
            let mut batch = batch(Some(VISION));
            let cache = KvCache::<f32, KV_HEADS, DIM, BLOCK>::new(&[0], 64).unwrap();
            let scratch = AttentionScratch::<HEADS, KV_HEADS, DIM>::new(lanes, 1024);
            let (mut qkv, mut out) = (Rows::<QKV>::new(512), Rows::<OUT>::new(512));
            let (angles, mut found, mut from) = (Rows::<2>::new(512), Vec::new(), 0);
            // The same table in every step.
            let whole = tokens(0, TOKENS).blocks;
            for to in cuts.iter().copied() {
                let within = images.iter().filter(|it| (from..to).contains(&it.start));
                let spans = within.map(|it| span(it.start - from, it.len(), 0, 0)).collect();
                let fed = SequenceStep { blocks: whole.clone(), ..tokens(from, to - from) };
                let images = vec![SequenceImages { spans, ..SequenceImages::default() }];
                let step = Step { sequences: vec![fed], images, ..Step::default() };
                rows[from..to].iter().enumerate().for_each(|(at, x)| qkv.row_mut(at).copy_from_slice(x));
                batch.fill(&step, &Outputs::<0>::default());
                team.run(|lane| {
                    rotary_angles(lane, &batch, &[0.0], 1.0, &angles);
                    attention_within(
                        lane,
                        &batch,
                        0,
                        &qkv,
                        &NoNorm,
                        &NoNorm,
                        &NoNorm,
                        &angles,
                        Halves,
                        0.5,
                        WholeImages(window),
                        &cache,
                        &scratch,
                        &out,
                    );
                });
                found.extend((0..to - from).flat_map(|row| *out.row(row)));
                from = to;
            }
            all.push(found);
        }
        assert!(all.iter().all(|it| *it == all[0]), "neither cuts nor lanes change a bit");
        for token in 0..TOKENS {
            let end = images.iter().find(|it| it.contains(&token)).map_or(token + 1, |it| it.end);
            let seen = (token + 1).saturating_sub(window)..end;
            for head in 0..HEADS {
                let of = |row: usize, part: usize| -> Vec<f64> {
                    rows[row][part * DIM..][..DIM].iter().map(|x| f64::from(*x)).collect()
                };
                let (query, kv) = (of(token, head), head / (HEADS / KV_HEADS));
                let weigh = |key: usize| -> f64 {
                    let score: f64 = query.iter().zip(of(key, HEADS + kv)).map(|(a, b)| a * b).sum();
                    (0.5 * score).exp()
                };
                let weights: Vec<f64> = seen.clone().map(weigh).collect();
                let total: f64 = weights.iter().sum();
                let mut expected = vec![0.0; DIM];
                for (key, weight) in seen.clone().zip(&weights) {
                    let value = of(key, HEADS + KV_HEADS + kv);
                    expected.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight / total * x);
                }
                let found = &all[0][token * OUT + head * DIM..][..DIM];
                close(found, &expected, 1e-5, &format!("token {token}, head {head}, window {window}"));
            }
        }
    }
}

#[test]
fn images_that_break_the_limits_are_refused() {
    let of = |spans: Vec<ImageSpan>, positions| SequenceImages { spans, positions, following: None };
    let none = SequenceImages::default;
    let with = |images| step(images, none());
    let flat = VisionSpec { grid_positions: false, ..VISION };
    let rows = |spans| with(of(spans, Positions::Index));
    let some = Step { images: vec![none()], ..with(none()) };
    for (step, vision, message) in [
        (with(none()), None, "a step with images, and the stack has no vision tower"),
        (some, Some(VISION), "a step of 2 sequences with images of 1"),
        (rows(vec![span(5, 2, 0, 0)]), Some(VISION), "behind 0 of 6 tokens"),
        (rows(vec![span(1, usize::MAX, 0, 0)]), Some(VISION), "behind 0 of 6 tokens"),
        (rows(vec![span(2, 2, 0, 0), span(3, 1, 0, 5)]), Some(VISION), "behind 4 of 6 tokens"),
        (rows(vec![span(0, 1, 3, 0)]), Some(VISION), "3 slots have 200 rows each"),
        (rows(vec![span(0, 2, 0, 199)]), Some(VISION), "3 slots have 200 rows each"),
        (with(of(vec![], Positions::Grid(vec![[0; 3]; 5]))), Some(VISION), "5 positions of 6 tokens"),
        (with(of(vec![], Positions::Shifted(-1))), Some(VISION), "position 0 shifted by -1"),
        (with(of(vec![], Positions::Shifted(0))), Some(flat), "and the model has but one"),
    ] {
        let mut batch = batch(vision);
        let fill = AssertUnwindSafe(|| batch.fill(&step, &Outputs::<0>::default()));
        let panic = catch_unwind(fill).unwrap_err();
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        assert!(text.contains(message), "{text:?} lacks {message:?}");
    }
}
