//! The matrices that make each head's keys and values of a latent.

use super::super::arrays::Array;
use super::super::format::WeightFormat;
use super::super::loader::{Loader, Matrix, Part, each, made_in, stack};
use super::super::memory::Memory;
use super::super::simd::TILE;
use monomorph_weights::WeightsError;
use std::marker::PhantomData;

/// For each of `HEADS` heads, what makes its key `[KEY, LATENT]` and its value `[VALUE, LATENT]` of a latent,
/// in a float format `F`. The first is packed transposed, `[LATENT, KEY]`: it is applied to queries, so that
/// keys need not be made. Both are packed like a [`Matrix`], head by head.
#[derive(Debug)]
pub struct LatentHeads<F, const HEADS: usize, const KEY: usize, const VALUE: usize, const LATENT: usize> {
    keys: Array,
    values: Array,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const HEADS: usize, const KEY: usize, const VALUE: usize, const LATENT: usize>
    LatentHeads<F, HEADS, KEY, VALUE, LATENT>
{
    /// Bytes of one head's transposed key matrix, and of its value matrix.
    const EACH: [usize; 2] = [Matrix::<F, LATENT, KEY>::BYTES, Matrix::<F, VALUE, LATENT>::BYTES];

    /// Bytes the packed matrices take.
    pub const BYTES: usize = HEADS * (Self::EACH[0] + Self::EACH[1]);

    /// Packs a matrix `[HEADS * (KEY + VALUE), LATENT]`, whose rows are head by head those of keys, then
    /// those of values.
    ///
    /// # Errors
    /// When the tensors have another format or shape.
    pub fn load(loader: &Loader, parts: &[Part]) -> Result<Self, WeightsError> {
        const { assert!(F::FORMAT.block_elements() == 1, "elements that are transposed stand alone") };
        let made = || {
            ["keys of heads, transposed", "values of heads"]
                .map(|kind| made_in::<F>(kind, &[HEADS, KEY, VALUE, LATENT], &[parts]))
        };
        let bytes = Self::EACH.map(|each| HEADS * each);
        let [keys, values] = loader.arrays(made, bytes, || Self::pack(loader, parts))?;
        Ok(LatentHeads { keys, values, format: PhantomData })
    }

    /// The keys' matrices, transposed, and the values'.
    fn pack(loader: &Loader, parts: &[Part]) -> Result<[Memory<u8>; 2], WeightsError> {
        let rows = stack::<F>(loader, parts, HEADS * (KEY + VALUE), LATENT)?;
        let [keys, values] = Self::EACH.map(|each| Memory::<u8>::zeroed(HEADS * each));
        keys.advise_large_pages();
        values.advise_large_pages();
        let size = F::FORMAT.block_bytes();
        let each_head = KEY + VALUE;
        let reads = |head: usize| (head * each_head..(head + 1) * each_head).flat_map(|row| rows.reads(row));
        each(loader, HEADS, reads, |head, windows| {
            let first = head * (KEY + VALUE);
            let mut transposed = vec![0; LATENT * KEY * size];
            for key in 0..KEY {
                let row = rows.row(first + key, windows)?.expect("the stack has this row");
                for (at, element) in row.chunks_exact(size).enumerate() {
                    transposed[(at * KEY + key) * size..][..size].copy_from_slice(element);
                }
            }
            // SAFETY: each head is packed once.
            let out = unsafe { keys.slice_mut(head * Self::EACH[0], Self::EACH[0]) };
            for (at, row) in transposed.chunks_exact(KEY * size).enumerate() {
                F::pack(row, at % TILE, &mut out[at / TILE * F::tile_bytes(KEY)..][..F::tile_bytes(KEY)]);
            }
            // SAFETY: as above.
            let out = unsafe { values.slice_mut(head * Self::EACH[1], Self::EACH[1]) };
            for value in 0..VALUE {
                let tile = &mut out[value / TILE * F::tile_bytes(LATENT)..][..F::tile_bytes(LATENT)];
                let row = rows.row(first + KEY + value, windows)?.expect("the stack has this row");
                F::pack(row, value % TILE, tile);
            }
            Ok(())
        })?;
        loader.progress.advance((HEADS * (KEY + VALUE) * rows.row_bytes) as u64);
        Ok([keys, values])
    }

    /// All tiles of a head's transposed key matrix.
    #[inline(always)]
    pub(in super::super) fn keys(&self, head: usize) -> &[u8] {
        self.keys.slice(head * Self::EACH[0], Self::EACH[0])
    }

    /// All tiles of a head's value matrix.
    #[inline(always)]
    pub(in super::super) fn values(&self, head: usize) -> &[u8] {
        self.values.slice(head * Self::EACH[1], Self::EACH[1])
    }
}
