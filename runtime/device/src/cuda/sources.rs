//! The tensors of a checkpoint that a matrix is packed from: found by name, and held against what the stack was compiled
//! for.

use super::pack::{Source, SourceScales};
use super::shape::{MatrixShape, Packing, TILE_ROWS};
use super::weights::Part;
use monomorph_formats::{Format, ScaleForm, decode};
use monomorph_weights::{Checkpoint, Tensor, WeightsError};

pub(crate) fn mismatch(checkpoint: &Checkpoint, what: String) -> WeightsError {
    WeightsError::Mismatch { path: checkpoint.path().to_owned(), what }
}

/// Finds a tensor and its companions.
pub(crate) fn load_source<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    part: &Part,
    rows: usize,
) -> Result<Source<'a>, WeightsError> {
    let tensor = checkpoint.expect(&part.name, &[rows, shape.columns], shape.format)?;
    if let Some(dim) = part.rotary
        && (dim == 0 || dim % 2 != 0 || !rows.is_multiple_of(dim))
    {
        let what = format!("tensor `{}`: {rows} rows are not heads of {dim} rotary rows", part.name);
        return Err(mismatch(checkpoint, what));
    }
    let scales = match shape.scales {
        None => SourceScales::Own,
        Some(form) => load_companions(checkpoint, shape, form, part, rows)?,
    };
    Ok(Source { name: tensor.name, bytes: tensor.bytes, rows, rotary: part.rotary, scales })
}

fn load_companions<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    form: ScaleForm,
    part: &Part,
    rows: usize,
) -> Result<SourceScales<'a>, WeightsError> {
    let expected = form.companions(rows, shape.columns);
    let mut tensors: Vec<Tensor<'a>> = Vec::new();
    for (name, (_, dimensions)) in part.companions.iter().zip(&expected) {
        let tensor = checkpoint.tensor(name)?;
        // Files store a scalar as one element, too.
        let scalar = dimensions.is_empty() && tensor.shape == [1];
        if tensor.shape != dimensions && !scalar {
            let what = format!("tensor `{name}` should be {dimensions:?} and is {:?}", tensor.shape);
            return Err(mismatch(checkpoint, what));
        }
        tensors.push(tensor);
    }
    if tensors.len() != expected.len() {
        let what = format!("tensor `{}` has {} of {} companions", part.name, tensors.len(), expected.len());
        return Err(mismatch(checkpoint, what));
    }
    let floats = |tensor: &Tensor| -> Result<Vec<f32>, WeightsError> {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        if tensor.format.is_quantised() {
            let what = format!("tensor `{}` should hold floats and is {}", tensor.name, tensor.format);
            return Err(mismatch(checkpoint, what));
        }
        decode(tensor.format, tensor.bytes, &mut values);
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(mismatch(
                checkpoint,
                format!("tensor `{}` holds a scale that is not finite", tensor.name),
            )),
        }
    };
    let last = floats(tensors.last().expect("every form has companions"))?;
    Ok(match form {
        ScaleForm::Tensor => SourceScales::Tensor(form.row_scale(last[0])),
        ScaleForm::Block128 => SourceScales::Blocks(last),
        ScaleForm::Modelopt | ScaleForm::CompressedTensors => {
            if tensors[0].format != Format::Fp8E4m3 {
                let (name, format) = (tensors[0].name, tensors[0].format);
                return Err(mismatch(
                    checkpoint,
                    format!("tensor `{name}` should be fp8-e4m3 and is {format}"),
                ));
            }
            SourceScales::Groups { codes: tensors[0].bytes, tensor: form.row_scale(last[0]) }
        }
    })
}

/// fp8 block scales are expanded to one a tile: no tile may lie in two blocks.
pub(crate) fn load_check_blocks(
    checkpoint: &Checkpoint,
    shape: &MatrixShape,
    sources: &[Source],
) -> Result<(), WeightsError> {
    if shape.scales != Some(ScaleForm::Block128) {
        return Ok(());
    }
    let inner = match shape.packing {
        Packing::Stacked => &sources[..sources.len() - 1],
        Packing::Gated => &[],
    };
    if let Some(source) = inner.iter().find(|source| source.rows % TILE_ROWS != 0) {
        let what = format!(
            "tensor `{}` has {} rows with block scales, and what is stacked below it begins within a tile of {TILE_ROWS}",
            source.name, source.rows
        );
        return Err(mismatch(checkpoint, what));
    }
    if let Some(source) = sources.iter().find(|source| source.rotary.is_some()) {
        let what = format!("tensor `{}` has block scales, and its rows are to change places", source.name);
        return Err(mismatch(checkpoint, what));
    }
    Ok(())
}
