//! Companion scales: the tensors that multiply fp8 and nvfp4 codes.

use crate::Format;

/// Columns that share an nvfp4 block scale.
pub const NVFP4_BLOCK: usize = 16;

/// Rows and columns that share an fp8 block scale.
pub const FP8_BLOCK: usize = 128;

/// The form of the scales of an fp8 or nvfp4 weight in a checkpoint. They are separate tensors, *companions*
/// of the weight, named like the weight up to its last dot, plus a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleForm {
    /// fp8: one scale. `element = code * weight_scale`.
    Tensor,
    /// fp8: one scale per block of 128 rows and 128 columns, cut off at the matrix's end.
    /// `element = code * weight_scale_inv[row / 128][column / 128]`: a multiplication, despite the name.
    Block128,
    /// nvfp4 as written by NVIDIA's Model Optimizer: an E4M3 scale per 16 columns, and one f32.
    /// `element = code * weight_scale[row][column / 16] * weight_scale_2`.
    Modelopt,
    /// nvfp4 as written by compressed-tensors: the same, but divided by the f32.
    /// `element = code * weight_scale[row][column / 16] / weight_global_scale`.
    CompressedTensors,
}

impl ScaleForm {
    /// Every form, in declaration order.
    pub const ALL: [ScaleForm; 4] =
        [ScaleForm::Tensor, ScaleForm::Block128, ScaleForm::Modelopt, ScaleForm::CompressedTensors];

    /// The name used in TOML files, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleForm::Tensor => "tensor",
            ScaleForm::Block128 => "block128",
            ScaleForm::Modelopt => "modelopt",
            ScaleForm::CompressedTensors => "compressed-tensors",
        }
    }

    /// The format of the codes.
    pub const fn codes(self) -> Format {
        match self {
            ScaleForm::Tensor | ScaleForm::Block128 => Format::Fp8E4m3,
            ScaleForm::Modelopt | ScaleForm::CompressedTensors => Format::Nvfp4,
        }
    }

    /// Suffix and shape of each companion of a weight `[rows, columns]`; a scalar has an empty shape. With
    /// nvfp4 the first is fp8-e4m3 and the second f32; fp8 scales are f32, bf16 or f16.
    pub fn companions(self, rows: usize, columns: usize) -> Vec<(&'static str, Vec<usize>)> {
        let blocks = |size: usize| vec![rows.div_ceil(size), columns.div_ceil(size)];
        let groups = vec![rows, columns.div_ceil(NVFP4_BLOCK)];
        match self {
            ScaleForm::Tensor => vec![("weight_scale", vec![])],
            ScaleForm::Block128 => vec![("weight_scale_inv", blocks(FP8_BLOCK))],
            ScaleForm::Modelopt => vec![("weight_scale", groups), ("weight_scale_2", vec![])],
            ScaleForm::CompressedTensors => vec![("weight_scale", groups), ("weight_global_scale", vec![])],
        }
    }

    /// The factor for the sum of a whole row, from the last companion's value; 1 if there is no scale for the
    /// whole tensor. A reciprocal is rounded to f32, so that one multiplication serves both nvfp4 forms.
    pub fn row_scale(self, last: f32) -> f32 {
        match self {
            ScaleForm::Tensor | ScaleForm::Modelopt => last,
            ScaleForm::Block128 => 1.0,
            ScaleForm::CompressedTensors => 1.0 / last,
        }
    }

    /// Multiplies `values`, decoded codes of rows of `columns`, by their scales: `scales` are the decoded
    /// companions in the order of [`ScaleForm::companions`]. A code times its nvfp4 block scale is exact
    /// (even in bf16), so every element is rounded to f32 once.
    ///
    /// # Panics
    /// If `scales` have other shapes than this form's.
    pub fn apply(self, values: &mut [f32], columns: usize, scales: &[Vec<f32>]) {
        assert_eq!(values.len() % columns, 0, "whole rows");
        let shapes = self.companions(values.len() / columns, columns);
        let sizes = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>());
        assert!(scales.iter().map(Vec::len).eq(sizes), "scales of form {}: {shapes:?}", self.name());
        let row_scale = self.row_scale(scales.last().map_or(1.0, |last| last[0]));
        for (row, values) in values.chunks_exact_mut(columns).enumerate() {
            for (column, value) in values.iter_mut().enumerate() {
                *value *= match self {
                    ScaleForm::Tensor => row_scale,
                    ScaleForm::Block128 => {
                        scales[0][row / FP8_BLOCK * columns.div_ceil(FP8_BLOCK) + column / FP8_BLOCK]
                    }
                    ScaleForm::Modelopt | ScaleForm::CompressedTensors => {
                        *value *= scales[0][row * columns.div_ceil(NVFP4_BLOCK) + column / NVFP4_BLOCK];
                        row_scale
                    }
                };
            }
        }
    }
}

impl std::fmt::Display for ScaleForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
