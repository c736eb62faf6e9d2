//! Compares vector functions with plain arithmetic.

use super::*;

fn map(x: f32, f: impl Fn(F32s) -> F32s) -> f32 {
    f(F32s::splat(x)).to_array()[LANES - 1]
}

#[test]
fn exp_is_accurate_and_ends_in_zero_and_infinity() {
    let mut worst = 0.0f64;
    for i in -870_000..=885_000 {
        let x = i as f32 * 1e-4;
        let (expected, found) = (f64::from(x).exp(), f64::from(map(x, exp)));
        worst = worst.max((found / expected - 1.0).abs());
    }
    assert!(worst < 2e-7, "relative error {worst:e}");
    assert_eq!(map(f32::NEG_INFINITY, exp), 0.0);
    assert_eq!(map(-104.5, exp), 0.0);
    assert_eq!(map(f32::INFINITY, exp), f32::INFINITY);
    assert!(map(f32::NAN, exp).is_nan());
    assert_eq!(map(0.0, exp), 1.0);
}

#[test]
fn sigmoid_and_softplus_are_accurate() {
    let (mut sigmoid_worst, mut softplus_worst) = (0.0f64, 0.0f64);
    for i in -860_000..=1_000_000 {
        let x = i as f32 * 1e-4;
        let wide = f64::from(x);
        let expected = 1.0 / (1.0 + (-wide).exp());
        sigmoid_worst = sigmoid_worst.max((f64::from(map(x, sigmoid)) / expected - 1.0).abs());
        let expected = wide.max(0.0) + (-wide.abs()).exp().ln_1p();
        softplus_worst = softplus_worst.max((f64::from(map(x, softplus)) / expected - 1.0).abs());
    }
    assert!(sigmoid_worst < 3e-7, "relative error {sigmoid_worst:e}");
    assert!(softplus_worst < 3e-7, "relative error {softplus_worst:e}");
    assert_eq!((map(f32::NEG_INFINITY, sigmoid), map(f32::INFINITY, sigmoid)), (0.0, 1.0));
    assert_eq!((map(-1e30, softplus), map(1e30, softplus)), (0.0, 1e30));
    assert!(map(f32::NAN, sigmoid).is_nan() && map(f32::NAN, softplus).is_nan());
}

