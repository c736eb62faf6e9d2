use super::*;
use monomorph_model::{FeatureSlot, ImageSpan, ImageTokens, Positions, VisionFamily};

fn seeing(grid_positions: bool) -> StepBuffer {
    let tokens = ImageTokens { image: 1, start: None, end: None, row_end: None };
    let vision = VisionSpec {
        family: VisionFamily::Qwen,
        patch: 1,
        frames: 1,
        merge: 2,
        values: 3,
        taps: 1,
        grid_positions,
        whole_spans: false,
        tokens,
        most_patches: 40,
        pass_images: 1,
        layers: 2,
        step_patches: 64,
        slots: 2,
    };
    StepBuffer::new(StepLimits { vision: Some(vision), ..limits() })
}

fn images(spans: &[ImageSpan], positions: Positions) -> SequenceImages {
    SequenceImages { spans: spans.to_vec(), positions, following: None }
}

fn span(at: usize, count: usize, slot: u32, first: usize) -> ImageSpan {
    ImageSpan { at, count, slot: FeatureSlot(slot), first }
}

#[test]
fn every_token_of_a_prompt_has_its_row_and_its_position() {
    let mut buffer = seeing(true);
    assert_eq!(buffer.header.blocks_at as usize, size_of::<Header>() + size_of::<PositionShifts>());
    let step = [
        sequence(0, 4, known(&[1, 1, 2]), &[1], Output::None),
        sequence(1, 20, known(&[2, 3]), &[2, 3], Output::None),
    ];
    fill(&mut buffer, &step);
    let grid = Positions::Grid(vec![[4, 4, 4], [4, 4, 5], [6; 3]]);
    let both = [images(&[span(0, 2, 1, 3)], grid), images(&[], Positions::Shifted(-5))];
    buffer.fill_images(&both.each_ref());
    // Slot 1 begins behind the 10 rows of slot 0 and the 10 of its tap.
    let row = |row, last, position| ImageRow { row, last, position };
    let expected = [
        row(23, 5, [4, 4, 4]),
        row(24, 5, [4, 4, 5]),
        row(-1, 6, [6; 3]),
        row(-1, 20, [15; 3]),
        row(-1, 21, [16; 3]),
    ];
    assert_eq!(buffer.images, expected);
    // A step without images goes by indices.
    buffer.fill_images(&[]);
    assert_eq!(buffer.images[3], row(-1, 20, [20; 3]));
}

#[test]
fn a_decode_step_has_a_shift_a_sequence() {
    let mut buffer = seeing(true);
    let step = [
        sequence(0, 9, known(&[1]), &[1], sample(None, Vec::new())),
        sequence(1, 20, known(&[2]), &[2, 3], sample(None, Vec::new())),
    ];
    fill(&mut buffer, &step);
    let both = [images(&[], Positions::Index), images(&[], Positions::Shifted(-7))];
    buffer.fill_images(&both.each_ref());
    assert_eq!(buffer.shifts.shift[..2], [0, -7]);
    buffer.fill_images(&[]);
    assert_eq!(buffer.shifts.shift[..2], [0, 0]);
    assert_eq!(buffer.before_blocks().map(<[u8]>::len), [0, size_of::<PositionShifts>()]);
    assert_eq!(seeing(false).before_blocks(), [&[0; 0]; 2]);
}

#[test]
fn every_row_of_drafts_has_the_shift_of_its_sequence() {
    let limits = StepLimits { drafts: 2, drafted: 0, tokens: 6, ..seeing(true).limits };
    let mut buffer = StepBuffer::new(limits);
    // The second is filled up.
    let step = [
        drafts(sequence(0, 9, known(&[1, 2, 3]), &[1], sample(None, Vec::new())), 2),
        sequence(1, 20, known(&[2]), &[2, 3], sample(None, Vec::new())),
    ];
    for shift in [-7, -5] {
        buffer.verify(&step.iter().collect::<Vec<_>>(), &[]);
        let both = [images(&[], Positions::Shifted(-2)), images(&[], Positions::Shifted(shift))];
        buffer.fill_images(&both.each_ref());
        assert_eq!(buffer.shifts.shift[..6], [-2, -2, -2, shift, shift, shift]);
    }
    // A plain step behind it has a shift a sequence again.
    let plain = step.map(|it| SequenceStep { drafts: 0, tokens: known(&[2]), ..it });
    fill(&mut buffer, &plain);
    let both = [images(&[], Positions::Shifted(-4)), images(&[], Positions::Index)];
    buffer.fill_images(&both.each_ref());
    assert_eq!(buffer.shifts.shift[..2], [-4, 0]);
}

