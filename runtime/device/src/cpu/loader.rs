//! Packs a checkpoint's tensors into the matrices that kernels read, or takes them packed.

use super::arrays::{Array, Arrays, Made, Mapped};
use super::format::{RowScales, WeightFormat};
use super::memory::Memory;
use super::simd::TILE;
use super::team::Team;
use crate::companions::{Companions, companions};
use crate::rows_of::{FileRows, rows_of};
use monomorph_abi::tiles::tile_bytes;
use monomorph_formats::{FP8_BLOCK, Format, NVFP4_BLOCK, ScaleForm, logarithms_of_rates};
use monomorph_model::{Progress, Shortage, Watch};
use monomorph_weights::{Bytes, Packing, Tensor, WeightsError, Windows};
use std::fmt::Write;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The team, file and progress of loading.
#[derive(Clone, Copy, Debug)]
pub struct Loader<'a> {
    team: &'a Team,
    path: &'a Path,
    pub(super) progress: &'a Progress,
    arrays: Arrays<'a>,
    watch: Option<&'a Watch>,
}

impl<'a> Loader<'a> {
    /// Packs with `team`, names `path` in errors, and adds bytes to `progress`.
    pub fn new(team: &'a Team, path: &'a Path, progress: &'a Progress) -> Loader<'a> {
        Loader { team, path, progress, arrays: Arrays::Packed, watch: None }
    }

    /// The same, which stops when host memory runs short.
    pub(super) fn watched(self, watch: &'a Watch) -> Loader<'a> {
        Loader { watch: Some(watch), ..self }
    }

    /// The same, which writes what it packs to a file and lets it go. What is loaded so cannot run.
    pub(super) fn writing(self, to: &'a Mutex<Packing>) -> Loader<'a> {
        Loader { arrays: Arrays::Written(to), ..self }
    }

    /// The same, which takes what was packed.
    pub(super) fn mapping(self, from: &'a Mapped<'a>) -> Loader<'a> {
        Loader { arrays: Arrays::Mapped(from), ..self }
    }

    /// The next arrays, of so many bytes each: taken, or packed of what `pack` is.
    ///
    /// # Errors
    /// Those of `pack`; when the file of packed weights is not the one, or cannot be written.
    pub(super) fn arrays<const N: usize>(
        &self,
        made: impl FnOnce() -> [Made; N],
        bytes: [usize; N],
        pack: impl FnOnce() -> Result<[Memory<u8>; N], WeightsError>,
    ) -> Result<[Array; N], WeightsError> {
        let all = bytes.iter().sum::<usize>() as u64;
        if self.arrays.are_mapped() {
            self.progress.advance(all);
        } else if let Some(watch) = self.watch {
            watch.take(all).map_err(|shortage| self.short(shortage))?;
        }
        self.arrays.next(made, bytes, pack)
    }

    /// The next numbers, likewise, of which `flat` says whether only their count tells them apart.
    ///
    /// # Errors
    /// As [`Loader::arrays`].
    pub(super) fn floats(
        &self,
        (kind, flat, parts): (&str, bool, &[Part]),
        count: usize,
        read: impl FnOnce() -> Result<Vec<f32>, WeightsError>,
    ) -> Result<Vec<f32>, WeightsError> {
        if self.arrays.are_mapped() {
            self.progress.advance((count * size_of::<f32>()) as u64);
        }
        self.arrays.next_floats(|| made(format!("{kind}<{count}>"), flat, &[parts]), count, read)
    }

    fn short(&self, shortage: Shortage) -> WeightsError {
        WeightsError::Memory { path: self.path.to_owned(), shortage }
    }

    pub(super) fn mismatch(&self, what: String) -> WeightsError {
        WeightsError::Mismatch { path: self.path.to_owned(), what }
    }
}

/// A tensor, or some of its rows, alone or stacked with others.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The tensor: `[rows, columns]`, `[rows]` or anything that has as many numbers for a vector, or more
    /// dimensions, of which the last ones are columns and the others count as rows.
    pub tensor: Tensor<'a>,
    rows: FileRows,
    /// The form of the scales beside it, and the tensors that hold them.
    scales: Option<(ScaleForm, &'a [Tensor<'a>])>,
    /// Whether it holds `-exp(x)` of every number `x`.
    negative_rates: bool,
}

