//! Packs checkpoint rows into tiles. Pure functions from bytes to planes; docs/adr/0009 has the layout.
//!
//! A unit holds 64 adjacent bytes of each of its 8 rows: four lanes of 16 bytes. Packing a row is therefore a
//! permutation within runs of 64 bytes, in every format.

use super::shape::{MatrixShape, Packing, ROW_BYTES, TILE_ROWS, UNIT_BYTES};
use super::slice::{SourceColumns, SourceRows};
use half::f16;
use monomorph_formats::{FP8_BLOCK, Format, NVFP4_BLOCK, decode, encode_halves, half_scale};
use monomorph_weights::{Bytes, WeightsError, Windows};
use std::borrow::Cow;
use std::ops::Range;

/// One tensor of a matrix, its shape checked.
#[derive(Clone, Debug)]
pub(crate) struct Source<'a> {
    /// The tensor's name in the checkpoint, for errors.
    pub(crate) name: &'a str,
    /// The rows, back to back.
    pub(crate) bytes: Bytes<'a>,
    /// Number of rows in the tensor.
    pub(crate) file_rows: usize,
    /// Number of rows that the matrix takes from it.
    pub(crate) rows: usize,
    /// Which rows of the tensor these are.
    pub(crate) order: SourceRows,
    /// Which columns of these rows.
    pub(crate) columns: SourceColumns,
    /// The scales of the codes.
    pub(crate) scales: SourceScales<'a>,
}

/// The scales of a tensor, for all its rows and columns.
#[derive(Clone, Debug)]
pub(crate) enum SourceScales<'a> {
    /// The scales are inside the blocks, or there are none.
    Own,
    /// fp8: one scale for the tensor.
    Tensor(f32),
    /// fp8: `[ceil(file rows / 128), ceil(columns / 128)]`, row-major, and a power of two that multiplies
    /// all.
    Blocks {
        /// The scales divided by that power.
        scales: Vec<f32>,
        /// The power, which becomes the scale of every row.
        whole: f32,
    },
    /// nvfp4: E4M3 codes `[file rows, columns / 16]`, and one scale for the tensor.
    Groups {
        codes: Bytes<'a>,
        /// Multiplies every element.
        tensor: f32,
    },
}

impl SourceScales<'_> {
    /// Divides block scales by the power of two that brings the largest into `[2^6, 2^7)`: its product with
    /// the largest code then fits f16.
    pub(crate) fn blocks(mut scales: Vec<f32>) -> Self {
        let factor = half_scale(scales.iter().fold(0.0f32, |m, v| m.max(v.abs()))) / 256.0;
        scales.iter_mut().for_each(|scale| *scale *= factor);
        SourceScales::Blocks { scales, whole: 1.0 / factor }
    }
}

/// The planes of some tiles, as output.
#[derive(Debug)]
pub(crate) struct Planes<'a> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) scales: &'a mut [u8],
    pub(crate) row_scales: &'a mut [u8],
}

/// A NaN code or a float that is not finite, which the kernels would read as a number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotANumber {
    pub(crate) name: String,
    /// The row in the file.
    pub(crate) row: usize,
}

/// Why tiles cannot be packed.
#[derive(Debug)]
pub(crate) enum PackError {
    NotANumber(NotANumber),
    /// The file cannot be read.
    Read(WeightsError),
}

impl From<NotANumber> for PackError {
    fn from(error: NotANumber) -> PackError {
        PackError::NotANumber(error)
    }
}

impl From<WeightsError> for PackError {
    fn from(error: WeightsError) -> PackError {
        PackError::Read(error)
    }
}

