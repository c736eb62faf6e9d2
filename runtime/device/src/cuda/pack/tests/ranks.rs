//! Checks what a rank packs of a whole file: every element against its value there, and all planes against
//! those of a file that holds only the rank's rows and columns.

use super::*;
use crate::cuda::slice::Share;
use monomorph_abi::cut::Segment;

/// A random file, and the scales of its codes.
struct File {
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
    /// All values, scales applied.
    values: Vec<f32>,
    /// Scales of blocks of 128 by 128, or the one of the tensor.
    floats: Vec<f32>,
    /// Codes of the scales of groups.
    groups: Vec<u8>,
}

impl File {
    fn new(
        random: &mut Random,
        format: Format,
        form: Option<ScaleForm>,
        rows: usize,
        columns: usize,
    ) -> File {
        let bytes = random.tensor(format, rows * columns);
        let mut values = vec![0.0; rows * columns];
        decode(format, &bytes, &mut values);
        let (mut companions, mut groups) = (Vec::new(), Vec::new());
        for (index, (_, dimensions)) in form.iter().flat_map(|it| it.companions(rows, columns)).enumerate() {
            let count = dimensions.iter().product();
            if format == Format::Nvfp4 && index == 0 {
                groups = random.tensor(Format::Fp8E4m3, count);
                companions.push(groups.iter().map(|code| e4m3_to_f32(*code)).collect());
            } else {
                companions.push((0..count).map(|_| (random.next() >> 60) as f32 + 0.5).collect());
            }
        }
        if let Some(form) = form {
            form.apply(&mut values, columns, &companions);
        }
        File { rows, columns, bytes, values, floats: companions.pop().unwrap_or_default(), groups }
    }

    fn scales(&self, form: Option<ScaleForm>) -> SourceScales<'_> {
        match form {
            None => SourceScales::Own,
            Some(form @ ScaleForm::Tensor) => SourceScales::Tensor(form.row_scale(self.floats[0])),
            Some(ScaleForm::Block128) => SourceScales::blocks(self.floats.clone()),
            Some(form) => {
                let tensor = form.row_scale(self.floats[0]);
                SourceScales::Groups { codes: self.groups[..].into(), tensor }
            }
        }
    }

    /// A file of these rows and columns alone, block by block, and the power of two that the whole one's
    /// scales of blocks were divided by.
    fn sliced(&self, format: Format, form: Option<ScaleForm>, rows: &[usize], columns: &[usize]) -> File {
        let (each, bytes) = (format.block_elements(), format.block_bytes());
        let row_bytes = self.columns / each * bytes;
        let firsts = || columns.iter().step_by(each);
        let codes = rows.iter().flat_map(|row| {
            firsts().flat_map(move |column| &self.bytes[row * row_bytes + column / each * bytes..][..bytes])
        });
        let groups = rows.iter().flat_map(|row| {
            columns.iter().step_by(16).map(move |column| self.groups[row * (self.columns / 16) + column / 16])
        });
        let blocks = rows.iter().step_by(128).flat_map(|row| {
            let blocks = self.columns.div_ceil(128);
            columns.iter().step_by(128).map(move |column| self.floats[row / 128 * blocks + column / 128])
        });
        let values = rows
            .iter()
            .flat_map(|row| columns.iter().map(move |column| self.values[row * self.columns + column]));
        File {
            rows: rows.len(),
            columns: columns.len(),
            bytes: codes.copied().collect(),
            values: values.collect(),
            floats: if form == Some(ScaleForm::Block128) { blocks.collect() } else { self.floats.clone() },
            groups: if self.groups.is_empty() { Vec::new() } else { groups.collect() },
        }
    }
}

/// The rows or columns of a rank, found unit by unit.
fn taken(cut: &[Segment], rank: usize, ranks: usize, whole: usize) -> Vec<usize> {
    if cut.is_empty() {
        return (0..whole).collect();
    }
    let (mut all, mut before) = (Vec::new(), 0);
    for Segment { units, unit } in cut {
        for at in 0..*units {
            let held =
                if *units >= ranks { at / (units / ranks) == rank } else { rank / (ranks / units) == at };
            if held {
                all.extend(before + at * unit..before + (at + 1) * unit);
            }
        }
        before += units * unit;
    }
    all
}

