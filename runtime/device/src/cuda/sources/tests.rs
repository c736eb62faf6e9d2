//! Compares rows of tensors and experts that are read from a file and packed in pieces with the same rows
//! gathered one by one and packed whole (which pack/tests.rs checks against the layout).

use super::super::pack::tests::Random;
use super::super::pack::{Planes, pack_tiles};
use super::*;
use monomorph_weights::Windows;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

mod ranks;

/// A tensor of a file: shape, format (nvfp4 as bytes that hold two each), bytes.
type Entry = (Vec<usize>, Format, Vec<u8>);

/// Tensors by name.
type Entries = HashMap<String, Entry>;

/// Opens a safetensors file of these tensors. The file is deleted; the mapping keeps its contents.
fn checkpoint(tensors: &Entries) -> Checkpoint {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let (mut header, mut data) = (Vec::new(), Vec::<u8>::new());
    for (name, (shape, format, bytes)) in tensors {
        let (dtype, mut shape) = match format {
            Format::F32 => ("F32", shape.clone()),
            Format::Bf16 => ("BF16", shape.clone()),
            Format::Fp8E4m3 => ("F8_E4M3", shape.clone()),
            Format::Nvfp4 => ("U8", shape.clone()),
            other => panic!("{other} is not of safetensors"),
        };
        if let (Format::Nvfp4, Some(last)) = (format, shape.last_mut()) {
            *last /= 2;
        }
        let (start, end) = (data.len(), data.len() + bytes.len());
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("rows-{}-{number}.safetensors", std::process::id()));
    std::fs::write(&path, file).expect("room for a small file");
    let checkpoint = Checkpoint::open(&path).expect("a sound file");
    std::fs::remove_file(&path).expect("just written");
    checkpoint
}

/// Adds a tensor `[.., columns]` of random codes, and its scales.
fn add(
    tensors: &mut Entries,
    random: &mut Random,
    name: &str,
    shape: &[usize],
    format: Format,
    form: Option<ScaleForm>,
) {
    let (columns, elements) = (shape[shape.len() - 1], shape.iter().product());
    tensors.insert(name.to_owned(), (shape.to_owned(), format, random.tensor(format, elements)));
    for (index, (suffix, shape)) in
        form.iter().flat_map(|form| form.companions(elements / columns, columns)).enumerate()
    {
        let stored = if form.is_some_and(|it| it.codes() == Format::Nvfp4) && index == 0 {
            Format::Fp8E4m3
        } else {
            Format::F32
        };
        let bytes = random.tensor(stored, shape.iter().product());
        tensors.insert(format!("{name}.{suffix}"), (shape, stored, bytes));
    }
}

fn part(name: &str, shape: &'static [usize], form: Option<ScaleForm>) -> Part {
    let suffixes = form.iter().flat_map(|form| form.companions(1, 1));
    suffixes.fold(Part::new(name, shape), |part, (suffix, _)| part.scaled_by(format!("{name}.{suffix}")))
}

/// The rows of a file's tensor, gathered one by one into a tensor with its own scales.
fn gather(
    tensors: &Entries,
    name: &str,
    form: Option<ScaleForm>,
    rows: &[usize],
) -> (Vec<u8>, GatheredScales) {
    let (shape, _, bytes) = &tensors[name];
    let file_rows: usize = shape[..shape.len() - 1].iter().product();
    let of = |bytes: &[u8], file_rows: usize, rows: &[usize]| -> Vec<u8> {
        let each = bytes.len() / file_rows;
        rows.iter().flat_map(|row| bytes[row * each..][..each].to_vec()).collect()
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().expect("four"))).collect()
    };
    let companion = |suffix: &str| tensors[&format!("{name}.{suffix}")].2.as_slice();
    let scales = match form {
        None => GatheredScales::Own,
        Some(ScaleForm::Tensor) => GatheredScales::Tensor(floats(companion("weight_scale"))[0]),
        Some(ScaleForm::Block128) => {
            // Divided by the power of two of the whole tensor.
            let all = SourceScales::blocks(floats(companion("weight_scale_inv")));
            let SourceScales::Blocks { scales, whole } = all else { unreachable!("scales of blocks") };
            let each = scales.len() / (file_rows / 128);
            let blocks = rows.iter().step_by(128).flat_map(|row| &scales[row / 128 * each..][..each]);
            GatheredScales::Blocks(blocks.copied().collect(), whole)
        }
        Some(form) => {
            let last = floats(companion(form.companions(1, 1)[1].0))[0];
            GatheredScales::Groups(of(companion("weight_scale"), file_rows, rows), form.row_scale(last))
        }
    };
    (of(bytes, file_rows, rows), scales)
}

