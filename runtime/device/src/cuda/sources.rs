//! The checkpoint tensors that a matrix is packed from, found by name and checked against what the stack was
//! compiled for.

use super::pack::{Source, SourceScales};
use super::shape::{MatrixShape, Packing, TILE_ROWS};
use super::weights::Part;
use crate::rows_of::FileRows;
use monomorph_formats::{Format, ScaleForm, decode};
use monomorph_weights::{Checkpoint, Tensor, WeightsError};

pub(crate) fn mismatch(checkpoint: &Checkpoint, what: String) -> WeightsError {
    WeightsError::Mismatch { path: checkpoint.path().to_owned(), what }
}

/// The parts of a matrix (of one expert), with their scales.
///
/// # Panics
/// When the shape has another number of parts.
pub(crate) fn load_sources<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    parts: &[Part],
) -> Result<Vec<Source<'a>>, WeightsError> {
    assert_eq!(parts.len(), shape.parts.len(), "a part for each of the shape's");
    let source = |(part, rows): (&Part, &usize)| load_source(checkpoint, shape, part, *rows);
    let sources = parts.iter().zip(shape.parts).map(source).collect::<Result<Vec<_>, _>>()?;
    load_check_blocks(checkpoint, shape, &sources)?;
    Ok(sources)
}

/// The decoded values of `rows` rows of `width`: a whole tensor, or some of its rows.
pub(crate) fn load_values(
    checkpoint: &Checkpoint,
    format: Format,
    part: &Part,
    rows: usize,
    width: usize,
) -> Result<Vec<f32>, WeightsError> {
    let (tensor, file_rows) = load_tensor(checkpoint, format, part, rows, width)?;
    let mut values = vec![0.0; file_rows * width];
    decode(format, &tensor.bytes.read()?, &mut values);
    let row = |row| &values[part.rows.file_row(row) * width..][..width];
    Ok((0..rows).flat_map(row).copied().collect())
}

/// Finds the tensor of a part of `rows` rows of `width`, and its number of such rows.
fn load_tensor<'a>(
    checkpoint: &'a Checkpoint,
    format: Format,
    part: &Part,
    rows: usize,
    width: usize,
) -> Result<(Tensor<'a>, usize), WeightsError> {
    let tensor = checkpoint.expect(&part.name, part.shape, format)?;
    let fault =
        |what: String| mismatch(checkpoint, format!("tensor `{}` {:?}: {what}", part.name, tensor.shape));
    let file_rows = match part.shape {
        [rows @ .., last] if *last == width && !rows.is_empty() => rows.iter().product(),
        [rows] if width == 1 => *rows,
        _ => return Err(fault(format!("has no rows of {width}"))),
    };
    match part.rows.count(file_rows).map_err(fault)? {
        found if found == rows => Ok((tensor, file_rows)),
        found => Err(fault(format!("{found} rows are to be taken of it, and {rows} are wanted"))),
    }
}

/// Finds a tensor and its scales.
fn load_source<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    part: &Part,
    rows: usize,
) -> Result<Source<'a>, WeightsError> {
    let (tensor, file_rows) = load_tensor(checkpoint, shape.stored, part, rows, shape.columns)?;
    let scales = match shape.scales {
        None => SourceScales::Own,
        Some(form) => load_companions(checkpoint, shape, form, part, file_rows)?,
    };
    Ok(Source { name: tensor.name, bytes: tensor.bytes, file_rows, rows, order: part.rows, scales })
}

fn load_companions<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    form: ScaleForm,
    part: &Part,
    file_rows: usize,
) -> Result<SourceScales<'a>, WeightsError> {
    let expected = form.companions(file_rows, shape.columns);
    let mut tensors: Vec<Tensor<'a>> = Vec::new();
    for (name, (_, dimensions)) in part.companions.iter().zip(&expected) {
        let tensor = checkpoint.tensor(name)?;
        // Some files store a scalar as one element.
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
        decode(tensor.format, &tensor.bytes.read()?, &mut values);
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
        ScaleForm::Block128 => SourceScales::blocks(last),
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

/// Checks that no tile lies in two blocks of fp8 scales, because these are expanded to one per tile.
fn load_check_blocks(
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
    for source in sources {
        let what = match source.order {
            FileRows::All => continue,
            FileRows::Interleaved(_) => "its rows are to change places".to_owned(),
            FileRows::Groups { first, take, of, .. } => {
                if [first, take, of].iter().all(|rows| rows % TILE_ROWS == 0) {
                    continue;
                }
                format!("{take} rows from {first} on of every {of} do not fill tiles of {TILE_ROWS}")
            }
        };
        return Err(mismatch(checkpoint, format!("tensor `{}` has block scales, and {what}", source.name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
