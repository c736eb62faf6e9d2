//! Quantised matrices: within the error that is derived for them, stable under a second quantisation, and of
//! the scales that checkpoints have.

use monomorph_formats::{
    E2M1_MAX, E4M3_MAX, Format, Quantised, Quantiser, ScaleForm, decode, encode, magnitude, quantise,
};

/// Every form with every format its scales may have.
const FORMS: [(ScaleForm, Format); 8] = [
    (ScaleForm::Tensor, Format::F32),
    (ScaleForm::Tensor, Format::Bf16),
    (ScaleForm::Tensor, Format::F16),
    (ScaleForm::Block128, Format::F32),
    (ScaleForm::Block128, Format::Bf16),
    (ScaleForm::Block128, Format::F16),
    (ScaleForm::Modelopt, Format::F32),
    (ScaleForm::CompressedTensors, Format::F32),
];

struct Random(u64);

impl Random {
    /// Of [-1, 1).
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Weights, some of them outliers, some rows and some blocks far smaller than others, some zeros.
    fn matrix(&mut self, rows: usize, columns: usize, scale: f32) -> Vec<f32> {
        let mut values = Vec::with_capacity(rows * columns);
        for _ in 0..rows {
            let row = scale * 2f32.powi((self.next() * 6.0) as i32);
            for _ in 0..columns / 16 {
                let block = row * if self.next() > 0.8 { self.next() * 1e-4 } else { 1.0 };
                let zero = self.next() > 0.9;
                values.extend((0..16).map(|_| {
                    let value = self.next() * self.next() * block;
                    if zero { 0.0 } else { value * if self.next() > 0.99 { 20.0 } else { 1.0 } }
                }));
            }
        }
        values
    }
}

/// What a quantised matrix means.
fn values(form: ScaleForm, quantised: &Quantised, count: usize, columns: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    decode(form.codes(), &quantised.codes, &mut values);
    form.apply(&mut values, columns, &quantised.scales);
    values
}

/// The stored scale of the block that an element is in; 1 where the matrix has one scale only.
fn scale_of(form: ScaleForm, quantised: &Quantised, i: usize, columns: usize) -> f32 {
    let (row, column) = (i / columns, i % columns);
    match form {
        ScaleForm::Tensor => 1.0,
        ScaleForm::Block128 => quantised.scales[0][row / 128 * columns.div_ceil(128) + column / 128],
        ScaleForm::Modelopt | ScaleForm::CompressedTensors => {
            quantised.scales[0][row * (columns / 16) + column / 16]
        }
    }
}

/// The largest error over its bound.
fn worst(form: ScaleForm, scale_format: Format, original: &[f32], columns: usize) -> f32 {
    let quantised = quantise(form, scale_format, original, columns);
    let quantiser = Quantiser::new(form, scale_format, magnitude(original));
    let means = values(form, &quantised, original.len(), columns);
    let over = original.iter().zip(&means).enumerate().map(|(i, (value, means))| {
        let scale = scale_of(form, &quantised, i, columns);
        (value - means).abs() / quantiser.bound(*value, scale).max(f32::MIN_POSITIVE)
    });
    over.fold(0.0, f32::max)
}

#[test]
fn the_error_is_within_the_bound_and_reaches_it() {
    let mut random = Random(1);
    for (form, format) in FORMS {
        let mut reached = 0.0f32;
        for round in 0..60 {
            // From scales below the least normal f16 to far above any weight.
            let scale = 10f32.powi(round % 12 - 8);
            let (rows, columns) = (1 + round as usize * 7 % 260, 16 * (1 + round as usize % 19));
            let original = random.matrix(rows, columns, scale);
            let over = worst(form, format, &original, columns);
            assert!(over <= 1.0, "{form} {format}: {over} of the bound, {rows} x {columns} of {scale:e}");
            reached = reached.max(over);
        }
        assert!(reached > 0.95, "{form} {format}: the bound is loose: {reached}");
    }
}