/// Packs tiles `tiles` of a matrix, counted over all experts. `sources` holds the first expert's parts, then
/// the next expert's. Rows and columns past the end become zero codes with zero scales.
///
/// # Errors
/// When an fp8 code or an nvfp4 scale is NaN, a float that becomes f16 is not finite, or a file cannot be
/// read.
pub(crate) fn pack_tiles<'a>(
    shape: &MatrixShape,
    sources: &[Source<'a>],
    windows: &mut Windows<'a>,
    tiles: Range<usize>,
    out: &mut Planes,
) -> Result<(), PackError> {
    let (codes, scales, row_scales) =
        (shape.matrix().tile_codes(), shape.matrix().tile_scales(), shape.matrix().tile_row_scales());
    for (at, tile) in tiles.enumerate() {
        let mut tile_out = Planes {
            codes: &mut out.codes[at * codes..][..codes],
            scales: &mut out.scales[at * scales..][..scales],
            row_scales: &mut out.row_scales[at * row_scales..][..row_scales],
        };
        pack_tile(shape, sources, windows, tile, &mut tile_out)?;
    }
    Ok(())
}

/// What packing these tiles reads, in its order.
pub(crate) fn reads<'s, 'a>(
    shape: &'s MatrixShape,
    sources: &'s [Source<'a>],
    tiles: Range<usize>,
) -> impl Iterator<Item = (Bytes<'a>, Range<usize>)> {
    let rows = tiles.flat_map(move |tile| (0..TILE_ROWS).filter_map(move |g| place(shape, sources, tile, g)));
    rows.flat_map(|(source, row)| {
        let at = source.order.file_row(row);
        let of_rows = |bytes: Bytes<'a>, each: usize| (bytes, at * each..(at + 1) * each);
        let codes = of_rows(source.bytes, source.bytes.len() / source.file_rows);
        let scales = match source.scales {
            SourceScales::Groups { codes, .. } => Some(of_rows(codes, source.columns.file / NVFP4_BLOCK)),
            SourceScales::Own | SourceScales::Tensor(_) | SourceScales::Blocks { .. } => None,
        };
        std::iter::once(codes).chain(scales)
    })
}

fn pack_tile<'a>(
    shape: &MatrixShape,
    sources: &[Source<'a>],
    windows: &mut Windows<'a>,
    tile: usize,
    out: &mut Planes,
) -> Result<(), PackError> {
    let whole_units = shape.columns.is_multiple_of(shape.matrix().unit_columns());
    if !whole_units || place(shape, sources, tile, TILE_ROWS - 1).is_none() {
        out.codes.fill(0);
        out.scales.fill(0);
        out.row_scales.fill(0);
    }
    for g in 0..TILE_ROWS {
        if let Some((source, row)) = place(shape, sources, tile, g) {
            pack_row(shape, source, windows, row, g, out)?;
        }
    }
    Ok(())
}

/// The tensor for row `g` of a tile, and the row of the part; `None` past the end of the matrix.
fn place<'s, 'a>(
    shape: &MatrixShape,
    sources: &'s [Source<'a>],
    tile: usize,
    g: usize,
) -> Option<(&'s Source<'a>, usize)> {
    let (expert, tile) = (tile / shape.matrix().tiles(), tile % shape.matrix().tiles());
    let sources = &sources[expert * shape.parts.len()..][..shape.parts.len()];
    match shape.packing {
        Packing::Stacked => {
            let mut row = tile * TILE_ROWS + g;
            for source in sources {
                if row < source.rows {
                    return Some((source, row));
                }
                row -= source.rows;
            }
            None
        }
        Packing::Gated => {
            let (source, row) = (&sources[tile % 2], tile / 2 * TILE_ROWS + g);
            (row < source.rows).then_some((source, row))
        }
    }
}

