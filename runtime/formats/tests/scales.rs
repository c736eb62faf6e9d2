//! fp8 and nvfp4: every code against the published tables, encoding against the definition of rounding, and
//! the scales that stand beside the codes.

use monomorph_formats::{
    E2M1_MAX, E4M3_MAX, Format, ScaleForm, decode, e2m1_to_f32, e4m3_to_f32, encode, f32_to_e2m1, f32_to_e4m3,
};

/// Magnitudes of every E4M3 code with a clear sign, by the table of the OCP specification: exponent field 0
/// counts steps of 2^-9, every further one begins at 8 steps of twice the size of the one before.
fn e4m3_table() -> Vec<f32> {
    let mut table: Vec<f32> = (0..8).map(|m| m as f32 / 512.0).collect();
    let mut step = 1.0 / 512.0;
    for _ in 1..16 {
        table.extend((8..16).map(|m| m as f32 * step));
        step *= 2.0;
    }
    table.pop();
    table
}

#[test]
fn e4m3_codes_have_their_published_values() {
    let table = e4m3_table();
    assert_eq!(table.len(), 127);
    for (code, value) in table.iter().enumerate() {
        assert_eq!(e4m3_to_f32(code as u8), *value);
        assert_eq!(e4m3_to_f32(code as u8 | 0x80), -value);
    }
    // The specification's own examples.
    for (code, value) in
        [(0x7eu8, 448.0f32), (0x08, 0.015_625), (0x01, 0.001_953_125), (0x38, 1.0), (0xc0, -2.0)]
    {
        assert_eq!(e4m3_to_f32(code), value);
    }
    assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
    assert!(e4m3_to_f32(0x80).is_sign_negative());
    assert_eq!(table.last(), Some(&E4M3_MAX));
}

#[test]
fn e2m1_codes_have_their_published_values() {
    let table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (code, value) in table.iter().enumerate() {
        assert_eq!(e2m1_to_f32(code as u8), *value);
        assert_eq!(e2m1_to_f32(code as u8 | 8), -value);
        // The upper half of the byte is another element's.
        assert_eq!(e2m1_to_f32(code as u8 | 0x50), *value);
    }
    assert_eq!(table[7], E2M1_MAX);
}

/// The code that is nearest by definition: of the two smallest distances the even code's where they are
/// equal.
fn nearest(table: &[f32], value: f32) -> usize {
    // Beyond the last code the last is nearest, which differences of huge numbers no longer show.
    let value = f64::from(value.abs().min(2.0 * table[table.len() - 1]));
    let distance = |code: usize| (f64::from(table[code]) - value).abs();
    (0..table.len()).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2)))).unwrap()
}

/// Values around every code and every midpoint, tiny, huge, and spread over f32's exponents.
fn values(table: &[f32]) -> Vec<f32> {
    let mut values = vec![0.0, f32::MIN_POSITIVE, 1e-45, 1e30, f32::MAX];
    for pair in table.windows(2) {
        let middle = (pair[0] + pair[1]) / 2.0;
        values.extend([
            pair[0],
            middle,
            middle.next_down(),
            middle.next_up(),
            pair[1].next_down(),
            pair[1].next_up(),
        ]);
    }
    let mut state = 7u32;
    for _ in 0..200_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = f32::from_bits(state & 0x7fff_ffff);
        values.extend(value.is_finite().then_some(value));
    }
    values
}

