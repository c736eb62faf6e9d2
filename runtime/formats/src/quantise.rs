//! Quantises values to codes and companion scales: the inverse of [`ScaleForm::apply`], up to the format's
//! error.
//!
//! Every scale is the usual one: it maps the largest magnitude of the elements that share it to the largest
//! magnitude of the codes. A code is the nearest, ties to even, to the value over its *stored* scale, so that
//! rounding a scale costs range and no accuracy.
//!
//! # The error
//!
//! Let `S` be the stored scale of an element (times the scale of the whole tensor), `c` the largest code and
//! `h` half the distance from 0 to the least code. Rounding to a float of `p` significant bits changes a
//! normal value by at most `2^-p / (1 + 2^-p)` of itself (the worst case is the midpoint between 1 and its
//! successor `1 + 2^(1-p)`), and a subnormal one by at most `h`. So
//!
//! * within the range of the codes, the error is at most `max(|x| / (2^p + 1), h S)`;
//! * beyond it, which only happens if the scale was rounded down, the code is `c` and the error `|x| - c S`.
//!   The unrounded scale reached the largest value exactly, so that is at most `c` times the rounding of the
//!   scale.

use crate::scales::FP8_BLOCK;
use crate::{E2M1_MAX, E4M3_MAX, Format, NVFP4_BLOCK, ScaleForm, decode, encode};

/// Matrices whose magnitudes are all at most this are stored as zeros with a scale of 1: otherwise their
/// scales, or the reciprocals of these, would not be normal numbers.
pub const QUANTISED_MIN: f32 = 1.0 / (1u128 << 100) as f32;

/// Rounds the rows of a matrix to codes and scales.
#[derive(Clone, Copy, Debug)]
pub struct Quantiser {
    form: ScaleForm,
    /// Format of block scales, and of the single scale of [`ScaleForm::Tensor`].
    scale_format: Format,
    /// The stored scale of the whole matrix; 1 if there is none.
    whole: f32,
}

/// Some quantised rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedRows {
    /// Codes in the format `form.codes()`, row by row.
    pub codes: Vec<u8>,
    /// The scales of these rows' blocks, row by row, after rounding; empty for [`ScaleForm::Tensor`].
    pub scales: Vec<f32>,
}

/// A quantised matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantised {
    /// Codes in the format `form.codes()`, row by row.
    pub codes: Vec<u8>,
    /// Values of the companions, in the order of [`ScaleForm::companions`], rounded to their formats.
    pub scales: Vec<Vec<f32>>,
}

impl Quantiser {
    /// For a matrix whose largest magnitude is `largest`. fp8 scales are stored as `scale_format`; nvfp4
    /// ignores it and uses fp8-e4m3 and f32.
    ///
    /// # Panics
    /// If `largest` is negative or not finite, or `scale_format` cannot hold a scale.
    pub fn new(form: ScaleForm, scale_format: Format, largest: f32) -> Quantiser {
        assert!(largest.is_finite() && largest >= 0.0, "a largest magnitude of {largest}");
        let scale_format = match form.codes() {
            Format::Nvfp4 => Format::Fp8E4m3,
            _ => scale_format,
        };
        assert!(!scale_format.is_quantised() || form.codes() == Format::Nvfp4, "scales in {scale_format}");
        let mut it = Quantiser { form, scale_format, whole: 1.0 };
        if largest > QUANTISED_MIN {
            it.whole = match form {
                ScaleForm::Tensor => it.stored_scale(largest / E4M3_MAX),
                ScaleForm::Block128 => 1.0,
                ScaleForm::Modelopt => largest / (E2M1_MAX * E4M3_MAX),
                ScaleForm::CompressedTensors => E2M1_MAX * E4M3_MAX / largest,
            };
        }
        it
    }

    /// The scale of the whole matrix, which is the last companion's value; `None` for
    /// [`ScaleForm::Block128`], which has none.
    pub fn whole(&self) -> Option<f32> {
        (self.form != ScaleForm::Block128).then_some(self.whole)
    }

