//! What a model sees of images: patches and their places, rows of a tower, positions of tokens.

use super::{Cache, Evaluation, Interpreter, Logits, Outcome, Pass};
use crate::spec::types::Vision;

/// Patches of an image, or of a video of some frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Frames, each as many patches again; 1 for an image.
    pub frames: usize,
    /// Patches from top to bottom, whole merge blocks.
    pub rows: usize,
    /// Patches from left to right, whole merge blocks.
    pub columns: usize,
}

/// A patch's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// From the top of its image, from 0.
    pub(crate) row: usize,
    /// From the left.
    pub(crate) column: usize,
    /// Patches of its image from top to bottom.
    pub(crate) rows: usize,
    /// Patches of its image from left to right.
    pub(crate) columns: usize,
    /// Its image among all images of the pass, or its frame.
    pub(crate) segment: usize,
}

impl Grid {
    /// Tokens that stand for it, of so many patches of a side each.
    pub fn tokens(&self, merge: usize) -> usize {
        self.frames * (self.rows / merge) * (self.columns / merge)
    }
}

/// The places of all patches of some images, in merge order.
fn patches(grids: &[Grid], merge: usize) -> Vec<Patch> {
    let mut patches = Vec::new();
    let mut segment = 0;
    for Grid { frames, rows, columns } in grids.iter().copied() {
        for _ in 0..frames {
            for (top, left) in
                (0..rows / merge).flat_map(|top| (0..columns / merge).map(move |left| (top, left)))
            {
                let within = (0..merge).flat_map(|row| (0..merge).map(move |column| (row, column)));
                patches.extend(within.map(|(row, column)| Patch {
                    row: top * merge + row,
                    column: left * merge + column,
                    rows,
                    columns,
                    segment,
                }));
            }
            segment += 1;
        }
    }
    patches
}

/// What a tower makes of images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// `[tokens, hidden]`: the rows of all images, one after another.
    pub rows: Vec<f32>,
    /// The same of every tap: see [`Vision::deepstack`].
    pub taps: Vec<Vec<f32>>,
}

/// Adjacent tokens of a step that stand for parts of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpan {
    /// The first of them, counted from the first token of the step.
    pub at: usize,
    /// How many they are.
    pub count: usize,
    /// The row of [`Features`] that the first one takes.
    pub first: usize,
}

impl ImageSpan {
    /// The spans of `tokens`, where `image` stands for an image's rows; the first of them takes row `first`.
    pub fn all(tokens: &[u32], image: u32, mut first: usize) -> Vec<ImageSpan> {
        let mut spans: Vec<ImageSpan> = Vec::new();
        for (at, _) in tokens.iter().enumerate().filter(|(_, token)| **token == image) {
            match spans.last_mut().filter(|span| span.at + span.count == at) {
                Some(span) => span.count += 1,
                None => spans.push(ImageSpan { at, count: 1, first }),
            }
            first += 1;
        }
        spans
    }
}

/// Sees every value of a tower: body, layer, the value's name, and its rows.
pub type Trace<'a> = dyn FnMut(&str, Option<usize>, &str, &[f32]) + 'a;

/// What the text model is fed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fed<'a> {
    /// Ids, those that stand for images among them.
    pub tokens: &'a [u32],
    /// Time, height and width of each token; empty where they are its index in the sequence.
    pub positions: &'a [[u32; 3]],
    /// Which of the tokens take rows of images.
    pub images: &'a [ImageSpan],
    /// These rows.
    pub features: Option<&'a Features>,
    /// Places of patches, while a tower runs.
    pub(crate) patches: &'a [Patch],
}

impl<'a> Fed<'a> {
    /// Text alone.
    pub fn text(tokens: &'a [u32]) -> Fed<'a> {
        Fed { tokens, ..Fed::default() }
    }

    /// Text and images.
    pub fn with_images(
        tokens: &'a [u32],
        positions: &'a [[u32; 3]],
        images: &'a [ImageSpan],
        features: &'a Features,
    ) -> Fed<'a> {
        Fed { tokens, positions, images, features: Some(features), patches: &[] }
    }
}

/// Positions of tokens of which `image` stands for the images of these grids, a span each: time, height and
/// width. Tokens of text have one number in all three, counted on from the token before; so does the corner
/// of an image, from which its rows count heights and its columns widths, and the token behind it counts on
/// from the largest. Also returns what is to be added to the index of a later token.
///
/// # Panics
/// If a span has not as many tokens as its image.
pub fn grid_positions(tokens: &[u32], image: u32, grids: &[Grid], merge: usize) -> (Vec<[u32; 3]>, i64) {
    let spans = ImageSpan::all(tokens, image, 0);
    assert_eq!(spans.len(), grids.len(), "an image for every span");
    let mut positions = Vec::with_capacity(tokens.len());
    let mut next = 0u32;
    let mut spans = spans.iter().zip(grids).peekable();
    while positions.len() < tokens.len() {
        match spans.next_if(|(span, _)| span.at == positions.len()) {
            None => {
                positions.push([next; 3]);
                next += 1;
            }
            Some((span, grid)) => {
                assert_eq!(span.count, grid.tokens(merge), "a span has the tokens of its image");
                let (rows, columns) = (grid.rows / merge, grid.columns / merge);
                for at in 0..span.count {
                    let (row, column) = (at / columns % rows, at % columns);
                    positions.push([next, next + row as u32, next + column as u32]);
                }
                next += rows.max(columns) as u32;
            }
        }
    }
    (positions, i64::from(next) - tokens.len() as i64)
}