impl<'a> Part<'a> {
    /// A tensor with its rows in the model's order.
    pub fn new(tensor: Tensor<'a>) -> Part<'a> {
        Part { tensor, rows: FileRows::All, scales: None, negative_rates: false }
    }

    /// A tensor with its rows in GGUF's order for rotary heads of `head_dim` rows.
    pub fn interleaved(tensor: Tensor<'a>, head_dim: usize) -> Part<'a> {
        Part { rows: FileRows::Interleaved(head_dim), ..Part::new(tensor) }
    }

    /// The `take` rows from `first` on, out of each group of `of` rows.
    pub fn of_groups(tensor: Tensor<'a>, first: usize, take: usize, of: usize) -> Part<'a> {
        Part { rows: FileRows::Groups { first, take, of, group: None }, ..Part::new(tensor) }
    }

    /// The `take` rows from `first` on, out of group `group` of `of` rows.
    pub fn of_group(tensor: Tensor<'a>, first: usize, take: usize, of: usize, group: usize) -> Part<'a> {
        Part { rows: FileRows::Groups { first, take, of, group: Some(group) }, ..Part::new(tensor) }
    }

    /// The same, of codes whose scales these tensors hold, in the order of the form.
    pub fn scaled(self, form: ScaleForm, companions: &'a [Tensor<'a>]) -> Part<'a> {
        Part { scales: Some((form, companions)), ..self }
    }

    /// The same, of numbers `-exp(x)` that stand for `x`. Of vectors only.
    pub fn negative_rates(self) -> Part<'a> {
        Part { negative_rates: true, ..self }
    }

    /// All that decides which bytes are packed of it, but for its own. Dimensions of one are left out, as
    /// GGUF files may leave them out, and rows that the numbers of a vector stand in.
    fn describe(&self, flat: bool, out: &mut String) {
        let Part { tensor: Tensor { name, shape, format, .. }, rows, scales, negative_rates } = self;
        let form = scales.map_or("no", |(form, _)| form.name());
        // A string takes whatever is written to it.
        let _ = write!(out, "{name}");
        let numbers = [shape.iter().copied().fold(1, usize::saturating_mul)];
        let sizes = if flat { &numbers[..] } else { shape };
        for size in sizes.iter().filter(|size| **size != 1) {
            let _ = write!(out, " {size}");
        }
        let _ = write!(out, " {format} {rows:?} {form} {negative_rates};");
    }

    /// Whether the model uses all rows of the file, in order.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.rows, FileRows::All)
    }

    /// Checks the part's format and width; returns its number of rows.
    fn check(
        &self,
        loader: &Loader,
        columns: Option<usize>,
        format: Option<Format>,
    ) -> Result<usize, WeightsError> {
        let Tensor { name, shape, format: found, bytes } = self.tensor;
        let fault = |what: String| Err(loader.mismatch(format!("tensor {name}: {what}")));
        if let Some(expected) = format
            && expected != found
        {
            return fault(format!("expected format {expected}, found {found}"));
        }
        let rows = match (shape, columns) {
            (_, Some(columns)) => match rows_of(shape, columns) {
                Some(rows) => rows,
                None => return fault(format!("expected shape [_, {columns}], found {shape:?}")),
            },
            // Its numbers may stand in rows.
            (_, None) => {
                shape.iter().try_fold(1, |all: usize, size| all.checked_mul(*size)).unwrap_or(usize::MAX)
            }
        };
        let elements = rows.checked_mul(columns.unwrap_or(1));
        if elements.and_then(|elements| found.bytes(elements)) != Some(bytes.len()) {
            return fault(format!("{} bytes are not {shape:?} in {found}", bytes.len()));
        }
        self.rows.count(rows).or_else(fault)
    }
}

