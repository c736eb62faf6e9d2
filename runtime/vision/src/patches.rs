//! Samples cut into patches, in the order in which towers take them.

use crate::{Family, Levels, Rgb, Size, VisionSpec};

impl VisionSpec {
    /// The rows of a resized image, one a patch: `[patches, row_elements]`. They stand in merge order, the
    /// patches of a token beside each other: Qwen's processor gives them so, those of Gemma and Pixtral line
    /// by line. The arithmetic is torchvision's in f32, by which transformers folds the scale of samples into
    /// mean and deviation.
    ///
    /// # Panics
    /// When a side is not a multiple of [`VisionSpec::unit`], or `patch` or `merge` is 0.
    pub fn patches(&self, image: &Rgb) -> Vec<f32> {
        let Size { width, height } = image.size();
        let unit = self.unit();
        assert!(width % unit == 0 && height % unit == 0, "{} pixels are no multiple of {unit}", image.size());
        let (rows, columns) = (height / self.patch, width / self.patch);
        let mut out = Vec::with_capacity(rows as usize * columns as usize * self.row_elements());
        let levels = self.levels.table();
        for (row, column) in merge_order(rows, columns, self.merge) {
            match self.family {
                Family::Qwen { frames, .. } => self.planes(image, &levels, row, column, frames, &mut out),
                Family::Pixtral { .. } => self.planes(image, &levels, row, column, 1, &mut out),
                Family::Gemma { .. } => {
                    let pixels = self.lines(image, row, column).flat_map(|line| line.as_chunks::<3>().0);
                    out.extend(pixels.flat_map(|[red, green, blue]| {
                        [
                            levels[0][usize::from(*red)],
                            levels[1][usize::from(*green)],
                            levels[2][usize::from(*blue)],
                        ]
                    }));
                }
            }
        }
        out
    }

    /// A patch's `[RGB, frames, patch, patch]`.
    fn planes(
        &self,
        image: &Rgb,
        levels: &[[f32; 256]; 3],
        row: u32,
        column: u32,
        frames: u32,
        out: &mut Vec<f32>,
    ) {
        for (channel, levels) in levels.iter().enumerate() {
            for _ in 0..frames {
                for line in self.lines(image, row, column) {
                    out.extend(
                        line.iter().skip(channel).step_by(3).map(|sample| levels[usize::from(*sample)]),
                    );
                }
            }
        }
    }

    /// The samples of a patch's lines.
    fn lines<'a>(&self, image: &'a Rgb, row: u32, column: u32) -> impl Iterator<Item = &'a [u8]> {
        let (patch, width) = (self.patch as usize, image.size().width as usize);
        let first = (row as usize * patch * width + column as usize * patch) * 3;
        (0..patch).map(move |line| &image.samples()[first + line * width * 3..][..patch * 3])
    }
}

/// Rows and columns of patches: the squares of `merge` a side from left to right and top to bottom, and so
/// the patches in each.
fn merge_order(rows: u32, columns: u32, merge: u32) -> impl Iterator<Item = (u32, u32)> {
    let squares = (0..rows / merge)
        .flat_map(move |top| (0..columns / merge).map(move |left| (top * merge, left * merge)));
    squares.flat_map(move |(top, left)| {
        (0..merge).flat_map(move |row| (0..merge).map(move |column| (top + row, left + column)))
    })
}

impl Levels {
    /// What each sample becomes, a table a channel.
    fn table(&self) -> [[f32; 256]; 3] {
        let level = |channel: usize, sample: u8| match self {
            Self::Signed => 2.0 * (f32::from(sample) * (1.0 / 255.0_f64) as f32) - 1.0,
            Self::Normalised { mean, deviation } => {
                (f32::from(sample) - mean[channel] * 255.0) / (deviation[channel] * 255.0)
            }
        };
        std::array::from_fn(|channel| std::array::from_fn(|sample| level(channel, sample as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the interpreter's tower has them (`patches` in compiler/src/reference/images.rs).
    #[test]
    fn patches_stand_square_by_square() {
        let places: Vec<_> = merge_order(2, 4, 2).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    }
}
