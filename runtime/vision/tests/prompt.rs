//! Images in prompts: ids and positions.

mod support;

use monomorph_vision::{
    Expanded, Family, Grid, ImagePlan, PlaceholderMismatch, Positions, Size, Span, VisionSpec,
};
use support::{GEMMA, PIXTRAL, QWEN};

/// The plan of an image that has this grid of tokens already.
fn plan(spec: &VisionSpec, rows: u32, columns: u32) -> ImagePlan {
    let merged = Grid { rows, columns };
    let ends = if let Family::Pixtral { .. } = spec.family { rows } else { 0 };
    ImagePlan {
        resized: Size { width: columns * spec.unit(), height: rows * spec.unit() },
        patches: Grid { rows: rows * spec.merge, columns: columns * spec.merge },
        merged,
        tokens: rows * columns + ends,
    }
}

#[test]
fn qwen_repeats_the_id_that_its_template_writes_once() {
    let expanded = QWEN.expand(&[7, 248053, 248056, 248054, 9], &[plan(&QWEN, 2, 3)]).unwrap();
    let image = [248056; 6];
    assert_eq!(expanded.ids, [&[7, 248053][..], &image, &[248054, 9]].concat());
    assert_eq!(expanded.spans, [Span { start: 2, tokens: 6 }]);
}

#[test]
fn gemma_puts_an_image_between_two_ids_of_its_own() {
    let images = [plan(&GEMMA, 1, 2), plan(&GEMMA, 3, 1)];
    let Expanded { ids, spans } = GEMMA.expand(&[258880, 7, 258880], &images).unwrap();
    let (begin, image, end) = (255999, 258880, 258882);
    assert_eq!(ids, [begin, image, image, end, 7, begin, image, image, image, end]);
    assert_eq!(spans, [Span { start: 1, tokens: 2 }, Span { start: 6, tokens: 3 }]);
}

#[test]
fn pixtral_ends_each_row_and_the_last_one_by_another_id() {
    let Expanded { ids, spans } = PIXTRAL.expand(&[1, 10, 2], &[plan(&PIXTRAL, 3, 2)]).unwrap();
    assert_eq!(ids, [1, 10, 10, 12, 10, 10, 12, 10, 10, 13, 2]);
    assert_eq!(spans, [Span { start: 1, tokens: 9 }]);
}

#[test]
fn a_prompt_with_another_number_of_placeholders_is_refused() {
    let image = plan(&QWEN, 2, 2);
    for (prompt, images, placeholders) in
        [(&[1, 2][..], &[image][..], 0), (&[248056, 3], &[], 1), (&[248056, 248056], &[image], 2)]
    {
        let refused = QWEN.expand(prompt, images).unwrap_err();
        assert_eq!(refused, PlaceholderMismatch { placeholders, images: images.len() });
    }
    assert_eq!(QWEN.expand(&[1, 2], &[]).unwrap().ids, [1, 2]);
}

#[test]
fn spans_hold_the_tokens_that_were_planned() {
    for spec in [QWEN, GEMMA, PIXTRAL] {
        let images = [(640, 480), (33, 900), (1, 1)]
            .map(|(width, height)| spec.plan(Size { width, height }, 300).unwrap());
        let id = spec.image_id();
        let Expanded { ids, spans } = spec.expand(&[5, id, id, 6, id], &images).unwrap();
        for (span, image) in spans.iter().zip(&images) {
            assert_eq!(span.tokens, image.tokens as usize);
            let rows = ids[span.start..][..span.tokens].iter().filter(|it| **it == id).count();
            assert_eq!(rows, image.merged.cells() as usize);
        }
    }
}

/// `a b <start> I*6 <end> c`.
#[test]
fn an_image_takes_as_many_positions_as_its_longer_side() {
    let span = Span { start: 3, tokens: 6 };
    let Positions { axes, delta } = Positions::new(11, &[(span, Grid { rows: 2, columns: 3 })]);
    let axis = |which: usize| axes.iter().map(|it| it[which]).collect::<Vec<u32>>();
    assert_eq!(axis(0), [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7]);
    assert_eq!(axis(1), [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7]);
    assert_eq!(axis(2), [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]);
    assert_eq!(delta, -3);
}

#[test]
fn text_alone_has_ordinary_positions() {
    let Positions { axes, delta } = Positions::new(4, &[]);
    assert_eq!(axes, [[0; 3], [1; 3], [2; 3], [3; 3]]);
    assert_eq!(delta, 0);
}

#[test]
#[should_panic(expected = "images stand behind each other within the prompt")]
fn spans_that_overlap_are_a_mistake_of_the_caller() {
    let grid = Grid { rows: 1, columns: 2 };
    Positions::new(9, &[(Span { start: 3, tokens: 2 }, grid), (Span { start: 4, tokens: 2 }, grid)]);
}
