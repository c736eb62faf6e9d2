//! Checks every element of a packed matrix, located by the layout's formula, against its value in the file.

use super::*;
use crate::rows_of::FileRows;
use monomorph_formats::{ScaleForm, e2m1_to_f32, e4m3_to_f32, through_halves};

mod ranks;

/// xorshift64 (Marsaglia 2003).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Bytes of a tensor without NaN: f16 scales and floats have moderate exponents.
    pub(crate) fn tensor(&mut self, format: Format, elements: usize) -> Vec<u8> {
        let count = format.bytes(elements).expect("whole blocks");
        let mut bytes: Vec<u8> = (0..count).map(|_| (self.next() >> 32) as u8).collect();
        match format {
            Format::Fp8E4m3 => bytes.iter_mut().for_each(|byte| *byte &= 0xbf),
            Format::F32 => bytes.chunks_exact_mut(4).for_each(|it| it[3] = it[3] & 0x80 | 0x3f),
            Format::Bf16 => bytes.chunks_exact_mut(2).for_each(|it| it[1] = it[1] & 0x80 | 0x3f),
            Format::F16 => bytes.chunks_exact_mut(2).for_each(|it| it[1] &= 0xbf),
            Format::Q8_0 => bytes.chunks_exact_mut(34).for_each(|it| it[1] &= 0xbf),
            Format::Q4_1 => bytes.chunks_exact_mut(20).for_each(|it| {
                it[1] &= 0xbf;
                it[3] &= 0xbf;
            }),
            Format::Nvfp4 => {}
            other => panic!("cards have no {other}"),
        }
        bytes
    }
}

/// The position of element `j` of lane column `c` within a unit: the table of docs/adr/0009.
fn column(format: Format, j: usize, c: usize) -> usize {
    match format {
        Format::F32 => 4 * c + j,
        Format::Q8_0 | Format::Q4_1 => 32 * (j / 8) + 8 * c + j % 8,
        _ => j / 4 * 16 + j % 4 / 2 * 8 + 2 * c + j % 2,
    }
}

/// The value of one element of a packed matrix, scales applied.
fn read(shape: &MatrixShape, planes: &Planes, tile: usize, g: usize, wanted: usize) -> f32 {
    let (unit, within) = (wanted / shape.matrix().unit_columns(), wanted % shape.matrix().unit_columns());
    let elements = shape.matrix().unit_columns() / 4;
    let place = (0..4).flat_map(|c| (0..elements).map(move |j| (c, j)));
    let (c, j) =
        place.into_iter().find(|(c, j)| column(shape.matrix().held(), *j, *c) == within).expect("somewhere");
    let lane = &planes.codes[(tile * shape.matrix().units() + unit) * 512 + (4 * g + c) * 16..][..16];
    let scales = &planes.scales[tile * shape.matrix().tile_scales()..][..shape.matrix().tile_scales()];
    let half = |at: usize| f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
    let f32_at = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[4 * at..][..4].try_into().expect("four"));
    let row_scale = || f32_at(planes.row_scales, tile * 8 + g);
    let nibble = f32::from(lane[j / 2] >> (4 * (j % 2)) & 15);
    match shape.matrix().held() {
        Format::F32 => f32_at(lane, j),
        Format::Bf16 => half::bf16::from_le_bytes([lane[2 * j], lane[2 * j + 1]]).to_f32(),
        Format::F16 => {
            let scale = if shape.halves { row_scale() } else { 1.0 };
            f16::from_le_bytes([lane[2 * j], lane[2 * j + 1]]).to_f32() * scale
        }
        Format::Q8_0 => half(((unit * 2 + j / 8) * 8 + g) * 2) * f32::from(lane[j] as i8),
        Format::Q4_1 => {
            let at = ((unit * 4 + j / 8) * 8 + g) * 4;
            half(at) * nibble + half(at + 2)
        }
        Format::Fp8E4m3 => {
            let scale = match shape.scales {
                Some(ScaleForm::Block128) => f32_at(scales, wanted / 128) * row_scale(),
                _ => row_scale(),
            };
            e4m3_to_f32(lane[j]) * scale
        }
        Format::Nvfp4 => {
            let scale = e4m3_to_f32(scales[(unit * 8 + g) * 8 + j / 4]);
            // Of two neighbours the first is in the lower half of their word; formats.cuh says how pairs
            // share it.
            let half =
                u32::from(u16::from_le_bytes([lane[j / 8 * 4 + j % 2 * 2], lane[j / 8 * 4 + j % 2 * 2 + 1]]));
            let (magnitude, sign) = match j % 8 / 2 {
                0 => (half >> 9, half >> 15),
                1 => (half >> 6, half >> 12),
                2 => (half >> 3, half >> 14),
                _ => (half, half >> 13),
            };
            e2m1_to_f32((magnitude & 7 | (sign & 1) << 3) as u8) * scale * row_scale()
        }
        other => panic!("cards have no {other}"),
    }
}

