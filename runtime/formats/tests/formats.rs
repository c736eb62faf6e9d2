//! The formats against tables worked out by hand, and against their own definitions at random.

use monomorph_formats::{ACTIVATION_BLOCK, Format, decode, encode, quantise_block};

fn decoded(format: Format, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; count];
    decode(format, bytes, &mut values);
    values
}

/// Numbers that look random and are the same in every run.
fn random(seed: u32, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 8_388_608.0 - 1.0) * scale
        })
        .collect()
}

#[test]
fn names_and_sizes() {
    for format in Format::ALL {
        assert_eq!(Format::from_name(format.name()), Some(format));
        assert_eq!(format.to_string(), format.name());
        assert_eq!(format.bytes(format.block_elements() * 3), Some(format.block_bytes() * 3));
        assert_eq!(format.is_quantised(), format.block_elements() > 1 || format == Format::Fp8E4m3);
    }
    assert_eq!(Format::from_name("Q4_1"), None);
    assert_eq!(Format::Q4_1.bytes(33), None);
    assert_eq!(Format::Q8_0.bytes(64), Some(68));
    assert_eq!(Format::F32.bytes(usize::MAX), None);
    // Bits an element: 5 and 8.5, as ggml has it.
    assert_eq!(Format::Q4_1.block_bytes() * 8, 5 * 32);
    assert_eq!(Format::Q8_0.block_bytes() * 16, 17 * 32);
}

#[test]
fn floats_have_their_published_bits() {
    for (bits, value) in [
        (0x3f80u16, 1.0f32),
        (0xc000, -2.0),
        (0x3eab, 0.333_984_38),
        (0x7f80, f32::INFINITY),
        (0x0001, 9.183_55e-41),
    ] {
        assert_eq!(decoded(Format::Bf16, &bits.to_le_bytes(), 1), [value]);
        assert_eq!(encode(Format::Bf16, &[value]), bits.to_le_bytes());
    }
    for (bits, value) in [
        (0x3c00u16, 1.0f32),
        (0xc000, -2.0),
        (0x3555, 0.333_251_95),
        (0x7bff, 65504.0),
        (0x0001, 5.960_464_5e-8),
    ] {
        assert_eq!(decoded(Format::F16, &bits.to_le_bytes(), 1), [value]);
        assert_eq!(encode(Format::F16, &[value]), bits.to_le_bytes());
    }
    // Halfway between two bf16: to the even one.
    assert_eq!(encode(Format::Bf16, &[f32::from_bits(0x3f80_8000)]), 0x3f80u16.to_le_bytes());
    assert_eq!(encode(Format::Bf16, &[f32::from_bits(0x3f81_8000)]), 0x3f82u16.to_le_bytes());
    assert_eq!(decoded(Format::F32, &1.5f32.to_le_bytes(), 1), [1.5]);
}

#[test]
fn every_half_float_survives_a_round_trip() {
    for bits in 0..=u16::MAX {
        for format in [Format::Bf16, Format::F16] {
            let value = decoded(format, &bits.to_le_bytes(), 1)[0];
            if !value.is_nan() {
                assert_eq!(encode(format, &[value]), bits.to_le_bytes(), "{format} {bits:#06x}");
            }
        }
    }
}

#[test]
fn q8_0_blocks_mean_scale_times_code() {
    let mut block = vec![0x00, 0x38]; // 0.5 in f16
    block.extend((0..32u8).map(|i| i.wrapping_mul(37)));
    for (i, value) in decoded(Format::Q8_0, &block, 32).into_iter().enumerate() {
        assert_eq!(value, 0.5 * f32::from((i as u8).wrapping_mul(37) as i8));
    }
}

#[test]
fn q4_1_blocks_mean_scale_times_nibble_plus_minimum() {
    let mut block = vec![0x00, 0x38, 0x00, 0xc0]; // 0.5, -2 in f16
    block.extend((0..16u8).map(|i| i | (15 - i) << 4));
    let values = decoded(Format::Q4_1, &block, 32);
    for i in 0..16 {
        assert_eq!(values[i], 0.5 * i as f32 - 2.0);
        assert_eq!(values[i + 16], 0.5 * (15 - i) as f32 - 2.0);
    }
}

#[test]
fn quantised_values_lie_within_half_a_step() {
    for seed in 1..50 {
        // Below 1e-2 the f16 scales of q8_0 are subnormal and lose digits.
        let scale = 10f32.powi(seed as i32 % 6 - 2);
        let values = random(seed, 96, scale);
        for (format, steps) in [(Format::Q8_0, 254.0), (Format::Q4_1, 15.0), (Format::Q5_1, 31.0)] {
            let bytes = encode(format, &values);
            let back = decoded(format, &bytes, values.len());
            for (v, b) in values.iter().zip(&back) {
                // Half a step, and the f16 rounding of scale and minimum.
                assert!((v - b).abs() <= scale * 2.0 * (0.5 / steps + 1.5e-3), "{format}: {v} became {b}");
            }
            // What is stored already is stored again unchanged but for the rounding of its scale.
            let again = decoded(format, &encode(format, &back), back.len());
            for (b, a) in back.iter().zip(&again) {
                assert!(
                    (b - a).abs() <= scale * 3e-3 + scale * 2.0 / steps * 0.02,
                    "{format}: {b} became {a}"
                );
            }
        }
    }
    for format in [Format::Q8_0, Format::Q4_1] {
        assert_eq!(decoded(format, &encode(format, &[0.0; 32]), 32), [0.0; 32]);
        // 127 is exact in f16 as a minimum, and its 127th is exact as a scale.
        assert_eq!(decoded(format, &encode(format, &[127.0; 32]), 32), [127.0; 32]);
    }
}