#[test]
fn encoding_rounds_to_the_nearest_code_and_ties_to_even() {
    let (e4m3, e2m1) = (e4m3_table(), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    for value in values(&e4m3) {
        assert_eq!(usize::from(f32_to_e4m3(value)), nearest(&e4m3, value), "{value:e}");
        assert_eq!(f32_to_e4m3(-value), f32_to_e4m3(value) | 0x80);
    }
    for value in values(&e2m1) {
        assert_eq!(usize::from(f32_to_e2m1(value)), nearest(&e2m1, value), "{value:e}");
        assert_eq!(f32_to_e2m1(-value), f32_to_e2m1(value) | 8);
    }
    assert_eq!((f32_to_e4m3(f32::INFINITY), f32_to_e2m1(f32::NEG_INFINITY)), (0x7e, 15));
    assert!(e4m3_to_f32(f32_to_e4m3(f32::NAN)).is_nan());
    assert_eq!(f32_to_e2m1(f32::NAN) & 7, 0);
}

#[test]
fn every_code_survives_a_round_trip() {
    for code in 0..=u8::MAX {
        if code & 0x7f != 0x7f {
            assert_eq!(f32_to_e4m3(e4m3_to_f32(code)), code);
        }
        assert_eq!(f32_to_e2m1(e2m1_to_f32(code)), code & 15);
    }
}

#[test]
fn nvfp4_blocks_hold_even_elements_in_low_nibbles() {
    let bytes: Vec<u8> = (0..8).map(|i| (2 * i) | (2 * i + 1) << 4).collect();
    let mut values = [0.0; 16];
    decode(Format::Nvfp4, &bytes, &mut values);
    for (code, value) in values.into_iter().enumerate() {
        assert_eq!(value.to_bits(), e2m1_to_f32(code as u8).to_bits());
    }
    assert_eq!(encode(Format::Nvfp4, &values), bytes);
    assert_eq!(Format::Nvfp4.bytes(64), Some(32));
    assert_eq!(Format::Nvfp4.bytes(24), None);
    let all: Vec<u8> = (0..=255).filter(|code| code & 0x7f != 0x7f).collect();
    let mut values = vec![0.0; all.len()];
    decode(Format::Fp8E4m3, &all, &mut values);
    assert_eq!(encode(Format::Fp8E4m3, &values), all);
}

#[test]
fn names_of_forms_and_shapes_of_companions() {
    for form in ScaleForm::ALL {
        assert!(form.codes().has_companions());
        assert_eq!(form.to_string(), form.name());
    }
    assert_eq!(ScaleForm::Tensor.companions(200, 300), [("weight_scale", vec![])]);
    assert_eq!(ScaleForm::Block128.companions(200, 300), [("weight_scale_inv", vec![2, 3])]);
    let groups = ("weight_scale", vec![200, 18]);
    assert_eq!(ScaleForm::Modelopt.companions(200, 288), [groups.clone(), ("weight_scale_2", vec![])]);
    assert_eq!(ScaleForm::CompressedTensors.companions(200, 288), [groups, ("weight_global_scale", vec![])]);
}

#[test]
fn scales_multiply_the_elements_they_belong_to() {
    let apply = |form: ScaleForm, columns: usize, scales: &[Vec<f32>]| {
        let mut values: Vec<f32> = (0..2 * columns).map(|i| (i % 7) as f32 - 3.0).collect();
        let before = values.clone();
        form.apply(&mut values, columns, scales);
        let factors = values.iter().zip(before).filter(|(_, b)| *b != 0.0).map(|(a, b)| a / b);
        factors.collect::<Vec<f32>>()
    };
    assert!(apply(ScaleForm::Tensor, 5, &[vec![0.25]]).iter().all(|it| *it == 0.25));
    // 130 columns: a whole block and two columns of another.
    let found = apply(ScaleForm::Block128, 130, &[vec![0.5, 8.0]]);
    assert_eq!(
        found.iter().filter(|it| **it == 8.0).count(),
        4 - (0..260).filter(|i| i % 130 > 127 && i % 7 == 3).count()
    );
    assert!(found.iter().all(|it| [0.5, 8.0].contains(it)));
    let groups = vec![1.0, 2.0, 4.0, 0.5];
    let multiplied = apply(ScaleForm::Modelopt, 32, &[groups.clone(), vec![0.25]]);
    let divided = apply(ScaleForm::CompressedTensors, 32, &[groups, vec![4.0]]);
    assert_eq!(multiplied, divided);
    assert_eq!((multiplied[0], multiplied[multiplied.len() - 1]), (0.25, 0.125));
    assert_eq!(ScaleForm::Block128.row_scale(7.0), 1.0);
    assert_eq!(ScaleForm::CompressedTensors.row_scale(3.0), 1.0 / 3.0);
}

/// What the tensor cores rely on: bf16 holds each product of an E2M1 code and an E4M3 block scale.
#[test]
fn bf16_holds_codes_times_block_scales() {
    for code in 0..16 {
        for scale in (0..=255u8).filter(|scale| scale & 0x7f != 0x7f) {
            let product = e2m1_to_f32(code) * e4m3_to_f32(scale);
            let mut back = [0.0];
            decode(Format::Bf16, &encode(Format::Bf16, &[product]), &mut back);
            assert_eq!(back[0].to_bits(), product.to_bits(), "{code} {scale}");
        }
    }
}

#[test]
#[should_panic(expected = "scales of form block128")]
fn the_shapes_of_scales_are_checked() {
    ScaleForm::Block128.apply(&mut [0.0; 300], 150, &[vec![1.0]]);
}
