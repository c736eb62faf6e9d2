//! Bicubic resizing as torchvision does it: antialiased, along the width and then the height, 8-bit between.

use crate::{Rgb, Size};
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

/// The image in another size. Convolves with Catmull and Rom's kernel (a = -0.5), widened where the image
/// shrinks. Each direction is a pass of its own: in one call the passes' order is the other, which shows
/// where the samples between them are clamped.
///
/// # Panics
/// When a size has no pixels.
pub fn resize(image: Rgb, to: Size) -> Rgb {
    let Size { width, .. } = to;
    let wide = Size { width, height: image.size().height };
    along(along(image, wide), to)
}

/// A pass in the one direction in which the sizes differ.
fn along(image: Rgb, to: Size) -> Rgb {
    let from = image.size();
    if from == to {
        return image;
    }
    let source = ImageRef::new(from.width, from.height, image.samples(), PixelType::U8x3)
        .expect("three samples a pixel");
    let mut made = Image::new(to.width, to.height, PixelType::U8x3);
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    Resizer::new().resize(&source, &mut made, &options).expect("both are RGB, and neither is empty");
    Rgb::new(to, made.into_vec())
}