#[test]
fn activations_are_rounded_to_the_nearest_code() {
    for seed in 1..50 {
        let x: [f32; ACTIVATION_BLOCK] = random(seed, 32, 3.0).try_into().unwrap();
        let block = quantise_block(&x);
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert_eq!(block.scale, largest / 127.0);
        assert_eq!(block.values.iter().map(|q| q.unsigned_abs()).max(), Some(127));
        for (x, q) in x.iter().zip(block.values) {
            assert!((x - block.scale * f32::from(q)).abs() <= 0.5001 * block.scale);
        }
    }
    // Ties go to even codes: the scale is 1 here.
    let mut x = [0.0; 32];
    (x[0], x[1], x[2], x[3], x[4]) = (127.0, 0.5, 1.5, -2.5, -127.0);
    assert_eq!(quantise_block(&x).values[..5], [127, 0, 2, -2, -127]);
    assert_eq!(quantise_block(&[0.0; 32]).scale, 0.0);
    assert_eq!(quantise_block(&[-0.0; 32]).values, [0; 32]);
}

#[test]
#[should_panic(expected = "bytes and elements disagree")]
fn decoding_checks_the_size() {
    decode(Format::Q8_0, &[0; 33], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "do not fill q4_1 blocks")]
fn encoding_checks_the_size() {
    encode(Format::Q4_1, &[0.0; 31]);
}

/// Every pattern of 16 bits, decoded, says whether it is finite; so do the scales of blocks.
#[test]
fn what_is_not_finite_is_found_in_every_format() {
    for bits in 0..=u16::MAX {
        let two = bits.to_le_bytes();
        let wide = [1, 0, two[0], two[1]];
        let cases = [
            (Format::F32, wide.to_vec()),
            (Format::Bf16, two.to_vec()),
            (Format::F16, two.to_vec()),
            (Format::Fp8E4m3, vec![two[0]]),
            (Format::Nvfp4, vec![two[0]; 8]),
            (Format::Q8_0, [&two[..], &[3; 32]].concat()),
            (Format::Q4_1, [&two[..], &[0; 2], &[0x35; 16]].concat()),
            (Format::Q4_1, [&[0; 2], &two[..], &[0x35; 16]].concat()),
            (Format::Q4_0, [&two[..], &[0x35; 16]].concat()),
            (Format::Q5_1, [&[0; 2], &two[..], &[0x35; 20]].concat()),
            (Format::Q4K, [&[0; 2], &two[..], &[0x35; 140]].concat()),
            (Format::Q6K, [&[0x35; 208], &two[..]].concat()),
            (Format::Q2K, [&[0x35; 80], &two[..], &[0; 2]].concat()),
            (Format::Q2K, [&[0x35; 80][..], &[0; 2], &two].concat()),
            (Format::Q3K, [&[0x35; 108], &two[..]].concat()),
            (Format::Iq4Nl, [&two[..], &[0x35; 16]].concat()),
            (Format::Iq4Xs, [&two[..], &[0x35; 134]].concat()),
        ];
        for (format, block) in cases {
            let mut values = vec![0.0; format.block_elements()];
            decode(format, &block, &mut values);
            let finite = values.iter().all(|value| value.is_finite());
            assert_eq!(format.is_finite(&block), finite, "{format} {block:?}");
        }
    }
}

/// Blocks of every pattern of codes and scales, and what ggml's own package makes of them.
#[test]
fn blocks_mean_what_ggml_says() {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    let mut seen = 0;
    for line in include_str!("ggml_blocks.txt").lines() {
        let [name, blocks, values] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("three fields") };
        let format = Format::from_name(name).unwrap_or_else(|| panic!("no format {name}"));
        let (blocks, values) = (bytes(blocks), bytes(values));
        let found = decoded(format, &blocks, values.len() / 4);
        for (i, (found, expected)) in found.iter().zip(values.as_chunks::<4>().0).enumerate() {
            assert_eq!(*found, f32::from_le_bytes(*expected), "{name}, element {i}");
        }
        seen += 1;
    }
    assert_eq!(seen, 12);
}

/// Within half a step of the codes, and of the scales and minima; without minima within a whole one, since
/// there are fewer codes on one side of zero.
#[test]
fn blocks_of_small_integers_are_near_what_they_were_made_of() {
    for (format, part) in [
        (Format::Q4_0, 0.14),
        (Format::Q5_0, 0.07),
        (Format::Q4K, 0.1),
        (Format::Q5K, 0.06),
        (Format::Q6K, 0.045),
        (Format::Q2K, 0.4),
        (Format::Q3K, 0.3),
        (Format::Iq4Nl, 0.14),
        (Format::Iq4Xs, 0.17),
    ] {
        for seed in 1..20 {
            let values = random(seed, 512, 0.3);
            let back = decoded(format, &encode(format, &values), values.len());
            for (value, back) in values.iter().zip(&back) {
                assert!((value - back).abs() <= 0.3 * part, "{format}: {value} became {back}");
            }
        }
        assert_eq!(decoded(format, &encode(format, &[0.0; 256]), 256), [0.0; 256]);
    }
}
