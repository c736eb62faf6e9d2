//! Compares what a rank takes of tensors with the same rows gathered one by one.

use super::*;
use monomorph_abi::cut::Segment;

fn share(rank: usize, ranks: usize) -> Share {
    Share { rank, ranks }
}

#[test]
fn rows_are_shared_out_in_the_order_of_the_model() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for (format, form) in FORMS {
        // Heads of [128 queries | 128 gates], and heads whose rows are in GGUF's order.
        let mut tensors = Entries::new();
        add(&mut tensors, &mut random, "heads", &[1024, 256], format, form);
        add(&mut tensors, &mut random, "turned", &[32, 256], format, form);
        let checkpoint = checkpoint(&tensors);
        let shape = |parts| MatrixShape {
            stored: format,
            halves: false,
            scales: form,
            parts,
            columns: 256,
            packing: Packing::Stacked,
            experts: 1,
        };
        let heads = || part("heads", &[1024, 256], form).cut_rows(&[Segment { units: 4, unit: 128 }]);
        let turned = || part("turned", &[32, 256], form).cut_rows(&[Segment { units: 4, unit: 8 }]);
        let rows =
            |head: usize, from: usize| (256 * head + from..256 * head + from + 128).collect::<Vec<_>>();
        for rank in 0..2 {
            let both = shape(&[256, 256]);
            let parts = [heads().of_groups(0, 128, 256), heads().of_groups(128, 128, 256)];
            let sources =
                load_sources(&checkpoint, &both, &parts, share(rank, 2)).expect("as the file has them");
            let [queries, gates] =
                [0, 128].map(|from| [rows(2 * rank, from), rows(2 * rank + 1, from)].concat());
            let wanted = gathered(&both, &tensors, form, &[("heads", queries), ("heads", gates)]);
            assert!(planes(&both, &sources, usize::MAX) == wanted, "{format} {form:?} rank {rank}");
        }
        if form == Some(ScaleForm::Block128) {
            continue;
        }
        for rank in 0..4 {
            let one = shape(&[8]);
            let parts = [turned().interleaved(8)];
            let sources =
                load_sources(&checkpoint, &one, &parts, share(rank, 4)).expect("as the file has them");
            let turned = [0, 2, 4, 6, 1, 3, 5, 7].map(|row| 8 * rank + row).to_vec();
            let wanted = gathered(&one, &tensors, form, &[("turned", turned)]);
            assert!(planes(&one, &sources, usize::MAX) == wanted, "{format} {form:?} rank {rank}");
        }
    }
}

/// Those of a head that drafts fewer ids than the model has.
#[test]
fn the_first_rows_are_shared_out_of_a_tensor_that_has_more() {
    let mut random = Random(5);
    for (format, form) in FORMS {
        let mut tensors = Entries::new();
        add(&mut tensors, &mut random, "head", &[384, 256], format, form);
        let checkpoint = checkpoint(&tensors);
        let shape = MatrixShape {
            stored: format,
            halves: false,
            scales: form,
            parts: &[128],
            columns: 256,
            packing: Packing::Stacked,
            experts: 1,
        };
        for rank in 0..2 {
            let head = part("head", &[384, 256], form).of_groups(0, 256, 384);
            let parts = [head.cut_rows(&[Segment { units: 2, unit: 128 }])];
            let sources =
                load_sources(&checkpoint, &shape, &parts, share(rank, 2)).expect("as the file has them");
            let rows = (128 * rank..128 * (rank + 1)).collect();
            let wanted = gathered(&shape, &tensors, form, &[("head", rows)]);
            assert!(planes(&shape, &sources, usize::MAX) == wanted, "{format} {form:?} rank {rank}");
        }
    }
}

#[test]
fn every_rank_has_a_part_of_each_expert() {
    let mut random = Random(7);
    let mut tensors = Entries::new();
    add(&mut tensors, &mut random, "gate_up", &[3, 64, 32], Format::Bf16, None);
    let checkpoint = checkpoint(&tensors);
    let shape = MatrixShape {
        stored: Format::Bf16,
        halves: false,
        scales: None,
        parts: &[16, 16],
        columns: 32,
        packing: Packing::Gated,
        experts: 3,
    };
    const WIDTH: &[Segment] = &[Segment { units: 2, unit: 16 }];
    let stacked =
        |first, expert| Part::new("gate_up", &[3, 64, 32]).of_group(first, 32, 64, expert).cut_rows(WIDTH);
    for rank in 0..2 {
        for expert in 0..3 {
            let one = MatrixShape { experts: 1, ..shape };
            let parts = [stacked(0, expert), stacked(32, expert)];
            let sources =
                load_sources(&checkpoint, &one, &parts, share(rank, 2)).expect("as the file has it");
            let rows = |from: usize| {
                let first = 64 * expert + from + 16 * rank;
                ("gate_up", (first..first + 16).collect())
            };
            let wanted = gathered(&shape, &tensors, None, &[rows(0), rows(32)]);
            assert!(planes(&one, &sources, usize::MAX) == wanted, "rank {rank} expert {expert}");
        }
    }
}

