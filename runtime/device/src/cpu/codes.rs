//! fp8 and nvfp4: codes whose scales are tensors of their own.
//!
//! A scale multiplies what the columns that share it add up to, not each of their weights. Sums of 16 columns
//! are made by themselves, which also keeps several of them under way at once.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::decoded::Decoded;
use super::format::RowScales;
use super::rows::Rows;
use super::simd::{F32s, LANES, TILE, ask_ahead, at, at_mut, unrolled, words};
use monomorph_formats::{E2M1, FP8_BLOCK, Format, NVFP4_BLOCK, ScaleForm, e2m1_to_f32, e4m3_to_f32};

/// Weights in fp8-e4m3 with one scale a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Tensor;

/// Weights in fp8-e4m3 with a scale for every 128 rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Block128;

/// Weights in nvfp4, in either form.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Groups;

/// What vectors of decoded E4M3 lack, which a scale has instead.
const LACKING: f32 = 256.0;

/// Bytes of 16 rows' scales in f32.
const SCALES: usize = 4 * TILE;

/// Columns of fp8 that are summed by themselves.
const CHUNK: usize = 16;

/// Adds the products of `columns`, the first of which is column `first`, times `scale`.
#[inline(always)]
fn add<const M: usize, const N: usize>(
    columns: &[[u8; TILE]],
    part: usize,
    input: &[f32],
    first: usize,
    scale: F32s,
    sums: &mut [F32s; M],
) {
    ask_ahead(columns.as_flattened(), part);
    let mut own = [F32s::zero(); M];
    // The compiler knows this one length, so that no index below needs a check.
    let input = &input[first..][..(M - 1) * Rows::<N>::STRIDE + columns.len()];
    for (k, column) in columns.iter().enumerate() {
        let weights = F32s::from_e4m3(at(column, part * LANES));
        unrolled!(t < M, {
            own[t] = weights.mul_add(F32s::splat(input[t * Rows::<N>::STRIDE + k]), own[t]);
        });
    }
    unrolled!(t < M, {
        sums[t] = own[t].mul_add(scale, sums[t]);
    });
}

/// fp8 with a scale for every `$run` columns of a row: in a tile, the codes of these columns, 16 rows each,
/// then 16 scales.
macro_rules! fp8_format {
    ($name:ident, $form:ident, $run:expr) => {
        impl Decoded for $name {
            const FORMAT: Format = Format::Fp8E4m3;
            const SCALES: Option<ScaleForm> = Some(ScaleForm::$form);

            fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
                for (column, code) in row.iter().enumerate() {
                    tile[column * TILE + column / $run * SCALES + lane] = *code;
                }
            }

            fn pack_scales(scales: &RowScales, columns: usize, lane: usize, tile: &mut [u8]) {
                for run in 0..columns.div_ceil($run) {
                    let scale = match scales {
                        RowScales::Row(scale) => *scale,
                        RowScales::Blocks(scales) => scales[run],
                        RowScales::Groups(..) => unreachable!("the form's scales"),
                    };
                    let end = columns.min((run + 1).saturating_mul($run));
                    let place = end * TILE + run * SCALES + 4 * lane;
                    *at_mut(tile, place) = (scale * LACKING).to_le_bytes();
                }
            }

            fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
                let columns = out.len();
                for (column, out) in out.iter_mut().enumerate() {
                    let run = column / $run;
                    let end = columns.min((run + 1).saturating_mul($run));
                    let scale = f32::from_le_bytes(*at(tile, end * TILE + run * SCALES + 4 * lane));
                    let code = tile[column * TILE + run * SCALES + lane];
                    *out = e4m3_to_f32(code) * (scale / LACKING);
                }
            }

            #[inline(always)]
            fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[f32]) -> [F32s; M] {
                let mut sums = [F32s::zero(); M];
                for run in 0..N.div_ceil($run) {
                    let first = run * $run;
                    let width = (N - first).min($run);
                    let codes = &tile[first * TILE + run * SCALES..][..width * TILE + SCALES];
                    let (codes, scales) = codes.split_at(width * TILE);
                    let scale = F32s::load(&words(at(scales, part * 4 * LANES)));
                    let (chunks, rest) = codes.as_chunks::<TILE>().0.as_chunks::<CHUNK>();
                    for (at, chunk) in chunks.iter().enumerate() {
                        add::<M, N>(chunk, part, input, first + at * CHUNK, scale, &mut sums);
                    }
                    if !rest.is_empty() {
                        add::<M, N>(rest, part, input, first + chunks.len() * CHUNK, scale, &mut sums);
                    }
                }
                sums
            }
        }
    };
}