enum GatheredScales {
    Own,
    Tensor(f32),
    Blocks(Vec<f32>, f32),
    Groups(Vec<u8>, f32),
}

/// All planes of all experts.
fn planes(shape: &MatrixShape, sources: &[Source], pieces: usize) -> [Vec<u8>; 3] {
    let each = [shape.matrix().tile_codes(), shape.matrix().tile_scales(), shape.matrix().tile_row_scales()];
    let mut whole: [Vec<u8>; 3] = Default::default();
    let tiles = shape.all_tiles();
    for first in (0..tiles).step_by(pieces) {
        let range = first..tiles.min(first + pieces);
        let [mut codes, mut scales, mut row_scales] = each.map(|bytes| vec![0xa5; bytes * range.len()]);
        let mut out = Planes { codes: &mut codes, scales: &mut scales, row_scales: &mut row_scales };
        pack_tiles(shape, sources, &mut Windows::default(), range, &mut out).expect("numbers");
        for (whole, piece) in whole.iter_mut().zip([codes, scales, row_scales]) {
            whole.extend(piece);
        }
    }
    whole
}

/// The planes of one matrix made of these rows of these tensors.
fn gathered(
    shape: &MatrixShape,
    tensors: &Entries,
    form: Option<ScaleForm>,
    parts: &[(&str, Vec<usize>)],
) -> [Vec<u8>; 3] {
    let gathered: Vec<_> = parts.iter().map(|(name, rows)| gather(tensors, name, form, rows)).collect();
    let sources: Vec<Source> = parts
        .iter()
        .zip(&gathered)
        .map(|((_, rows), (bytes, scales))| Source {
            name: "gathered",
            bytes: bytes[..].into(),
            file_rows: rows.len(),
            rows: rows.len(),
            order: SourceRows::whole(FileRows::All),
            columns: SourceColumns::whole(shape.columns),
            scales: match scales {
                GatheredScales::Own => SourceScales::Own,
                GatheredScales::Tensor(scale) => SourceScales::Tensor(*scale),
                GatheredScales::Blocks(scales, whole) => {
                    SourceScales::Blocks { scales: scales.clone(), whole: *whole }
                }
                GatheredScales::Groups(codes, tensor) => {
                    SourceScales::Groups { codes: codes[..].into(), tensor: *tensor }
                }
            },
        })
        .collect();
    planes(&MatrixShape { experts: 1, ..*shape }, &sources, usize::MAX)
}

const FORMS: [(Format, Option<ScaleForm>); 6] = [
    (Format::F32, None),
    (Format::Bf16, None),
    (Format::Fp8E4m3, Some(ScaleForm::Tensor)),
    (Format::Fp8E4m3, Some(ScaleForm::Block128)),
    (Format::Nvfp4, Some(ScaleForm::Modelopt)),
    (Format::Nvfp4, Some(ScaleForm::CompressedTensors)),
];

#[test]
fn rows_of_groups_bring_their_scales() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for (format, form) in FORMS {
        // Heads of [128 queries | 256 gates], stacked, and a tensor of three kinds of rows in one group.
        let mut tensors = Entries::new();
        add(&mut tensors, &mut random, "heads", &[1152, 256], format, form);
        add(&mut tensors, &mut random, "kinds", &[640, 256], format, form);
        let checkpoint = checkpoint(&tensors);
        let shape = MatrixShape {
            stored: format,
            halves: false,
            scales: form,
            parts: &[384, 768, 128, 512],
            columns: 256,
            packing: Packing::Stacked,
            experts: 1,
        };
        let heads = || part("heads", &[1152, 256], form);
        let kinds = || part("kinds", &[640, 256], form);
        let parts = [
            heads().of_groups(0, 128, 384),
            heads().of_groups(128, 256, 384),
            kinds().of_groups(0, 128, 640),
            kinds().of_groups(128, 512, 640),
        ];
        let sources = load_sources(&checkpoint, &shape, &parts, Share::WHOLE).expect("as the file has them");
        let rows = |groups: usize, of: usize, taken: std::ops::Range<usize>| -> Vec<usize> {
            (0..groups).flat_map(|group| taken.clone().map(move |row| group * of + row)).collect()
        };
        let wanted = gathered(
            &shape,
            &tensors,
            form,
            &[
                ("heads", rows(3, 384, 0..128)),
                ("heads", rows(3, 384, 128..384)),
                ("kinds", rows(1, 640, 0..128)),
                ("kinds", rows(1, 640, 128..640)),
            ],
        );
        assert!(planes(&shape, &sources, usize::MAX) == wanted, "{format} {form:?}");
    }
}