/// Tensors stacked by row, checked.
pub(super) struct Stack<'p, 'a> {
    /// The file, for errors.
    path: &'p Path,
    parts: &'p [Part<'a>],
    /// Number of rows of each part.
    rows: Vec<usize>,
    /// Scales beside each part, if there are some.
    scales: Vec<Option<Companions<'a>>>,
    columns: usize,
    pub(super) row_bytes: usize,
}

impl<'a> Stack<'_, 'a> {
    /// The part that has row `row`, and the row of its file; `None` past the last.
    fn place(&self, mut row: usize) -> Option<(usize, usize)> {
        for (index, (part, &rows)) in self.parts.iter().zip(&self.rows).enumerate() {
            if row < rows {
                return Some((index, part.rows.file_row(row)));
            }
            row -= rows;
        }
        None
    }

    /// Kernels that round their activations would read such a number as 0, and the answer would not show it.
    fn check_finite(&self, name: &str, row: usize, format: Format, bytes: &[u8]) -> Result<(), WeightsError> {
        if format.is_finite(bytes) {
            return Ok(());
        }
        let what = format!("tensor {name}: row {row} has numbers that are not finite: the file is damaged");
        Err(WeightsError::Mismatch { path: self.path.to_owned(), what })
    }

    /// The bytes of row `row`; `None` past the last.
    pub(super) fn row<'w>(
        &self,
        row: usize,
        windows: &'w mut Windows<'a>,
    ) -> Result<Option<&'w [u8]>, WeightsError> {
        let Some((part, at)) = self.place(row) else { return Ok(None) };
        let Tensor { name, format, bytes, .. } = self.parts[part].tensor;
        let row = windows.read(bytes, at * self.row_bytes..(at + 1) * self.row_bytes)?;
        self.check_finite(name, at, format, row)?;
        Ok(Some(row))
    }

    /// What packing row `row` reads, in its order; nothing past the last.
    pub(super) fn reads(&self, row: usize) -> impl Iterator<Item = (Bytes<'a>, Range<usize>)> + use<'a> {
        let of_rows = |bytes: Bytes<'a>, at: usize, each: usize| (bytes, at * each..(at + 1) * each);
        let place = self.place(row);
        let codes = place.map(|(part, at)| of_rows(self.parts[part].tensor.bytes, at, self.row_bytes));
        let scales = place.and_then(|(part, at)| match self.scales[part] {
            Some(Companions::Groups { codes, .. }) => Some(of_rows(codes, at, self.columns / NVFP4_BLOCK)),
            _ => None,
        });
        codes.into_iter().chain(scales)
    }

    /// Packs row `row`, with the scales beside it, to row `lane` of a tile; nothing past the last.
    fn pack<F: WeightFormat>(
        &self,
        row: usize,
        windows: &mut Windows<'a>,
        lane: usize,
        tile: &mut [u8],
    ) -> Result<(), WeightsError> {
        let Some((part, at)) = self.place(row) else { return Ok(()) };
        if let Some(bytes) = self.row(row, windows)? {
            F::pack(bytes, lane, tile);
        }
        let scales = match &self.scales[part] {
            None => return Ok(()),
            Some(Companions::Tensor(scale)) => RowScales::Row(*scale),
            Some(Companions::Blocks(scales)) => {
                let across = self.columns.div_ceil(FP8_BLOCK);
                RowScales::Blocks(&scales[at / FP8_BLOCK * across..][..across])
            }
            Some(Companions::Groups { codes, tensor }) => {
                let across = self.columns / NVFP4_BLOCK;
                let codes = windows.read(*codes, at * across..(at + 1) * across)?;
                let name = self.parts[part].tensor.name;
                self.check_finite(&format!("{name}, its scales"), at, Format::Fp8E4m3, codes)?;
                RowScales::Groups(codes, *tensor)
            }
        };
        F::pack_scales(&scales, self.columns, lane, tile);
        Ok(())
    }
}

