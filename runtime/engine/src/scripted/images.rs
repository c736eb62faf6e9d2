//! Images of a scripted model: what it keeps of each is a hash of its pixels, and what a position of its
//! memory holds of a token tells the image, the row and the position by which the token is turned.
//!
//! So a model whose context is read from that memory answers otherwise where a row is of another image, or of
//! another place in it, or where a position is wrong.

use super::mix;
use monomorph_model::{
    Drafter, FeatureSlot, ImageSpan, ModelSpec, Patches, Positions, SequenceImages, SequenceStep, Shown,
    VisionSpec,
};
use std::collections::HashSet;
use std::ops::Range;

/// Bits of a cell that are the token's id.
const ID_BITS: u32 = 16;

/// What a model with images keeps of a token: its id, and above that what it is told beside: nothing of text
/// whose position is its index.
fn cell(id: u32, mark: u32) -> u32 {
    assert!(id >> ID_BITS == 0 && mark >> ID_BITS == 0, "token {id} with mark {mark}");
    mark << ID_BITS | id
}

/// The cell of a token of text behind another, as far as that tells it: behind a row of an image its index is
/// its position.
pub(super) fn behind(before: u32, id: u32) -> u32 {
    let mark = before >> ID_BITS;
    cell(id, if mark & 0x8000 == 0 { mark } else { 0 })
}

/// The id that a cell has.
pub fn id_of(cell: u32) -> u32 {
    cell & ((1 << ID_BITS) - 1)
}

/// The cell of a token of text that is turned by its index and so much more.
pub fn shifted(id: u32, shift: i32) -> u32 {
    cell(id, shift as u32 & 0x7FFF)
}

/// The cell of the token at `index` that takes this row of an image with these pixels, turned by `position`.
pub fn of_row(id: u32, index: usize, pixels: &[f32], row: usize, position: [u32; 3]) -> u32 {
    of_hash(id, index, hash(pixels), row, position)
}

fn of_hash(id: u32, index: usize, pixels: u64, row: usize, position: [u32; 3]) -> u32 {
    let turned = position.map(|axis| u64::from(axis).wrapping_sub(index as u64));
    let hash = turned.into_iter().fold(mix(pixels, row as u64), mix);
    cell(id, 0x8000 | (hash >> 40) as u32 & 0x7FFF)
}

fn hash(pixels: &[f32]) -> u64 {
    pixels.iter().fold(0x5EE, |hash, pixel| mix(hash, u64::from(pixel.to_bits())))
}

/// The places of images: of each a hash of its pixels, and how many rows it has.
#[derive(Debug)]
pub(super) struct Images {
    vision: VisionSpec,
    /// Whether it has a draft head.
    looks_ahead: bool,
    slots: Vec<Option<(u64, usize)>>,
    /// The pixels of an image that is seen in part, its slot, and the layer that comes next.
    under_way: Option<(u64, FeatureSlot, usize)>,
}

impl Images {
    pub fn new(spec: &ModelSpec, vision: VisionSpec) -> Images {
        let looks_ahead = spec.draft.is_some_and(|draft| draft.drafter == Drafter::Head);
        Images { vision, looks_ahead, slots: vec![None; vision.slots], under_way: None }
    }

    /// Sees layers of images: those of others may come between only if they begin anew.
    pub fn see(&mut self, images: &[Shown], layers: Range<usize>) {
        let VisionSpec { merge, values, .. } = self.vision;
        let all = images.iter().map(|image| image.patches.grid.patches()).sum();
        assert!(self.vision.takes(images.len(), all), "{} images of {all} patches", images.len());
        assert_eq!(layers, self.vision.part(all, layers.start), "layers of {all} patches");
        let last = layers.end == self.vision.layers;
        let before = self.under_way.take();
        for Shown { patches: Patches { pixels, grid }, slot } in images {
            let (patches, count) = (grid.patches(), pixels.len());
            assert_eq!(count, patches * values, "{count} numbers of {patches} patches");
            let shown = (hash(pixels), *slot, layers.start);
            if layers.start > 0 {
                assert_eq!(before, Some(shown), "layers that go on with an image");
            }
            self.under_way = (!last).then_some((shown.0, *slot, layers.end));
            self.slots[slot.0 as usize] = last.then_some((shown.0, patches / (merge * merge)));
        }
        let slots: HashSet<FeatureSlot> = images.iter().map(|image| image.slot).collect();
        assert_eq!(slots.len(), images.len(), "slots of {} images", images.len());
    }

