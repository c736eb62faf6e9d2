//! Matrix products of every format against f64, on awkward shapes.

use crate::common::{Owned, Random, Rounded, Rounds, close, product, progress};
use monomorph_device::cpu::*;
use monomorph_formats::{Format, ScaleForm};
use monomorph_weights::WeightsError;
use std::path::Path;

const TOKENS: [usize; 9] = [1, 2, 3, 5, 8, 9, 12, 23, 40];

fn rms(x: &[f32], weights: &[f32], eps: f32, one_plus: bool) -> Vec<f32> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    let factor = |w: &f32| f64::from(*w) + if one_plus { 1.0 } else { 0.0 };
    x.iter().zip(weights).map(|(x, w)| (f64::from(*x) * scale * factor(w)) as f32).collect()
}

fn check<F: Rounded, const ROWS: usize, const COLS: usize>(lanes: usize) {
    let what = format!("{} {ROWS}x{COLS}, {lanes} lanes", std::any::type_name::<F>());
    let mut random = Random(ROWS as u64 * 1000 + COLS as u64);
    let (team, progress) = (Team::new(lanes).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let weights = Owned::of::<F>(&mut random, "w", &[ROWS, COLS]);
    let companions = weights.companions();
    let gains = Owned::random(&mut random, "norm", &[COLS], Format::Bf16);
    let bias = Owned::random(&mut random, "bias", &[ROWS], Format::F32);
    let matrix = Matrix::<F, ROWS, COLS>::load(&loader, &[weights.part(&companions)]).unwrap();
    let norm = RmsNorm::<OnePlus, COLS>::load(&loader, &Part::new(gains.tensor()), 1e-5).unwrap();
    let bias_vector = Vector::<ROWS>::load(&loader, &[Part::new(bias.tensor())]).unwrap();
    // A matrix counts what it takes without the rows that fill its last tile.
    let counted = F::tile_bytes(COLS) * ROWS / 16 + gains.bytes.len() + bias.bytes.len();
    assert_eq!(progress.read().0, counted as u64);

    let mut x = Rows::<COLS>::new(40);
    random.fill(&mut x, 40, 2.0);
    let mut before = Rows::<ROWS>::new(40);
    random.fill(&mut before, 40, 1.0);
    let (mut stored, mut normed, mut added) =
        (Rows::<ROWS>::new(40), Rows::<ROWS>::new(40), Rows::<ROWS>::new(40));
    let staging = Staging::<F, COLS>::new(lanes, 40);
    let mut alone: Vec<Vec<f32>> = Vec::new();
    for tokens in TOKENS {
        for row in 0..tokens {
            *added.row_mut(row) = *before.row(row);
            stored.row_mut(row).fill(f32::NAN);
        }
        team.run(|lane| {
            linear(lane, tokens, &x, &staging, &matrix, Store(&stored));
            norm_linear(lane, tokens, &x, &norm, &staging, &matrix, Store(&normed));
            linear(lane, tokens, &x, &staging, &matrix, Bias(&bias_vector, Add(&added)));
        });
        for row in 0..tokens {
            let expected = product(&weights, F::ROUNDS, x.row(row));
            close(stored.row(row), &expected, 4e-6, &what);
            let with_bias: Vec<f64> = expected
                .iter()
                .zip(bias.values())
                .zip(before.row(row))
                .map(|((sum, bias), before)| sum + f64::from(bias) + f64::from(*before))
                .collect();
            close(added.row(row), &with_bias, 4e-6, &what);
            let normalised = rms(x.row(row), &gains.values(), 1e-5, true);
            let expected = product(&weights, F::ROUNDS, &normalised);
            close(normed.row(row), &expected, F::ROUNDS.tolerance(4e-6), &what);
            // The same bits, whatever the neighbours.
            if row < alone.len() {
                assert_eq!(alone[row], normed.row(row), "{what}: row {row} of {tokens}");
            } else {
                alone.push(normed.row(row).to_vec());
            }
        }
    }
}

fn check_shapes<F: Rounded>() {
    check::<F, 5, 32>(1);
    check::<F, 17, 96>(3);
    check::<F, 960, 576>(2);
    check::<F, 48, 64>(4);
}

#[test]
fn f32_products() {
    check_shapes::<F32>();
    check::<F32, 17, 36>(2);
    check::<F32, 5, 7>(2);
}

#[test]
fn bf16_products() {
    check_shapes::<Bf16>();
    check::<Bf16, 17, 36>(2);
}

#[test]
fn f16_products() {
    check_shapes::<F16>();
    check::<F16, 17, 36>(2);
}

#[test]
fn q8_0_products() {
    check_shapes::<Q8_0>();
}

#[test]
fn q4_1_products() {
    check_shapes::<Q4_1>();
}

#[test]
fn products_of_small_integers() {
    check::<Q4_0, 17, 96>(3);
    check::<Q5_0, 5, 32>(1);
    check::<Q5_1, 17, 96>(2);
    check::<Q4K, 17, 512>(2);
    check::<Q5K, 5, 256>(1);
    check::<Q6K, 17, 512>(2);
    check::<Q2K, 17, 512>(2);
    check::<Q3K, 17, 512>(2);
    check::<Iq4Nl, 17, 96>(3);
    check::<Iq4Xs, 17, 512>(2);
}

/// Scales of several blocks of rows, and of columns that fill none.
#[test]
fn products_of_codes_with_scales_beside_them() {
    check::<Fp8Tensor, 17, 36>(2);
    check::<Fp8Block128, 300, 288>(2);
    check::<Fp8Block128, 5, 7>(1);
    check::<Nvfp4Groups, 300, 288>(2);
    check::<Nvfp4Groups, 5, 16>(1);
}

#[test]
fn products_of_rounded_activations() {
    check::<InF16<F32>, 17, 36>(2);
    check::<InF16<Bf16>, 48, 64>(4);
    check::<InF16<F16>, 5, 7>(1);
    check::<InF16<Fp8Tensor>, 5, 32>(1);
    check::<InF16<Nvfp4Groups>, 17, 96>(3);
    check::<InE4m3<Fp8Block128>, 130, 256>(2);
}

/// Rows far below their largest, of which f16 keeps a few bits or none: what is rounded when it is loaded.
#[test]
fn weights_that_f16_does_not_hold_are_rounded() {
    fn check<D: Decoded>() {
        let (team, progress) = (Team::new(1).unwrap(), progress());
        let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
        let mut random = Random(5);
        let values: Vec<f32> = (0..3 * 64).map(|i| random.unit() * 2f32.powi(-(i % 45))).collect();
        let weights = Owned::new("w", &[3, 64], D::FORMAT, &values);
        let matrix = Matrix::<InF16<D>, 3, 64>::load(&loader, &[Part::new(weights.tensor())]).unwrap();
        // One column at a time.
        for column in [0, 1, 17, 31, 33, 40, 44, 63] {
            let mut x = Rows::<64>::new(1);
            x.row_mut(0)[column] = 1.0;
            let (mut out, staging) = (Rows::<3>::new(1), Staging::<InF16<D>, 64>::new(1, 1));
            team.run(|lane| linear(lane, 1, &x, &staging, &matrix, Store(&out)));
            let expected = product(&weights, Rounds::ToF16, x.row(0));
            for (found, expected) in out.row(0).iter().zip(expected) {
                assert_eq!(f64::from(*found), expected, "{}, column {column}", D::FORMAT);
            }
        }
    }
    check::<F32>();
    check::<Bf16>();
    check::<F16>();
}

#[test]
fn scales_that_do_not_fit_are_refused_by_name() {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("model.safetensors"), &progress);
    let values = Random(2).vector(4 * 32, 1.0);
    let fp8 = Owned::scaled("fp8", &[4, 32], ScaleForm::Tensor, &values);
    let nvfp4 = Owned::scaled("nvfp4", &[4, 32], ScaleForm::CompressedTensors, &values);
    let refused = |part: Part| match Matrix::<Nvfp4Groups, 4, 32>::load(&loader, &[part]) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was loaded"),
    };
    let refused_fp8 = |part: Part| match Matrix::<Fp8Block128, 4, 32>::load(&loader, &[part]) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was loaded"),
    };
    let text = refused(Part::new(nvfp4.tensor()));
    assert!(text.contains("tensor nvfp4: expected scales of form modelopt, found none"), "{text}");
    let companions = fp8.companions();
    let text = refused_fp8(fp8.part(&companions));
    assert!(text.contains("tensor fp8: expected scales of form block128, found tensor"), "{text}");
    // Both forms of nvfp4 are kept alike, and each is read as what it is.
    let good = nvfp4.companions();
    Matrix::<Nvfp4Groups, 4, 32>::load(&loader, &[nvfp4.part(&good)]).unwrap();
    let text = refused(nvfp4.part(&good[..1]));
    assert!(text.contains("tensor `nvfp4` has 1 of 2 companions"), "{text}");
    let mut damaged = Owned::scaled("nvfp4", &[4, 32], ScaleForm::Modelopt, &values);
    let scales = &mut damaged.scales.as_mut().unwrap().1;
    scales[0].bytes[5] = 0x7f;
    let companions = damaged.companions();
    let text = refused(damaged.part(&companions));
    assert!(text.contains("tensor nvfp4, its scales: row 2 has numbers that are not finite"), "{text}");
    let mut infinite = Owned::scaled("nvfp4", &[4, 32], ScaleForm::CompressedTensors, &values);
    infinite.scales.as_mut().unwrap().1[1].bytes = vec![0; 4];
    let companions = infinite.companions();
    let text = refused(infinite.part(&companions));
    assert!(text.contains("`nvfp4.weight_global_scale` holds a scale that is not finite"), "{text}");
}