fn shape(
    format: Format,
    scales: Option<ScaleForm>,
    parts: &'static [usize],
    columns: usize,
    packing: Packing,
) -> MatrixShape {
    MatrixShape { stored: format, halves: false, scales, parts, columns, packing, experts: 1 }
}

fn check(shape: &MatrixShape, rotary: Option<usize>) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let columns = shape.columns;
    let mut files = Vec::new();
    for &rows in shape.parts {
        let bytes = random.tensor(shape.stored, rows * columns);
        let mut values = vec![0.0; rows * columns];
        decode(shape.stored, &bytes, &mut values);
        if shape.halves {
            values = values.chunks_exact(columns).flat_map(through_halves).collect();
        }
        let mut companions = Vec::new();
        let mut groups = Vec::new();
        if let Some(form) = shape.scales {
            for (index, (_, dimensions)) in form.companions(rows, columns).into_iter().enumerate() {
                let count = dimensions.iter().product();
                if shape.stored == Format::Nvfp4 && index == 0 {
                    groups = random.tensor(Format::Fp8E4m3, count);
                    companions.push(groups.iter().map(|code| e4m3_to_f32(*code)).collect());
                } else {
                    companions.push((0..count).map(|_| (random.next() >> 60) as f32 + 0.5).collect());
                }
            }
            form.apply(&mut values, columns, &companions);
        }
        files.push((bytes, rows, values, companions, groups));
    }
    let sources: Vec<Source> = files
        .iter()
        .map(|(bytes, rows, _, companions, groups)| Source {
            name: "w",
            bytes: bytes[..].into(),
            file_rows: *rows,
            rows: *rows,
            order: SourceRows::whole(rotary.map_or(FileRows::All, FileRows::Interleaved)),
            columns: SourceColumns::whole(columns),
            scales: match shape.scales {
                None => SourceScales::Own,
                Some(form @ ScaleForm::Tensor) => SourceScales::Tensor(form.row_scale(companions[0][0])),
                Some(ScaleForm::Block128) => SourceScales::blocks(companions[0].clone()),
                Some(form) => SourceScales::Groups {
                    codes: groups[..].into(),
                    tensor: form.row_scale(companions[1][0]),
                },
            },
        })
        .collect();

    let tiles = shape.matrix().tiles();
    // Earlier contents of a staging buffer must not survive.
    let mut codes = vec![0xa5; tiles * shape.matrix().tile_codes()];
    let mut scales = vec![0xa5; tiles * shape.matrix().tile_scales()];
    let mut row_scales = vec![0xa5; tiles * shape.matrix().tile_row_scales()];
    let mut planes = Planes { codes: &mut codes, scales: &mut scales, row_scales: &mut row_scales };
    pack_tiles(shape, &sources, &mut Windows::default(), 0..tiles, &mut planes).expect("numbers");

    for tile in 0..tiles {
        for g in 0..8 {
            let at = match shape.packing {
                Packing::Gated => {
                    Some((tile % 2, tile / 2 * 8 + g)).filter(|(part, row)| *row < shape.parts[*part])
                }
                Packing::Stacked => {
                    let mut row = tile * 8 + g;
                    shape
                        .parts
                        .iter()
                        .position(|rows| {
                            row < *rows || {
                                row -= rows;
                                false
                            }
                        })
                        .map(|part| (part, row))
                }
            };
            for column in 0..shape.matrix().units() * shape.matrix().unit_columns() {
                let found = read(shape, &planes, tile, g, column);
                let wanted = match at {
                    Some((part, row)) if column < columns => {
                        let file_row = match rotary {
                            Some(dim) => {
                                row / dim * dim + 2 * (row % dim % (dim / 2)) + row % dim / (dim / 2)
                            }
                            None => row,
                        };
                        files[part].2[file_row * columns + column]
                    }
                    _ => 0.0,
                };
                assert_eq!(found, wanted, "{shape:?} tile {tile} row {g} column {column}");
            }
        }
    }
    // The matrix may be packed in pieces.
    let mut again = vec![0x5a; shape.matrix().tile_codes()];
    let (mut scales, mut row_scales) =
        (vec![0; shape.matrix().tile_scales()], vec![0; shape.matrix().tile_row_scales()]);
    let mut last = Planes { codes: &mut again, scales: &mut scales, row_scales: &mut row_scales };
    pack_tiles(shape, &sources, &mut Windows::default(), tiles - 1..tiles, &mut last).expect("numbers");
    assert!(codes.ends_with(&again));
}