#[test]
fn scales_are_the_usual_ones() {
    let mut random = Random(2);
    let (rows, columns) = (200, 288);
    let original = random.matrix(rows, columns, 0.02);
    let largest = magnitude(&original);
    for (form, format) in FORMS {
        let quantised = quantise(form, format, &original, columns);
        let sizes: Vec<usize> =
            form.companions(rows, columns).iter().map(|(_, shape)| shape.iter().product()).collect();
        assert!(quantised.scales.iter().map(Vec::len).eq(sizes), "{form}");
        // Whatever format holds a scale holds it exactly.
        let stored = if form.codes() == Format::Nvfp4 { Format::Fp8E4m3 } else { format };
        for scale in &quantised.scales[0] {
            let mut back = [0.0];
            decode(stored, &encode(stored, &[*scale]), &mut back);
            assert_eq!(back, [*scale], "{form}");
        }
    }
    let last = |form| quantise(form, Format::F32, &original, columns).scales.pop().unwrap();
    assert_eq!(last(ScaleForm::Tensor), [largest / E4M3_MAX]);
    assert_eq!(last(ScaleForm::Modelopt), [largest / (E2M1_MAX * E4M3_MAX)]);
    assert_eq!(last(ScaleForm::CompressedTensors), [E2M1_MAX * E4M3_MAX / largest]);
    // The block with the largest value has the largest scale there is.
    let blocks = quantise(ScaleForm::Modelopt, Format::F32, &original, columns).scales.swap_remove(0);
    assert_eq!(blocks.into_iter().fold(0.0, f32::max), E4M3_MAX);
}

#[test]
fn a_matrix_by_hand() {
    // The largest is 6 * 448: the scale of all is 1. Second block: 3.2 / 6 = 0.5333, to which 9/16 is the
    // nearest E4M3; 3.2 over that is 5.7 and becomes 6, and 0.7 over it is 1.24 and becomes 1: not the 1.5 of
    // 0.7 / 0.5333 = 1.31.
    let mut row = [0.0f32; 32];
    (row[0], row[1], row[16], row[31]) = (2688.0, -1400.0, 3.2, 0.7);
    let quantised = quantise(ScaleForm::Modelopt, Format::F32, &row, 32);
    assert_eq!(quantised.scales, [vec![448.0, 0.5625], vec![1.0]]);
    assert_eq!(quantised.codes[..2], [0xd7, 0]);
    assert_eq!((quantised.codes[8], quantised.codes[15]), (0x07, 0x20));
}

#[test]
fn what_was_quantised_before_keeps_its_codes_and_scales() {
    let mut random = Random(3);
    let mut same = [0; FORMS.len()];
    for round in 0..40usize {
        let (rows, columns) = (1 + round * 7 % 260, 16 * (1 + round % 19));
        // Blocks of one size: see below.
        let original: Vec<f32> = (0..rows * columns).map(|_| random.next() * 0.05).collect();
        for (at, (form, format)) in FORMS.into_iter().enumerate() {
            let once = quantise(form, format, &original, columns);
            let means = values(form, &once, original.len(), columns);
            let twice = quantise(form, format, &means, columns);
            assert!(once.codes == twice.codes, "{form} {format}: other codes");
            let nvfp4 = form.codes() == Format::Nvfp4;
            assert!(!nvfp4 || once.scales[0] == twice.scales[0], "{form}: other block scales");
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= a.abs() * f32::EPSILON;
            assert!(once.scales.concat().iter().zip(&twice.scales.concat()).all(near), "{form} {format}");
            // 448 times a bf16 or f16 scale is exact in f32, so the largest value over 448 is that scale
            // again.
            if [Format::Bf16, Format::F16].contains(&format) {
                assert!(once == twice, "{form} {format}: other scales");
            }
            same[at] += usize::from(once == twice);
        }
    }
    // An f32 scale times 448 (or 2688) is rounded, and now and then its quotient is the neighbour of what it
    // was.
    assert!(same.iter().all(|same| *same >= 20), "{same:?}");
}