/// The error function's Taylor series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn check_gated<F: Rounded, A: Activation + Copy, const WIDTH: usize, const COLS: usize>(
    activation: A,
    plain: impl Fn(f64) -> f64,
) {
    let what = format!("{} gated {WIDTH}x{COLS}", std::any::type_name::<F>());
    let mut random = Random(WIDTH as u64);
    let (team, progress) = (Team::new(2).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
    let gate = Owned::of::<F>(&mut random, "gate", &[WIDTH, COLS]);
    let up = Owned::of::<F>(&mut random, "up", &[WIDTH, COLS]);
    let scales = [gate.companions(), up.companions()];
    let biases = [0, 1].map(|_| Owned::random(&mut random, "bias", &[WIDTH], Format::F16));
    let ones = Owned::new("norm", &[COLS], Format::F32, &vec![1.0; COLS]);
    let norm = RmsNorm::<Plain, COLS>::load(&loader, &Part::new(ones.tensor()), 1e-6).unwrap();
    let [gate_bias, up_bias] =
        biases.each_ref().map(|b| Vector::<WIDTH>::load(&loader, &[Part::new(b.tensor())]).unwrap());
    let matrix =
        GatedMatrix::<F, WIDTH, COLS>::load(&loader, &[gate.part(&scales[0])], &[up.part(&scales[1])])
            .unwrap();
    let mut x = Rows::<COLS>::new(20);
    random.fill(&mut x, 20, 1.0);
    let staging = Staging::<F, COLS>::new(2, 20);
    let (mut out, mut biased) = (Rows::<WIDTH>::new(20), Rows::<WIDTH>::new(20));
    // Both factors are off.
    let tolerance = 3.0 * F::ROUNDS.tolerance(3e-6);
    for tokens in [1, 6, 20] {
        team.run(|lane| {
            norm_gated(lane, tokens, &x, &norm, &staging, &matrix, Gated(activation, &out));
            let epilogue = GatedBias(&gate_bias, &up_bias, Gated(activation, &biased));
            norm_gated(lane, tokens, &x, &norm, &staging, &matrix, epilogue);
        });
        for row in 0..tokens {
            let apply = |x: &[f32], bias: bool| -> Vec<f64> {
                let sums = product(&gate, F::ROUNDS, x).into_iter().zip(product(&up, F::ROUNDS, x));
                let biases = biases[0].values().into_iter().zip(biases[1].values());
                sums.zip(biases)
                    .map(|((gate, up), (gate_bias, up_bias))| match bias {
                        true => plain(gate + f64::from(gate_bias)) * (up + f64::from(up_bias)),
                        false => plain(gate) * up,
                    })
                    .collect()
            };
            let normalised = rms(x.row(row), &ones.values(), 1e-6, false);
            close(out.row(row), &apply(&normalised, false), tolerance, &what);
            close(biased.row(row), &apply(&normalised, true), tolerance, &what);
        }
    }
}

#[test]
fn gated_products() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let tanh_form =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    let exact = |x: f64| if x.abs() > 6.0 { x.max(0.0) } else { 0.5 * x * (1.0 + erf(x / 2f64.sqrt())) };
    check_gated::<F32, _, 17, 36>(Silu, |x| x * sigmoid(x));
    check_gated::<Q4_1, _, 40, 64>(Silu, |x| x * sigmoid(x));
    check_gated::<Q8_0, _, 16, 32>(GeluTanh, tanh_form);
    check_gated::<Bf16, _, 33, 20>(Gelu, exact);
    check_gated::<F16, _, 50, 96>(Relu, |x| x.max(0.0));
    check_gated::<InF16<Nvfp4Groups>, _, 33, 48>(Silu, |x| x * sigmoid(x));
}