impl Interpreter<'_> {
    /// Runs the tower over images. `pixels` are `[patches, values]` in merge order, all images one after
    /// another. `trace` sees every value that it computes.
    ///
    /// # Panics
    /// If the graph has no tower, or there is not one row a patch.
    pub fn see(&self, vision: &Vision, pixels: &[f32], grids: &[Grid], trace: &mut Trace) -> Features {
        let tower = self.graph.vision.as_ref().expect("a graph with a vision tower");
        let patches = patches(grids, vision.merge);
        assert_eq!(pixels.len(), patches.len() * vision.values(), "one row a patch");
        let fed = Fed { patches: &patches, ..Fed::default() };
        let mut cache = Cache::default();
        let pass = Pass {
            bodies: &tower.bodies,
            schedule: &tower.schedule,
            hidden: crate::graph::ValueId(0),
            taps: &[],
            scaled: false,
        };
        let mut run = |run: &crate::graph::Run, rows: Vec<f32>| -> Vec<f32> {
            let body = &tower.bodies[run.body.0];
            let mut values = self.body(&pass, run, vec![rows], &fed, &mut cache, Logits::All);
            for (value, rows) in body.values.iter().zip(&values[0]) {
                trace(&body.name, run.layer, &value.name, rows);
            }
            std::mem::take(&mut values[0][body.output.0])
        };
        let mut features = Features { rows: pixels.to_vec(), taps: Vec::new() };
        for it in &tower.schedule {
            features.rows = run(it, features.rows);
            let branches = tower.branches.iter().filter(|branch| Some(branch.after) == it.layer);
            for branch in branches {
                features.taps.push(run(&branch.run, features.rows.clone()));
            }
        }
        features
    }

    /// Like [`forward_with_hidden`](Self::forward_with_hidden), of text and images.
    ///
    /// # Panics
    /// If an image's rows are missing, or there are positions for some tokens only.
    pub fn forward_fed(&self, fed: &Fed, cache: &mut Cache, logits: Logits) -> Outcome {
        assert!([0, fed.tokens.len()].contains(&fed.positions.len()), "positions of all tokens or none");
        self.run(&self.whole(), Vec::new(), fed, cache, logits)
    }
}

impl<'a> Evaluation<'a> {
    /// Places of the patches that a tower is run over.
    pub(crate) fn patches(&self) -> &'a [Patch] {
        self.fed.patches
    }

    /// The row that a token takes of an image, if it stands for a part of one: the tower's, or a tap's.
    pub(crate) fn image_row(&self, token: usize, tap: Option<usize>) -> Option<&'a [f32]> {
        let span = self.span(token)?;
        let features = self.fed.features.expect("rows of images");
        let rows = tap.map_or(&features.rows, |tap| &features.taps[tap]);
        Some(&rows[(span.first + token - span.at) * self.out_width()..][..self.out_width()])
    }

    /// The last token of the step that `token` attends to where images see all of themselves.
    pub(crate) fn image_end(&self, token: usize) -> usize {
        self.span(token).map_or(token, |span| span.at + span.count - 1)
    }

    fn span(&self, token: usize) -> Option<&'a ImageSpan> {
        self.fed.images.iter().find(|span| (span.at..span.at + span.count).contains(&token))
    }

    /// Time, height and width of a token of the step.
    pub(crate) fn position(&self, token: usize) -> [usize; 3] {
        match self.fed.positions.get(token) {
            Some(position) => position.map(|axis| axis as usize),
            None => [self.first_position() + token; 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_behind_an_image_counts_on_from_its_longer_side() {
        let image = Grid { frames: 1, rows: 4, columns: 6 };
        let tokens = [1, 2, 3, 9, 9, 9, 9, 9, 9, 4, 5];
        let (positions, delta) = grid_positions(&tokens, 9, &[image], 2);
        let axis = |axis: usize| positions.iter().map(|it| it[axis]).collect::<Vec<_>>();
        assert_eq!(axis(0), [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7]);
        assert_eq!(axis(1), [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7]);
        assert_eq!(axis(2), [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]);
        assert_eq!(delta, -3);
    }

    #[test]
    fn patches_stand_block_by_block() {
        let grid = Grid { frames: 1, rows: 2, columns: 4 };
        let places: Vec<_> = patches(&[grid], 2).iter().map(|it| (it.row, it.column)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
        let segments: Vec<_> =
            patches(&[grid, Grid { frames: 2, ..grid }], 2).iter().map(|it| it.segment).collect();
        assert_eq!(segments, [[0; 8], [1; 8], [2; 8]].concat());
    }

    #[test]
    fn spans_of_several_images_take_rows_in_order() {
        let spans = ImageSpan::all(&[9, 9, 1, 9, 2], 9, 0);
        assert_eq!(spans, [ImageSpan { at: 0, count: 2, first: 0 }, ImageSpan { at: 3, count: 1, first: 2 }]);
    }
}
