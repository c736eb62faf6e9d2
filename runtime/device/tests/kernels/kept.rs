//! How far attention moves when keys and values are kept in a narrow format: as far as the format's error
//! moves it, and no less, which would mean that it was not applied.

use crate::common::{Random, sequence};
use monomorph_device::cpu::*;
use monomorph_model::{KvScales, Output, Step};

const TOKENS: usize = 2048;
const DIM: usize = 128;

/// Queries whose results are compared: those of the last tokens.
const COMPARED: usize = 32;

/// Two numbers of a unit Gaussian (Box and Muller, 1958).
fn gaussians(random: &mut Random) -> [f32; 2] {
    let [a, b] = [0, 1].map(|_| (random.bits() >> 11) as f64 / (1u64 << 53) as f64);
    let (size, (sin, cos)) = ((-2.0 * (1.0 - a).ln()).sqrt(), (std::f64::consts::TAU * b).sin_cos());
    [(size * cos) as f32, (size * sin) as f32]
}

/// The results of the last tokens of one head whose keys and values are Gaussian, `by` times as large, with
/// scores of deviation 2. Static scales are measured before, if they are.
fn results<E: KvKept>(by: f32, measured: bool) -> Vec<Vec<f32>> {
    let limits = BatchLimits {
        tokens: TOKENS,
        sequences: 1,
        vocabulary: 2,
        context: TOKENS,
        block_tokens: 16,
        blocks: TOKENS / 16,
    };
    let blocks: Vec<u32> = (0..limits.blocks as u32).collect();
    let mut batch = Batch::new(limits);
    let step =
        Step { sequences: vec![sequence(0, vec![1; TOKENS], &blocks, Output::None)], ..Step::default() };
    batch.fill(&step, &Outputs::<0>::default());
    let scratch = AttentionScratch::<1, 1, DIM>::new(2, TOKENS);
    let (mut out, angles) = (Rows::<DIM>::new(TOKENS), Rows::<0>::new(TOKENS));
    let scale = 1.0 / (DIM as f32).sqrt();
    let team = Team::new(2).unwrap();
    let attend = |cache: &KvCache<E, 1, DIM, 16>| {
        let (mut random, mut qkv) = (Random(5), Rows::<{ 3 * DIM }>::new(TOKENS));
        for row in 0..TOKENS {
            for pair in qkv.row_mut(row).as_chunks_mut::<2>().0 {
                *pair = gaussians(&mut random);
            }
            let (queries, rest) = qkv.row_mut(row).split_at_mut(DIM);
            queries.iter_mut().for_each(|it| *it *= 2.0 / by);
            rest.iter_mut().for_each(|it| *it *= by);
        }
        team.run(|lane| {
            attention(lane, &batch, 0, &qkv, &NoNorm, &NoNorm, &angles, Halves, scale, cache, &scratch, &out);
        });
    };
    let mut cache = KvCache::<E, 1, DIM, 16>::new(&[0], limits.blocks).unwrap();
    if measured {
        cache.measure();
        attend(&cache);
        cache.set_scales(&mut KvScales::default()).unwrap();
    }
    attend(&cache);
    (TOKENS - COMPARED..TOKENS).map(|row| out.row(row).to_vec()).collect()
}

/// Mean relative L2 distance of results from `exact` ones.
fn apart(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let norm = |it: &mut dyn Iterator<Item = f32>| it.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let each = exact.iter().zip(found).map(|(exact, found)| {
        let off = norm(&mut exact.iter().zip(found).map(|(a, b)| a - b));
        off / norm(&mut exact.iter().copied())
    });
    each.sum::<f64>() / COMPARED as f64
}

#[test]
fn a_format_moves_results_as_far_as_its_error_does() {
    // Means and bounds of an experiment with eight seeds, in f64; half a mean would be another format.
    let exact = &results::<f32>(1.0, false);
    let found = [
        ("fp8", results::<Fp8>(1.0, false), 0.06, 0.085),
        ("nvfp4", results::<Nvfp4>(1.0, false), 0.18, 0.24),
        ("turbo8", results::<Turbo8>(1.0, false), 0.049, 0.065),
        ("turbo4", results::<Turbo4>(1.0, false), 0.16, 0.21),
        ("turbo3", results::<Turbo3>(1.0, false), 0.30, 0.41),
        ("turbo8/turbo4", results::<(Turbo8, Turbo4)>(1.0, false), 0.085, 0.11),
    ];
    for (format, found, mean, bound) in found {
        let found = apart(exact, &found);
        assert!((mean / 2.0..bound).contains(&found), "{format}: {found:.4}, not {mean} to {bound}");
    }
}

/// Measured scales make the size of keys and values indifferent, to the bit; with scales of 1 numbers as
/// small as these have no codes.
fn is_indifferent_to_size<E: KvKept>() {
    const SMALL: f32 = 1.0 / 65536.0;
    let (whole, small) = (results::<E>(1.0, true), results::<E>(SMALL, true));
    let formats = E::FORMATS;
    for (whole, small) in whole.iter().flatten().zip(small.iter().flatten()) {
        assert_eq!((whole * SMALL).to_bits(), small.to_bits(), "{formats}: {whole} and {small}");
    }
    let as_large = |found: Vec<Vec<f32>>| -> Vec<Vec<f32>> {
        found.into_iter().map(|row| row.into_iter().map(|it| it / SMALL).collect()).collect()
    };
    let unmeasured = apart(&whole, &as_large(results::<E>(SMALL, false)));
    assert!(unmeasured > 0.5, "{formats}: {unmeasured}");
}

#[test]
fn measured_scales_are_those_of_what_is_kept() {
    is_indifferent_to_size::<Fp8>();
    is_indifferent_to_size::<Nvfp4>();
    is_indifferent_to_size::<Turbo4>();
    is_indifferent_to_size::<Turbo3>();
    is_indifferent_to_size::<(Turbo8, Turbo4)>();
}