/// The scales beside a part, where format `F` has some.
fn scales<'a, F: WeightFormat>(
    loader: &Loader,
    part: &Part<'a>,
    columns: usize,
) -> Result<Option<Companions<'a>>, WeightsError> {
    let Tensor { name, bytes, .. } = part.tensor;
    let fault = |what: String| Err(loader.mismatch(format!("tensor {name}: {what}")));
    let found = part.scales.map(|(form, _)| form);
    let (form, tensors) = match (F::SCALES, part.scales) {
        (None, None) => return Ok(None),
        (Some(form), Some(found)) if alike(form, found.0) => found,
        (wanted, _) => {
            let name = |form: Option<ScaleForm>| form.map_or("none", ScaleForm::name);
            return fault(format!("expected scales of form {}, found {}", name(wanted), name(found)));
        }
    };
    let rows = bytes.len() / F::FORMAT.bytes(columns).unwrap_or(1).max(1);
    companions(form, name, tensors, (rows, columns), |what| loader.mismatch(what)).map(Some)
}

/// Whether scales of both forms are kept alike.
fn alike(a: ScaleForm, b: ScaleForm) -> bool {
    a == b || (a.codes() == Format::Nvfp4 && b.codes() == Format::Nvfp4)
}

/// `parts` stacked into a matrix `[rows, columns]` in `F`.
pub(super) fn stack<'p, 'a, F: WeightFormat>(
    loader: &Loader<'p>,
    parts: &'p [Part<'a>],
    rows: usize,
    columns: usize,
) -> Result<Stack<'p, 'a>, WeightsError> {
    let check = |part: &Part| part.check(loader, Some(columns), Some(F::FORMAT));
    let of_parts = parts.iter().map(check).collect::<Result<Vec<usize>, _>>()?;
    let found = of_parts.iter().fold(0, |sum: usize, rows| sum.saturating_add(*rows));
    if found != rows {
        let names: Vec<&str> = parts.iter().map(|part| part.tensor.name).collect();
        return Err(
            loader.mismatch(format!("tensors {}: expected {rows} rows, found {found}", names.join(" + ")))
        );
    }
    let row_bytes = F::FORMAT.bytes(columns).ok_or_else(|| {
        loader.mismatch(format!("rows of {columns} columns do not fill {} blocks", F::FORMAT))
    })?;
    let scales = parts.iter().map(|part| scales::<F>(loader, part, columns)).collect::<Result<_, _>>()?;
    Ok(Stack { path: loader.path, parts, rows: of_parts, scales, columns, row_bytes })
}

/// Packs stacks of `rows` rows on all lanes: groups of `together` stacks, whose tiles alternate, back to
/// back.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn pack<F: WeightFormat>(
    loader: &Loader,
    stacks: &[Stack],
    together: usize,
    rows: usize,
    columns: usize,
) -> Result<Memory<u8>, WeightsError> {
    let bytes = F::tile_bytes(columns);
    let group = together * rows.div_ceil(TILE);
    let tiles = stacks.len() / together * group;
    let data = Memory::<u8>::zeroed(tiles * bytes);
    data.advise_large_pages();
    let place =
        |tile: usize| (&stacks[tile / group * together + tile % together], tile % group / together * TILE);
    let reads = |tile: usize| {
        let (stack, first) = place(tile);
        (first..first + TILE).flat_map(|row| stack.reads(row))
    };
    each(loader, tiles, reads, |tile, windows| {
        // SAFETY: each tile is packed once.
        let out = unsafe { data.slice_mut(tile * bytes, bytes) };
        let (stack, first) = place(tile);
        for i in 0..TILE {
            // Rows past the last stay zero, and so do their sums.
            stack.pack::<F>(first + i, windows, i, out)?;
        }
        Ok(())
    })?;
    // Without the rows of zeros.
    let read = |stack: &Stack| stack.rows.iter().sum::<usize>() * bytes / TILE;
    loader.progress.advance(stacks.iter().map(read).sum::<usize>() as u64);
    Ok(data)
}

