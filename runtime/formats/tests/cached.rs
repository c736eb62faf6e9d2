//! Formats of cached keys and values: the error of each on Gaussians, rotations against their definition, and
//! what codes and scales may be.

use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, Codec, GROUP, Group, KvFormats, Rotation, static_scale, stored};

/// splitmix64, and pairs of it as Gaussians (Box and Muller 1958).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn gaussian(&mut self) -> f32 {
        let (radius, angle) = ((-2.0 * self.unit().ln()).sqrt(), std::f64::consts::TAU * self.unit());
        (radius * angle.cos()) as f32
    }
}

/// Error of a format relative to Gaussians of this deviation, root mean square.
fn error(codec: Codec, deviation: f32) -> f64 {
    let mut random = Random(1);
    let (mut off, mut whole) = (0.0, 0.0);
    for _ in 0..(1 << 18) / GROUP {
        let values = [(); GROUP].map(|()| deviation * random.gaussian());
        let found = codec.decode(&codec.encode(&values));
        for (found, value) in found.iter().zip(values) {
            off += f64::from(found - value).powi(2);
            whole += f64::from(value).powi(2);
        }
    }
    (off / whole).sqrt()
}

/// Errors that were computed apart from this code, with the same rules.
const EXPECTED: [(Cached, f64); 5] = [
    (Cached::Fp8, 0.0266),
    (Cached::Nvfp4, 0.0866),
    (Cached::Turbo8, 0.0223),
    (Cached::Turbo4, 0.0724),
    (Cached::Turbo3, 0.1458),
];

#[test]
fn errors_on_gaussians_are_those_of_the_rules() {
    for (format, expected) in EXPECTED {
        let found = error(Codec::new(format, 1.0).unwrap(), 1.0);
        println!("{format}: {found:.5}");
        assert!((found / expected - 1.0).abs() < 0.02, "{format}: {found:.4}, and {expected} is expected");
    }
    assert!(error(Codec::new(Cached::Bf16, 1.0).unwrap(), 1.0) < 0.002);
    assert_eq!(error(Codec::new(Cached::F32, 1.0).unwrap(), 1.0), 0.0);
}

#[test]
fn small_values_want_a_static_scale_where_scales_of_groups_run_out() {
    for format in [Cached::Nvfp4, Cached::Turbo4, Cached::Turbo3] {
        let of = |scale| error(Codec::new(format, scale).unwrap(), 1e-3);
        let at_one = error(Codec::new(format, 1.0).unwrap(), 1.0);
        assert!(of(1.0) > 1.5 * at_one, "{format}");
        assert!((of(2f32.powi(-10)) / at_one - 1.0).abs() < 0.02, "{format}");
    }
    let turbo8 = Codec::new(Cached::Turbo8, 1.0).unwrap();
    assert!((error(turbo8, 1e-3) / error(turbo8, 1.0) - 1.0).abs() < 0.01);
}

/// The rotation by its definition.
fn defined(vector: &[f32]) -> Vec<f64> {
    let width = vector.len();
    // Column j of R is sign j times that of H: which it is shows the image of a unit vector.
    let sign = |j: usize| {
        let mut unit = vec![0.0; width];
        unit[j] = 1.0;
        Rotation::new(width).unwrap().apply(&mut unit);
        f64::from(unit[0].signum())
    };
    let signed: Vec<f64> = vector.iter().enumerate().map(|(j, it)| sign(j) * f64::from(*it)).collect();
    let h = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let row = |i| signed.iter().enumerate().map(|(j, it)| h(i, j) * it).sum::<f64>();
    (0..width).map(|i| row(i) / (width as f64).sqrt()).collect()
}

