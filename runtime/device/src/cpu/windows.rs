//! The order of attention in a step with blocks on disk: stretch by stretch, as blocks are staged.

use super::shape::{BatchLimits, SEGMENT, Sequence};
use std::ops::Range;

/// Consecutive segments of one sequence's keys to attend to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Index in the batch.
    pub(crate) sequence: usize,
    /// May extend past the sequence's last segment.
    pub(crate) segments: Range<usize>,
}

/// Blocks on disk that are staged together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// A range of the step's blocks on disk.
    pub(crate) offloaded: Range<usize>,
    stretches: Range<usize>,
}

/// The windows of a batch.
#[derive(Debug, Default)]
pub(super) struct Windows {
    windows: Vec<Window>,
    /// The stretches of a batch without windows: one per sequence, with all segments.
    whole: Vec<Stretch>,
    stretches: Vec<Stretch>,
}

impl Windows {
    /// Splits the segments of these sequences into windows of at most `most` blocks on disk, in whole groups
    /// of `group`; with 0, there are no windows. A sequence's segments stay in order. A group that two
    /// segments share is staged twice if a window ends between them.
    pub(super) fn fill(
        &mut self,
        sequences: &[Sequence],
        blocks: &[u32],
        limits: &BatchLimits,
        most: usize,
        group: usize,
    ) {
        self.windows.clear();
        self.stretches.clear();
        self.whole.clear();
        self.whole.extend((0..sequences.len()).map(|sequence| Stretch { sequence, segments: 0..usize::MAX }));
        if most == 0 {
            return;
        }
        let mut offloaded = 0..0;
        let mut first = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let tokens = sequence.position + sequence.rows.len();
            let table = &blocks[sequence.blocks.clone()];
            let mut start = 0;
            for segment in 0..tokens.div_ceil(SEGMENT) {
                let from = segment * SEGMENT / limits.block_tokens;
                let to = ((segment + 1) * SEGMENT).min(tokens).div_ceil(limits.block_tokens);
                let mut needed =
                    table[from..to].iter().filter_map(|id| (*id as usize).checked_sub(limits.blocks));
                let Some(least) = needed.next() else { continue };
                let end = (needed.next_back().unwrap_or(least) + 1).next_multiple_of(group);
                let least = least / group * group;
                assert!(end - least <= most, "a window holds a segment");
                if offloaded.is_empty() {
                    offloaded = least..least;
                }
                if end - offloaded.start > most {
                    if segment > start {
                        self.stretches.push(Stretch { sequence: index, segments: start..segment });
                    }
                    self.windows.push(Window { offloaded, stretches: first..self.stretches.len() });
                    (offloaded, first, start) = (least..least, self.stretches.len(), segment);
                }
                offloaded.end = end;
            }
            self.stretches.push(Stretch { sequence: index, segments: start..usize::MAX });
        }
        self.windows.push(Window { offloaded, stretches: first..self.stretches.len() });
    }

    pub(super) fn windows(&self) -> &[Window] {
        &self.windows
    }

    pub(super) fn stretches(&self, window: Option<&Window>) -> &[Stretch] {
        window.map_or(&self.whole, |window| &self.stretches[window.stretches.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence with `tokens` tokens in the cache and one to feed, and its blocks that are on disk.
    fn sequence(
        tokens: usize,
        offloaded: Range<usize>,
        first: &mut u32,
        table: &mut Vec<u32>,
        row: usize,
    ) -> Sequence {
        let start = table.len();
        for block in 0..(tokens + 1).div_ceil(16) {
            let there = offloaded.contains(&block);
            table.push(if there { 1000 + *first } else { block as u32 });
            *first += u32::from(there);
        }
        let blocks = start..table.len();
        let (rows, sliding, outputs) = (row..row + 1, 0..0, 0..0);
        Sequence { slot: 0, rows, position: tokens, drafts: 0, blocks, sliding, sliding_first: 0, outputs }
    }

    #[test]
    fn every_segment_is_attended_to_once_in_order_and_with_its_blocks() {
        let limits = BatchLimits {
            tokens: 8,
            sequences: 8,
            vocabulary: 1,
            context: 10_000,
            block_tokens: 16,
            blocks: 1000,
        };
        for (group, most) in [(1, 8), (1, 9), (1, 20), (8, 16), (16, 32), (8, 64), (3, 10_002)] {
            let (mut table, mut first) = (Vec::new(), 0);
            let shapes = [(1000, 3..40), (50, 0..0), (700, 0..43), (129, 0..8), (5, 0..0), (2000, 17..100)];
            let sequences: Vec<Sequence> = shapes
                .into_iter()
                .enumerate()
                .map(|(row, (tokens, offloaded))| sequence(tokens, offloaded, &mut first, &mut table, row))
                .collect();
            let mut windows = Windows::default();
            windows.fill(&sequences, &table, &limits, most, group);
            let mut next = vec![0; sequences.len()];
            for window in windows.windows() {
                assert!(
                    window.offloaded.len() <= most && window.offloaded.start.is_multiple_of(group),
                    "{window:?}"
                );
                for Stretch { sequence, segments } in windows.stretches(Some(window)) {
                    assert_eq!(segments.start, next[*sequence], "{window:?}");
                    let (it, all) =
                        (&sequences[*sequence], (sequences[*sequence].position + 1).div_ceil(SEGMENT));
                    next[*sequence] = segments.end.min(all);
                    let blocks =
                        segments.start * SEGMENT / 16..(next[*sequence] * SEGMENT / 16).min(it.blocks.len());
                    for id in &table[it.blocks.clone()][blocks] {
                        assert!(
                            *id < 1000 || window.offloaded.contains(&(*id as usize - 1000)),
                            "{id} in {window:?}"
                        );
                    }
                }
            }
            let all: Vec<usize> = sequences.iter().map(|it| (it.position + 1).div_ceil(SEGMENT)).collect();
            assert_eq!(next, all);
            assert_eq!(windows.windows().len() == 1, most > 10_000);
        }
    }
}
