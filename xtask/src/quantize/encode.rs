//! Writes one tensor of the old checkpoint into the new one, a band of rows at a time on every core.

use super::jobs::{Job, Rows};
use super::shards::Shards;
use monomorph_compiler::spec::types::Scales;
use monomorph_formats::{FP8_BLOCK, Format, Quantiser, ScaleForm, decode, encode, magnitude};
use monomorph_weights::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;

/// Rows in memory at a time on each core: whole blocks that share a scale.
const BAND: usize = FP8_BLOCK;

/// The error of a tensor, or of some of its rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    largest_error: f64,
    largest_value: f64,
    /// Sums of squares.
    error: f64,
    value: f64,
}

impl Change {
    /// The largest error over the largest magnitude; 0 for a tensor of zeros.
    pub fn largest(&self) -> f64 {
        if self.largest_value == 0.0 { 0.0 } else { self.largest_error / self.largest_value }
    }

    /// Root mean square of the error over that of the values; 0 for a tensor of zeros.
    pub fn rms(&self) -> f64 {
        if self.value == 0.0 { 0.0 } else { (self.error / self.value).sqrt() }
    }

    fn add(&mut self, other: &Change) {
        self.largest_error = self.largest_error.max(other.largest_error);
        self.largest_value = self.largest_value.max(other.largest_value);
        self.error += other.error;
        self.value += other.value;
    }

    /// The error of `values`; if one exceeds `bound`, its index.
    fn of(values: &[f32], means: &[f32], bound: impl Fn(usize, f32) -> f32) -> Result<Change, usize> {
        let mut change = Change::default();
        for (i, (value, means)) in values.iter().zip(means).enumerate() {
            let error = f64::from(*value) - f64::from(*means);
            if error.is_nan() || error.abs() > f64::from(bound(i, *value)) {
                return Err(i);
            }
            change.largest_error = change.largest_error.max(error.abs());
            change.largest_value = change.largest_value.max(f64::from(value.abs()));
            change.error += error * error;
            change.value += f64::from(*value) * f64::from(*value);
        }
        Ok(change)
    }
}

/// Writes the tensor that `job` describes from the old checkpoint's tensors. Returns its error, or `None` if
/// bytes were copied.
///
/// # Errors
/// When it cannot be written, holds a non-finite value, or an element's error exceeds what its format
/// explains.
pub fn write(
    job: &Job,
    sources: &BTreeMap<String, Tensor>,
    shards: &Shards,
) -> Result<Option<Change>, String> {
    let source = Source::new(job, sources);
    if source.parts.iter().all(|(rows, tensor)| rows.is_empty() || tensor.format == job.format) {
        source.copy(shards)?;
        return Ok(None);
    }
    let change = match &job.scales {
        Some(scales) => source.quantise(scales, shards)?,
        None => total(&on_every_core(source.rows(), |rows| source.convert(rows, shards))?),
    };
    Ok(Some(change))
}

fn total(changes: &[Change]) -> Change {
    let mut all = Change::default();
    changes.iter().for_each(|change| all.add(change));
    all
}

