//! `main.rs` of a stack that takes images, for tests: runs cases through it that a file lists, and writes
//! what it makes of them. Both files are words of 32 bits; `monomorph_tests::towers` says what they hold.

mod spec;
mod stack;

use monomorph_model::{
    BlockId, FeatureSlot, Grid, HostGuard, ImageSpan, LoadOptions, Model, Output, Patches, Positions, Progress,
    RowOutput, SequenceImages, SequenceStep, Shown, SlidingId, SlidingTable, Slot, StatesWanted, Step, Tokens, Weights,
};
use monomorph_weights::Checkpoint;
use std::path::Path;

type Stack = stack::Model;

/// Words that are read one after another.
struct Words(std::vec::IntoIter<u32>);

impl Words {
    fn next(&mut self) -> u32 {
        self.0.next().expect("the file has as many words as it says")
    }

    fn count(&mut self) -> usize {
        self.next() as usize
    }

    fn list(&mut self) -> Vec<u32> {
        let count = self.count();
        self.0.by_ref().take(count).collect()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, weights, from, to] = &arguments[..] else { panic!("WEIGHTS FROM TO") };
    let bytes = std::fs::read(from).expect("the cases are there");
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let mut words = Words(words.collect::<Vec<_>>().into_iter());
    let spec = Stack::SPEC;
    let options = LoadOptions {
        blocks: Some(spec.context.div_ceil(spec.block_tokens)),
        context: spec.context,
        shorter: false,
        states: StatesWanted { sequences: Some(1), snapshots: Some(0) },
        offload: None,
        memory_fraction: 1.0,
        guard: HostGuard { bytes: 0, available: || u64::MAX },
        threads: 2,
        report: |_| {},
        ordinals: Vec::new(),
        process: None,
        kv_calibration: Vec::new(),
    };
    let weights = Weights::Checkpoint(Checkpoint::open(Path::new(weights)).expect("there is a checkpoint"));
    let mut model =
        Stack::load(&weights, &options, &Progress::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut out: Vec<f32> = Vec::new();
    for _ in 0..words.count() {
        case(&mut model, &mut words, &mut out);
    }
    let bytes: Vec<u8> = out.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(to, bytes).expect("the answers can be written");
}

/// Runs a case: the rows of each image and its taps, then the logits behind each token, in one step and in
/// pieces.
fn case(model: &mut Stack, words: &mut Words, out: &mut Vec<f32>) {
    let vision = Stack::VISION.expect("a stack that takes images");
    let tokens = words.list();
    let images: Vec<(Grid, Vec<f32>)> = (0..words.count())
        .map(|_| {
            let [frames, rows, columns] = [(); 3].map(|()| words.count());
            (Grid { frames, rows, columns }, words.list().into_iter().map(f32::from_bits).collect())
        })
        .collect();
    // Not the slot of its number, and not the same ones in every case.
    let slots = (0..vision.slots as u32).rev().map(FeatureSlot);
    let shown: Vec<Shown> = slots
        .zip(&images)
        .map(|(slot, (grid, pixels))| Shown { patches: Patches { pixels, grid: *grid }, slot })
        .collect();
    let all = images.iter().map(|(grid, _)| grid.patches()).sum();
    // In one pass where they may be. Every other image that is alone layer by layer, and other steps between.
    let shared = vision.takes(shown.len(), all);
    assert!(shared || vision.pass_images == 1, "{} images of {all} patches", shown.len());
    for (at, images) in shown.chunks(if shared { shown.len() } else { 1 }).enumerate() {
        let layers_of_step = if images.len() == 1 && at % 2 == 0 { 1 } else { vision.layers };
        for from in (0..vision.layers).step_by(layers_of_step) {
            let ticket = model.see(images, from..from + layers_of_step);
            assert!(model.collect(ticket).rows.is_empty(), "the tower returns nothing");
            if tokens[0] != vision.tokens.image {
                feed(model, &tokens, &[], &[], 0, 1);
            }
        }
    }
    let mut rows = Vec::new();
    for Shown { patches, slot } in shown {
        let count = patches.grid.patches() / (vision.merge * vision.merge);
        for part in std::iter::once(None).chain((0..vision.taps).map(Some)) {
            (0..count).for_each(|token| out.extend(model.image_row(slot, token, part).iter()));
        }
        rows.extend((0..count).map(|row| (slot, row)));
    }
    let positions: Vec<[u32; 3]> = words.list().as_chunks::<3>().0.to_vec();
    let cuts: Vec<usize> = words.list().into_iter().map(|cut| cut as usize).collect();
    let whole = [tokens.len()];
    for cuts in [&whole[..], &cuts] {
        let mut from = 0;
        for to in cuts.iter().copied() {
            out.extend(feed(model, &tokens, &rows, &positions, from, to));
            from = to;
        }
    }
}

/// Logits behind tokens `from .. to`, whose images have these rows in order.
fn feed(
    model: &mut Stack,
    tokens: &[u32],
    rows: &[(FeatureSlot, usize)],
    positions: &[[u32; 3]],
    from: usize,
    to: usize,
) -> Vec<f32> {
    let (spec, vision) = (Stack::SPEC, Stack::VISION.expect("a stack that takes images"));
    let is_image = |token: &&u32| **token == vision.tokens.image;
    let mut rows = rows.iter().skip(tokens[..from].iter().filter(is_image).count());
    let mut spans: Vec<ImageSpan> = Vec::new();
    for (at, _) in tokens[from..to].iter().enumerate().filter(|(_, token)| is_image(token)) {
        let (slot, first) = *rows.next().expect("a row for every token of an image");
        match spans.last_mut().filter(|span| span.at + span.count == at && span.slot == slot) {
            Some(span) => span.count += 1,
            None => spans.push(ImageSpan { at, count: 1, slot, first }),
        }
    }
    // As the engine will say it: a shift where it can.
    let positions = match positions.get(from..to) {
        None | Some([]) => Positions::Index,
        Some(given) => {
            let shift = i64::from(given[0][0]) - from as i64;
            let shifted = given.iter().zip(from as i64..).all(|(it, at)| *it == [(at + shift) as u32; 3]);
            if shifted { Positions::Shifted(shift as i32) } else { Positions::Grid(given.to_vec()) }
        }
    };
    let blocks = to.div_ceil(spec.block_tokens);
    let sequence = SequenceStep {
        slot: Slot(0),
        position: from,
        begins: from == 0,
        tokens: Tokens::Known(tokens[from..to].to_vec()),
        drafts: 0,
        generated: false,
        following: None,
        blocks: (0..blocks).map(|block| BlockId(block as u32)).collect(),
        output: Output::Logits,
    };
    let sliding = Stack::SLIDING.map(|_| SlidingTable {
        first: 0,
        blocks: (0..blocks).map(|block| SlidingId(block as u32)).collect(),
    });
    let step = Step {
        sequences: vec![sequence],
        images: vec![SequenceImages { spans, positions, ..SequenceImages::default() }],
        sliding: sliding.into_iter().collect(),
        ..Step::default()
    };
    let ticket = model.submit(&step);
    match model.collect(ticket).rows.pop() {
        Some(RowOutput::Logits(logits)) => logits,
        other => panic!("{other:?} in place of logits"),
    }
}