#[test]
fn what_was_quantised_before_is_the_same_where_the_largest_value_is_exact() {
    let mut random = Random(4);
    for exponent in [-12, -3, 0, 5] {
        let mut original: Vec<f32> = (0..256 * 160).map(|_| random.next() * 2f32.powi(exponent)).collect();
        // 21 and 7 times a power of two: what is divided by 2688 and 448, over any block, leaves a power of
        // two.
        for form in ScaleForm::ALL {
            let largest = if form.codes() == Format::Nvfp4 { 21.0 } else { 7.0 } * 2f32.powi(exponent);
            for row in [0, 128] {
                for column in [3, 130] {
                    original[row * 160 + column] = -largest;
                }
            }
            let once = quantise(form, Format::F32, &original, 160);
            let means = values(form, &once, original.len(), 160);
            assert!(once == quantise(form, Format::F32, &means, 160), "{form}");
        }
    }
}

/// Where a block scale is subnormal in E4M3 it may be rounded so far that another would be chosen for what is
/// left.
#[test]
fn small_blocks_may_change_once_more_and_stay_within_the_bound() {
    let mut row = [0.0f32; 32];
    // The second block's scale should be 0.55 of E4M3's least, which it becomes: 3.3 of that become 3, half
    // of which in turn would be its scale, and that is nearer to the even code 0.
    (row[0], row[16]) = (2688.0, 0.55 * 6.0 / 512.0);
    let once = quantise(ScaleForm::Modelopt, Format::F32, &row, 32);
    assert_eq!(once.scales[0], [448.0, 1.0 / 512.0]);
    let means = values(ScaleForm::Modelopt, &once, 32, 32);
    assert_eq!(means[16], 3.0 / 512.0);
    assert_eq!(quantise(ScaleForm::Modelopt, Format::F32, &means, 32).scales[0], [448.0, 0.0]);
    assert!(worst(ScaleForm::Modelopt, Format::F32, &means, 32) <= 1.0);
    assert!(worst(ScaleForm::Modelopt, Format::F32, &row, 32) <= 1.0);
}

#[test]
fn zeros_and_what_is_nearly_zero_are_zeros() {
    for (form, format) in FORMS {
        for value in [0.0, -0.0, f32::MIN_POSITIVE, 1e-31] {
            let quantised = quantise(form, format, &[value; 160], 32);
            assert!(quantised.scales.concat().iter().all(|scale| [0.0, 1.0].contains(scale)), "{form}");
            assert!(values(form, &quantised, 160, 32).iter().all(|value| *value == 0.0), "{form}");
        }
        // A matrix of two blocks of 128 rows, one of them zeros.
        let half: Vec<f32> = (0..256 * 16).map(|i| if i < 128 * 16 { 0.0 } else { i as f32 }).collect();
        assert!(worst(form, format, &half, 16) <= 1.0, "{form} {format}");
    }
}

#[test]
fn rows_by_rows_is_all_at_once() {
    let mut random = Random(5);
    let original = random.matrix(300, 160, 0.1);
    for (form, format) in FORMS {
        let whole = quantise(form, format, &original, 160);
        let quantiser = Quantiser::new(form, format, magnitude(&original));
        let bands: Vec<_> = original.chunks(128 * 160).map(|rows| quantiser.rows(rows, 160)).collect();
        assert_eq!(bands.iter().flat_map(|band| band.codes.clone()).collect::<Vec<_>>(), whole.codes);
        let blocks: Vec<f32> = bands.iter().flat_map(|band| band.scales.clone()).collect();
        assert!(whole.scales.concat().starts_with(&blocks), "{form}");
    }
}

#[test]
#[should_panic(expected = "a largest magnitude of NaN")]
fn not_a_number_has_no_code() {
    quantise(ScaleForm::Tensor, Format::F32, &[1.0, f32::NAN, 2.0], 3);
}