#[test]
fn experts_follow_one_another_plane_by_plane() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // Experts of whole tiles, and experts that do not fill one.
    for (width, parts) in [(128, &[128, 128]), (11, &[11, 11])] {
        for (format, form) in FORMS {
            if form == Some(ScaleForm::Block128) && width % 128 != 0 {
                continue;
            }
            let mut tensors = Entries::new();
            for expert in 0..3 {
                for half in ["gate", "up"] {
                    let name = format!("experts.{expert}.{half}");
                    add(&mut tensors, &mut random, &name, &[width, 128], format, form);
                }
            }
            let checkpoint = checkpoint(&tensors);
            let shape = MatrixShape {
                stored: format,
                halves: false,
                scales: form,
                parts,
                columns: 128,
                packing: Packing::Gated,
                experts: 3,
            };
            let file: &'static [usize] = if width == 128 { &[128, 128] } else { &[11, 128] };
            let of_expert =
                |expert| ["gate", "up"].map(|half| part(&format!("experts.{expert}.{half}"), file, form));
            let sources: Vec<Source> = (0..3)
                .flat_map(|expert| {
                    load_sources(&checkpoint, &shape, &of_expert(expert), Share::WHOLE)
                        .expect("as the file has it")
                })
                .collect();
            // Pieces that begin and end within experts.
            let found = planes(&shape, &sources, 5);
            for expert in 0..3 {
                let all = |half| (format!("experts.{expert}.{half}"), (0..width).collect::<Vec<_>>());
                let [gate, up] = ["gate", "up"].map(all);
                let wanted = gathered(&shape, &tensors, form, &[(&gate.0, gate.1), (&up.0, up.1)]);
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert_eq!(found.len(), 3 * wanted.len());
                    assert!(found[expert * wanted.len()..][..wanted.len()] == *wanted, "{format} {expert}");
                }
            }
        }
    }
}

#[test]
fn stacked_experts_are_groups_of_one_tensor() {
    let mut random = Random(7);
    let mut tensors = Entries::new();
    add(&mut tensors, &mut random, "gate_up", &[4, 40, 64], Format::Bf16, None);
    let checkpoint = checkpoint(&tensors);
    let shape = MatrixShape {
        stored: Format::Bf16,
        halves: false,
        scales: None,
        parts: &[20, 20],
        columns: 64,
        packing: Packing::Gated,
        experts: 4,
    };
    let stacked = |first, expert| Part::new("gate_up", &[4, 40, 64]).of_group(first, 20, 40, expert);
    let mut sources = Vec::new();
    for expert in 0..4 {
        let parts = [stacked(0, expert), stacked(20, expert)];
        sources.extend(load_sources(&checkpoint, &shape, &parts, Share::WHOLE).expect("as the file has it"));
    }
    let found = planes(&shape, &sources, 7);
    for expert in 0..4 {
        let rows = |from: usize| (40 * expert + from..40 * expert + from + 20).collect();
        let wanted = gathered(&shape, &tensors, None, &[("gate_up", rows(0)), ("gate_up", rows(20))]);
        let each = wanted[0].len();
        assert!(found[0][expert * each..][..each] == wanted[0], "expert {expert}");
    }
}

#[test]
fn rates_come_as_their_logarithms_and_what_is_none_is_refused() {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Entries::new();
    tensors.insert("rates".to_owned(), (vec![2], Format::F32, bytes(&[-1.0, -std::f32::consts::E])));
    tensors.insert("growth".to_owned(), (vec![2], Format::F32, bytes(&[-1.0, 0.5])));
    let checkpoint = checkpoint(&tensors);
    let load = |name: &str| {
        let part = Part::new(name, &[2]).negative_rates();
        load_values(&checkpoint, Format::F32, &part, 2, 1, Share::WHOLE)
    };
    let found = load("rates").expect("they are rates");
    assert!(found[0] == 0.0 && (found[1] - 1.0).abs() <= 1e-6, "{found:?}");
    let refused = load("growth").expect_err("it grows").to_string();
    assert!(refused.contains("tensor `growth`: 0.5 is no rate of a decay"), "{refused}");
}

