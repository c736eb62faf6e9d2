//! Bicubic resizing as torchvision does it: antialiased, along the width and then the height, 8-bit between.

use crate::{Rgb, Size};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

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
    let source = TypedImageRef::<U8x3>::from_buffer(from.width, from.height, image.samples())
        .expect("three samples a pixel");
    let mut samples = vec![0; to.pixels() as usize * 3];
    let mut made =
        TypedImage::<U8x3>::from_buffer(to.width, to.height, &mut samples).expect("three samples a pixel");
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    // Of untyped images all 13 kinds of pixels would be compiled.
    Resizer::new().resize_typed(&source, &mut made, &options).expect("neither is empty");
    Rgb::new(to, samples)
}