/// Of a stack whose passes draft two tokens.
fn drafts_itself() -> StepBuffer {
    let limits = StepLimits { drafts: 2, drafted: 2, ahead: 3, ..seeing(true).limits };
    let buffer = StepBuffer::new(limits);
    let before = size_of::<DraftImages>() + size_of::<PositionShifts>();
    assert_eq!(buffer.header.blocks_at as usize, size_of::<Header>() + before);
    assert_eq!(buffer.before_blocks().map(<[u8]>::len).iter().sum::<usize>(), before);
    buffer
}

fn following(images: SequenceImages, span: ImageSpan) -> SequenceImages {
    SequenceImages { following: Some(span), ..images }
}

#[test]
fn passes_behind_a_prompt_go_on_from_its_largest_axis_and_take_the_row_that_follows() {
    let mut buffer = drafts_itself();
    let step = [
        sequence(0, 4, known(&[1, 1, 2]), &[1], Output::None),
        sequence(1, 20, known(&[2, 3]), &[2, 3], sample(None, Vec::new())),
        // It ends with an image, whose axes differ.
        sequence(2, 8, known(&[1, 1]), &[0], sample(None, Vec::new())),
    ];
    let given = [
        following(images(&[span(0, 2, 1, 3)], Positions::Shifted(-1)), span(3, 1, 1, 6)),
        images(&[], Positions::Shifted(-5)),
        images(&[span(0, 2, 0, 0)], Positions::Grid(vec![[6, 6, 6], [6, 6, 7]])),
    ];
    buffer.fill(&step.iter().collect::<Vec<_>>(), &[], false);
    buffer.fill_images(&given.each_ref());
    assert_eq!(buffer.of_drafts.following[..3], [26, -1, -1]);
    // Index 9 of the third stands at 7. The first is not drafted for.
    assert_eq!(buffer.of_drafts.shift[..2], [-5, -2]);
    // Nothing remains from a step before.
    buffer.fill_images(&[]);
    assert_eq!(buffer.of_drafts.following[..3], [-1; 3]);
    assert_eq!(buffer.of_drafts.shift[..2], [0, 0]);
}

#[test]
fn passes_behind_drafts_have_the_shift_of_their_sequence() {
    let mut buffer = drafts_itself();
    let step = [
        drafts(sequence(0, 9, known(&[1, 2, 3]), &[1], sample(None, Vec::new())), 2),
        drafts(sequence(1, 20, known(&[2, 4, 5]), &[2, 3], sample(None, Vec::new())), 2),
    ];
    buffer.verify(&step.iter().collect::<Vec<_>>(), &[]);
    let both = [images(&[], Positions::Shifted(-2)), images(&[], Positions::Shifted(-7))];
    buffer.fill_images(&both.each_ref());
    assert_eq!(buffer.of_drafts.shift[..2], [-2, -7]);
    assert_eq!(buffer.of_drafts.following[..2], [-1; 2]);
    let late = [images(&[], Positions::Index), images(&[], Positions::Shifted(39))];
    let words = refusal(|| buffer.fill_images(&late.each_ref()));
    assert!(words.contains("position 61 of what is drafted from is too near the end"), "{words}");
    let seen = [following(images(&[], Positions::Index), span(3, 1, 0, 0)), images(&[], Positions::Index)];
    let words = refusal(|| buffer.fill_images(&seen.each_ref()));
    assert!(words.contains("sequence 0 of the step is verified before an image"), "{words}");
}

/// The words of a panic.
fn refusal(of: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(of)).expect_err("it is refused");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn images_that_a_step_cannot_take_are_refused() {
    let refused = |mut buffer: StepBuffer, images: SequenceImages| {
        fill(&mut buffer, &[sequence(0, 60, known(&[1]), &[0, 1, 2, 3], Output::None)]);
        refusal(|| buffer.fill_images(&[&images]))
    };
    let words = refused(seeing(true), images(&[span(0, 1, 0, 0)], Positions::Index));
    assert!(words.contains("row 0 of the step decodes a token of an image"), "{words}");
    let words = refused(seeing(true), images(&[], Positions::Shifted(4)));
    assert!(words.contains("position 64 is beyond the context"), "{words}");
    let words = refused(StepBuffer::new(limits()), images(&[], Positions::Index));
    assert!(words.is_empty(), "{words}");
}

#[test]
fn a_tower_counts_patches_as_tokens_and_tokens_as_outputs() {
    let mut buffer = seeing(false);
    buffer.see(24, 6);
    let Header { tokens, sequences, outputs, .. } = *buffer.header;
    assert_eq!((tokens, sequences, outputs), (24, 0, 6));
}