fn pack_row<'a>(
    shape: &MatrixShape,
    source: &Source<'a>,
    windows: &mut Windows<'a>,
    row: usize,
    g: usize,
    out: &mut Planes,
) -> Result<(), PackError> {
    let file_row = source.order.file_row(row);
    let row_bytes = source.bytes.len() / source.file_rows;
    let bytes = windows.read(source.bytes, file_row * row_bytes..(file_row + 1) * row_bytes)?;
    let bytes = taken(bytes, source.columns.bytes(shape.stored));
    let bytes: &[u8] = &bytes;
    let not_a_number = || NotANumber { name: source.name.to_owned(), row: file_row };
    if shape.halves {
        let mut values = vec![0.0; shape.columns];
        decode(shape.stored, bytes, &mut values);
        if values.iter().any(|value| !value.is_finite()) {
            return Err(not_a_number().into());
        }
        let mut halves = vec![f16::ZERO; shape.columns];
        let unscale = encode_halves(&values, &mut halves);
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        pack_elements::<4>(&bytes, g, out.codes);
        out.row_scales[4 * g..][..4].copy_from_slice(&unscale.to_le_bytes());
        return Ok(());
    }
    match shape.stored {
        Format::F32 => pack_elements::<16>(bytes, g, out.codes),
        Format::Bf16 | Format::F16 => pack_elements::<4>(bytes, g, out.codes),
        Format::Fp8E4m3 => {
            if has_nan(bytes) {
                return Err(not_a_number().into());
            }
            pack_elements::<2>(bytes, g, out.codes);
        }
        Format::Nvfp4 => pack_nvfp4(bytes, g, out.codes),
        Format::Q8_0 => pack_q8_0(bytes, g, out),
        Format::Q4_1 => pack_q4_1(bytes, g, out),
        Format::Q4_0
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Iq4Nl
        | Format::Iq4Xs => {
            unreachable!("no plan for a card has {}", shape.stored)
        }
    }
    match &source.scales {
        SourceScales::Own => {}
        SourceScales::Tensor(scale) => out.row_scales[4 * g..][..4].copy_from_slice(&scale.to_le_bytes()),
        SourceScales::Blocks { scales, whole } => {
            // One row of scales per tile: its 8 rows lie in one block of 128, which the loader checks.
            let blocks = source.columns.file.div_ceil(FP8_BLOCK);
            let scales = &scales[file_row / FP8_BLOCK * blocks..][..blocks];
            for (block, out) in out.scales.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&scales[source.columns.scale_block(block)].to_le_bytes());
            }
            out.row_scales[4 * g..][..4].copy_from_slice(&whole.to_le_bytes());
        }
        SourceScales::Groups { codes, tensor } => {
            let groups = source.columns.file / NVFP4_BLOCK;
            let codes = windows.read(*codes, file_row * groups..(file_row + 1) * groups)?;
            let codes = taken(codes, source.columns.parts(NVFP4_BLOCK, 1));
            let codes: &[u8] = &codes;
            if has_nan(codes) {
                return Err(not_a_number().into());
            }
            for (unit, codes) in codes.chunks(8).enumerate() {
                out.scales[(unit * TILE_ROWS + g) * 8..][..codes.len()].copy_from_slice(codes);
            }
            out.row_scales[4 * g..][..4].copy_from_slice(&tensor.to_le_bytes());
        }
    }
    Ok(())
}

/// The parts of a row that a rank holds, one after another.
fn taken(row: &[u8], mut parts: impl Iterator<Item = Range<usize>>) -> Cow<'_, [u8]> {
    let first = parts.next().map_or(&row[..0], |part| &row[part]);
    match parts.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let mut all = [first, &row[second]].concat();
            parts.for_each(|part| all.extend_from_slice(&row[part]));
            Cow::Owned(all)
        }
    }
}

/// Whether any of these E4M3 codes is NaN.
fn has_nan(codes: &[u8]) -> bool {
    codes.iter().fold(false, |found, code| found | (code & 0x7f == 0x7f))
}

/// The 64 bytes of row `g` in each unit of a tile.
fn unit_rows(codes: &mut [u8], g: usize) -> impl Iterator<Item = &mut [u8; ROW_BYTES]> {
    codes.chunks_exact_mut(UNIT_BYTES).map(move |unit| {
        let row = &mut unit[g * ROW_BYTES..][..ROW_BYTES];
        row.try_into().expect("a slice of this length")
    })
}

