//! The checkpoint tensors that a matrix is packed from, found by name and checked against what the stack was
//! compiled for.

use super::pack::{Source, SourceScales};
use super::shape::{MatrixShape, Packing, TILE_ROWS};
use super::slice::{Share, SourceColumns, SourceRows};
use super::weights::Part;
use crate::companions::{Companions, companions};
use crate::rows_of::{FileRows, rows_of};
use monomorph_formats::{FP8_BLOCK, Format, ScaleForm, decode, logarithms_of_rates};
use monomorph_weights::{Checkpoint, Tensor, WeightsError};

pub(crate) fn mismatch(checkpoint: &Checkpoint, what: String) -> WeightsError {
    WeightsError::Mismatch { path: checkpoint.path().to_owned(), what }
}

/// The parts of a matrix (of one expert) that a rank holds, with their scales.
///
/// # Panics
/// When the shape has another number of parts.
pub(crate) fn load_sources<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    parts: &[Part],
    share: Share,
) -> Result<Vec<Source<'a>>, WeightsError> {
    assert_eq!(parts.len(), shape.parts.len(), "a part for each of the shape's");
    let source = |(part, rows): (&Part, &usize)| load_source(checkpoint, shape, part, *rows, share);
    let sources = parts.iter().zip(shape.parts).map(source).collect::<Result<Vec<_>, _>>()?;
    load_check_blocks(checkpoint, shape, &sources)?;
    Ok(sources)
}

/// The decoded values of `rows` rows of `width`: a whole tensor, or some of its rows and columns.
pub(crate) fn load_values(
    checkpoint: &Checkpoint,
    format: Format,
    part: &Part,
    rows: usize,
    width: usize,
    share: Share,
) -> Result<Vec<f32>, WeightsError> {
    let found = load_tensor(checkpoint, (format, None), part, rows, width, share)?;
    if part.first_rank_only && share.rank > 0 {
        return Ok(vec![0.0; rows * width]);
    }
    let file_width = found.columns.file;
    let mut values = vec![0.0; found.file_rows * file_width];
    decode(format, &found.tensor.bytes.read()?, &mut values);
    if part.negative_rates {
        let fault = |what| mismatch(checkpoint, format!("tensor `{}`: {what}", part.name));
        logarithms_of_rates(&mut values).map_err(fault)?;
    }
    let mut taken = Vec::with_capacity(rows * width);
    for row in 0..rows {
        let row = &values[found.rows.file_row(row) * file_width..][..file_width];
        found.columns.parts(1, 1).for_each(|columns| taken.extend_from_slice(&row[columns]));
    }
    Ok(taken)
}

/// A tensor, and what a rank takes of it.
struct Found<'a> {
    tensor: Tensor<'a>,
    file_rows: usize,
    rows: SourceRows,
    columns: SourceColumns,
}

/// Finds the tensor of a part of which a rank holds `rows` rows of `width`.
fn load_tensor<'a>(
    checkpoint: &'a Checkpoint,
    (format, scales): (Format, Option<ScaleForm>),
    part: &Part,
    rows: usize,
    width: usize,
    share: Share,
) -> Result<Found<'a>, WeightsError> {
    let tensor = checkpoint.expect(&part.name, part.shape, format)?;
    let fault =
        |what: String| mismatch(checkpoint, format!("tensor `{}` {:?}: {what}", part.name, tensor.shape));
    // A tensor of one dimension is rows of one value, or, cut by columns, one row.
    let whole = rows_of(part.shape, width).filter(|_| part.cut_columns.is_empty());
    let (file_rows, file_width) = match (part.shape, whole) {
        ([rows], _) if width == 1 && part.cut_columns.is_empty() => (*rows, 1),
        (_, Some(rows)) => (rows, width),
        ([rows @ .., last], None) if !rows.is_empty() => (rows.iter().product(), *last),
        _ => return Err(fault(format!("has no rows of {width}"))),
    };
    let cut = SourceColumns::new(part.cut_columns, share, file_width, format, scales);
    let (columns, found) = cut.map_err(&fault)?;
    if found != width {
        return Err(fault(match part.cut_columns {
            [] => format!("has no rows of {width}"),
            _ => format!("{found} columns are to be taken of it, and {width} are wanted"),
        }));
    }
    let (taken, found) = SourceRows::new(part.rows, part.cut_rows, share, file_rows).map_err(&fault)?;
    if found != rows {
        return Err(fault(format!("{found} rows are to be taken of it, and {rows} are wanted")));
    }
    Ok(Found { tensor, file_rows, rows: taken, columns })
}

/// Finds a tensor and its scales.
fn load_source<'a>(
    checkpoint: &'a Checkpoint,
    shape: &MatrixShape,
    part: &Part,
    rows: usize,
    share: Share,
) -> Result<Source<'a>, WeightsError> {
    assert!(!part.first_rank_only, "`{}`: a matrix has a part on every rank", part.name);
    let stored = (shape.stored, shape.scales);
    let Found { tensor, file_rows, rows: order, columns } =
        load_tensor(checkpoint, stored, part, rows, shape.columns, share)?;
    let scales = match shape.scales {
        None => SourceScales::Own,
        Some(form) => load_companions(checkpoint, form, part, file_rows, columns.file)?,
    };
    Ok(Source { name: tensor.name, bytes: tensor.bytes, file_rows, rows, order, columns, scales })
}

fn load_companions<'a>(
    checkpoint: &'a Checkpoint,
    form: ScaleForm,
    part: &Part,
    file_rows: usize,
    file_columns: usize,
) -> Result<SourceScales<'a>, WeightsError> {
    let tensors = part.companions.iter().map(|name| checkpoint.tensor(name));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let fault = |what| mismatch(checkpoint, what);
    Ok(match companions(form, &part.name, &tensors, (file_rows, file_columns), fault)? {
        Companions::Tensor(scale) => SourceScales::Tensor(scale),
        Companions::Blocks(scales) => SourceScales::blocks(scales),
        Companions::Groups { codes, tensor } => SourceScales::Groups { codes, tensor },
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
        if source.order.is_cut() {
            check_cut_blocks(source).map_err(|what| mismatch(checkpoint, what))?;
            continue;
        }
        let what = match source.order.order {
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

/// The same of rows that are shared out to ranks.
fn check_cut_blocks(source: &Source) -> Result<(), String> {
    for first in (0..source.rows).step_by(TILE_ROWS) {
        let last = (first + TILE_ROWS).min(source.rows) - 1;
        let block = source.order.file_row(first) / FP8_BLOCK;
        if (first..=last).any(|row| source.order.file_row(row) / FP8_BLOCK != block) {
            return Err(format!(
                "tensor `{}` has block scales, and rows {first} to {last} of a rank lie in several blocks",
                source.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