#[test]
fn a_rotation_is_its_definition_keeps_products_and_is_undone() {
    let mut random = Random(2);
    for width in [16, 64, 128, 256, 512] {
        let rotation = Rotation::new(width).unwrap();
        let [a, b] = [(); 2].map(|()| (0..width).map(|_| random.gaussian()).collect::<Vec<_>>());
        let [ra, rb] = [&a, &b].map(|it| {
            let mut rotated = it.clone();
            rotation.apply(&mut rotated);
            rotated
        });
        for (found, expected) in ra.iter().zip(defined(&a)) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{width}: {found} and {expected}");
        }
        let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        assert!((product(&a, &b) - product(&ra, &rb)).abs() < 1e-4 * width as f64, "{width}");
        let mut back = ra.clone();
        rotation.undo(&mut back);
        assert!(a.iter().zip(&back).all(|(a, back)| (a - back).abs() < 1e-5), "{width}");
    }
    for width in [0, 8, 96, 80, 1024] {
        let why = Rotation::new(width).unwrap_err();
        assert_eq!(why, format!("heads of {width} cannot be rotated: a power of two from 16 to 512 can"));
    }
}

#[test]
fn an_offset_of_all_channels_does_not_gather_in_one_element() {
    for width in [64, 128, 256, 512] {
        let mut offset = vec![1.0; width];
        Rotation::new(width).unwrap().apply(&mut offset);
        let largest = offset.iter().fold(0.0, |largest: f32, it| largest.max(it.abs()));
        assert!(largest < 4.5, "{width}: {largest}, and without signs it is {}", (width as f32).sqrt());
    }
}

#[test]
fn groups_of_zeros_and_of_extremes_come_back_as_numbers() {
    for format in Cached::ALL {
        let codec = Codec::new(format, 1.0).unwrap();
        assert_eq!(codec.decode(&codec.encode(&[0.0; GROUP])), [0.0; GROUP], "{format}");
        for extreme in [f32::MIN_POSITIVE, 1e-30, 1e-6, 1e6, 1e30] {
            if format == Cached::F16 && extreme > 65504.0 {
                continue;
            }
            let mut values = [0.0; GROUP];
            (values[3], values[9]) = (extreme, -extreme);
            let group = codec.encode(&values);
            let found = codec.decode(&group);
            assert!(found.iter().all(|it| it.is_finite()), "{format}: {extreme} is {found:?}");
            assert!(found[3] >= 0.0 && found[9] <= 0.0 && found[3] == -found[9], "{format}: {found:?}");
            assert!(group.codes.iter().all(|it| u64::from(*it) < 1 << format.code_bits()), "{format}");
        }
    }
}

#[test]
fn a_scale_is_the_best_of_the_one_that_clips_nothing_and_three_below() {
    let mut random = Random(3);
    for format in [Cached::Nvfp4, Cached::Turbo4, Cached::Turbo3] {
        let codec = Codec::new(format, 1.0).unwrap();
        let codes: Vec<u32> = (0..1 << format.code_bits()).collect();
        let value = |code: u32, scale: u16| codec.decode(&Group { codes: [code; GROUP], scale })[0];
        let top = |scale| codes.iter().map(|it| value(*it, scale)).fold(0.0, f32::max);
        for _ in 0..2000 {
            let spread = 2f32.powi((random.bits() % 12) as i32 - 6);
            let values = [(); GROUP].map(|()| spread * random.gaussian());
            let group = codec.encode(&values);
            // The error of the codes that are nearest at a scale.
            let off = |scale| {
                let off =
                    |it: f32| codes.iter().map(|code| (value(*code, scale) - it).abs()).fold(9e9, f32::min);
                values.iter().map(|it| f64::from(off(*it)).powi(2)).sum::<f64>()
            };
            let largest = values.iter().fold(0.0, |largest: f32, it| largest.max(it.abs()));
            let covers = (1..0x7f).find(|scale| top(*scale) >= largest).expect("some scale does");
            let searched = covers.saturating_sub(3).max(1)..=covers;
            assert!(searched.contains(&group.scale), "{format}: {} of {searched:?}", group.scale);
            let least = searched.map(off).fold(f64::INFINITY, f64::min);
            let found = off(group.scale);
            assert!(found <= least * (1.0 + 1e-5), "{format}: {found} and {least} for {values:?}");
        }
    }
}