    /// Rounds rows of `columns` values. With blocks of 128 rows, the first row must begin a block.
    ///
    /// # Panics
    /// If `values` are not whole rows, or do not fill whole blocks.
    pub fn rows(&self, values: &[f32], columns: usize) -> QuantisedRows {
        assert_eq!(values.len() % columns, 0, "whole rows");
        let Some((height, width)) = self.block() else {
            return QuantisedRows { codes: self.codes(values, |_| self.whole), scales: Vec::new() };
        };
        let (top, across) = (self.form.row_scale(self.whole), columns.div_ceil(width));
        let mut scales = vec![0.0f32; (values.len() / columns).div_ceil(height) * across];
        for (row, values) in values.chunks_exact(columns).enumerate() {
            let scales = &mut scales[row / height * across..][..across];
            for (scale, values) in scales.iter_mut().zip(values.chunks(width)) {
                *scale = magnitude(values).max(*scale);
            }
        }
        for scale in &mut scales {
            *scale = match self.form {
                ScaleForm::Block128 if *scale <= QUANTISED_MIN => 1.0,
                ScaleForm::Block128 => self.stored_scale(*scale / E4M3_MAX),
                // A block far below the others may have the scale 0: its codes mean nothing and are zeros.
                _ => self.rounded(*scale / (E2M1_MAX * top)),
            };
        }
        let mut rows = QuantisedRows { codes: Vec::new(), scales };
        rows.codes = self.codes(values, |i| top * self.scale(&rows, i, columns));
        rows
    }

    /// The stored scale of the block that element `i` of `rows` is in; 1 for [`ScaleForm::Tensor`].
    pub fn scale(&self, rows: &QuantisedRows, i: usize, columns: usize) -> f32 {
        self.block().map_or(1.0, |(height, width)| {
            rows.scales[i / columns / height * columns.div_ceil(width) + i % columns / width]
        })
    }

    /// The largest error of an element `value` whose block has scale `scale`: the bound derived in the
    /// module's documentation, plus one part in 100,000 for the f32 arithmetic.
    pub fn bound(&self, value: f32, scale: f32) -> f32 {
        let (top, largest, parts, least) = match self.form.codes() {
            Format::Nvfp4 => (self.form.row_scale(self.whole), E2M1_MAX, 5.0, 0.25),
            _ => (1.0, E4M3_MAX, 17.0, 1.0 / 1024.0),
        };
        let scale = if self.form == ScaleForm::Tensor { self.whole } else { scale };
        // Half a step of the scale's format: relative for normal numbers, absolute below.
        let (relative, absolute) = match self.scale_format {
            Format::Fp8E4m3 => (1.0 / 16.0, 1.0 / 1024.0),
            Format::Bf16 => (1.0 / 256.0, 0.0),
            Format::F16 => (1.0 / 2048.0, 1.0 / (1u32 << 25) as f32),
            _ => (0.0, 0.0),
        };
        let saturated = largest * (scale * relative).max(absolute);
        (value.abs() / parts).max(top * (scale * least).max(saturated)) * 1.000_01
    }

    /// Rows and columns that share a scale; `None` if all do.
    fn block(&self) -> Option<(usize, usize)> {
        match self.form {
            ScaleForm::Tensor => None,
            ScaleForm::Block128 => Some((FP8_BLOCK, FP8_BLOCK)),
            ScaleForm::Modelopt | ScaleForm::CompressedTensors => Some((1, NVFP4_BLOCK)),
        }
    }

    fn codes(&self, values: &[f32], scale: impl Fn(usize) -> f32) -> Vec<u8> {
        let quotient = |(i, value): (usize, &f32)| match scale(i) {
            0.0 => 0.0,
            scale => value / scale,
        };
        encode(self.form.codes(), &values.iter().enumerate().map(quotient).collect::<Vec<_>>())
    }

    /// The nearest scale in the format that can be divided by: neither 0 nor infinite.
    fn stored_scale(&self, scale: f32) -> f32 {
        let (least, most) = match self.scale_format {
            Format::F16 => (1.0 / (1u32 << 24) as f32, 65504.0),
            _ => (f32::MIN_POSITIVE, f32::MAX),
        };
        self.rounded(scale).clamp(least, most)
    }

    fn rounded(&self, scale: f32) -> f32 {
        let mut back = [0.0];
        decode(self.scale_format, &encode(self.scale_format, &[scale]), &mut back);
        back[0]
    }
}

/// Rounds a whole matrix of rows of `columns`. See [`Quantiser::new`] for `scale_format`.
///
/// # Panics
/// As [`Quantiser::new`] and [`Quantiser::rows`], and if a value is not finite.
pub fn quantise(form: ScaleForm, scale_format: Format, values: &[f32], columns: usize) -> Quantised {
    let quantiser = Quantiser::new(form, scale_format, magnitude(values));
    let QuantisedRows { codes, scales } = quantiser.rows(values, columns);
    let blocks = (form != ScaleForm::Tensor).then_some(scales);
    Quantised { codes, scales: blocks.into_iter().chain(quantiser.whole().map(|it| vec![it])).collect() }
}

/// The largest magnitude; NaN if any value is NaN, 0 if there are none.
pub fn magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest: f32, value| match value.abs() {
        magnitude if magnitude > largest || magnitude.is_nan() => magnitude,
        _ => largest,
    })
}
