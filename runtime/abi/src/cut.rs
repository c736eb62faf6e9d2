//! Which rows or columns of a tensor a rank of several holds. The compiler plans with it, and a loader takes
//! that part of the checkpoint's tensor.
//!
//! A tensor's rows are *segments*, one after another (q, k and v of a convolution, say), each of so many
//! units (heads) of so many rows. A rank holds its share of the units of every segment, side by side.

/// Equal units that are shared out to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of units.
    pub units: usize,
    /// Rows, or columns, of a unit.
    pub unit: usize,
}

impl Segment {
    /// Whether `ranks` ranks can share it: each has as many units as any other, or each unit is held by as
    /// many ranks as any other.
    pub const fn divides(&self, ranks: usize) -> bool {
        self.units > 0 && (self.units.is_multiple_of(ranks) || ranks.is_multiple_of(self.units))
    }

    /// Units of a rank.
    pub const fn share(&self, ranks: usize) -> usize {
        self.units.div_ceil(ranks)
    }

    /// The first unit of a rank.
    pub const fn first(&self, rank: usize, ranks: usize) -> usize {
        rank * self.units / ranks
    }

    /// Rows of a rank.
    pub const fn held(&self, ranks: usize) -> usize {
        self.share(ranks) * self.unit
    }

    /// Rows of all units.
    pub const fn whole(&self) -> usize {
        self.units * self.unit
    }
}

/// Rows that each rank holds.
pub fn held(segments: &[Segment], ranks: usize) -> usize {
    segments.iter().map(|it| it.held(ranks)).sum()
}

/// Rows of all segments.
pub fn whole(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::whole).sum()
}

/// The row of the whole tensor that is row `row` of a rank.
///
/// # Panics
/// When the rank has no such row.
pub fn whole_row(segments: &[Segment], rank: usize, ranks: usize, mut row: usize) -> usize {
    let mut before = 0;
    for segment in segments {
        if row < segment.held(ranks) {
            return before + segment.first(rank, ranks) * segment.unit + row;
        }
        row -= segment.held(ranks);
        before += segment.whole();
    }
    panic!("a rank holds {} rows fewer", row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(segments: &[Segment], rank: usize, ranks: usize) -> Vec<usize> {
        (0..held(segments, ranks)).map(|row| whole_row(segments, rank, ranks, row)).collect()
    }

    #[test]
    fn each_rank_holds_its_share_of_every_segment() {
        let qk = [Segment { units: 4, unit: 2 }, Segment { units: 2, unit: 3 }];
        assert_eq!(whole(&qk), 14);
        assert_eq!(rows(&qk, 0, 2), [0, 1, 2, 3, 8, 9, 10]);
        assert_eq!(rows(&qk, 1, 2), [4, 5, 6, 7, 11, 12, 13]);
    }

    #[test]
    fn fewer_units_than_ranks_are_held_by_several() {
        let kv = [Segment { units: 2, unit: 2 }];
        let held: Vec<_> = (0..4).map(|rank| rows(&kv, rank, 4)).collect();
        assert_eq!(held, [[0, 1], [0, 1], [2, 3], [2, 3]]);
    }

    #[test]
    fn ranks_hold_all_rows_between_them() {
        for units in 1..=16 {
            for ranks in 1..=8 {
                let segment = Segment { units, unit: 3 };
                if !segment.divides(ranks) {
                    continue;
                }
                let mut all: Vec<usize> = (0..ranks).flat_map(|rank| rows(&[segment], rank, ranks)).collect();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all, (0..segment.whole()).collect::<Vec<_>>(), "{units} units on {ranks} ranks");
            }
        }
        assert!(!Segment { units: 3, unit: 1 }.divides(2));
        assert!(!Segment { units: 6, unit: 1 }.divides(4));
    }
}