fp8_format!(Fp8Tensor, Tensor, usize::MAX);
fp8_format!(Fp8Block128, Block128, FP8_BLOCK);

/// Bytes of a tile's 16 rows over one block of columns, with its scales.
const BLOCK: usize = TILE * (NVFP4_BLOCK / 2 + 1);

/// Bytes of the codes among these.
const CODES: usize = TILE * NVFP4_BLOCK / 2;

/// A tile block is eight times 16 rows' bytes of two columns, the even one in the low nibble, then 16 scales
/// in E4M3. Behind the blocks stand 16 scales of rows.
impl Decoded for Nvfp4Groups {
    const FORMAT: Format = Format::Nvfp4;
    const SCALES: Option<ScaleForm> = Some(ScaleForm::Modelopt);

    fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
        let blocks = row.as_chunks::<{ NVFP4_BLOCK / 2 }>().0;
        for (block, place) in blocks.iter().zip(tile.as_chunks_mut::<BLOCK>().0) {
            for (pair, code) in block.iter().enumerate() {
                place[pair * TILE + lane] = *code;
            }
        }
    }

    fn pack_scales(scales: &RowScales, columns: usize, lane: usize, tile: &mut [u8]) {
        let RowScales::Groups(groups, whole) = scales else { unreachable!("the form's scales") };
        let (blocks, rows) = tile.split_at_mut(columns / NVFP4_BLOCK * BLOCK);
        for (scale, place) in groups.iter().zip(blocks.as_chunks_mut::<BLOCK>().0) {
            place[CODES + lane] = *scale;
        }
        *at_mut(rows, 4 * lane) = (whole * LACKING).to_le_bytes();
    }

    fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
        let (blocks, rows) = tile.split_at(out.len() / NVFP4_BLOCK * BLOCK);
        let whole = f32::from_le_bytes(*at(rows, 4 * lane)) / LACKING;
        let blocks = blocks.as_chunks::<BLOCK>().0;
        for (block, out) in blocks.iter().zip(out.as_chunks_mut::<NVFP4_BLOCK>().0) {
            let scale = e4m3_to_f32(block[CODES + lane]);
            for (column, out) in out.iter_mut().enumerate() {
                let code = block[column / 2 * TILE + lane] >> (4 * (column % 2));
                // Exact but for the last multiplication.
                *out = e2m1_to_f32(code) * scale * whole;
            }
        }
    }

    #[inline(always)]
    fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[f32]) -> [F32s; M] {
        let (blocks, rows) = tile.split_at(N / NVFP4_BLOCK * BLOCK);
        let mut sums = [F32s::zero(); M];
        for (b, block) in blocks.as_chunks::<BLOCK>().0.iter().enumerate() {
            ask_ahead(block, part);
            let mut own = [F32s::zero(); M];
            // The compiler knows this one length, so that no index below needs a check.
            let input = &input[b * NVFP4_BLOCK..][..(M - 1) * Rows::<N>::STRIDE + NVFP4_BLOCK];
            for pair in 0..NVFP4_BLOCK / 2 {
                let [even, odd] = F32s::pair_from_levels(&E2M1, at(block, pair * TILE + part * LANES));
                unrolled!(t < M, {
                    let column = t * Rows::<N>::STRIDE + 2 * pair;
                    own[t] = even.mul_add(F32s::splat(input[column]), own[t]);
                    own[t] = odd.mul_add(F32s::splat(input[column + 1]), own[t]);
                });
            }
            let scale = F32s::from_e4m3(at(block, CODES + part * LANES));
            unrolled!(t < M, {
                sums[t] = own[t].mul_add(scale, sums[t]);
            });
        }
        let whole = F32s::load(&words(at(rows, part * 4 * LANES)));
        unrolled!(t < M, {
            sums[t] = sums[t] * whole;
        });
        sums
    }
}
