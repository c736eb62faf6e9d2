//! ggml's formats of small integers other than q8_0 and q4_1, multiplied with int8 activations.
//!
//! A tile has, for every 32 columns, four times 16 rows' words of four bytes (low nibbles: columns `4j ..`,
//! high nibbles: columns `16 + 4j ..`), then 16 rows' words of higher bits, if codes have some: bit `j` of
//! byte `c` belongs to column `4j + c`; of two bits a code, bits `2j` and `2j + 1` of the first word for `j`
//! below 4, and of the second. Blocks of 256 have a byte of 16 rows for each scale and minimum behind these.
//! A block ends with 16 scales, then 16 minima, in f16.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::format::WeightFormat;
use super::rows::{Int8Block, Int8Rows};
use super::simd::{F32s, I32s, LANES, TILE, U8s, at, at_mut, halves, unrolled};
use half::f16;
use monomorph_formats::{Format, IntegerBlock, Integers};

/// Columns that share an activation's scale.
const RUN: usize = 32;

/// Where what stands in a tile begins, in bytes.
#[derive(Clone, Copy)]
struct Places {
    form: Integers,
    /// Runs of a block.
    runs: usize,
    /// Of a run: the higher bits, the scales, the minima, and the end.
    high: usize,
    scales: usize,
    minima: usize,
    run: usize,
    /// The end of a block.
    block: usize,
}

impl Places {
    const fn new(format: Format) -> Places {
        let Some(form) = format.integers() else { panic!("a format of small integers") };
        let runs = format.block_elements() / RUN;
        let high = 16 * TILE;
        let scales = high + 4 * (form.bits - 4) * TILE;
        let own = runs > 1;
        let minima = scales + if own { RUN / form.run * TILE } else { 0 };
        let run = minima + if own && form.minima { TILE } else { 0 };
        let factors = if form.minima { 2 } else { 1 };
        Places { form, runs, high, scales, minima, run, block: runs * run + factors * 2 * TILE }
    }
}

/// What is added to a scale to store it as a byte.
const BIAS: i16 = 128;

macro_rules! integer_format {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $name {
            const PLACES: Places = Places::new(Format::$name);
        }

        impl WeightFormat for $name {
            const FORMAT: Format = Format::$name;
            type Input<const N: usize> = Int8Rows<N>;

            fn pack(row: &[u8], lane: usize, tile: &mut [u8]) {
                const P: Places = $name::PLACES;
                let blocks = row.chunks_exact(Format::$name.block_bytes());
                for (block, place) in blocks.zip(tile.chunks_exact_mut(P.block)) {
                    pack(&P, &IntegerBlock::new(Format::$name, block), lane, place);
                }
            }

            fn unpack(tile: &[u8], lane: usize, out: &mut [f32]) {
                const P: Places = $name::PLACES;
                let blocks = tile.chunks_exact(P.block);
                for (block, out) in blocks.zip(out.chunks_exact_mut(P.runs * RUN)) {
                    unpack(&P, block, lane).decode(P.form, out);
                }
            }

            #[inline(always)]
            fn product<const M: usize, const N: usize>(tile: &[u8], part: usize, input: &[Int8Block]) -> [F32s; M] {
                const P: Places = $name::PLACES;
                let stride = Int8Rows::<N>::STRIDE;
                let mut sums = [F32s::zero(); M];
                for (b, block) in tile.as_chunks::<{ P.block }>().0.iter().enumerate() {
                    let factors = P.runs * P.run;
                    let d = F32s::from_f16(&halves(at(block, factors + part * 2 * LANES)));
                    let m = match P.form.minima {
                        true => F32s::from_f16(&halves(at(block, factors + 2 * TILE + part * 2 * LANES))),
                        false => F32s::zero(),
                    };
                    for run in 0..P.runs {
                        let block: &[u8; P.run] = at(block, run * P.run);
                        let codes = codes(&P, block, part);
                        // The compiler knows this one length, so that no index below needs a check.
                        let input = &input[b * P.runs + run..][..(M - 1) * stride + 1];
                        let own = |from: usize| F32s::from_u8(at(block, from + part * LANES));
                        let scale = |of: usize| match P.runs {
                            1 => d,
                            _ => d * (own(P.scales + of * TILE) - F32s::splat(f32::from(BIAS))),
                        };
                        if P.form.run == RUN {
                            let d = scale(0);
                            let m = if P.runs > 1 && P.form.minima { m * own(P.minima) } else { m };
                            unrolled!(t < M, {
                                let x = &input[t * stride];
                                // The sum of 32 activations is there times -128.
                                let mut dot = I32s::splat(x.bias * i32::from(P.form.offset) / 128);
                                for j in 0..8 {
                                    dot = dot.dot_nibbles(codes[j], x.words[j]);
                                }
                                let base = match P.form.minima {
                                    true => m.mul_add(F32s::splat(x.scaled_sum), sums[t]),
                                    false => sums[t],
                                };
                                sums[t] = (d * F32s::splat(x.scale)).mul_add(dot.to_f32(), base);
                            });
                        } else {
                            let scales = [scale(0), scale(1)];
                            unrolled!(t < M, {
                                let x = &input[t * stride];
                                for half in 0..2 {
                                    let sum = i32::from(x.halves[half]);
                                    let mut dot = I32s::splat(-sum * i32::from(P.form.offset));
                                    for j in 4 * half..4 * half + 4 {
                                        dot = dot.dot_nibbles(codes[j], x.words[j]);
                                    }
                                    let d = scales[half] * F32s::splat(x.scale);
                                    sums[t] = d.mul_add(dot.to_f32(), sums[t]);
                                }
                            });
                        }
                    }
                }
                sums
            }
        }
    };
}

