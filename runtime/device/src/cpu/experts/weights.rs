//! The matrices of all experts of a layer, in one piece.

use super::super::arrays::Array;
use super::super::format::WeightFormat;
use super::super::loader::{GatedMatrix, Loader, Matrix, Part, Stack, made_in, pack, stack};
use monomorph_weights::WeightsError;
use std::marker::PhantomData;

/// Weights `[ROWS, COLS]` of each of `EXPERTS` experts in format `F`, each packed like a [`Matrix`].
#[derive(Debug)]
pub struct Experts<F, const EXPERTS: usize, const ROWS: usize, const COLS: usize> {
    data: Array,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const EXPERTS: usize, const ROWS: usize, const COLS: usize>
    Experts<F, EXPERTS, ROWS, COLS>
{
    /// Bytes of one expert.
    const EACH: usize = Matrix::<F, ROWS, COLS>::BYTES;

    /// Bytes the packed matrices take.
    pub const BYTES: usize = EXPERTS * Self::EACH;

    /// Packs `parts`, one per expert, on the loader's team.
    ///
    /// # Errors
    /// When there are not `EXPERTS` parts, or one is not `[ROWS, COLS]` in `F`.
    pub fn load(loader: &Loader, parts: &[Part]) -> Result<Self, WeightsError> {
        count(loader, parts, EXPERTS)?;
        let made = || [made_in::<F>("experts", &[EXPERTS, ROWS, COLS], &[parts])];
        let [data] = loader.arrays(made, [Self::BYTES], || {
            let stacks = parts
                .iter()
                .map(|part| stack::<F>(loader, std::slice::from_ref(part), ROWS, COLS))
                .collect::<Result<Vec<Stack>, _>>()?;
            Ok([pack::<F>(loader, &stacks, 1, ROWS, COLS)?])
        })?;
        Ok(Experts { data, format: PhantomData })
    }

    /// All tiles of one expert.
    #[inline(always)]
    pub(in super::super) fn packed(&self, expert: usize) -> &[u8] {
        self.data.slice(expert * Self::EACH, Self::EACH)
    }
}

/// The gate and up projections `[WIDTH, COLS]` of each of `EXPERTS` experts in format `F`, each pair packed
/// like a [`GatedMatrix`].
#[derive(Debug)]
pub struct GatedExperts<F, const EXPERTS: usize, const WIDTH: usize, const COLS: usize> {
    data: Array,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const EXPERTS: usize, const WIDTH: usize, const COLS: usize>
    GatedExperts<F, EXPERTS, WIDTH, COLS>
{
    /// Bytes of one expert.
    const EACH: usize = GatedMatrix::<F, WIDTH, COLS>::BYTES;

    /// Bytes the packed matrices take.
    pub const BYTES: usize = EXPERTS * Self::EACH;

    /// Packs `gate` and `up`, each with one part per expert, on the loader's team.
    ///
    /// # Errors
    /// When there are not `EXPERTS` parts of each, or one is not `[WIDTH, COLS]` in `F`.
    pub fn load(loader: &Loader, gate: &[Part], up: &[Part]) -> Result<Self, WeightsError> {
        count(loader, gate, EXPERTS)?;
        count(loader, up, EXPERTS)?;
        let made = || [made_in::<F>("gated experts", &[EXPERTS, WIDTH, COLS], &[gate, up])];
        let [data] = loader.arrays(made, [Self::BYTES], || {
            let stacks = gate
                .iter()
                .zip(up)
                .flat_map(|(gate, up)| [gate, up])
                .map(|part| stack::<F>(loader, std::slice::from_ref(part), WIDTH, COLS))
                .collect::<Result<Vec<Stack>, _>>()?;
            Ok([pack::<F>(loader, &stacks, 2, WIDTH, COLS)?])
        })?;
        Ok(GatedExperts { data, format: PhantomData })
    }

    /// All pairs of tiles of one expert.
    #[inline(always)]
    pub(in super::super) fn packed(&self, expert: usize) -> &[u8] {
        self.data.slice(expert * Self::EACH, Self::EACH)
    }
}

/// Refuses any other number of parts. The error names the first part, which stands for the list.
fn count(loader: &Loader, parts: &[Part], experts: usize) -> Result<(), WeightsError> {
    if parts.len() == experts {
        return Ok(());
    }
    let from = parts.first().map_or("no tensor at all", |part| part.tensor.name);
    Err(loader.mismatch(format!("experts from {from} on: expected {experts}, found {}", parts.len())))
}
