//! A file of an image: opened within limits, decoded once it is wanted.

use crate::header::{self, MediaType};
use crate::samples::{self, Rgb};
use crate::{ImageError, ImagePlan, Size, VisionSpec};
use image::codecs::{gif::GifDecoder, jpeg::JpegDecoder, png::PngDecoder, webp::WebPDecoder};
use image::metadata::Orientation;
use image::{ImageDecoder, ImageResult, Limits};
use std::io::Cursor;

/// What a file may claim before any of it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Most bytes of a file.
    pub bytes: usize,
    /// Most pixels that a header may say.
    pub pixels: u64,
    /// Long side over short side at most.
    pub ratio: u32,
}

impl FileLimits {
    /// 20 MiB, 64 million pixels, and the ratio that Qwen's processors take.
    pub const DEFAULT: Self = Self { bytes: 20 << 20, pixels: 64_000_000, ratio: 200 };
}

/// Bytes of its own that a decoder may claim for tables, lines and profiles, however small the image.
const DECODER_BYTES: u64 = 8 << 20;

/// Most bytes of tables for a byte of a lossless WebP, of which an image of any size may have thousands: the
/// shortest code that fills a table of 4096 bytes takes ten. Its decoder heeds no limit.
const WEBP_GROWTH: u64 = 512;

/// What one part of a lossy WebP may say that it has.
const WEBP_PART: u64 = 16 << 20;

/// A file whose header is within limits.
#[derive(Debug)]
pub struct ImageFile<'a> {
    bytes: &'a [u8],
    media: MediaType,
    /// As the header says.
    stored: Size,
    orientation: Orientation,
    /// Of the decoder's samples.
    decoded_bytes: u64,
}

impl<'a> ImageFile<'a> {
    /// Reads the header. Claims no memory for the image, and what is out of bounds is refused before a
    /// decoder sees it.
    ///
    /// # Errors
    /// Every kind of [`ImageError`].
    pub fn open(bytes: &'a [u8], limits: &FileLimits) -> Result<Self, ImageError> {
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        if bytes.len() > limits.bytes {
            return Err(ImageError::FileTooLarge { bytes: bytes.len(), most: limits.bytes });
        }
        let media = MediaType::sniff(bytes).ok_or(ImageError::UnsupportedMediaType)?;
        let stored = header::size(media, bytes)?;
        if stored.pixels() > limits.pixels {
            return Err(ImageError::TooManyPixels { size: stored, most: limits.pixels });
        }
        if !stored.within(limits.ratio) {
            return Err(ImageError::TooElongated { size: stored, most: limits.ratio });
        }
        let mut decoder = decoder(media, bytes, stored).map_err(parse)?;
        if decoder.dimensions() != (stored.width, stored.height) {
            return Err(ImageError::Parse("its parts say different sizes".to_owned()));
        }
        // What cannot be read of EXIF turns nothing, as elsewhere.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        Ok(Self { bytes, media, stored, orientation, decoded_bytes: decoder.total_bytes() })
    }

    /// By its first bytes.
    pub fn media_type(&self) -> MediaType {
        self.media
    }

    /// Its pixels as it is seen, EXIF's orientation applied.
    pub fn size(&self) -> Size {
        let Size { width, height } = self.stored;
        match self.orientation {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => Size { width: height, height: width },
            _ => self.stored,
        }
    }

    /// Most bytes that [`VisionSpec::prepare`] claims at a time, its result included.
    pub fn peak_bytes(&self, spec: &VisionSpec, plan: &ImagePlan) -> u64 {
        let (stored, size, resized) = (self.stored.pixels(), self.size(), plan.resized);
        let wide = u64::from(resized.width) * u64::from(size.height);
        let rows = u64::from(plan.patches.cells()) * spec.row_elements() as u64 * 4;
        let decoding = self.decoded_bytes + self.decoder_bytes();
        let converting = self.decoded_bytes + 3 * stored;
        let turning = 6 * stored;
        let resizing = 3 * (stored + wide).max(wide + resized.pixels());
        let cutting = 3 * resized.pixels() + rows;
        decoding.max(converting).max(turning).max(resizing).max(cutting) + DECODER_BYTES
    }

    /// Bytes that decoders claim beside samples: coefficients of progressive JPEGs, planes and
    /// transparency of WebPs, a GIF's frame, each in whole blocks; tables of WebPs; and copies of the file.
    fn decoder_bytes(&self) -> u64 {
        let blocks = |side: u32| u64::from(side.next_multiple_of(32));
        let padded = blocks(self.stored.width) * blocks(self.stored.height);
        let pixel = match self.media {
            MediaType::Png => 0,
            MediaType::Gif => 4,
            MediaType::Jpeg | MediaType::WebP => 10,
        };
        let length = self.bytes.len() as u64;
        let tables = match self.media {
            MediaType::WebP if header::webp_is_lossy(self.bytes) => WEBP_PART,
            MediaType::WebP => WEBP_PART + length * WEBP_GROWTH,
            MediaType::Png | MediaType::Jpeg | MediaType::Gif => 0,
        };
        padded * pixel + 3 * length + tables
    }

    /// The samples: upright, 8-bit RGB, on white.
    ///
    /// # Errors
    /// [`ImageError::Parse`].
    pub fn decode(&self) -> Result<Rgb, ImageError> {
        let mut decoder = decoder(self.media, self.bytes, self.stored).map_err(parse)?;
        // Of those that heed it: the frame of a GIF may be larger than its image.
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(4 * self.stored.pixels() + DECODER_BYTES);
        decoder.set_limits(limits).map_err(parse)?;
        let (color, length) = (decoder.color_type(), decoder.total_bytes());
        let mut bytes = vec![0; usize::try_from(length).map_err(|error| parse_text(&error))?];
        decoder.read_image(&mut bytes).map_err(parse)?;
        let samples = samples::rgb(bytes, color)
            .ok_or_else(|| ImageError::Parse(format!("it has samples of kind {color:?}")))?;
        Ok(Rgb::new(self.stored, samples).turned(self.orientation))
    }
}

/// A decoder that has read the header.
fn decoder<'a>(media: MediaType, bytes: &'a [u8], stored: Size) -> ImageResult<Box<dyn ImageDecoder + 'a>> {
    let reader = Cursor::new(bytes);
    Ok(match media {
        MediaType::Png => {
            let mut limits = Limits::no_limits();
            // While a profile is read its buffer doubles, and old and new are there at a time.
            limits.max_alloc = Some((DECODER_BYTES / 2).max(u64::from(stored.width) * 16));
            Box::new(PngDecoder::with_limits(reader, limits)?)
        }
        MediaType::Jpeg => Box::new(JpegDecoder::new(reader)?),
        MediaType::WebP => Box::new(WebPDecoder::new(reader)?),
        MediaType::Gif => Box::new(GifDecoder::new(reader)?),
    })
}

fn parse(error: image::ImageError) -> ImageError {
    parse_text(&error)
}

/// What a decoder says, in a line that quotes little of a file.
fn parse_text(error: &dyn std::error::Error) -> ImageError {
    let text: String =
        error.to_string().chars().map(|it| if it.is_control() { ' ' } else { it }).take(200).collect();
    ImageError::Parse(text)
}