/// Processes bands of `rows`, a share on each core; returns the results in the order of the rows.
fn on_every_core<T: Send>(
    rows: usize,
    band: impl Fn(Range<usize>) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = rows.div_ceil(cores).next_multiple_of(BAND).max(BAND);
    let bands = |from: usize| -> Result<Vec<T>, String> {
        let to = rows.min(from + share);
        (from..to).step_by(BAND).map(|first| band(first..to.min(first + BAND))).collect()
    };
    let results: Vec<Result<Vec<T>, String>> = std::thread::scope(|scope| {
        let bands = &bands;
        let running: Vec<_> = (0..rows).step_by(share).map(|from| scope.spawn(move || bands(from))).collect();
        running.into_iter().map(|it| it.join().expect("a band is not to panic")).collect()
    });
    Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Bytes of a row of whole blocks.
fn row_bytes(format: Format, columns: usize) -> usize {
    format.bytes(columns).expect("readers check that rows are whole blocks")
}

/// The rows of a job, in the old checkpoint.
struct Source<'a> {
    job: &'a Job,
    columns: usize,
    /// Row ranges of the job, with the tensor and the bytes of each.
    parts: Vec<(Range<usize>, Tensor<'a>)>,
}

impl<'a> Source<'a> {
    fn new(job: &'a Job, sources: &BTreeMap<String, Tensor<'a>>) -> Source<'a> {
        let (columns, mut end) = (job.columns(), 0);
        let part = |Rows { tensor, first, count }: &Rows| {
            let tensor = sources[tensor];
            let row_bytes = row_bytes(tensor.format, columns);
            let bytes = tensor.bytes.slice(first * row_bytes..(first + count) * row_bytes);
            end += count;
            (end - count..end, Tensor { bytes, ..tensor })
        };
        Source { job, columns, parts: job.rows.iter().map(part).collect() }
    }

    fn rows(&self) -> usize {
        self.parts.last().map_or(0, |(rows, _)| rows.end)
    }

    fn copy(&self, shards: &Shards) -> Result<(), String> {
        let write = |(rows, tensor): &(Range<usize>, Tensor)| {
            let bytes = tensor.bytes.read().map_err(|error| error.to_string())?;
            shards.write(&self.job.name, self.place(rows.start), &bytes)
        };
        self.parts.iter().try_for_each(write)
    }

    fn values(&self, rows: Range<usize>) -> Result<Vec<f32>, String> {
        let mut values = vec![0.0; rows.len() * self.columns];
        for (part, tensor) in &self.parts {
            let (from, to) = (part.start.max(rows.start), part.end.min(rows.end));
            if from < to {
                let row_bytes = row_bytes(tensor.format, self.columns);
                let bytes =
                    tensor.bytes.slice((from - part.start) * row_bytes..(to - part.start) * row_bytes);
                let bytes = bytes.read().map_err(|error| error.to_string())?;
                let values =
                    &mut values[(from - rows.start) * self.columns..(to - rows.start) * self.columns];
                decode(tensor.format, &bytes, values);
            }
        }
        Ok(values)
    }

    /// Offset of a row in the new tensor.
    fn place(&self, row: usize) -> u64 {
        let elements = row * self.columns / self.job.format.block_elements();
        elements as u64 * self.job.format.block_bytes() as u64
    }

    fn too_far(&self, first_row: usize, values: &[f32], means: &[f32], at: usize) -> String {
        format!(
            "tensor `{}`: element {} of row {} was {:e} and became {:e}, which is further off than {} explains",
            self.job.name,
            at % self.columns,
            first_row + at / self.columns,
            values[at],
            means[at],
            self.job.format
        )
    }

    /// Rounds rows to another float format, or to blocks with scales in them.
    fn convert(&self, rows: Range<usize>, shards: &Shards) -> Result<Change, String> {
        let values = self.values(rows.clone())?;
        let bytes = encode(self.job.format, &values);
        shards.write(&self.job.name, self.place(rows.start), &bytes)?;
        let mut means = vec![0.0; values.len()];
        decode(self.job.format, &bytes, &mut means);
        // Half a unit in the last place: of 8 and 11 significant bits, and of the smallest f16. All of it is
        // exact in f32. Of blocks with scales in them nobody promises more than that they are nearer than
        // zeros.
        let block = self.job.format.block_elements();
        let bound = |i: usize, value: f32| match self.job.format {
            Format::Bf16 => (value.abs() / 256.0).max(f32::MIN_POSITIVE / 256.0),
            Format::F16 => (value.abs() / 2048.0).max(1.0 / (1u32 << 25) as f32),
            _ if block > 1 => magnitude(&values[i / block * block..][..block]),
            _ => 0.0,
        };
        Change::of(&values, &means, bound).map_err(|at| self.too_far(rows.start, &values, &means, at))
    }

    /// Rounds a matrix to codes and scales.
    fn quantise(&self, scales: &Scales, shards: &Shards) -> Result<Change, String> {
        let rows = self.rows();
        let magnitudes = on_every_core(rows, |rows| Ok(magnitude(&self.values(rows)?)))?;
        let largest = magnitude(&magnitudes);
        if !largest.is_finite() {
            return Err(format!("tensor `{}` holds values that are not finite", self.job.name));
        }
        // nvfp4's scale formats are fixed, so this matters for fp8 only.
        let quantiser = Quantiser::new(scales.form, scales.companions[0].format, largest);
        let bands = on_every_core(rows, |rows| self.quantise_band(rows, scales.form, &quantiser, shards))?;
        let (changes, blocks): (Vec<Change>, Vec<Vec<f32>>) = bands.into_iter().unzip();
        let blocks = (scales.form != ScaleForm::Tensor).then(|| blocks.concat());
        let values = blocks.into_iter().chain(quantiser.whole().map(|whole| vec![whole]));
        for (companion, values) in scales.companions.iter().zip(values) {
            shards.write(&companion.name, 0, &encode(companion.format, &values))?;
        }
        Ok(total(&changes))
    }

    /// The error of the rows, and the scales of their blocks.
    fn quantise_band(
        &self,
        rows: Range<usize>,
        form: ScaleForm,
        quantiser: &Quantiser,
        shards: &Shards,
    ) -> Result<(Change, Vec<f32>), String> {
        let (values, columns) = (self.values(rows.clone())?, self.columns);
        let quantised = quantiser.rows(&values, columns);
        shards.write(&self.job.name, self.place(rows.start), &quantised.codes)?;
        // The values as a reader decodes them.
        let mut means = vec![0.0; values.len()];
        decode(form.codes(), &quantised.codes, &mut means);
        let blocks = (form != ScaleForm::Tensor).then(|| quantised.scales.clone());
        let all: Vec<Vec<f32>> =
            blocks.into_iter().chain(quantiser.whole().map(|whole| vec![whole])).collect();
        form.apply(&mut means, columns, &all);
        let bound = |i: usize, value| quantiser.bound(value, quantiser.scale(&quantised, i, columns));
        match Change::of(&values, &means, bound) {
            Ok(change) => Ok((change, quantised.scales)),
            Err(at) => Err(self.too_far(rows.start, &values, &means, at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_measured_and_too_large_ones_found() {
        let bound = |_: usize, value: f32| value.abs() / 16.0;
        let change = Change::of(&[4.0, -3.0, 0.0], &[4.25, -3.0, 0.0], bound).unwrap();
        assert_eq!((change.largest(), change.rms()), (0.0625, 0.05));
        assert_eq!(Change::of(&[4.0, -3.0], &[4.0, -2.75], bound).err(), Some(1));
        assert_eq!(Change::of(&[4.0, f32::INFINITY], &[4.0, f32::INFINITY], bound).err(), Some(1));
        assert_eq!(Change::of(&[f32::NAN], &[0.0], bound).err(), Some(0));
        let mut both = change;
        both.add(&Change::of(&[100.0], &[100.0], bound).unwrap());
        assert_eq!(both.largest(), 0.0025);
        assert_eq!((Change::default().largest(), Change::default().rms()), (0.0, 0.0));
    }

    #[test]
    fn every_row_is_done_once_and_in_order() {
        for rows in [0, 1, 127, 128, 129, 1000] {
            let bands = on_every_core(rows, Ok).unwrap();
            assert!(bands.iter().all(|band| band.start % BAND == 0 && band.len() <= BAND));
            assert!(bands.into_iter().flatten().eq(0..rows), "{rows}");
        }
        let fault = |rows: Range<usize>| if rows.contains(&300) { Err("300".to_owned()) } else { Ok(()) };
        assert_eq!(on_every_core(500, fault), Err("300".to_owned()));
    }
}