/// The codes of a run, four columns a word.
#[inline(always)]
fn codes(places: &Places, run: &[u8], part: usize) -> [U8s; 8] {
    let word = |from: usize| U8s::load(at(run, from + part * 4 * LANES));
    let mut codes = [word(0); 8];
    for j in 0..4 {
        let bytes = word(j * 4 * TILE);
        (codes[j], codes[j + 4]) = (bytes.low(), bytes.high());
    }
    for j in 0..8 {
        codes[j] = match places.form.bits {
            4 => codes[j],
            5 => codes[j].with_bits(word(places.high), j as i32, 0x0101_0101),
            _ => {
                let high = word(places.high + j / 4 * 4 * TILE);
                codes[j].with_bits(high, 2 * (j as i32 % 4), 0x0303_0303)
            }
        };
    }
    codes
}

fn pack(places: &Places, block: &IntegerBlock, lane: usize, tile: &mut [u8]) {
    for run in 0..places.runs {
        let (codes, tile) = (&block.codes[run * RUN..][..RUN], &mut tile[run * places.run..][..places.run]);
        for (i, code) in codes.iter().enumerate() {
            let (word, byte) = (i / 4 % 4, i % 4);
            tile[(word * TILE + lane) * 4 + byte] |= (code & 15) << (i / 16 * 4);
            let high = code >> 4;
            match places.form.bits {
                4 => {}
                5 => tile[places.high + 4 * lane + byte] |= high << (i / 4),
                _ => tile[places.high + (i / 16 * TILE + lane) * 4 + byte] |= high << (i / 4 % 4 * 2),
            }
        }
        if places.runs > 1 {
            let of_run = RUN / places.form.run;
            for (i, scale) in block.scales[run * of_run..][..of_run].iter().enumerate() {
                tile[places.scales + i * TILE + lane] = (i16::from(*scale) + BIAS) as u8;
            }
            if places.form.minima {
                tile[places.minima + lane] = block.minima[run];
            }
        }
    }
    let factors = places.runs * places.run;
    *at_mut(tile, factors + 2 * lane) = block.d.to_le_bytes();
    if places.form.minima {
        *at_mut(tile, factors + 2 * TILE + 2 * lane) = block.m.to_le_bytes();
    }
}

fn unpack(places: &Places, tile: &[u8], lane: usize) -> IntegerBlock {
    let factors = places.runs * places.run;
    let half = |from: usize| f16::from_le_bytes(*at(tile, from + 2 * lane));
    let m = if places.form.minima { half(factors + 2 * TILE) } else { f16::ZERO };
    let mut block = IntegerBlock { d: half(factors), m, codes: [0; 256], scales: [1; 16], minima: [1; 8] };
    for run in 0..places.runs {
        let tile = &tile[run * places.run..][..places.run];
        for i in 0..RUN {
            let (word, byte) = (i / 4 % 4, i % 4);
            let low = tile[(word * TILE + lane) * 4 + byte] >> (i / 16 * 4) & 15;
            let high = match places.form.bits {
                4 => 0,
                5 => tile[places.high + 4 * lane + byte] >> (i / 4) & 1,
                _ => tile[places.high + (i / 16 * TILE + lane) * 4 + byte] >> (i / 4 % 4 * 2) & 3,
            };
            block.codes[run * RUN + i] = low | high << 4;
        }
        if places.runs > 1 {
            let of_run = RUN / places.form.run;
            for i in 0..of_run {
                let scale = i16::from(tile[places.scales + i * TILE + lane]) - BIAS;
                block.scales[run * of_run + i] = scale as i8;
            }
            if places.form.minima {
                block.minima[run] = tile[places.minima + lane];
            }
        }
    }
    block
}

integer_format! {
    /// Weights in q4_0.
    Q4_0
}
integer_format! {
    /// Weights in q5_0.
    Q5_0
}
integer_format! {
    /// Weights in q5_1.
    Q5_1
}
integer_format! {
    /// Weights in q4_k.
    Q4K
}
integer_format! {
    /// Weights in q5_k.
    Q5K
}
integer_format! {
    /// Weights in q6_k.
    Q6K
}
