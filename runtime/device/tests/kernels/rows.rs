//! Embedding, gathering, rotary angles.

use crate::common::{Owned, Random, progress, sequence};
use monomorph_device::cpu::*;
use monomorph_model::{Output, Step};
use std::path::Path;

fn batch(tokens: Vec<u32>, position: usize) -> Batch {
    let limits = BatchLimits {
        tokens: 64,
        sequences: 2,
        vocabulary: 37,
        context: 100_000,
        block_tokens: 16,
        blocks: 8000,
    };
    let mut batch = Batch::new(limits);
    let blocks: Vec<u32> = (0..((position + tokens.len()).div_ceil(16)) as u32).collect();
    let step =
        Step { sequences: vec![sequence(position, tokens, &blocks, Output::Logits)], ..Step::default() };
    batch.fill(&step, &Outputs::<0>::default());
    batch
}

#[test]
fn embeddings_are_the_decoded_rows() {
    fn check<F: WeightFormat, const COLS: usize>() {
        let (team, progress) = (Team::new(2).unwrap(), progress());
        let loader = Loader::new(&team, Path::new("checkpoint"), &progress);
        let table = Owned::of::<F>(&mut Random(3), "embedding", &[37, COLS]);
        let scales = table.companions();
        let matrix = Matrix::<F, 37, COLS>::load(&loader, &[table.part(&scales)]).unwrap();
        let ids = vec![36, 0, 16, 15, 36];
        let batch = batch(ids.clone(), 0);
        let (mut out, mut gathered) = (Rows::<COLS>::new(5), Rows::<COLS>::new(2));
        team.run(|lane| {
            embed(lane, &batch, &matrix, &out);
            gather(lane, &[4, 1], &out, &gathered);
        });
        for (row, id) in ids.iter().enumerate() {
            assert_eq!(out.row(row), &table.values()[*id as usize * COLS..][..COLS], "{}", F::FORMAT);
        }
        assert_eq!(gathered.row(0), out.row(4));
        assert_eq!(gathered.row(1), out.row(1));
        team.run(|lane| each_row(lane, 2, &gathered, |row, values| values.fill(row as f32)));
        assert_eq!((gathered.row(0)[COLS - 1], gathered.row(1)[0]), (0.0, 1.0));
    }
    check::<F32, 64>();
    check::<Bf16, 64>();
    check::<F16, 64>();
    check::<Q8_0, 64>();
    check::<Q4_1, 64>();
    check::<Q4_0, 64>();
    check::<Q5_1, 64>();
    check::<Q4K, 256>();
    check::<Q5K, 256>();
    check::<Q6K, 256>();
    check::<Q2K, 256>();
    check::<Q3K, 256>();
    check::<Iq4Nl, 64>();
    check::<Iq4Xs, 256>();
    check::<Fp8Tensor, 64>();
    check::<Fp8Block128, 64>();
    check::<Nvfp4Groups, 64>();
    check::<InF16<Bf16>, 64>();
}

#[test]
fn angles_are_positions_times_frequencies() {
    let team = Team::new(2).unwrap();
    let frequencies = [1.0, 0.31, 1e-3];
    let batch = batch(vec![1; 20], 90_000);
    let mut out = Rows::<6>::new(20);
    team.run(|lane| rotary_angles(lane, &batch, &frequencies, 1.5, &out));
    for row in 0..20 {
        for (i, frequency) in frequencies.iter().enumerate() {
            let angle = f64::from((90_000 + row) as f32 * frequency);
            assert!((f64::from(out.row(row)[i]) - 1.5 * angle.cos()).abs() < 1e-6);
            assert!((f64::from(out.row(row)[3 + i]) - 1.5 * angle.sin()).abs() < 1e-6);
        }
    }
}