/// The error function's Taylor series: 90 terms reach f64's precision for |x| <= 4.5.
fn erf_exact(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..90 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn erf_is_accurate() {
    let mut worst = 0.0f64;
    for i in -45_000..=45_000 {
        let x = i as f32 * 1e-4;
        worst = worst.max((f64::from(map(x, erf)) - erf_exact(f64::from(x))).abs());
    }
    assert!(worst < 1.2e-7, "absolute error {worst:e}");
    assert!((map(1e30, erf) - 1.0).abs() < 1e-7 && (map(-1e30, erf) + 1.0).abs() < 1e-7);
}

#[test]
fn byte_products_are_exact_at_the_extremes() {
    let codes: [u8; 4 * LANES] = std::array::from_fn(|i| (i * 7 + 15) as u8 % 16);
    let weights: [u8; 4 * LANES] = std::array::from_fn(|i| [0, 255, 128, 1, 127][i % 5]);
    for x in [[127i8, 127, 127, 127], [-127; 4], [127, -127, 1, -1], [0, 5, -128, 3]] {
        let word = i32::from_le_bytes(x.map(|b| b as u8));
        let nibbles = I32s::zero().dot_nibbles(U8s::load(&codes), word).to_f32().to_array();
        // Activations never contain -128, which the sign trick cannot handle.
        let x8 = x.map(|b| b.max(-127));
        let word8 = i32::from_le_bytes(x8.map(|b| b as u8));
        let bias = -128 * x8.iter().map(|b| i32::from(*b)).sum::<i32>();
        let signed = I32s::biased(bias).dot_biased(U8s::load(&weights), word8).to_f32().to_array();
        for lane in 0..LANES {
            let expected: i32 = (0..4).map(|c| i32::from(codes[4 * lane + c]) * i32::from(x[c])).sum();
            assert_eq!(nibbles[lane], expected as f32);
            let expected: i32 =
                (0..4).map(|c| (i32::from(weights[4 * lane + c]) - 128) * i32::from(x8[c])).sum();
            assert_eq!(signed[lane], expected as f32);
        }
    }
}

#[test]
fn nibbles_reductions_and_masks() {
    let bytes: [u8; 4 * LANES] = std::array::from_fn(|i| (i * 37) as u8);
    let ones = i32::from_le_bytes([1; 4]);
    let low = I32s::zero().dot_nibbles(U8s::load(&bytes).low(), ones).to_f32().to_array();
    let high = I32s::zero().dot_nibbles(U8s::load(&bytes).high(), ones).to_f32().to_array();
    for lane in 0..LANES {
        let four = &bytes[4 * lane..4 * lane + 4];
        assert_eq!(low[lane], four.iter().map(|b| f32::from(b & 15)).sum::<f32>());
        assert_eq!(high[lane], four.iter().map(|b| f32::from(b >> 4)).sum::<f32>());
    }
    for shift in 0..8 {
        let with = U8s::load(&bytes).low().with_bits(U8s::load(&bytes), shift, 0x0101_0101, 4);
        let sums = I32s::splat(-7).dot_nibbles(with, ones).to_f32().to_array();
        for lane in 0..LANES {
            let code = |b: &u8| f32::from((b & 15) | (b >> shift & 1) << 4);
            assert_eq!(sums[lane], bytes[4 * lane..4 * lane + 4].iter().map(code).sum::<f32>() - 7.0);
        }
    }
    let table: [u8; 16] = std::array::from_fn(|i| (i * i) as u8);
    let sums = I32s::zero().dot_nibbles(U8s::load(&bytes).high().levels(&table), ones).to_f32().to_array();
    for lane in 0..LANES {
        let level = |b: &u8| f32::from(table[usize::from(b >> 4)]);
        assert_eq!(sums[lane], bytes[4 * lane..4 * lane + 4].iter().map(level).sum::<f32>());
    }
    assert_eq!(F32s::from_u8(at(&bytes, 0)).to_array(), at::<u8, LANES>(&bytes, 0).map(f32::from));
    let x: [f32; LANES] = std::array::from_fn(|i| i as f32 - 2.0);
    let x = F32s::load(&x);
    assert_eq!(x.sum(), (0..LANES).map(|i| i as f32 - 2.0).sum::<f32>());
    assert_eq!(x.largest(), LANES as f32 - 3.0);
    assert_eq!(x.keep(1, -9.0).to_array()[..2], [-2.0, -9.0]);
}

#[test]
fn codes_become_the_numbers_that_they_are() {
    let levels = monomorph_formats::cached::Cached::Turbo4.signed_levels();
    for code in 0..=255u8 {
        let pair = F32s::pair_from_levels(&levels, &[code; LANES]).map(F32s::to_array);
        assert_eq!(pair, [code & 15, code >> 4].map(|it| [levels[usize::from(it)]; LANES]), "{code}");
        let exact = monomorph_formats::e4m3_to_f32(code) / 256.0;
        let found = F32s::from_e4m3(&[code; LANES]).to_array();
        // The two that are no numbers count as the ones above the largest.
        let expected = if exact.is_nan() { 1.875f32.copysign(found[0]) } else { exact };
        assert_eq!(found.map(f32::to_bits), [expected.to_bits(); LANES], "{code}");
    }
}

#[test]
fn codes_of_groups_and_planes_become_their_levels() {
    use monomorph_formats::cached::Cached::{Turbo3, Turbo4};
    let levels = Turbo4.signed_levels();
    for turn in 0..16 {
        let codes: [u32; 16] = std::array::from_fn(|i| (i as u32 * 7 + turn) % 16);
        let mut words = [0u32; 2];
        codes.iter().enumerate().for_each(|(i, code)| words[i % 2] |= code << (i / 2 * 4));
        let words = (u64::from(words[1]) << 32 | u64::from(words[0])).to_le_bytes();
        for first in (0..16).step_by(LANES) {
            let found = F32s::group_from_levels(&levels, &words, first).to_array();
            assert_eq!(found, std::array::from_fn(|i| levels[codes[first + i] as usize]), "{turn}");
        }
    }
    let levels = Turbo3.signed_levels();
    let level = |magnitude: u32, sign: u32| levels[(magnitude & 3 | (sign & 1) << 3) as usize];
    for turn in 0..=255u8 {
        let (sizes, signs) = (u32::from_le_bytes([turn, !turn, 0x1b, 0xe4]), 0xa7_00 | u32::from(turn));
        for first in (0..16).step_by(LANES) {
            let found = F32s::group_from_planes(&levels, sizes, signs, first).to_array();
            let expected = std::array::from_fn(|i| level(sizes >> (2 * (first + i)), signs >> (first + i)));
            assert_eq!(found, expected, "{turn}");
        }
        let planes: [[u8; LANES]; 2] =
            [37, 101].map(|by| std::array::from_fn(|i| turn.wrapping_add(i as u8).wrapping_mul(by)));
        for d in (0..8).step_by(2) {
            let found = F32s::pair_from_planes(&levels, &planes[0], &planes[1], d).map(F32s::to_array);
            let expected = [d, d + 1].map(|d| {
                std::array::from_fn(|i| {
                    level(u32::from(planes[0][i]) >> (d % 4 * 2), u32::from(planes[1][i]) >> d)
                })
            });
            assert_eq!(found, expected, "{turn}");
        }
    }
}
