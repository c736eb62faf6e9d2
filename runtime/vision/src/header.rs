//! The format of a file and the size in its header, found by its first bytes alone: nothing is allocated.

use crate::{ImageError, Size};

/// Formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaType {
    /// `image/png`; of an animated one what stands for it where nothing moves.
    Png,
    /// `image/jpeg`.
    Jpeg,
    /// `image/webp`; of an animated one the first frame.
    WebP,
    /// `image/gif`; the first frame.
    Gif,
}

impl MediaType {
    /// As requests and answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
        }
    }

    /// By the first bytes of a file, whatever a request says of it.
    pub fn sniff(file: &[u8]) -> Option<Self> {
        match file {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            _ => None,
        }
    }
}

/// The size that a header states, before EXIF turns it.
///
/// # Errors
/// [`ImageError::Parse`] where there is none, or one without pixels.
pub(crate) fn size(media: MediaType, file: &[u8]) -> Result<Size, ImageError> {
    let found = match media {
        MediaType::Png => png(file),
        MediaType::Jpeg => jpeg(file),
        MediaType::WebP => webp(file),
        MediaType::Gif => {
            little(file, 6, 2).zip(little(file, 8, 2)).map(|(width, height)| Size { width, height })
        }
    };
    match found {
        Some(size) if media == MediaType::WebP && !webp_fits(file, size) => {
            Err(ImageError::Parse(format!("a part is larger than its file or its {size} pixels")))
        }
        Some(size) if size.pixels() > 0 => Ok(size),
        Some(size) => Err(ImageError::Parse(format!("its header says {size} pixels"))),
        None => Err(ImageError::Parse("its header is incomplete".to_owned())),
    }
}

/// So many bytes at a place as a number, the lowest first.
fn little(file: &[u8], at: usize, bytes: usize) -> Option<u32> {
    let bytes = file.get(at..at.checked_add(bytes)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// So many bytes at a place as a number, the highest first.
fn big(file: &[u8], at: usize, bytes: usize) -> Option<u32> {
    let bytes = file.get(at..at.checked_add(bytes)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// The first chunk has to be `IHDR`.
fn png(file: &[u8]) -> Option<Size> {
    let named = file.get(12..16)? == b"IHDR";
    named.then_some(Size { width: big(file, 16, 4)?, height: big(file, 20, 4)? })
}

/// The first frame header of the segments behind the first marker.
fn jpeg(file: &[u8]) -> Option<Size> {
    let mut at = 2;
    loop {
        if *file.get(at)? != 0xff {
            // Bytes between segments are skipped, as decoders do.
            at += 1;
            continue;
        }
        match *file.get(at + 1)? {
            0xff => at += 1,
            // Markers without a segment.
            0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some(Size { height: big(file, at + 5, 2)?, width: big(file, at + 7, 2)? });
            }
            // Scan or end before any frame.
            0xd9 | 0xda => return None,
            _ => at += 2 + big(file, at + 2, 2)? as usize,
        }
    }
}

/// The first chunk says how large the canvas is, or the only frame.
fn webp(file: &[u8]) -> Option<Size> {
    if file.get(12..16)? == b"VP8X" {
        return Some(Size { width: little(file, 24, 3)? + 1, height: little(file, 27, 3)? + 1 });
    }
    webp_frame(file, 12)
}

/// The size of the frame whose chunk begins here; `None` where another chunk does.
fn webp_frame(file: &[u8], at: usize) -> Option<Size> {
    match file.get(at..at + 4)? {
        b"VP8L" => {
            let bits = little(file, at + 9, 4)?;
            Some(Size { width: (bits & 0x3fff) + 1, height: (bits >> 14 & 0x3fff) + 1 })
        }
        b"VP8 " => Some(Size {
            width: little(file, at + 14, 2)? & 0x3fff,
            height: little(file, at + 16, 2)? & 0x3fff,
        }),
        _ => None,
    }
}

/// Whether nothing of a WebP is lossless: neither its image, nor its transparency, nor a frame.
pub(crate) fn webp_is_lossy(file: &[u8]) -> bool {
    let alone = file.get(12..16) == Some(b"VP8 ");
    let plain = file.get(20).is_some_and(|flags| flags & 0x12 == 0);
    alone || plain && !file.windows(4).any(|it| it == b"VP8L")
}

/// Whether no frame says that it is larger than the canvas, nor EXIF that it is longer than the file: a
/// decoder claims memory for either before it compares.
fn webp_fits(file: &[u8], canvas: Size) -> bool {
    let fits = |at: usize| {
        webp_frame(file, at).is_none_or(|it| it.width <= canvas.width && it.height <= canvas.height)
    };
    let mut at = 12;
    while let Some((kind, length)) = file.get(at..at + 4).zip(little(file, at + 4, 4)) {
        // A frame of an animation has 16 bytes before its chunks, the first of which may be its transparency.
        let frames = if kind == b"ANMF" { at + 24 } else { at };
        let behind = match file.get(frames..frames + 4).zip(little(file, frames + 4, 4)) {
            Some((b"ALPH", length)) => frames + 8 + length as usize + length as usize % 2,
            _ => frames,
        };
        let whole = kind != b"EXIF" || length as usize <= file.len() - at;
        if !fits(frames) || !fits(behind) || !whole {
            return false;
        }
        at += 8 + length as usize + length as usize % 2;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webp_is_lossy_unless_a_part_of_it_is_not() {
        let file = |first: &[u8; 4], flags: u8, more: &[u8]| {
            [b"RIFF\0\0\0\0WEBP", &first[..], &[0; 4], &[flags], &[0; 9], more].concat()
        };
        assert!(webp_is_lossy(&file(b"VP8 ", 0xff, b"")));
        assert!(webp_is_lossy(&file(b"VP8X", 0x08, b"VP8 ")));
        for (first, flags, more) in
            [(b"VP8L", 0, b"    "), (b"VP8X", 0, b"VP8L"), (b"VP8X", 0x10, b"VP8 "), (b"VP8X", 2, b"ANMF")]
        {
            assert!(!webp_is_lossy(&file(first, flags, more)), "{first:?} {flags}");
        }
    }

    #[test]
    fn segments_before_the_frame_are_skipped() {
        let file = [
            &[0xff, 0xd8, 0xff, 0xe0, 0, 4, 0xff, 0xc0, 0xff, 0xff, 0xff, 0xc4, 0, 3, 9, 7][..],
            &[0xff, 0xc2, 0, 17, 8, 1, 2, 3, 4, 3],
        ]
        .concat();
        assert_eq!(size(MediaType::Jpeg, &file), Ok(Size { width: 0x304, height: 0x102 }));
        for shorter in 0..file.len() - 1 {
            assert!(size(MediaType::Jpeg, &file[..shorter]).is_err(), "{shorter} bytes");
        }
    }

    #[test]
    fn an_image_without_pixels_is_no_image() {
        let gif = |width: u8| [b"GIF89a", &[width, 0, 1, 0][..]].concat();
        assert_eq!(size(MediaType::Gif, &gif(3)), Ok(Size { width: 3, height: 1 }));
        assert!(matches!(size(MediaType::Gif, &gif(0)), Err(ImageError::Parse(_))));
    }

    #[test]
    fn other_formats_are_not_taken_for_one_that_is_read() {
        for file in
            [&b"BM6\0\0"[..], b"II*\0", b"<svg/>", b"%PDF-1.7", b"RIFF\0\0\0\0WAVE", b"GIF88a", b"\x89PN"]
        {
            assert_eq!(MediaType::sniff(file), None);
        }
    }
}