#[test]
fn a_static_scale_leaves_room_for_four_times_what_was_measured() {
    for (format, top) in [(Cached::Fp8, 448.0), (Cached::Nvfp4, 6.0 * 448.0), (Cached::Turbo4, 3.0 * 448.0)] {
        for largest in [1e-6, 0.03, 1.0, 112.0, 5e3] {
            let scale = static_scale(format, largest);
            assert!(Codec::new(format, scale).is_ok(), "{format}: {scale}");
            let room = f64::from(scale) * top / (4.0 * f64::from(largest));
            assert!((1.0..2.0).contains(&room), "{format}: {room} of {largest}");
        }
    }
    assert_eq!(static_scale(Cached::Turbo8, 3.0), 1.0);
    assert_eq!(static_scale(Cached::Fp8, 0.0), 1.0);
}

/// Vectors whose channels differ as those of keys do: some are offset, a few are large.
#[test]
fn vectors_come_back_rotated_back_and_as_near_as_their_format() {
    let mut random = Random(4);
    let width = 128;
    let vectors: Vec<f32> = (0..64 * width).map(|_| random.gaussian()).collect();
    for (format, expected) in EXPECTED {
        let found = stored(Codec::new(format, 1.0).unwrap(), width, &vectors);
        let (mut off, mut whole) = (0.0, 0.0);
        for (found, it) in found.iter().zip(&vectors) {
            off += f64::from(found - it).powi(2);
            whole += f64::from(*it).powi(2);
        }
        let error = f64::sqrt(off / whole);
        assert!((error / expected - 1.0).abs() < 0.05, "{format}: {error}");
    }
    // Of no whole number of groups.
    let found = stored(Codec::new(Cached::Nvfp4, 1.0).unwrap(), 20, &vectors[..40]);
    assert!(found.iter().zip(&vectors).all(|(found, it)| (found - it).abs() < 0.5));
    let mixed = KvFormats { keys: Cached::Turbo8, values: Cached::Turbo4 };
    assert_eq!((mixed.same(), mixed.to_string()), (None, "turbo8 keys, turbo4 values".to_owned()));
    assert_eq!(KvFormats::both(Cached::Fp8).to_string(), "fp8");
}

#[test]
fn what_is_no_number_is_kept_as_one() {
    for format in Cached::ALL.into_iter().filter(|format| format.is_narrow()) {
        let mut values = [1.0; GROUP];
        (values[3], values[7]) = (f32::NAN, -f32::NAN);
        let codec = Codec::unscaled(format);
        let found = codec.decode(&codec.encode(&values));
        assert!(found.iter().all(|it| it.is_finite()), "{format}: {found:?}");
        assert!(
            (0..GROUP).all(|at| at == 3 || at == 7 || (found[at] - 1.0).abs() < 0.1),
            "{format}: {found:?}"
        );
    }
    assert_eq!(Codec::unscaled(Cached::Fp8).encode(&[f32::NAN; GROUP]).codes, [0x7e; GROUP]);
}

#[test]
fn a_static_scale_is_positive_finite_and_one_that_the_format_takes() {
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let why = Codec::new(Cached::Fp8, scale).unwrap_err();
        assert_eq!(why, format!("a static scale of {scale} is not positive and finite"));
    }
    assert!(Codec::new(Cached::Fp8, 0.3).is_ok());
    assert!(Codec::new(Cached::Nvfp4, 0.3).unwrap_err().contains("no power of two"));
    assert!(Codec::new(Cached::Turbo8, 2.0).unwrap_err().contains("only 1"));
    let scaled = Codec::new(Cached::Nvfp4, 0.25).unwrap();
    assert_eq!((scaled.known(Cached::Nvfp4), scaled.scale()), (scaled, 0.25));
}

#[test]
#[should_panic(expected = "the codec of the caller's format")]
fn a_codec_is_of_no_other_format() {
    let _ = Codec::unscaled(Cached::Turbo4).known(Cached::Nvfp4);
}

#[test]
fn a_name_is_that_of_one_format_and_bits_are_those_of_codes_and_scales() {
    for format in Cached::ALL {
        assert_eq!(Cached::from_name(format.name()), Some(format));
    }
    assert_eq!(Cached::from_name("fp4"), None);
    let bits = |format: Cached| format.group_bytes() as f64 * 8.0 / GROUP as f64;
    assert_eq!(Cached::ALL.map(bits), [32.0, 16.0, 16.0, 8.0, 4.5, 9.0, 4.5, 3.5]);
    assert_eq!(Cached::Turbo8.scales(), Some(Format::Bf16));
}