fn packed(shape: &MatrixShape, source: Source) -> [Vec<u8>; 3] {
    let matrix = shape.matrix();
    let tiles = matrix.tiles();
    let sizes = [matrix.tile_codes(), matrix.tile_scales(), matrix.tile_row_scales()];
    let [mut codes, mut scales, mut row_scales] = sizes.map(|bytes| vec![0xa5; tiles * bytes]);
    let mut out = Planes { codes: &mut codes, scales: &mut scales, row_scales: &mut row_scales };
    pack_tiles(shape, &[source], &mut Windows::default(), 0..tiles, &mut out).expect("numbers");
    [codes, scales, row_scales]
}

/// Units of so many rows or columns.
fn segments(units: &[(usize, usize)]) -> &'static [Segment] {
    units.iter().map(|(units, unit)| Segment { units: *units, unit: *unit }).collect::<Vec<_>>().leak()
}

/// Packs what each rank holds of a random matrix.
fn check_ranks(
    (format, halves, form): (Format, bool, Option<ScaleForm>),
    (rows, cut_rows): (usize, &[(usize, usize)]),
    (columns, cut_columns): (usize, &[(usize, usize)]),
    ranks: usize,
) {
    let [cut_rows, cut_columns] = [cut_rows, cut_columns].map(segments);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let file = File::new(&mut random, format, form, rows, columns);
    for rank in 0..ranks {
        let share = Share { rank, ranks };
        let [my_rows, my_columns] =
            [(cut_rows, rows), (cut_columns, columns)].map(|(cut, whole)| taken(cut, rank, ranks, whole));
        let (order, held) = SourceRows::new(FileRows::All, cut_rows, share, rows).expect("whole heads");
        assert_eq!(held, my_rows.len());
        let (slice, held) =
            SourceColumns::new(cut_columns, share, columns, format, form).expect("whole blocks");
        assert_eq!(held, my_columns.len());
        let parts: &'static [usize] = Box::leak(Box::new([my_rows.len()]));
        let shape = MatrixShape { halves, ..shape(format, form, parts, my_columns.len(), Packing::Stacked) };
        let of_rank = Source {
            name: "w",
            bytes: file.bytes[..].into(),
            file_rows: rows,
            rows: my_rows.len(),
            order,
            columns: slice,
            scales: file.scales(form),
        };
        let what = format!("{format} halves {halves} {form:?}, rank {rank} of {ranks}");
        let found = packed(&shape, of_rank);

        let alone = file.sliced(format, form, &my_rows, &my_columns);
        let scales = match (alone.scales(form), file.scales(form)) {
            // The power of two is that of the whole tensor, whose largest scale another rank may hold.
            (SourceScales::Blocks { scales, whole: own }, SourceScales::Blocks { whole, .. }) => {
                SourceScales::Blocks { scales: scales.iter().map(|it| it * own / whole).collect(), whole }
            }
            (scales, _) => scales,
        };
        let sliced = Source {
            name: "w",
            bytes: alone.bytes[..].into(),
            file_rows: alone.rows,
            rows: alone.rows,
            order: SourceRows::whole(FileRows::All),
            columns: SourceColumns::whole(alone.columns),
            scales,
        };
        // No file has several scales for the rows of a block.
        let one_block = |rows: &[usize]| rows.iter().all(|row| row / 128 == rows[0] / 128);
        if form != Some(ScaleForm::Block128) || my_rows.chunks(128).all(one_block) {
            assert!(found == packed(&shape, sliced), "{what}: another file has other planes");
        }

        let mut values = alone.values;
        if halves {
            values = values.chunks_exact(alone.columns).flat_map(through_halves).collect();
        }
        let [mut codes, mut scales, mut row_scales] = found;
        let planes = Planes { codes: &mut codes, scales: &mut scales, row_scales: &mut row_scales };
        for row in 0..alone.rows {
            for column in 0..alone.columns {
                let value = read(&shape, &planes, row / 8, row % 8, column);
                assert_eq!(value, values[row * alone.columns + column], "{what}: row {row} column {column}");
            }
        }
    }
}

