//! The rows of a checkpoint's tensor that form part of a weight.

/// The rows of a tensor (all its dimensions but the last, flattened) that belong to the model, and their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRows {
    /// All, in order.
    All,
    /// Heads of this many rows, in GGUF's order for adjacent rotary pairs: row `2i + j` of a head in the file
    /// is row `i + j * head_dim/2` of the model.
    Interleaved(usize),
    /// `take` rows from `first` on, out of each group of `of` rows, or out of one group.
    Groups {
        /// The first row taken from a group.
        first: usize,
        /// Number of rows taken from a group.
        take: usize,
        /// Rows of a group.
        of: usize,
        /// The only group to take from; `None` takes from all.
        group: Option<usize>,
    },
}

impl FileRows {
    /// The file's row for row `row` of the model.
    pub(crate) fn file_row(self, row: usize) -> usize {
        match self {
            FileRows::All => row,
            FileRows::Interleaved(dim) => {
                let (head, row) = (row / dim, row % dim);
                head * dim + 2 * (row % (dim / 2)) + row / (dim / 2)
            }
            FileRows::Groups { first, take, of, group } => {
                (group.unwrap_or(0) + row / take) * of + first + row % take
            }
        }
    }

    /// How many of a tensor's `rows` rows belong to the model.
    ///
    /// # Errors
    /// Says why a tensor with that many rows has no such part.
    pub(crate) fn count(self, rows: usize) -> Result<usize, String> {
        match self {
            FileRows::All => Ok(rows),
            FileRows::Interleaved(dim) if dim > 0 && dim.is_multiple_of(2) && rows.is_multiple_of(dim) => {
                Ok(rows)
            }
            FileRows::Interleaved(dim) => Err(format!("{rows} rows are not heads of {dim} rotary rows")),
            FileRows::Groups { first, take, of, group }
                if of > 0 && rows.is_multiple_of(of) && take <= of && first <= of - take =>
            {
                match group {
                    None => Ok(rows / of * take),
                    Some(group) if group < rows / of => Ok(take),
                    Some(group) => Err(format!("{rows} rows have no group {group} of {of}")),
                }
            }
            FileRows::Groups { first, take, of, .. } => Err(format!(
                "{rows} rows are no groups of {of} of which {take} from {first} on could be taken"
            )),
        }
    }
}

/// Rows of a tensor whose last dimensions, the fewest that do, make `columns` columns; `None` where there are
/// none such. All dimensions together are a single row.
pub(crate) fn rows_of(shape: &[usize], columns: usize) -> Option<usize> {
    let mut wide = 1usize;
    for at in (0..shape.len()).rev() {
        wide = wide.checked_mul(shape[at])?;
        if wide == columns {
            let product = shape[..at].iter().try_fold(1, |product: usize, size| product.checked_mul(*size));
            return Some(product.unwrap_or(usize::MAX));
        }
    }
    None
}
