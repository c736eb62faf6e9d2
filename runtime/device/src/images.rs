//! Images among the tokens of a step.

use monomorph_model::{Positions, SequenceImages, VisionSpec};
use std::ops::Range;

/// No row of an image.
const NONE: u32 = u32::MAX;

/// Which tokens of a step take rows of images, and the positions that rotary embeddings turn them by.
#[derive(Debug)]
pub struct StepImages {
    vision: VisionSpec,
    /// By token of the step: the row that is kept for it, or [`NONE`].
    rows: Vec<u32>,
    /// By token: time, height and width.
    positions: Vec<[u32; 3]>,
    /// By token: the index of the last one of its image, or its own.
    ends: Vec<u32>,
}

impl StepImages {
    /// For steps of a stack with this tower.
    pub(crate) fn new(vision: VisionSpec) -> StepImages {
        StepImages { vision, rows: Vec::new(), positions: Vec::new(), ends: Vec::new() }
    }

    /// Takes a step, or a part of one: the images of its sequences, or none of any; the rows of it that each
    /// has; and the indices of its tokens.
    ///
    /// # Panics
    /// When the step breaks the limits: images of some sequences only, spans out of order or beyond the
    /// tokens fed or the rows of a slot, positions that are not one a token or below 0, or other than the
    /// indices where the model has one axis.
    pub(crate) fn fill<'a>(
        &mut self,
        images: impl ExactSizeIterator<Item = &'a SequenceImages>,
        sequences: impl ExactSizeIterator<Item = Range<usize>>,
        indices: &[u32],
    ) {
        let (given, count) = (images.len(), sequences.len());
        assert!(given == 0 || given == count, "a step of {count} sequences with images of {given}");
        self.rows.clear();
        self.rows.resize(indices.len(), NONE);
        self.positions.clear();
        self.positions.extend(indices.iter().map(|index| [*index; 3]));
        self.ends.clear();
        self.ends.extend_from_slice(indices);
        for (images, rows) in images.zip(sequences) {
            self.take(images, rows);
        }
    }

    /// Takes the images of a sequence whose tokens are these rows of the step.
    fn take(&mut self, images: &SequenceImages, of: Range<usize>) {
        let (rows, ends) = (&mut self.rows[of.clone()], &mut self.ends[of.clone()]);
        let positions = &mut self.positions[of];
        let (most, slots) = (self.vision.most_tokens(), self.vision.slots);
        let mut behind = 0;
        for span in &images.spans {
            let end = span.at.checked_add(span.count).filter(|end| span.at >= behind && *end <= rows.len());
            let last = span.first.checked_add(span.count).filter(|last| *last <= most);
            let slot = span.slot.0 as usize;
            let (Some(end), Some(_), true) = (end, last, slot < slots) else {
                panic!(
                    "{span:?} behind {behind} of {} tokens, and {slots} slots have {most} rows each",
                    rows.len()
                );
            };
            let first = slot * (1 + self.vision.taps) * most + span.first;
            rows[span.at..end].iter_mut().zip(first..).for_each(|(row, at)| *row = at as u32);
            if span.count > 0 {
                let last = ends[end - 1];
                ends[span.at..end].fill(last);
            }
            behind = end;
        }
        if images.positions != Positions::Index {
            assert!(self.vision.grid_positions, "positions of three axes, and the model has but one");
        }
        match &images.positions {
            Positions::Index => {}
            Positions::Shifted(by) => {
                for position in positions.iter_mut().flatten() {
                    let shifted = position.checked_add_signed(*by);
                    *position = shifted.unwrap_or_else(|| panic!("position {position} shifted by {by}"));
                }
            }
            Positions::Grid(axes) => {
                let (given, fed) = (axes.len(), positions.len());
                assert!(given == fed, "{given} positions of {fed} tokens");
                positions.copy_from_slice(axes);
            }
        }
    }

    /// The row that is kept for a token, or of a tap for it.
    #[inline(always)]
    pub(crate) fn row(&self, token: usize, tap: Option<usize>) -> Option<usize> {
        let row = self.rows[token];
        let behind = tap.map_or(0, |tap| (1 + tap) * self.vision.most_tokens());
        (row != NONE).then_some(row as usize + behind)
    }

    /// Time, height and width of a token.
    #[inline(always)]
    pub(crate) fn position(&self, token: usize) -> [u32; 3] {
        self.positions[token]
    }

    /// By token: the last index that it attends to where images see all of themselves.
    #[inline(always)]
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Rows that are kept.
    #[cfg(feature = "cpu")]
    pub(crate) fn kept(&self) -> usize {
        self.vision.slots * (1 + self.vision.taps) * self.vision.most_tokens()
    }

    /// Taps, whose rows follow an image's own.
    #[cfg(feature = "cpu")]
    pub(crate) fn taps(&self) -> usize {
        self.vision.taps
    }
}
