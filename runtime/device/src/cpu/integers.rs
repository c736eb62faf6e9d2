//! ggml's formats of small integers other than q8_0 and q4_1, multiplied with int8 activations.
//!
//! A tile has the codes of every 32 columns in planes of 16 rows' words of four bytes: one of four bits for
//! codes that have as many (four words; low nibbles: columns `4j ..`, high nibbles: columns `16 + 4j ..`),
//! one of two bits (two words; bits `2j` and `2j + 1` of byte `c` belong to column `4j + c`, in the first
//! word for `j` below 4), and one of one bit (bit `j` of byte `c`). Five bits are four and one, six are four
//! and two, three are two and one, the lower ones first. Blocks of 256 have a byte of 16 rows for each scale
//! and minimum behind these. A block ends with 16 scales, then 16 minima, in f16.
#![allow(clippy::needless_range_loop, reason = "an index names the same place in several arrays")]

use super::format::WeightFormat;
use super::rows::{Int8Block, Int8Rows};
use super::simd::{F32s, I32s, LANES, TILE, U8s, ask_ahead, at, at_mut, halves, unrolled};
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
    /// Of 32 columns: bits in the plane of nibbles, which is first, and in that of pairs, and where the
    /// planes of pairs and of single bits, the scales and the minima begin, and the end.
    nibble: usize,
    pair: usize,
    pairs: usize,
    singles: usize,
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
        let nibble = if form.bits < 4 { 0 } else { 4 };
        let pair = (form.bits - nibble) / 2 * 2;
        let pairs = 4 * nibble * TILE;
        let singles = pairs + 4 * pair * TILE;
        let scales = singles + 4 * (form.bits % 2) * TILE;
        let own = if runs > 1 { RUN / form.run * TILE } else { 0 };
        let minima = scales + own;
        let run = minima + if form.minima { own } else { 0 };
        let factors = if form.minima { 2 } else { 1 };
        let block = runs * run + factors * 2 * TILE;
        Places { form, runs, nibble, pair, pairs, singles, scales, minima, run, block }
    }

    /// Whether the codes have single bits beside nibbles and pairs.
    const fn single(&self) -> bool {
        self.form.bits % 2 == 1
    }

    /// Where the pair of column `i` of 32 is, and how far from the right; then its single bit.
    const fn pair_of(&self, lane: usize, i: usize) -> (usize, usize) {
        (self.pairs + (i / 16 * TILE + lane) * 4 + i % 4, i / 4 % 4 * 2)
    }

    const fn single_of(&self, lane: usize, i: usize) -> (usize, usize) {
        (self.singles + 4 * lane + i % 4, i / 4)
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
                        ask_ahead(block, part);
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
                                let dot = match P.form.levels {
                                    // The sum of 32 activations is there times -128.
                                    None => (0..8).fold(
                                        I32s::splat(x.bias * i32::from(P.form.offset) / 128),
                                        |dot, j| dot.dot_nibbles(codes[j], x.words[j]),
                                    ),
                                    Some(_) => (0..8).fold(I32s::biased(x.bias), |dot, j| {
                                        dot.dot_biased(codes[j], x.words[j])
                                    }),
                                };
                                let base = match P.form.minima {
                                    true => m.mul_add(F32s::splat(x.scaled_sum), sums[t]),
                                    false => sums[t],
                                };
                                sums[t] = (d * F32s::splat(x.scale)).mul_add(dot.to_f32(), base);
                            });
                        } else {
                            let scales = [scale(0), scale(1)];
                            let minima = match P.form.minima {
                                true => [m * own(P.minima), m * own(P.minima + TILE)],
                                false => [F32s::zero(); 2],
                            };
                            unrolled!(t < M, {
                                let x = &input[t * stride];
                                for half in 0..2 {
                                    let sum = i32::from(x.halves[half]);
                                    let mut dot = I32s::splat(-sum * i32::from(P.form.offset));
                                    for j in 4 * half..4 * half + 4 {
                                        dot = dot.dot_nibbles(codes[j], x.words[j]);
                                    }
                                    let d = scales[half] * F32s::splat(x.scale);
                                    let base = match P.form.minima {
                                        true => minima[half].mul_add(F32s::splat(x.scale * sum as f32), sums[t]),
                                        false => sums[t],
                                    };
                                    sums[t] = d.mul_add(dot.to_f32(), base);
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

/// The codes of 32 columns, four a word; levels plus 128 where they stand for some.
#[inline(always)]
fn codes(places: &Places, run: &[u8], part: usize) -> [U8s; 8] {
    let word = |from: usize| U8s::load(at(run, from + part * 4 * LANES));
    let mut codes = [U8s::load(&[0; 4 * LANES]); 8];
    if places.nibble > 0 {
        for j in 0..4 {
            let bytes = word(j * 4 * TILE);
            (codes[j], codes[j + 4]) = (bytes.low(), bytes.high());
        }
    }
    let (pairs, singles) = (0x0303_0303, 0x0101_0101);
    for j in 0..8 {
        if places.pair > 0 {
            let pair = word(places.pairs + j / 4 * 4 * TILE);
            codes[j] = codes[j].with_bits(pair, 2 * (j as i32 % 4), pairs, places.nibble as i32);
        }
        if places.single() {
            let single = word(places.singles);
            codes[j] = codes[j].with_bits(single, j as i32, singles, places.form.bits as i32 - 1);
        }
        if let Some(levels) = places.form.levels {
            codes[j] = codes[j].levels(&levels.map(|level| (i16::from(level) + 128) as u8));
        }
    }
    codes
}

fn pack(places: &Places, block: &IntegerBlock, lane: usize, tile: &mut [u8]) {
    for run in 0..places.runs {
        let (codes, tile) = (&block.codes[run * RUN..][..RUN], &mut tile[run * places.run..][..places.run]);
        for (i, code) in codes.iter().enumerate() {
            if places.nibble > 0 {
                tile[(i / 4 % 4 * TILE + lane) * 4 + i % 4] |= (code & 15) << (i / 16 * 4);
            }
            if places.pair > 0 {
                let (at, shift) = places.pair_of(lane, i);
                tile[at] |= (code >> places.nibble & 3) << shift;
            }
            if places.single() {
                let (at, shift) = places.single_of(lane, i);
                tile[at] |= code >> (places.form.bits - 1) << shift;
            }
        }
        if places.runs > 1 {
            let of_run = RUN / places.form.run;
            for (i, scale) in block.scales[run * of_run..][..of_run].iter().enumerate() {
                tile[places.scales + i * TILE + lane] = (i16::from(*scale) + BIAS) as u8;
            }
            if places.form.minima {
                for (i, minimum) in block.minima[run * of_run..][..of_run].iter().enumerate() {
                    tile[places.minima + i * TILE + lane] = *minimum;
                }
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
    let mut block = IntegerBlock { d: half(factors), m, codes: [0; 256], scales: [1; 16], minima: [1; 16] };
    for run in 0..places.runs {
        let tile = &tile[run * places.run..][..places.run];
        for i in 0..RUN {
            let code = &mut block.codes[run * RUN + i];
            if places.nibble > 0 {
                *code = tile[(i / 4 % 4 * TILE + lane) * 4 + i % 4] >> (i / 16 * 4) & 15;
            }
            if places.pair > 0 {
                let (at, shift) = places.pair_of(lane, i);
                *code |= (tile[at] >> shift & 3) << places.nibble;
            }
            if places.single() {
                let (at, shift) = places.single_of(lane, i);
                *code |= (tile[at] >> shift & 1) << (places.form.bits - 1);
            }
        }
        if places.runs > 1 {
            let of_run = RUN / places.form.run;
            for i in 0..of_run {
                let scale = i16::from(tile[places.scales + i * TILE + lane]) - BIAS;
                block.scales[run * of_run + i] = scale as i8;
                if places.form.minima {
                    block.minima[run * of_run + i] = tile[places.minima + i * TILE + lane];
                }
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
    /// Weights in q2_k.
    Q2K
}
integer_format! {
    /// Weights in q3_k.
    Q3K
}
integer_format! {
    /// Weights in iq4_nl.
    Iq4Nl
}
integer_format! {
    /// Weights in iq4_xs.
    Iq4Xs
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