#[test]
fn values_stand_in_the_order_of_the_file_or_of_the_rows_taken() {
    let values: Vec<f32> = (0..24).map(|value| value as f32).collect();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Entries::new();
    tensors.insert("conv".to_owned(), (vec![6, 1, 4], Format::F32, bytes(&values)));
    tensors.insert("bias".to_owned(), (vec![24], Format::F32, bytes(&values)));
    let checkpoint = checkpoint(&tensors);
    let conv = Part::new("conv", &[6, 1, 4]);
    let found = load_values(&checkpoint, Format::F32, &conv, 6, 4, Share::WHOLE).expect("as the file has it");
    assert_eq!(found, values);
    let rows = load_values(&checkpoint, Format::F32, &conv.of_groups(1, 1, 3), 2, 4, Share::WHOLE)
        .expect("two of six");
    assert_eq!(rows, [4., 5., 6., 7., 16., 17., 18., 19.]);
    let bias = Part::new("bias", &[24]).of_groups(2, 2, 12);
    assert_eq!(
        load_values(&checkpoint, Format::F32, &bias, 4, 1, Share::WHOLE).expect("four"),
        [2., 3., 14., 15.]
    );
    let halves = Part::new("bias", &[24]).interleaved(4);
    let turned = load_values(&checkpoint, Format::F32, &halves, 24, 1, Share::WHOLE).expect("all");
    assert_eq!(turned[..8], [0., 2., 1., 3., 4., 6., 5., 7.]);
}

#[test]
fn what_is_not_there_is_refused_by_name_and_shape() {
    let mut random = Random(11);
    let mut tensors = Entries::new();
    add(&mut tensors, &mut random, "w", &[384, 256], Format::Fp8E4m3, Some(ScaleForm::Block128));
    add(&mut tensors, &mut random, "conv", &[6, 1, 4], Format::F32, None);
    let checkpoint = checkpoint(&tensors);
    let form = Some(ScaleForm::Block128);
    let refused = |parts: &'static [usize], columns, asked: Part| -> String {
        let shape = MatrixShape {
            stored: Format::Fp8E4m3,
            halves: false,
            scales: form,
            parts,
            columns,
            packing: Packing::Stacked,
            experts: 1,
        };
        load_sources(&checkpoint, &shape, &[asked], Share::WHOLE).expect_err("refused").to_string()
    };
    let w = || part("w", &[384, 256], form);
    for (found, wanted) in [
        (
            refused(&[128], 256, part("w", &[128, 256], form)),
            "`w` should be fp8-e4m3 [128, 256] and is fp8-e4m3 [384, 256]",
        ),
        (refused(&[384], 128, w()), "`w` [384, 256]: has no rows of 128"),
        (refused(&[128], 256, w()), "`w` [384, 256]: 384 rows are to be taken of it, and 128 are wanted"),
        (refused(&[128], 256, w().of_groups(0, 128, 192)), "`w` [384, 256]: 256 rows are to be taken of it"),
        (
            refused(&[128], 256, w().of_group(0, 128, 128, 3)),
            "`w` [384, 256]: 384 rows have no group 3 of 128",
        ),
        (refused(&[128], 256, w().of_groups(100, 128, 192)), "`w` [384, 256]: 384 rows are no groups of 192"),
        (
            refused(&[288], 256, w().of_groups(4, 96, 128)),
            "`w` has block scales, and 96 rows from 4 on of every 128",
        ),
        (
            refused(&[384], 256, w().interleaved(64)),
            "`w` has block scales, and its rows are to change places",
        ),
        (refused(&[384], 256, Part::new("w", &[384, 256])), "`w` has 0 of 1 companions"),
    ] {
        assert!(found.contains(wanted), "{found}\nshould say: {wanted}");
    }
    let flat = Part::new("conv", &[24]);
    let error = load_values(&checkpoint, Format::F32, &flat, 6, 4, Share::WHOLE)
        .expect_err("another shape")
        .to_string();
    assert!(error.contains("`conv` should be f32 [24] and is f32 [6, 1, 4]"), "{error}");
}
