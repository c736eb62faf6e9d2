//! GGUF files in parts, as `llama-gguf-split` writes them: `NAME-00001-of-00003.gguf` and so on, of which the
//! first has the metadata.

use crate::WeightsError;
use std::path::{Path, PathBuf};

/// Name, number from 1 on, and count of a part.
fn name_of_part(path: &Path) -> Option<(&str, u32, u32)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (name, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((name, digits(number)?, digits(count)?))
}

/// All parts of the file that `path` is one of, in order.
///
/// # Errors
/// When its name is not that of a part of so many.
pub(crate) fn parts(path: &Path, count: u32) -> Result<Vec<PathBuf>, WeightsError> {
    match name_of_part(path) {
        Some((name, _, of)) if of == count => {
            let part = |number| path.with_file_name(format!("{name}-{number:05}-of-{count:05}.gguf"));
            Ok((1..=count).map(part).collect())
        }
        _ => {
            let what = format!(
                "is one of {count} parts, which are found by names like NAME-00001-of-{count:05}.gguf"
            );
            Err(WeightsError::malformed(path, what))
        }
    }
}

/// The file that a directory with these GGUF files stands for: the only one, or the first part of the only
/// one.
pub fn only_gguf(files: &[PathBuf]) -> Option<&PathBuf> {
    let [first, others @ ..] = files else { return None };
    if others.is_empty() {
        return Some(first);
    }
    let (name, _, count) = name_of_part(first)?;
    let of_one = |file: &&PathBuf| name_of_part(file).is_some_and(|it| (it.0, it.2) == (name, count));
    if files.iter().filter(of_one).count() != files.len() || files.len() != count as usize {
        return None;
    }
    files.iter().min()
}