/// Packs formats without scales among their codes. `P` is the bytes of two adjacent elements, which stay
/// together (of four for f32): pair `4i + c` of the file's 64 bytes becomes pair `i` of lane `c`.
fn pack_elements<const P: usize>(row: &[u8], g: usize, codes: &mut [u8]) {
    for (out, bytes) in unit_rows(codes, g).zip(row.chunks(ROW_BYTES)) {
        let mut padded = [0; ROW_BYTES];
        let bytes: &[u8; ROW_BYTES] = match bytes.try_into() {
            Ok(whole) => whole,
            Err(_) => {
                padded[..bytes.len()].copy_from_slice(bytes);
                &padded
            }
        };
        for i in 0..16 / P {
            for c in 0..4 {
                out[16 * c + i * P..][..P].copy_from_slice(&bytes[(4 * i + c) * P..][..P]);
            }
        }
    }
}

/// Eight nibbles of a lane per word: magnitudes and signs of two neighbours at equal positions in its halves
/// (formats.cuh, decode_nvfp4).
fn pack_nvfp4(row: &[u8], g: usize, codes: &mut [u8]) {
    pack_elements::<1>(row, g, codes);
    for word in unit_rows(codes, g).flat_map(|row| row.as_chunks_mut::<4>().0) {
        *word = spread(u32::from_le_bytes(*word)).to_le_bytes();
    }
}

/// Moves nibbles 0..8 to where decode_nvfp4 expects them: the even one of pair `p` in the lower half.
fn spread(nibbles: u32) -> u32 {
    (0..8).fold(0, |word, j| {
        let code = nibbles >> (4 * j) & 15;
        let (magnitude, sign) = [(9, 15), (6, 12), (3, 14), (0, 13)][j / 2];
        let half = j % 2 * 16;
        word | (code & 7) << (magnitude + half) | (code >> 3) << (sign + half)
    })
}

/// Packs blocks of an f16 scale and 32 bytes; lane `c` takes 8 adjacent bytes from both blocks of a unit.
fn pack_q8_0(row: &[u8], g: usize, out: &mut Planes) {
    const BLOCK: usize = Format::Q8_0.block_bytes();
    for (unit, (out_row, blocks)) in unit_rows(out.codes, g).zip(row.chunks(2 * BLOCK)).enumerate() {
        for (b, block) in blocks.chunks_exact(BLOCK).enumerate() {
            out.scales[((unit * 2 + b) * TILE_ROWS + g) * 2..][..2].copy_from_slice(&block[..2]);
            for c in 0..4 {
                out_row[16 * c + 8 * b..][..8].copy_from_slice(&block[2 + 8 * c..][..8]);
            }
        }
    }
}

/// Packs blocks of an f16 scale, an f16 minimum and 16 bytes of nibbles, whose low nibbles are elements
/// 0..16. Lane `c` takes 8 adjacent elements from each of the four blocks of a unit, the even one of a pair
/// in the low nibble.
fn pack_q4_1(row: &[u8], g: usize, out: &mut Planes) {
    const BLOCK: usize = Format::Q4_1.block_bytes();
    for (unit, (out_row, blocks)) in unit_rows(out.codes, g).zip(row.chunks(4 * BLOCK)).enumerate() {
        for (b, block) in blocks.chunks_exact(BLOCK).enumerate() {
            out.scales[((unit * 4 + b) * TILE_ROWS + g) * 4..][..4].copy_from_slice(&block[..4]);
            for c in 0..4 {
                let (pairs, shift) = (&block[4 + 8 * (c % 2)..][..8], 4 * (c / 2));
                for (k, pair) in pairs.as_chunks::<2>().0.iter().enumerate() {
                    out_row[16 * c + 4 * b + k] = (pair[0] >> shift & 15) | (pair[1] >> shift & 15) << 4;
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