#[test]
fn formats_without_companions_stand_where_the_layout_says() {
    for format in [Format::F32, Format::Bf16, Format::F16, Format::Q8_0, Format::Q4_1] {
        // Columns that do not fill a unit, rows that do not fill a tile, several parts within a tile.
        for columns in [32, 96, 160, 576] {
            let stacked = Packing::Stacked;
            for parts in [&[1][..], &[8], &[24, 8, 8], &[13, 3, 5]] {
                check(&shape(format, None, parts, columns, stacked), None);
            }
            for parts in [&[16, 16], &[11, 11]] {
                check(&shape(format, None, parts, columns, Packing::Gated), None);
            }
            check(&shape(format, None, &[24], columns, stacked), Some(12));
        }
    }
    check(&shape(Format::Bf16, None, &[9], 37, Packing::Stacked), None);
}

#[test]
fn floats_of_products_in_f16_are_halves_with_a_scale_a_row() {
    for format in [Format::F32, Format::Bf16, Format::F16] {
        let shape = |parts, columns, packing| MatrixShape {
            halves: true,
            ..shape(format, None, parts, columns, packing)
        };
        for columns in [32, 37, 160] {
            check(&shape(&[13, 3, 5], columns, Packing::Stacked), None);
            check(&shape(&[11, 11], columns, Packing::Gated), None);
        }
        check(&shape(&[24], 96, Packing::Stacked), Some(12));
    }
}

#[test]
fn companions_stand_where_the_layout_says() {
    for form in ScaleForm::ALL {
        let (format, scales) = (form.codes(), Some(form));
        for columns in [16, 112, 208, 384] {
            for parts in [&[8][..], &[24, 8, 8], &[136, 16, 5]] {
                check(&shape(format, scales, parts, columns, Packing::Stacked), None);
            }
            check(&shape(format, scales, &[139, 139], columns, Packing::Gated), None);
        }
    }
}

#[test]
fn what_is_no_number_is_named() {
    let shape = shape(Format::Fp8E4m3, Some(ScaleForm::Tensor), &[3], 64, Packing::Stacked);
    let mut bytes = [0; 3 * 64];
    bytes[2 * 64 + 5] = 0xff;
    let source = Source {
        name: "w",
        bytes: bytes[..].into(),
        file_rows: 3,
        rows: 3,
        order: SourceRows::whole(FileRows::All),
        columns: SourceColumns::whole(64),
        scales: SourceScales::Tensor(1.0),
    };
    let (mut codes, mut row_scales) = ([0; 512], [0; 32]);
    let mut out = Planes { codes: &mut codes, scales: &mut [], row_scales: &mut row_scales };
    let error = pack_tiles(&shape, &[source], &mut Windows::default(), 0..1, &mut out).expect_err("NaN");
    assert!(matches!(error, PackError::NotANumber(it) if it.name == "w" && it.row == 2));
    // Nor is a float for which f16 has no scale.
    let shape = MatrixShape { stored: Format::F32, halves: true, scales: None, ..shape };
    let mut bytes = vec![0; 3 * 64 * 4];
    bytes[64 * 4..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let source = Source {
        bytes: bytes[..].into(),
        scales: SourceScales::Own,
        name: "w",
        file_rows: 3,
        rows: 3,
        order: SourceRows::whole(FileRows::All),
        columns: SourceColumns::whole(64),
    };
    let mut codes = [0; 2 * 512];
    let mut out = Planes { codes: &mut codes, scales: &mut [], row_scales: &mut row_scales };
    let error = pack_tiles(&shape, &[source], &mut Windows::default(), 0..1, &mut out).expect_err("infinite");
    assert!(matches!(error, PackError::NotANumber(it) if it.name == "w" && it.row == 1));
}
