//! Which rows of a checkpoint's tensor a part of a weight is.

/// The rows of a tensor (all its dimensions but the last taken together) that are the model's, and their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRows {
    /// All, in order.
    All,
    /// Each head's rows of so many in GGUF's order for adjacent rotary pairs: row `2i + j` of a head in the
    /// file is row `i + j * head_dim/2` of the model.
    Interleaved(usize),
    /// Of every group of `of` rows, or of one, the `take` from `first` on.
    Groups {
        /// The first row taken of a group.
        first: usize,
        /// How many follow it, that one included.
        take: usize,
        /// Rows of a group.
        of: usize,
        /// The only group taken from.
        group: Option<usize>,
    },
}

impl FileRows {
    /// The row of the file that is row `row` of the model.
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

    /// How many of a tensor's `rows` rows are the model's.
    ///
    /// # Errors
    /// Says why a tensor of so many rows has no such part.
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
