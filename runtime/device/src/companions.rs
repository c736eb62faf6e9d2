//! The scales beside the codes of a checkpoint's tensor, checked.

use monomorph_formats::{Format, ScaleForm, decode};
use monomorph_weights::{Bytes, Tensor, WeightsError};

/// The scales of a tensor `[rows, columns]`, of all its rows and columns.
#[derive(Clone, Debug)]
pub(crate) enum Companions<'a> {
    /// fp8: one scale for the tensor.
    Tensor(f32),
    /// fp8: `[ceil(rows / 128), ceil(columns / 128)]`, row-major.
    Blocks(Vec<f32>),
    /// nvfp4: E4M3 codes `[rows, columns / 16]`, and one scale for the tensor.
    Groups {
        /// Row-major, one for every 16 columns.
        codes: Bytes<'a>,
        /// Multiplies every element.
        tensor: f32,
    },
}

/// Reads the scales of the tensor `name` from its companions, which stand in the order of the form.
///
/// # Errors
/// When they are not what the form wants of them, in the words of `mismatch`, or a file cannot be read.
pub(crate) fn companions<'a>(
    form: ScaleForm,
    name: &str,
    tensors: &[Tensor<'a>],
    (rows, columns): (usize, usize),
    mismatch: impl Fn(String) -> WeightsError,
) -> Result<Companions<'a>, WeightsError> {
    let expected = form.companions(rows, columns);
    for (tensor, (_, dimensions)) in tensors.iter().zip(&expected) {
        // Some files store a scalar as one element.
        let scalar = dimensions.is_empty() && tensor.shape == [1];
        if tensor.shape != dimensions && !scalar {
            let (name, shape) = (tensor.name, tensor.shape);
            return Err(mismatch(format!("tensor `{name}` should be {dimensions:?} and is {shape:?}")));
        }
    }
    let Some(last) = tensors.last().filter(|_| tensors.len() == expected.len()) else {
        let (found, wanted) = (tensors.len(), expected.len());
        return Err(mismatch(format!("tensor `{name}` has {found} of {wanted} companions")));
    };
    if last.format.is_quantised() {
        let what = format!("tensor `{}` should hold floats and is {}", last.name, last.format);
        return Err(mismatch(what));
    }
    let mut scales = vec![0.0; last.shape.iter().product()];
    decode(last.format, &last.bytes.read()?, &mut scales);
    let infinite = || mismatch(format!("tensor `{}` holds a scale that is not finite", last.name));
    if !scales.iter().all(|scale| scale.is_finite()) {
        return Err(infinite());
    }
    if form == ScaleForm::Block128 {
        return Ok(Companions::Blocks(scales));
    }
    let tensor = form.row_scale(scales[0]);
    if !tensor.is_finite() {
        // What elements are divided by is 0.
        return Err(infinite());
    }
    if form == ScaleForm::Tensor {
        return Ok(Companions::Tensor(tensor));
    }
    let Tensor { name, format, bytes: codes, .. } = tensors[0];
    if format != Format::Fp8E4m3 {
        return Err(mismatch(format!("tensor `{name}` should be fp8-e4m3 and is {format}")));
    }
    Ok(Companions::Groups { codes, tensor })
}
