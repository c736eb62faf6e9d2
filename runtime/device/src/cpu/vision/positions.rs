//! Tables of positions, by the places of patches.

use super::super::format::WeightFormat;
use super::super::loader::Matrix;
use super::super::rows::Rows;
use super::super::simd::TILE;
use super::super::team::Lane;
use super::rows::Patches;

/// Adds to each patch's row of `x` the entries for its column and for its row: `table` has `ENTRIES` for
/// columns, then as many for rows, `ALL` together.
///
/// # Panics
/// When an image has more patches of a side than that.
pub fn patch_axes<F: WeightFormat, const ENTRIES: usize, const ALL: usize, const N: usize>(
    lane: &Lane,
    patches: &Patches,
    table: &Matrix<F, ALL, N>,
    x: &Rows<N>,
) {
    const { assert!(ALL == 2 * ENTRIES, "a table of two axes") };
    let [rows, columns] = patches.sides();
    assert!(rows.max(columns) <= ENTRIES, "a table of {ENTRIES} entries an axis");
    for patch in lane.share(patches.count()) {
        let [row, column] = patches.place(patch);
        // SAFETY: the shares of the lanes are disjoint.
        add(table, [(column, 1.0), (ENTRIES + row, 1.0)], unsafe { x.padded_mut(patch) });
    }
    lane.barrier();
}

/// Adds to each patch's row of `x` what is interpolated between four entries of `table`, a square of `SIDE`
/// a side, `ALL` together: corners of an image lie on corners of the square.
pub fn patch_square<F: WeightFormat, const SIDE: usize, const ALL: usize, const N: usize>(
    lane: &Lane,
    patches: &Patches,
    table: &Matrix<F, ALL, N>,
    x: &Rows<N>,
) {
    const { assert!(SIDE > 0 && ALL == SIDE * SIDE, "a square table") };
    let [rows, columns] = patches.sides();
    // The entries on both sides of a place, and their weights.
    let between = |at: usize, of: usize| {
        let place = (at * (SIDE - 1)) as f64 / (of - 1).max(1) as f64;
        let (low, part) = (place as usize, place.fract() as f32);
        [(low, 1.0 - part), ((low + 1).min(SIDE - 1), part)]
    };
    for patch in lane.share(patches.count()) {
        let [row, column] = patches.place(patch);
        let [[above, below], [left, right]] = [between(row, rows), between(column, columns)];
        let entry = |(row, by_row): (usize, f32), (column, by_column): (usize, f32)| {
            (row * SIDE + column, by_row * by_column)
        };
        let four = [entry(above, left), entry(above, right), entry(below, left), entry(below, right)];
        // SAFETY: the shares of the lanes are disjoint.
        add(table, four, unsafe { x.padded_mut(patch) });
    }
    lane.barrier();
}

/// Adds the weighted sum of some entries of `table` to a row.
#[inline(always)]
fn add<F: WeightFormat, const ALL: usize, const N: usize, const PARTS: usize>(
    table: &Matrix<F, ALL, N>,
    parts: [(usize, f32); PARTS],
    row: &mut [f32],
) {
    let (mut sum, mut entry) = ([0.0; N], [0.0; N]);
    for (at, weight) in parts {
        F::unpack(table.tile(at / TILE), at % TILE, &mut entry);
        sum.iter_mut().zip(&entry).for_each(|(sum, x)| *sum += weight * x);
    }
    row.iter_mut().zip(&sum).for_each(|(x, sum)| *x += sum);
}