#[test]
fn parts_are_stacked_and_rotary_rows_put_in_order() {
    fn check<F: Rounded>() {
        let mut random = Random(9);
        let (team, progress) = (Team::new(2).unwrap(), progress());
        let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
        // Two heads of 6 rows in GGUF's order, then 5 rows as they are.
        let (q, v) =
            (Owned::of::<F>(&mut random, "q", &[12, 64]), Owned::of::<F>(&mut random, "v", &[5, 64]));
        let (of_q, of_v) = (q.companions(), v.companions());
        let interleaved = Part::interleaved(q.tensor(), 6);
        let parts = match F::SCALES {
            None => [interleaved, v.part(&of_v)],
            Some(form) => [interleaved.scaled(form, &of_q), v.part(&of_v)],
        };
        let matrix = Matrix::<F, 17, 64>::load(&loader, &parts).unwrap();
        let mut x = Rows::<64>::new(1);
        random.fill(&mut x, 1, 1.0);
        let (mut out, staging) = (Rows::<17>::new(1), Staging::<F, 64>::new(2, 1));
        team.run(|lane| linear(lane, 1, &x, &staging, &matrix, Store(&out)));
        let [q, v] = [q, v].map(|it| product(&it, F::ROUNDS, x.row(0)));
        let mut expected = vec![0.0; 17];
        for head in 0..2 {
            for i in 0..3 {
                for j in 0..2 {
                    expected[head * 6 + i + j * 3] = q[head * 6 + 2 * i + j];
                }
            }
        }
        expected[12..].copy_from_slice(&v);
        close(out.row(0), &expected, 1e-5, "stacked");
    }
    check::<F32>();
    check::<Q4_1>();
    check::<Q8_0>();
    check::<Fp8Block128>();
    check::<Nvfp4Groups>();
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let (team, progress) = (Team::new(1).unwrap(), progress());
    let loader = Loader::new(&team, Path::new("model.gguf"), &progress);
    let good = Owned::random(&mut Random(1), "good", &[4, 64], Format::Q8_0);
    let mut short = Owned::random(&mut Random(1), "short", &[4, 64], Format::Q8_0);
    short.bytes.pop();
    let flat = Owned::random(&mut Random(1), "flat", &[256], Format::Q8_0);
    let narrow = Owned::random(&mut Random(1), "narrow", &[4, 32], Format::Q8_0);
    let float = Owned::random(&mut Random(1), "float", &[4, 64], Format::F32);
    let mut huge = Owned::random(&mut Random(1), "huge", &[0, 64], Format::Q8_0);
    huge.shape = vec![usize::MAX, 64];
    let message = |parts: &[Part]| match Matrix::<Q8_0, 4, 64>::load(&loader, parts) {
        Err(WeightsError::Mismatch { path, what }) => {
            assert_eq!(path, Path::new("model.gguf"));
            what
        }
        other => panic!("{other:?}"),
    };
    for (tensor, words) in [
        (&short, "tensor short: 271 bytes are not [4, 64] in q8_0"),
        (&flat, "tensor flat: expected shape [_, 64], found [256]"),
        (&narrow, "tensor narrow: expected shape [_, 64], found [4, 32]"),
        (&float, "tensor float: expected format q8_0, found f32"),
        (&huge, "tensor huge: 0 bytes are not"),
    ] {
        let text = message(&[Part::new(tensor.tensor())]);
        assert!(text.contains(words), "{text}");
    }
    assert!(
        message(&[Part::new(good.tensor()); 2]).contains("tensors good + good: expected 4 rows, found 8")
    );
    assert!(message(&[]).contains("expected 4 rows, found 0"));
    assert!(
        message(&[Part::interleaved(good.tensor(), 3)]).contains("4 rows are not heads of 3 rotary rows")
    );
    let vector =
        |owned: &Owned| Vector::<4>::load(&loader, &[Part::new(owned.tensor())]).unwrap_err().to_string();
    assert!(vector(&flat).contains("tensor flat: expected a float format, found q8_0"));
    assert!(vector(&float).contains("tensors float: expected 4 values, found 256"));
}