    /// The cells of the tokens `ids` that a row feeds.
    pub fn cells(&self, row: &SequenceStep, ids: &[u32], images: Option<&SequenceImages>) -> Vec<u32> {
        let default = SequenceImages::default();
        let SequenceImages { spans, positions, following } = images.unwrap_or(&default);
        let slot = row.slot;
        let turned = |at: usize| {
            let index = row.position + at;
            match positions {
                Positions::Index => [index as u32; 3],
                Positions::Shifted(by) => [(index as i64 + i64::from(*by)) as u32; 3],
                Positions::Grid(axes) => axes[at],
            }
        };
        match positions {
            Positions::Index => {}
            Positions::Shifted(_) => assert!(self.vision.grid_positions, "{slot:?} is turned by one axis"),
            Positions::Grid(axes) => {
                assert!(self.vision.grid_positions, "{slot:?} is turned by one axis");
                assert_eq!(axes.len(), ids.len(), "positions of the tokens that {slot:?} is fed");
            }
        }
        let text = |at: usize, id: u32| {
            let [time, height, width] = turned(at);
            assert!(time == height && time == width, "{slot:?} turns text by {:?}", turned(at));
            shifted(id, (i64::from(time) - (row.position + at) as i64) as i32)
        };
        let (mut cells, mut behind) = (Vec::with_capacity(ids.len()), 0);
        for span in spans {
            assert!(span.at >= behind && span.count > 0, "{slot:?} has {span:?} behind {behind}");
            behind = span.at + span.count;
            let Some((pixels, rows)) = self.slots[span.slot.0 as usize] else {
                panic!("{slot:?} has {span:?} of an image that was not seen");
            };
            assert!(span.first + span.count <= rows, "{slot:?} has {span:?} of {rows} rows");
            if self.vision.whole_spans {
                let (begins, ends) = (span.first == 0, span.first + span.count == rows);
                assert!(ends, "{slot:?} is fed a part of an image: {span:?} of {rows} rows");
                assert!(begins || (row.begins && span.at == 0), "{slot:?} goes on within an image: {span:?}");
            }
            cells.extend((cells.len()..span.at).map(|at| text(at, ids[at])));
            cells.extend((0..span.count).map(|row_of| {
                let at = span.at + row_of;
                assert_eq!(ids[at], self.vision.tokens.image, "{slot:?} has a row in place of text");
                of_hash(ids[at], row.position + at, pixels, span.first + row_of, turned(at))
            }));
        }
        cells.extend((cells.len()..ids.len()).map(|at| text(at, ids[at])));
        self.check_following(row, ids.len(), spans.last(), following.as_ref());
        cells
    }

    /// Checks the row of the token that follows those fed: the one behind the last of these in its image, or
    /// the first of an image. It is there for a draft head.
    fn check_following(
        &self,
        row: &SequenceStep,
        fed: usize,
        last: Option<&ImageSpan>,
        following: Option<&ImageSpan>,
    ) {
        let is_row = row.following == Some(self.vision.tokens.image);
        let rows = |span: &ImageSpan| self.slots[span.slot.0 as usize].map_or(0, |(_, rows)| rows);
        let last = last.filter(|span| span.at + span.count == fed);
        let before = last.filter(|span| span.first + span.count < rows(span));
        let Some(next) = following else {
            // Between two images that are adjacent there may be none.
            let due = self.looks_ahead && is_row && (last.is_none() || before.is_some());
            assert!(!due, "no row follows {last:?} of {fed} tokens");
            return;
        };
        let first = match before {
            Some(span) => span.first + span.count,
            // Behind the end of a row of an image its next row begins.
            None if self.vision.tokens.row_end.is_some() => next.first,
            None => 0,
        };
        let slot = before.map_or(next.slot, |span| span.slot);
        let expected = ImageSpan { at: fed, count: 1, slot, first };
        assert!(is_row && *next == expected, "{next:?} follows {last:?} of {fed} tokens");
        assert!(next.first < rows(next), "{next:?} of {} rows", rows(next));
    }
}
