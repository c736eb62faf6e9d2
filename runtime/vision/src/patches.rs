//! Samples cut into patches, in the order of a family's tower.

use crate::{Family, Levels, Rgb, Size, VisionSpec};

impl VisionSpec {
    /// The rows of a resized image, one a patch: `[patches, row_elements]`. The arithmetic is torchvision's
    /// in f32, by which transformers folds the scale of samples into mean and deviation.
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
        match self.family {
            Family::Qwen { frames, .. } => {
                for row in (0..rows).step_by(self.merge as usize) {
                    for column in (0..columns).step_by(self.merge as usize) {
                        for within in 0..self.merge * self.merge {
                            let (row, column) = (row + within / self.merge, column + within % self.merge);
                            self.planes(image, &levels, row, column, frames, &mut out);
                        }
                    }
                }
            }
            Family::Gemma { .. } => {
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    for line in self.lines(image, row, column) {
                        let pixels = line.as_chunks::<3>().0.iter();
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
            Family::Pixtral { .. } => {
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    self.planes(image, &levels, row, column, 1, &mut out);
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

impl Levels {
    /// What each sample becomes, a table a channel.
    fn table(&self) -> [[f32; 256]; 3] {
        let level = |channel: usize, sample: u8| match self {
            Self::Unit => f32::from(sample) * (1.0 / 255.0_f64) as f32,
            Self::Normalised { mean, deviation } => {
                (f32::from(sample) - mean[channel] * 255.0) / (deviation[channel] * 255.0)
            }
        };
        std::array::from_fn(|channel| std::array::from_fn(|sample| level(channel, sample as u8)))
    }
}
