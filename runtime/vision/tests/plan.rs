//! Sizes of images for a tower, under all limits.

mod support;

use monomorph_vision::{Detail, ImageError, Levels, Rgb, Size, VisionSpec, resize};
use proptest::prelude::*;
use support::{GEMMA, PIXTRAL, QWEN};

fn tokens(spec: &VisionSpec, width: u32, height: u32, most: u32) -> u32 {
    spec.plan(Size { width, height }, most).unwrap().tokens
}

#[test]
fn common_sizes_take_the_tokens_that_are_known() {
    for (width, height, expected) in
        [(448, 448, [196, 256, 272]), (1024, 1024, [1024, 256, 1406]), (3840, 2160, [8160, 264, 1736])]
    {
        let found = [QWEN, GEMMA, PIXTRAL].map(|spec| tokens(&spec, width, height, u32::MAX));
        assert_eq!(found, expected, "{width} x {height}");
    }
}

#[test]
fn half_a_token_is_rounded_to_an_even_number() {
    let size = |width, height| QWEN.plan(Size { width, height }, u32::MAX).unwrap().resized;
    assert_eq!(size(3840, 2160), Size { width: 3840, height: 2176 });
    assert_eq!(size(3200, 80), Size { width: 3200, height: 64 });
    assert_eq!(size(3200, 112), Size { width: 3200, height: 128 });
}

#[test]
fn detail_chooses_a_limit() {
    let most = |detail: Detail| tokens(&QWEN, 4000, 3000, detail.most_tokens(1024));
    assert!((200..=256).contains(&most(Detail::Low)));
    assert!((900..=1024).contains(&most(Detail::High)));
    assert_eq!(most(Detail::Original), tokens(&QWEN, 4000, 3000, u32::MAX));
    assert_eq!(Detail::Low.most_tokens(64), 64);
}

#[test]
fn gemma_is_limited_to_numbers_of_tokens_that_it_was_trained_for() {
    let square = |most| tokens(&GEMMA, 1000, 1000, most);
    assert_eq!([u32::MAX, 280, 279, 140, 139, 70].map(square), [256, 256, 121, 121, 64, 64]);
    assert_eq!(square(30), 25, "below the least of them the limit is filled");
}

#[test]
fn qwen_refuses_above_its_ratio_and_not_at_it() {
    let plan = |width, height| QWEN.plan(Size { width, height }, u32::MAX);
    assert!(plan(2000, 10).is_ok());
    let size = Size { width: 2001, height: 10 };
    assert_eq!(plan(2001, 10), Err(ImageError::TooElongated { size, most: 200 }));
}

#[test]
fn what_keeps_its_size_keeps_its_samples() {
    let size = Size { width: 5, height: 3 };
    let image = Rgb::new(size, (0..45).map(|it| it * 5).collect());
    assert_eq!(resize(image.clone(), size), image);
}

#[test]
fn one_colour_stays_that_colour() {
    for (from, to) in [((1, 1), (32, 64)), ((300, 7), (28, 280)), ((64, 64), (64, 32)), ((3, 500), (3, 47))] {
        let size = |(width, height): (u32, u32)| Size { width, height };
        let image = |size: Size| Rgb::new(size, [7, 130, 255].repeat(size.pixels() as usize));
        assert_eq!(resize(image(size(from)), size(to)), image(size(to)), "{from:?} to {to:?}");
    }
}

/// Each sample of an image is in the rows of Qwen as often as there are frames, and once otherwise.
#[test]
fn rows_hold_every_sample() {
    for (spec, frames) in [(QWEN, 2), (GEMMA, 1), (PIXTRAL, 1)] {
        let levels = Levels::Normalised { mean: [0.0; 3], deviation: [1.0; 3] };
        let spec = VisionSpec { levels, ..spec };
        let size = Size { width: spec.unit() * 3, height: spec.unit() * 2 };
        let samples: Vec<u8> = (0..size.pixels() * 3).map(|it| (it * 7919 % 251) as u8).collect();
        let rows = spec.patches(&Rgb::new(size, samples.clone()));
        let mut found: Vec<u8> = rows.iter().map(|it| (it * 255.0).round() as u8).collect();
        let mut expected = samples.repeat(frames);
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_exceeds_its_limit_nor_is_empty(
        width in 1u32..70_000, height in 1u32..70_000, most in prop_oneof![1u32..40, 40u32..3000, Just(u32::MAX)],
    ) {
        let ratio = f64::from(width.max(height)) / f64::from(width.min(height));
        for spec in [QWEN, GEMMA, PIXTRAL, support::qwen(262_144, 262_144)] {
            let Ok(plan) = spec.plan(Size { width, height }, most) else {
                prop_assert!(ratio > 200.0);
                continue;
            };
            prop_assert!(plan.tokens <= most.max(2), "{} tokens", plan.tokens);
            prop_assert!(plan.merged.cells() > 0);
            prop_assert_eq!(plan.patches.rows, plan.merged.rows * spec.merge);
            prop_assert_eq!(plan.resized.width, plan.patches.columns * spec.patch);
            prop_assert_eq!(plan.resized.height, plan.patches.rows * spec.patch);
        }
    }

    #[test]
    fn a_turned_image_has_a_turned_plan(width in 1u32..5000, height in 1u32..5000, most in 2u32..5000) {
        // What ends rows counts to Pixtral's limit, and a turned image has as many rows as it had columns.
        for (spec, most) in [(QWEN, most), (GEMMA, most), (PIXTRAL, u32::MAX)] {
            let plan = |width, height| spec.plan(Size { width, height }, most).ok().map(|it| it.merged);
            let (upright, turned) = (plan(width, height), plan(height, width));
            prop_assert_eq!(
                upright.map(|it| (it.rows, it.columns)),
                turned.map(|it| (it.columns, it.rows))
            );
        }
    }

    #[test]
    fn a_higher_limit_gives_no_fewer_tokens(width in 8u32..5000, height in 8u32..5000, most in 70u32..3000) {
        for spec in [GEMMA, PIXTRAL] {
            let plan = |most| spec.plan(Size { width, height }, most).map(|it| it.tokens);
            prop_assert!(plan(most)? <= plan(most + 100)?);
        }
    }
}
