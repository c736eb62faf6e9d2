//! The part of a checkpoint's tensor that a rank of several holds.

use crate::rows_of::FileRows;
use monomorph_abi::cut::{self, Segment};
use monomorph_formats::{FP8_BLOCK, Format, ScaleForm};
use std::ops::Range;

/// A rank among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

#[cfg(test)]
impl Share {
    /// All of every tensor.
    pub(crate) const WHOLE: Share = Share { rank: 0, ranks: 1 };
}

/// The rows that a rank takes from a tensor of a file: a part of those that belong to the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceRows {
    pub(crate) order: FileRows,
    /// How the model's rows are shared out; empty where every rank takes all.
    cut: &'static [Segment],
    share: Share,
}

impl SourceRows {
    /// Rows that every rank takes.
    #[cfg(test)]
    pub(crate) fn whole(order: FileRows) -> SourceRows {
        SourceRows { order, cut: &[], share: Share::WHOLE }
    }

    /// A rank's rows of a tensor with `file_rows`, and their number.
    ///
    /// # Errors
    /// Says why there are no such rows.
    pub(crate) fn new(
        order: FileRows,
        cut: &'static [Segment],
        share: Share,
        file_rows: usize,
    ) -> Result<(SourceRows, usize), String> {
        let rows = order.count(file_rows)?;
        let held = held(cut, share, rows, "rows")?;
        Ok((SourceRows { order, cut, share }, held))
    }

    /// Whether the model's rows are shared out.
    pub(crate) fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// The file's row for row `row` of the rank.
    pub(crate) fn file_row(&self, row: usize) -> usize {
        let Share { rank, ranks } = self.share;
        self.order.file_row(match self.cut {
            [] => row,
            cut => cut::whole_row(cut, rank, ranks, row),
        })
    }
}

/// The columns that a rank takes from every row of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceColumns {
    /// Columns in the file.
    pub(crate) file: usize,
    /// Those taken, in order; none where all are.
    runs: Vec<Range<usize>>,
    /// The file's block of 128 columns with the scale of each of the rank's; none where they are the same.
    blocks: Vec<usize>,
}

impl SourceColumns {
    /// All `file` columns.
    pub(crate) fn whole(file: usize) -> SourceColumns {
        SourceColumns { file, runs: Vec::new(), blocks: Vec::new() }
    }

    /// A rank's columns of a tensor with `file`, and their number.
    ///
    /// # Errors
    /// Says why there are no such columns, or why they cannot be taken out of this format and its scales.
    pub(crate) fn new(
        cut: &[Segment],
        share: Share,
        file: usize,
        format: Format,
        scales: Option<ScaleForm>,
    ) -> Result<(SourceColumns, usize), String> {
        let count = held(cut, share, file, "columns")?;
        if cut.is_empty() {
            return Ok((SourceColumns::whole(file), count));
        }
        let (mut runs, mut before) = (Vec::<Range<usize>>::new(), 0);
        for segment in cut {
            let start = before + segment.first(share.rank, share.ranks) * segment.unit;
            let run = start..start + segment.held(share.ranks);
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
            before += segment.whole();
        }
        let each = format.block_elements();
        if let Some(run) = runs.iter().find(|run| run.start % each != 0 || run.end % each != 0) {
            return Err(format!("columns {run:?} are no whole blocks of {each} of {format}"));
        }
        let blocks = match scales {
            Some(ScaleForm::Block128) => scale_blocks(&runs)?,
            _ => Vec::new(),
        };
        Ok((SourceColumns { file, runs, blocks }, count))
    }

    /// Where the bytes of the columns stand in a row.
    pub(crate) fn bytes(&self, format: Format) -> impl Iterator<Item = Range<usize>> {
        self.parts(format.block_elements(), format.block_bytes())
    }

    /// The same in a row that has `bytes` for every `each` columns.
    pub(crate) fn parts(&self, each: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let at = move |column: usize| column.div_ceil(each) * bytes;
        let whole = self.runs.is_empty().then_some(0..at(self.file));
        whole.into_iter().chain(self.runs.iter().map(move |run| at(run.start)..at(run.end)))
    }

    /// The file's block of 128 columns that the columns of the rank's block `block` lie in.
    pub(crate) fn scale_block(&self, block: usize) -> usize {
        self.blocks.get(block).copied().unwrap_or(block)
    }
}

/// The file's block of each 128 of these columns.
///
/// # Errors
/// When some 128 lie in several blocks: they have several scales.
fn scale_blocks(runs: &[Range<usize>]) -> Result<Vec<usize>, String> {
    let mut blocks: Vec<usize> = Vec::new();
    for (column, whole) in runs.iter().cloned().flatten().enumerate() {
        let block = whole / FP8_BLOCK;
        if column.is_multiple_of(FP8_BLOCK) {
            blocks.push(block);
        } else if blocks.last() != Some(&block) {
            return Err(format!(
                "columns {runs:?} neither begin at a multiple of {FP8_BLOCK} nor lie in one block of scales"
            ));
        }
    }
    Ok(blocks)
}

/// How many of `whole` rows or columns a rank takes.
fn held(cut: &[Segment], Share { ranks, .. }: Share, whole: usize, what: &str) -> Result<usize, String> {
    if cut.is_empty() {
        return Ok(whole);
    }
    if let Some(segment) = cut.iter().find(|segment| !segment.divides(ranks)) {
        let Segment { units, unit } = segment;
        return Err(format!("{units} units of {unit} {what} cannot be shared out to {ranks} ranks alike"));
    }
    match cut::whole(cut) {
        all if all == whole => Ok(cut::held(cut, ranks)),
        all => Err(format!("{all} {what} are to be shared out to {ranks} ranks, and it has {whole}")),
    }
}