#[test]
fn columns_bring_their_scales() {
    let mut random = Random(9);
    for (format, form) in FORMS {
        let mut tensors = Entries::new();
        add(&mut tensors, &mut random, "down", &[130, 512], format, form);
        let checkpoint = checkpoint(&tensors);
        let shape = |columns| MatrixShape {
            stored: format,
            halves: false,
            scales: form,
            parts: &[130],
            columns,
            packing: Packing::Stacked,
            experts: 1,
        };
        let down = || part("down", &[130, 512], form);
        let whole =
            load_sources(&checkpoint, &shape(512), &[down()], share(0, 1)).expect("as the file has it");
        let whole = planes(&shape(512), &whole, usize::MAX);
        for rank in 0..2 {
            let half = shape(256);
            let parts = [down().cut_columns(&[Segment { units: 4, unit: 128 }])];
            let sources =
                load_sources(&checkpoint, &half, &parts, share(rank, 2)).expect("as the file has it");
            let found = planes(&half, &sources, usize::MAX);
            // Both halves are whole units: each tile has the rank's units, which are half of the tile's.
            let tiles = half.matrix().tiles();
            for (plane, (found, whole)) in found.iter().zip(&whole).enumerate() {
                let [each, of_whole] = [found, whole].map(|it| (it.len() / tiles).max(1));
                assert!(found.len().is_multiple_of(tiles) && whole.len().is_multiple_of(tiles));
                for (found, whole) in found.chunks(each).zip(whole.chunks(of_whole)) {
                    let wanted = match plane {
                        2 => whole,
                        _ => &whole[rank * whole.len() / 2..][..whole.len() / 2],
                    };
                    assert!(found == wanted, "{format} {form:?} rank {rank} plane {plane}");
                }
            }
        }
    }
}

#[test]
fn values_are_shared_out_and_a_bias_is_added_once() {
    let values: Vec<f32> = (0..24).map(|value| value as f32).collect();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Entries::new();
    tensors.insert("conv".to_owned(), (vec![6, 1, 4], Format::F32, bytes(&values)));
    tensors.insert("bias".to_owned(), (vec![24], Format::F32, bytes(&values)));
    let checkpoint = checkpoint(&tensors);
    let load = |part: Part, rows, width, rank, ranks| {
        load_values(&checkpoint, Format::F32, &part, rows, width, share(rank, ranks))
            .expect("as the file has it")
    };
    // Channels: one of two, then two of four.
    let conv = || {
        Part::new("conv", &[6, 1, 4])
            .cut_rows(&[Segment { units: 2, unit: 1 }, Segment { units: 4, unit: 1 }])
    };
    let channels =
        |of: &[usize]| of.iter().flat_map(|at| values[4 * at..4 * at + 4].to_vec()).collect::<Vec<_>>();
    assert_eq!(load(conv(), 3, 4, 0, 2), channels(&[0, 2, 3]));
    assert_eq!(load(conv(), 3, 4, 1, 2), channels(&[1, 4, 5]));
    let bias = || Part::new("bias", &[24]).cut_rows(&[Segment { units: 4, unit: 6 }]);
    assert_eq!(load(bias(), 6, 1, 3, 4), values[18..]);
    let once = || Part::new("bias", &[24]).first_rank_only();
    assert_eq!(load(once(), 24, 1, 0, 2), values);
    assert_eq!(load(once(), 24, 1, 1, 2), [0.0; 24]);
    let taps = Part::new("conv", &[6, 1, 4]).cut_columns(&[Segment { units: 2, unit: 2 }]);
    assert_eq!(
        load(taps, 6, 2, 1, 2),
        values.chunks(2).skip(1).step_by(2).flatten().copied().collect::<Vec<_>>()
    );
}

#[test]
fn a_share_that_does_not_fit_is_refused_by_name() {
    let mut random = Random(11);
    let mut tensors = Entries::new();
    let form = Some(ScaleForm::Block128);
    add(&mut tensors, &mut random, "w", &[384, 256], Format::Fp8E4m3, form);
    let checkpoint = checkpoint(&tensors);
    let w = || part("w", &[384, 256], form);
    let refused = |parts: &'static [usize], columns, asked: Part, ranks| -> String {
        let shape = MatrixShape {
            stored: Format::Fp8E4m3,
            halves: false,
            scales: form,
            parts,
            columns,
            packing: Packing::Stacked,
            experts: 1,
        };
        load_sources(&checkpoint, &shape, &[asked], share(1, ranks)).expect_err("refused").to_string()
    };
    for (found, wanted) in [
        (
            refused(&[192], 256, w().cut_rows(&[Segment { units: 5, unit: 64 }]), 2),
            "`w` [384, 256]: 5 units of 64 rows cannot be shared out to 2 ranks alike",
        ),
        (
            refused(&[192], 256, w().cut_rows(&[Segment { units: 4, unit: 64 }]), 2),
            "`w` [384, 256]: 256 rows are to be shared out to 2 ranks, and it has 384",
        ),
        (
            refused(&[384], 256, w().cut_rows(&[Segment { units: 2, unit: 192 }]), 2),
            "`w` [384, 256]: 192 rows are to be taken of it, and 384 are wanted",
        ),
        (
            refused(&[384], 256, w().cut_columns(&[Segment { units: 2, unit: 128 }]), 2),
            "`w` [384, 256]: 128 columns are to be taken of it, and 256 are wanted",
        ),
        (
            refused(
                &[384],
                128,
                w().cut_columns(&[Segment { units: 4, unit: 32 }, Segment { units: 4, unit: 32 }]),
                2,
            ),
            "`w` [384, 256]: columns [64..128, 192..256] neither begin at a multiple of 128 nor",
        ),
        (
            refused(
                &[96],
                256,
                w().cut_rows(&[Segment { units: 4, unit: 20 }, Segment { units: 4, unit: 76 }]),
                4,
            ),
            "`w` has block scales, and rows 16 to 23 of a rank lie in several blocks",
        ),
    ] {
        assert!(found.contains(wanted), "{found}\nshould say: {wanted}");
    }
}