const FORMATS: [(Format, bool, Option<ScaleForm>); 11] = [
    (Format::F32, false, None),
    (Format::F32, true, None),
    (Format::Bf16, false, None),
    (Format::Bf16, true, None),
    (Format::F16, false, None),
    (Format::Q8_0, false, None),
    (Format::Q4_1, false, None),
    (Format::Fp8E4m3, false, Some(ScaleForm::Tensor)),
    (Format::Fp8E4m3, false, Some(ScaleForm::Block128)),
    (Format::Nvfp4, false, Some(ScaleForm::Modelopt)),
    (Format::Nvfp4, false, Some(ScaleForm::CompressedTensors)),
];

#[test]
fn ranks_hold_their_rows_of_every_format() {
    for format in FORMATS {
        for ranks in [1, 2, 4] {
            // Heads of queries, and fewer of keys than ranks; heads smaller than a block of scales.
            check_ranks(format, (384, &[(4, 64), (2, 64)]), (96, &[]), ranks);
            check_ranks(format, (256, &[(4, 64)]), (160, &[]), ranks);
            if format.2 != Some(ScaleForm::Block128) {
                check_ranks(format, (28, &[(4, 3), (2, 5), (1, 6)]), (32, &[]), ranks);
            }
        }
    }
}

#[test]
fn ranks_hold_their_columns_of_every_format() {
    for format in FORMATS {
        for ranks in [1, 2, 4] {
            check_ranks(format, (13, &[]), (512, &[(4, 128)]), ranks);
            // Parts of less than a packed unit, within one block of scales.
            check_ranks(format, (136, &[]), (128, &[(4, 32)]), ranks);
            if format.2 != Some(ScaleForm::Block128) {
                check_ranks(format, (11, &[]), (384, &[(4, 64), (2, 64)]), ranks);
                check_ranks(format, (8, &[]), (160, &[(4, 32), (1, 32)]), ranks);
            }
        }
    }
    let blocks = (Format::Fp8E4m3, false, Some(ScaleForm::Block128));
    check_ranks(blocks, (130, &[]), (768, &[(4, 128), (2, 128)]), 2);
    check_ranks(blocks, (130, &[]), (64, &[(2, 32)]), 2);
}

#[test]
fn ranks_hold_rows_of_columns_too() {
    for format in FORMATS {
        check_ranks(format, (256, &[(2, 128)]), (256, &[(2, 128)]), 2);
    }
}

#[test]
fn columns_that_cannot_be_taken_apart_say_why() {
    let refused = |cut: &[(usize, usize)], ranks, file, format, form| {
        SourceColumns::new(segments(cut), Share { rank: 1, ranks }, file, format, form).expect_err("refused")
    };
    let nvfp4 = (Format::Nvfp4, Some(ScaleForm::Modelopt));
    let blocks = (Format::Fp8E4m3, Some(ScaleForm::Block128));
    for (found, wanted) in [
        (refused(&[(8, 11)], 8, 88, nvfp4.0, nvfp4.1), "columns 11..22 are no whole blocks of 16 of nvfp4"),
        (refused(&[(2, 48)], 2, 96, Format::Q8_0, None), "columns 48..96 are no whole blocks of 32 of q8_0"),
        (refused(&[(2, 192)], 2, 384, blocks.0, blocks.1), "neither begin at a multiple of 128 nor"),
        (refused(&[(3, 64)], 2, 192, Format::Bf16, None), "3 units of 64 columns cannot be shared out to 2"),
        (
            refused(&[(2, 64)], 2, 192, Format::Bf16, None),
            "128 columns are to be shared out to 2 ranks, and it has 192",
        ),
    ] {
        assert!(found.contains(wanted), "{found}\nshould say: {wanted}");
    }
}
