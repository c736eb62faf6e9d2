//! The images of a sequence: where they stand, which have their rows on the device, and what a step is told
//! of them.

use crate::images::{PromptImage, PromptImages};
use crate::scheduler::WholeSpan;
use monomorph_cache::{FeaturePlace, PlacedImage};
use monomorph_model::{FeatureSlot, ImageSpan, Positions, SequenceImages, VisionSpec};
use std::ops::Range;

/// Images, and the places of those that the sequence uses.
#[derive(Debug, Default)]
pub(crate) struct Images {
    given: PromptImages,
    /// As the cache knows them.
    placed: Vec<PlacedImage>,
    /// By image, while the sequence uses its rows.
    places: Vec<Option<FeaturePlace>>,
    /// Whether one that its next step may feed is to be seen first.
    comes: bool,
    /// Of the model; `None` of a prompt without images.
    vision: Option<VisionSpec>,
    /// Whether the model has a draft head, which takes the row of the token that follows those fed.
    looks_ahead: bool,
}

impl Images {
    /// Those of a prompt, which were checked.
    pub fn new(given: PromptImages, vision: Option<VisionSpec>, looks_ahead: bool) -> Images {
        let placed = |image: &PromptImage| {
            let PromptImage { digest, start, tokens, .. } = *image;
            PlacedImage { digest, start, end: start + tokens }
        };
        let placed: Vec<PlacedImage> = given.images.iter().map(placed).collect();
        let vision = vision.filter(|_| !placed.is_empty());
        Images { places: vec![None; placed.len()], placed, comes: false, vision, looks_ahead, given }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// As the cache knows them.
    pub fn placed(&self) -> &[PlacedImage] {
        &self.placed
    }

    /// An image, as the tower takes it.
    pub fn get(&self, at: usize) -> &PromptImage {
        &self.given.images[at]
    }

    /// The first image without a place of those that have tokens among these.
    pub fn missing(&self, tokens: Range<usize>) -> Option<usize> {
        let mut all = self.placed.iter().zip(&self.places);
        all.position(|(image, place)| place.is_none() && has_some_of(image, &tokens))
    }

    /// Whether an image with tokens among these has its rows at a place.
    pub fn reads(&self, tokens: Range<usize>, place: FeaturePlace) -> bool {
        let mut all = self.placed.iter().zip(&self.places);
        all.any(|(image, at)| *at == Some(place) && has_some_of(image, &tokens))
    }

    /// Says whether an image that its next step may feed will be seen before that step.
    pub fn expect(&mut self, comes: bool) {
        self.comes = comes;
    }

    /// Whether such an image will be.
    pub fn comes(&self) -> bool {
        self.comes
    }

    /// Uses an image's rows at a place.
    pub fn place(&mut self, at: usize, place: FeaturePlace) {
        self.places[at] = Some(place);
    }

    /// The places that the sequence uses.
    #[cfg(test)]
    pub fn used(&self) -> impl Iterator<Item = FeaturePlace> {
        self.places.iter().flatten().copied()
    }

    /// How far a sequence with `fed` tokens in the cache can be fed: to the first image without a place, or
    /// to the token before it that a draft head pairs with its first row. Not where that token is another
    /// image's, whose place would be kept meanwhile.
    pub fn reach(&self, fed: usize) -> usize {
        let Some(at) = self.missing(fed..usize::MAX) else { return usize::MAX };
        let (start, before) = (self.placed[at].start, at.checked_sub(1));
        let behind_text = before.map_or(0, |before| self.placed[before].end) < start;
        let held_back = usize::from(self.looks_ahead && behind_text);
        (start - held_back).max(fed)
    }

    /// Ends the uses of images that lie before `fed`, and returns their places; of all images with
    /// `usize::MAX`.
    pub fn release(&mut self, fed: usize) -> impl Iterator<Item = FeaturePlace> {
        let passed = self.placed.iter().zip(&mut self.places).filter(move |(image, _)| image.end <= fed);
        passed.filter_map(|(_, place)| place.take())
    }

    /// The images that no step may end within.
    pub fn whole(&self) -> impl Iterator<Item = WholeSpan> {
        let whole = self.vision.is_some_and(|vision| vision.whole_spans);
        let spans = self.placed.iter().map(|image| WholeSpan { start: image.start, end: image.end });
        spans.filter(move |_| whole)
    }

    /// A position that a prompt may be fed up to: this one, or the end of the image that it lies within.
    pub fn behind(&self, position: usize) -> usize {
        let within = self.whole().find(|span| span.start < position && position < span.end);
        within.map_or(position, |span| span.end)
    }

    /// What a step is told that feeds the tokens of this range; `tokens` are those of the sequence.
    pub fn of_step(&self, range: Range<usize>, tokens: &[u32]) -> SequenceImages {
        let Some(vision) = &self.vision else { return SequenceImages::default() };
        let mut spans = Vec::new();
        for (image, place) in self.placed.iter().zip(&self.places) {
            let here = range.start.max(image.start)..range.end.min(image.end);
            if here.is_empty() {
                continue;
            }
            let slot = FeatureSlot(place.expect("an image has a place while it is fed").0);
            let is_row = |id: &u32| *id == vision.tokens.image;
            let mut row = tokens[image.start..here.start].iter().filter(|id| is_row(id)).count();
            let mut at = here.start;
            for run in tokens[here].chunk_by(|a, b| is_row(a) == is_row(b)) {
                if is_row(&run[0]) {
                    spans.push(ImageSpan { at: at - range.start, count: run.len(), slot, first: row });
                    row += run.len();
                }
                at += run.len();
            }
        }
        let following = self.following(range.end, tokens).map(|span| ImageSpan { at: range.len(), ..span });
        SequenceImages { spans, positions: self.positions(range), following }
    }

    /// The row that the token at `index` takes, if it takes one and the image has its place.
    fn following(&self, index: usize, tokens: &[u32]) -> Option<ImageSpan> {
        let image_id = self.vision?.tokens.image;
        let mut all = self.placed.iter().zip(&self.places);
        let (image, place) = all.find(|(image, _)| (image.start..image.end).contains(&index))?;
        let slot = FeatureSlot((*place)?.0);
        let first = tokens[image.start..index].iter().filter(|id| **id == image_id).count();
        (tokens[index] == image_id).then_some(ImageSpan { at: 0, count: 1, slot, first })
    }

    /// By what the tokens of a range are turned: one shift where all have the same.
    fn positions(&self, range: Range<usize>) -> Positions {
        if self.given.positions.is_empty() {
            return Positions::Index;
        }
        let shift = |index: usize| match self.given.positions.get(index) {
            None => Some(self.given.shift),
            Some([time, height, width]) if time == height && time == width => {
                i32::try_from(i64::from(*time) - index as i64).ok()
            }
            Some(_) => None,
        };
        match shift(range.start) {
            Some(first) if range.clone().all(|index| shift(index) == Some(first)) => match first {
                0 => Positions::Index,
                shift => Positions::Shifted(shift),
            },
            _ => Positions::Grid(range.map(|index| self.position(index)).collect()),
        }
    }

    fn position(&self, index: usize) -> [u32; 3] {
        let behind = |index: usize| (index as i64 + i64::from(self.given.shift)) as u32;
        self.given.positions.get(index).copied().unwrap_or_else(|| [behind(index); 3])
    }
}

/// Whether an image has some of these tokens.
fn has_some_of(image: &PlacedImage, tokens: &Range<usize>) -> bool {
    image.start < tokens.end && tokens.start < image.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_cache::ImageDigest;
    use monomorph_model::{Grid, ImageTokens, VisionFamily};

    /// `a b <start> I*6 <end> c` of the reference, then an image of one row that ends rows, twice.
    const TOKENS: [u32; 18] = [1, 2, 3, 9, 9, 9, 9, 9, 9, 4, 5, 9, 9, 8, 9, 9, 8, 6];
    const AXES: [[u32; 3]; 11] = [
        [0, 0, 0],
        [1, 1, 1],
        [2, 2, 2],
        [3, 3, 3],
        [3, 3, 4],
        [3, 3, 5],
        [3, 4, 3],
        [3, 4, 4],
        [3, 4, 5],
        [6, 6, 6],
        [7, 7, 7],
    ];

    fn images(whole_spans: bool) -> Images {
        let image = |digest, start, tokens| PromptImage {
            digest: ImageDigest([digest; 32]),
            start,
            tokens,
            grid: Grid { frames: 1, rows: 1, columns: 1 },
            pixels: Vec::new().into(),
        };
        let mut positions = AXES.to_vec();
        // Behind the first image everything is three less.
        positions.extend((11..18).map(|index| [index - 3; 3]));
        let images = vec![image(1, 3, 6), image(2, 11, 6)];
        let given = PromptImages { images, positions, shift: -3, room: None };
        let tokens = ImageTokens { image: 9, start: None, end: None, row_end: Some(8) };
        let vision = VisionSpec {
            family: VisionFamily::Qwen,
            patch: 1,
            frames: 1,
            merge: 1,
            values: 1,
            taps: 0,
            grid_positions: true,
            whole_spans,
            tokens,
            most_patches: 8,
            pass_images: 1,
            layers: 2,
            step_patches: 64,
            slots: 2,
        };
        Images::new(given, Some(vision), false)
    }

    #[test]
    fn a_step_takes_the_rows_of_its_tokens_wherever_it_begins() {
        let mut images = images(false);
        images.place(0, FeaturePlace(1));
        images.place(1, FeaturePlace(0));
        let whole: Vec<_> = images.of_step(0..18, &TOKENS).spans;
        // Each token's slot and row, which are the same in any pieces.
        let rows = |spans: &[ImageSpan], from: usize| -> Vec<(usize, u32, usize)> {
            let rows = spans.iter().flat_map(|span| {
                (0..span.count).map(move |at| (from + span.at + at, span.slot.0, span.first + at))
            });
            rows.collect()
        };
        let expected: Vec<_> = (0..6)
            .map(|row| (3 + row, 1, row))
            .chain([(11, 0, 0), (12, 0, 1), (14, 0, 2), (15, 0, 3)])
            .collect();
        assert_eq!(rows(&whole, 0), expected);
        for cut in 1..18 {
            let [a, b] = [images.of_step(0..cut, &TOKENS).spans, images.of_step(cut..18, &TOKENS).spans];
            assert_eq!([rows(&a, 0), rows(&b, cut)].concat(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn positions_are_a_shift_where_they_can_be() {
        let mut images = images(false);
        [0, 1].into_iter().for_each(|at| images.place(at, FeaturePlace(0)));
        let of = |range| images.of_step(range, &TOKENS).positions;
        assert_eq!(of(0..3), Positions::Index);
        assert_eq!(of(0..4), Positions::Index);
        assert_eq!(of(0..5), Positions::Grid(AXES[..5].to_vec()));
        assert_eq!(of(8..11), Positions::Grid(AXES[8..].to_vec()));
        assert_eq!(of(9..18), Positions::Shifted(-3));
        assert_eq!(of(18..19), Positions::Shifted(-3), "a token that is sampled");
        assert_eq!(of(17..21), Positions::Shifted(-3), "an answer that is fed again");
        assert_eq!(
            of(8..20),
            Positions::Grid([&AXES[8..], &[8, 9, 10, 11, 12, 13, 14, 15, 16].map(|it| [it; 3])].concat())
        );
    }

    #[test]
    fn images_are_used_from_when_they_are_needed_until_they_are_fed() {
        let mut images = images(false);
        assert_eq!(
            (images.missing(0..3), images.missing(0..4), images.missing(8..9)),
            (None, Some(0), Some(0))
        );
        assert_eq!([0, 3, 5, 9, 12, 17].map(|fed| images.reach(fed)), [3, 3, 5, 11, 12, usize::MAX]);
        images.place(0, FeaturePlace(4));
        assert_eq!((images.missing(0..18), images.reach(0)), (Some(1), 11));
        images.place(1, FeaturePlace(5));
        assert_eq!((images.missing(0..18), images.reach(0)), (None, usize::MAX));
        assert_eq!(images.release(8).count(), 0);
        assert_eq!(images.release(9).collect::<Vec<_>>(), [FeaturePlace(4)]);
        assert_eq!(images.release(usize::MAX).collect::<Vec<_>>(), [FeaturePlace(5)]);
        assert_eq!(images.release(usize::MAX).count(), 0);
    }

    #[test]
    fn a_draft_head_takes_the_row_of_the_token_that_follows() {
        let mut images = Images { looks_ahead: true, ..images(false) };
        assert_eq!([0, 2, 3, 5, 9, 10, 12].map(|fed| images.reach(fed)), [2, 2, 3, 5, 10, 10, 12]);
        let following = |images: &Images, range: Range<usize>| {
            images
                .of_step(range, &TOKENS)
                .following
                .map(|span| (span.at, span.count, span.slot.0, span.first))
        };
        assert_eq!(following(&images, 0..3), None, "without a place");
        [0, 1].into_iter().for_each(|at| images.place(at, FeaturePlace(at as u32)));
        let all = [2..3, 0..5, 4..9, 0..8, 9..11, 11..13, 13..14, 14..16, 17..18];
        let expected =
            [Some((1, 1, 0, 0)), Some((5, 1, 0, 2)), None, Some((8, 1, 0, 5)), Some((2, 1, 1, 0)), None];
        let expected = expected.into_iter().chain([Some((1, 1, 1, 2)), None, None]);
        assert_eq!(all.map(|range| following(&images, range)).to_vec(), expected.collect::<Vec<_>>());
        let adjacent = [PlacedImage { start: 9, ..images.placed[1] }];
        images.placed.splice(1.., adjacent);
        images.places[1] = None;
        assert_eq!(images.reach(4), 9, "the place of the first would be kept");
    }

    #[test]
    fn only_images_that_see_all_of_themselves_are_whole() {
        let cut = images(false);
        assert_eq!((cut.whole().count(), cut.behind(5)), (0, 5));
        let whole = images(true);
        assert_eq!(
            whole.whole().collect::<Vec<_>>(),
            [(3, 9), (11, 17)].map(|(start, end)| WholeSpan { start, end })
        );
        assert_eq!([2, 3, 4, 8, 9, 12].map(|at| whole.behind(at)), [2, 3, 9, 9, 9, 17]);
    }
}
