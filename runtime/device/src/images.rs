//! Images among the tokens of a step.

use monomorph_model::{ImageSpan, Positions, SequenceImages, VisionSpec};
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
    /// By sequence: the row that is kept for the token that follows those fed, or [`NONE`].
    following: Vec<u32>,
}

impl StepImages {
    /// For steps of a stack with this tower.
    pub(crate) fn new(vision: VisionSpec) -> StepImages {
        let (rows, positions, ends, following) = Default::default();
        StepImages { vision, rows, positions, ends, following }
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
        self.following.clear();
        for (images, rows) in images.zip(sequences) {
            self.take(images, rows);
        }
        self.following.resize(count, NONE);
    }

    /// The row that is kept for the first token of a span, which lies behind `behind` of `tokens`.
    fn kept_for(&self, span: &ImageSpan, behind: usize, tokens: usize) -> u32 {
        let (most, slots) = (self.vision.most_tokens(), self.vision.slots);
        let end = span.at.checked_add(span.count).filter(|end| span.at >= behind && *end <= tokens);
        let last = span.first.checked_add(span.count).filter(|last| *last <= most);
        let slot = span.slot.0 as usize;
        assert!(
            end.is_some() && last.is_some() && slot < slots,
            "{span:?} behind {behind} of {tokens} tokens, and {slots} slots have {most} rows each"
        );
        (slot * (1 + self.vision.taps) * most + span.first) as u32
    }

    /// Takes the images of a sequence whose tokens are these rows of the step.
    fn take(&mut self, images: &SequenceImages, of: Range<usize>) {
        let mut behind = 0;
        for span in &images.spans {
            let (first, end) = (self.kept_for(span, behind, of.len()), span.at + span.count);
            let here = of.start + span.at..of.start + end;
            self.rows[here.clone()].iter_mut().zip(first..).for_each(|(row, at)| *row = at);
            if span.count > 0 {
                let last = self.ends[here.end - 1];
                self.ends[here].fill(last);
            }
            behind = end;
        }
        let following = images.following.map(|span| self.kept_for(&span, of.len(), of.len() + 1));
        self.following.push(following.unwrap_or(NONE));
        let positions = &mut self.positions[of];
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

    /// The row that is kept for the token that follows those of a sequence.
    pub(crate) fn following(&self, sequence: usize) -> Option<usize> {
        let row = self.following[sequence];
        (row != NONE).then_some(row as usize)
    }

    /// Those of steps of the same stack, none of which has been taken.
    #[cfg(feature = "cpu")]
    pub(crate) fn none(&self) -> StepImages {
        StepImages::new(self.vision)
    }

    /// Begins a step whose tokens are [pushed](Self::push).
    #[cfg(feature = "cpu")]
    pub(crate) fn begin(&mut self) {
        self.rows.clear();
        self.positions.clear();
        self.ends.clear();
        self.following.clear();
    }

    /// Adds the token at an index: the row that is kept for it, and what it is turned by.
    #[cfg(feature = "cpu")]
    pub(crate) fn push(&mut self, index: u32, row: Option<usize>, position: [u32; 3]) {
        self.rows.push(row.map_or(NONE, |row| row as u32));
        self.positions.push(position);
        self.ends.push(index);
    }

    /// What is turned by that stands at `index` behind a token at `last`: text counts on from the largest
    /// axis, in all three.
    #[cfg(feature = "cpu")]
    pub(crate) fn behind(&self, token: usize, last: u32, index: u32) -> u32 {
        let largest = self.positions[token].into_iter().max().unwrap_or_default();
        largest + (index - last)
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
