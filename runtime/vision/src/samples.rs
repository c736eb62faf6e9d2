//! Samples of an image: 8-bit RGB, whatever the file has.

use crate::Size;
use image::ColorType;
use image::metadata::Orientation;

/// An image's samples: `[height, width, 3]`, red, green, blue.
#[derive(Clone, Debug, PartialEq)]
pub struct Rgb {
    size: Size,
    samples: Vec<u8>,
}

impl Rgb {
    /// An image of samples.
    ///
    /// # Panics
    /// When there are not three samples a pixel.
    pub fn new(size: Size, samples: Vec<u8>) -> Self {
        assert_eq!(samples.len() as u64, size.pixels() * 3, "three samples a pixel");
        Self { size, samples }
    }

    /// Its pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// All samples, from the top row to the bottom one.
    pub fn samples(&self) -> &[u8] {
        &self.samples
    }

    /// The image as EXIF wants it to be seen.
    pub(crate) fn turned(self, orientation: Orientation) -> Self {
        if orientation == Orientation::NoTransforms {
            return self;
        }
        let image = image::RgbImage::from_raw(self.size.width, self.size.height, self.samples)
            .expect("three samples a pixel");
        let mut image = image::DynamicImage::ImageRgb8(image);
        image.apply_orientation(orientation);
        let size = Size { width: image.width(), height: image.height() };
        Self { size, samples: image.into_bytes() }
    }
}

/// 8-bit RGB of a decoder's bytes; `None` for kinds of samples that no format here has. What is transparent
/// is laid on white; of 16 bits the upper eight stay, as Pillow reads them.
pub(crate) fn rgb(bytes: Vec<u8>, color: ColorType) -> Option<Vec<u8>> {
    /// The upper byte of a sample that a decoder stores in the machine's order.
    fn upper(two: &[u8]) -> u8 {
        (u16::from_ne_bytes([two[0], two[1]]) >> 8) as u8
    }
    let mut samples = Vec::new();
    match color {
        ColorType::Rgb8 => return Some(bytes),
        ColorType::L8 => {
            samples.reserve_exact(bytes.len() * 3);
            samples.extend(bytes.iter().flat_map(|gray| [*gray; 3]));
        }
        ColorType::La8 => {
            samples.reserve_exact(bytes.len() / 2 * 3);
            samples.extend(
                bytes.as_chunks::<2>().0.iter().flat_map(|[gray, alpha]| [on_white(*gray, *alpha); 3]),
            );
        }
        ColorType::Rgba8 => {
            samples.reserve_exact(bytes.len() / 4 * 3);
            let pixels = bytes.as_chunks::<4>().0.iter();
            samples.extend(
                pixels.flat_map(|[red, green, blue, a]| [red, green, blue].map(|x| on_white(*x, *a))),
            );
        }
        ColorType::L16 => {
            samples.reserve_exact(bytes.len() / 2 * 3);
            samples.extend(bytes.chunks_exact(2).flat_map(|gray| [upper(gray); 3]));
        }
        ColorType::La16 => {
            samples.reserve_exact(bytes.len() / 4 * 3);
            let pixels = bytes.chunks_exact(4);
            samples.extend(pixels.flat_map(|it| [on_white(upper(&it[..2]), upper(&it[2..])); 3]));
        }
        ColorType::Rgb16 => {
            samples.reserve_exact(bytes.len() / 2);
            samples.extend(bytes.chunks_exact(2).map(upper));
        }
        ColorType::Rgba16 => {
            samples.reserve_exact(bytes.len() / 8 * 3);
            let pixels = bytes.chunks_exact(8);
            samples.extend(
                pixels.flat_map(|it| [0, 2, 4].map(|at| on_white(upper(&it[at..]), upper(&it[6..])))),
            );
        }
        _ => return None,
    }
    Some(samples)
}

/// A sample over white, to the nearest level.
fn on_white(sample: u8, alpha: u8) -> u8 {
    let (sample, alpha) = (u32::from(sample), u32::from(alpha));
    ((sample * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opaque_stays_and_what_is_clear_is_white() {
        for sample in 0..=255 {
            assert_eq!(on_white(sample, 255), sample);
            assert_eq!(on_white(sample, 0), 255);
            assert_eq!(on_white(255, sample), 255);
        }
    }

    #[test]
    fn every_kind_of_samples_has_three_a_pixel() {
        let wide = |samples: &[u16]| samples.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<u8>>();
        for (bytes, color, expected) in [
            (vec![7, 9], ColorType::L8, vec![7, 7, 7, 9, 9, 9]),
            (vec![7, 255, 9, 0], ColorType::La8, vec![7, 7, 7, 255, 255, 255]),
            (vec![1, 2, 3], ColorType::Rgb8, vec![1, 2, 3]),
            (vec![0, 2, 255, 51], ColorType::Rgba8, vec![204, 204, 255]),
            (wide(&[0x12ff]), ColorType::L16, vec![0x12; 3]),
            (wide(&[0x1234, 0xffff]), ColorType::La16, vec![0x12; 3]),
            (wide(&[0x0100, 0x02ff, 0x0380]), ColorType::Rgb16, vec![1, 2, 3]),
            (wide(&[0x0100, 0x02ff, 0x0380, 0xff00]), ColorType::Rgba16, vec![1, 2, 3]),
        ] {
            assert_eq!(rgb(bytes, color), Some(expected), "{color:?}");
        }
        assert_eq!(rgb(vec![0; 12], ColorType::Rgb32F), None);
    }
}