/// What an array of this kind is, made of these lists of parts.
fn made(kind: String, flat: bool, lists: &[&[Part]]) -> Made {
    let count: usize = lists.iter().map(|parts| parts.len()).sum();
    let first = lists.iter().find_map(|parts| parts.first()).map_or("nothing", |part| part.tensor.name);
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    let mut rest = String::new();
    for parts in lists {
        parts.iter().for_each(|part| part.describe(flat, &mut rest));
        rest.push('\n');
    }
    Made::new(format!("{kind} of {first}{more}"), &rest)
}

/// The same of weights in `F`.
pub(super) fn made_in<F: WeightFormat>(kind: &str, sizes: &[usize], lists: &[&[Part]]) -> Made {
    let scales = F::SCALES.map_or(String::new(), |form| format!(" with scales of form {}", form.name()));
    let rounded = if F::IN_F16 { " as f16 has them" } else { "" };
    made(format!("{kind} {sizes:?} in {}{scales}{rounded}", F::FORMAT), false, lists)
}

/// Packs `count` pieces on all lanes, each once: `piece` is called with its number and what a lane has of the
/// files, of which it `reads` so much.
///
/// # Errors
/// One of those of the pieces, or that host memory runs short.
pub(super) fn each<'a, R: Iterator<Item = (Bytes<'a>, Range<usize>)>>(
    loader: &Loader,
    count: usize,
    reads: impl Fn(usize) -> R + Sync,
    piece: impl Fn(usize, &mut Windows<'a>) -> Result<(), WeightsError> + Sync,
) -> Result<(), WeightsError> {
    let failure = Mutex::new(None);
    loader.team.run(|lane| {
        let mut windows = Windows::default();
        windows.announce(lane.share(count).flat_map(&reads));
        let mut packed = lane.share(count).map(|at| {
            // Others may have taken memory since it was planned.
            loader.watch.map_or(Ok(()), Watch::look).map_err(|shortage| loader.short(shortage))?;
            piece(at, &mut windows)
        });
        if let Some(Err(error)) = packed.find(Result::is_err) {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Weights `[ROWS, COLS]` in format `F`, packed in tiles of 16 rows.
#[derive(Debug)]
pub struct Matrix<F, const ROWS: usize, const COLS: usize> {
    data: Array,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const ROWS: usize, const COLS: usize> Matrix<F, ROWS, COLS> {
    /// Number of tiles of 16 rows, the last padded with zeros.
    pub(crate) const TILES: usize = ROWS.div_ceil(TILE);

    /// Bytes the packed matrix takes.
    pub const BYTES: usize = Self::TILES * tile_bytes(F::FORMAT, F::SCALES, COLS);

    /// Packs `parts`, stacked by row, on the loader's team.
    ///
    /// # Errors
    /// When a tensor has another format or shape.
    pub fn load(loader: &Loader, parts: &[Part]) -> Result<Self, WeightsError> {
        let made = || [made_in::<F>("matrix", &[ROWS, COLS], &[parts])];
        let [data] = loader.arrays(made, [Self::BYTES], || {
            let stack = stack::<F>(loader, parts, ROWS, COLS)?;
            Ok([pack::<F>(loader, &[stack], 1, ROWS, COLS)?])
        })?;
        Ok(Matrix { data, format: PhantomData })
    }

    /// The bytes of tile `tile`.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        let bytes = F::tile_bytes(COLS);
        self.data.slice(tile * bytes, bytes)
    }

    /// All tiles.
    #[inline(always)]
    pub(crate) fn packed(&self) -> &[u8] {
        self.data.slice(0, Self::BYTES)
    }
}

/// The gate and up projections `[WIDTH, COLS]` of a gated feed-forward block. Their tiles alternate, so that
/// the gate is applied while both sums are in registers.
#[derive(Debug)]
pub struct GatedMatrix<F, const WIDTH: usize, const COLS: usize> {
    data: Array,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const WIDTH: usize, const COLS: usize> GatedMatrix<F, WIDTH, COLS> {
    pub(crate) const TILES: usize = WIDTH.div_ceil(TILE);

    /// Bytes the packed matrices take.
    pub const BYTES: usize = 2 * Self::TILES * tile_bytes(F::FORMAT, F::SCALES, COLS);

    /// Packs both on the loader's team.
    ///
    /// # Errors
    /// When a tensor is not `[WIDTH, COLS]` in `F`.
    pub fn load(loader: &Loader, gate: &[Part], up: &[Part]) -> Result<Self, WeightsError> {
        let made = || [made_in::<F>("gated matrix", &[WIDTH, COLS], &[gate, up])];
        let [data] = loader.arrays(made, [Self::BYTES], || {
            let stacks = [stack::<F>(loader, gate, WIDTH, COLS)?, stack::<F>(loader, up, WIDTH, COLS)?];
            Ok([pack::<F>(loader, &stacks, 2, WIDTH, COLS)?])
        })?;
        Ok(GatedMatrix { data, format: PhantomData })
    }

    /// All pairs of tiles; in each, the gate's comes before the up projection's.
    #[inline(always)]
    pub(crate) fn packed(&self) -> &[u8] {
        self.data.slice(0, Self::BYTES)
    }
}

/// `N` f32 values, such as norm weights or a bias.
#[derive(Debug)]
pub struct Vector<const N: usize> {
    data: Box<[f32]>,
}

impl<const N: usize> Vector<N> {
    /// Reads `parts`, stacked, from any float format.
    ///
    /// # Errors
    /// When a tensor is quantised, or the lengths do not add up to `N`.
    pub fn load(loader: &Loader, parts: &[Part]) -> Result<Self, WeightsError> {
        let mut data = loader.floats(("vector", true, parts), N, || Self::read(loader, parts))?;
        data.resize(N.next_multiple_of(TILE), 0.0);
        Ok(Vector { data: data.into() })
    }

    /// The values, which are `N`.
    fn read(loader: &Loader, parts: &[Part]) -> Result<Vec<f32>, WeightsError> {
        let mut data = Vec::with_capacity(N.next_multiple_of(TILE));
        for part in parts {
            let Tensor { name, format, bytes, .. } = part.tensor;
            if format.is_quantised() {
                return Err(
                    loader.mismatch(format!("tensor {name}: expected a float format, found {format}"))
                );
            }
            let rows = part.check(loader, None, None)?;
            // Of rows of a tensor, all of it.
            let mut values = vec![0.0; bytes.len() / format.block_bytes()];
            monomorph_formats::decode(format, &bytes.read()?, &mut values);
            // What is made up stands for itself.
            if part.negative_rates && !bytes.are_made_up() {
                let fault = |what| loader.mismatch(format!("tensor {name}: {what}"));
                logarithms_of_rates(&mut values).map_err(fault)?;
            }
            data.extend((0..rows).map(|row| values[part.rows.file_row(row)]));
            loader.progress.advance(bytes.len() as u64);
        }
        if data.len() != N {
            let names: Vec<&str> = parts.iter().map(|part| part.tensor.name).collect();
            let what = format!("tensors {}: expected {N} values, found {}", names.join(" + "), data.len());
            return Err(loader.mismatch(what));
        }
        Ok(data)
    }

    /// The values, zero-padded to a multiple of 16.
    #[inline(always)]
    pub(crate) fn padded(&self) -> &[f32] {
        &self.data
    }

    /// Replaces each value; padding stays zero.
    pub(crate) fn map(&mut self, f: impl Fn(f32) -> f32) {
        for value in &mut self.data[..N] {
            *value = f(*value);
        }
    }
}
