//! Why an image is refused.

use crate::Size;
use std::fmt;

/// A refused image. Each kind is one code of the API's errors, which a server puts beside the message. Codes
/// of what comes before there are bytes (`invalid_image_url`, `invalid_base64_image`) have no kind here.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageError {
    /// No bytes: `empty_image_file`.
    Empty,
    /// More bytes than are taken: `image_file_too_large`.
    FileTooLarge {
        /// Bytes of the file.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// None of the formats that are read: `unsupported_image_media_type`.
    UnsupportedMediaType,
    /// A header or data that cannot be decoded: `image_parse_error`. Holds what the decoder says of it.
    Parse(String),
    /// More pixels than are decoded: `image_too_large`.
    TooManyPixels {
        /// What the header says.
        size: Size,
        /// The limit, in pixels.
        most: u64,
    },
    /// One side too many times as long as the other: `image_too_large`.
    TooElongated {
        /// What the header says.
        size: Size,
        /// The limit: the long side over the short one.
        most: u32,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the image has no bytes"),
            Self::FileTooLarge { bytes, most } => {
                write!(f, "the image has {bytes} bytes; at most {most} are taken")
            }
            Self::UnsupportedMediaType => write!(f, "the image is neither PNG, JPEG, WebP nor GIF"),
            Self::Parse(why) => write!(f, "the image cannot be decoded: {why}"),
            Self::TooManyPixels { size, most } => {
                write!(f, "the image has {size} pixels; at most {most} in all are taken")
            }
            Self::TooElongated { size, most } => {
                write!(f, "the image has {size} pixels; a side may be {most} times the other at most")
            }
        }
    }
}

impl std::error::Error for ImageError {}
