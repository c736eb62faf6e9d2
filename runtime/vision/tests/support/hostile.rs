//! Files that lie, and what has to become of each.
#![allow(dead_code, reason = "each test binary uses some")]

use flate2::{Compression, write::ZlibEncoder};
use image::codecs::{gif::GifEncoder, jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder};
use image::{ExtendedColorType, Frame, ImageEncoder, RgbaImage};
use std::io::Write;
use std::sync::LazyLock;

/// What has to become of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Unsupported,
    /// By its header.
    TooLarge,
    /// By its header, or its data.
    Broken,
    Decoded,
    /// Decoders may forgive it.
    Either,
}

pub use Fate::{Broken, Decoded, Either, TooLarge, Unsupported};

/// Pixels of many colours, some of them transparent.
pub fn picture(width: u32, height: u32) -> RgbaImage {
    RgbaImage::from_fn(width, height, |x, y| {
        image::Rgba([(x * 11) as u8, (y * 13) as u8, (x * y) as u8, 255 - (x % 3 * 60) as u8])
    })
}

/// The same without transparency.
pub fn rgb(width: u32, height: u32) -> Vec<u8> {
    image::DynamicImage::ImageRgba8(picture(width, height)).into_rgb8().into_raw()
}

/// A file of each format, 24 x 16.
pub fn plain() -> [(&'static str, Vec<u8>); 4] {
    let (mut png, mut jpeg, mut webp) = (Vec::new(), Vec::new(), Vec::new());
    PngEncoder::new(&mut png).write_image(&picture(24, 16), 24, 16, ExtendedColorType::Rgba8).unwrap();
    JpegEncoder::new_with_quality(&mut jpeg, 90)
        .encode(&rgb(24, 16), 24, 16, ExtendedColorType::Rgb8)
        .unwrap();
    WebPEncoder::new_lossless(&mut webp).encode(&picture(24, 16), 24, 16, ExtendedColorType::Rgba8).unwrap();
    [("png", png), ("jpeg", jpeg), ("gif", gif(2)), ("webp", webp)]
}

/// The four, encoded once: all cases damage the same.
pub static PLAIN: LazyLock<[(&'static str, Vec<u8>); 4]> = LazyLock::new(plain);

fn gif(frames: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = GifEncoder::new_with_speed(&mut file, 30);
    for _ in 0..frames {
        encoder.encode_frame(Frame::new(picture(24, 16))).unwrap();
    }
    drop(encoder);
    file
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut sum = flate2::Crc::new();
    sum.update(kind);
    sum.update(data);
    [&(data.len() as u32).to_be_bytes()[..], kind, data, &sum.sum().to_be_bytes()].concat()
}

/// A PNG of these chunks behind a header.
fn png(width: u32, height: u32, depth: u8, color: u8, chunks: &[Vec<u8>]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, color, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunks.concat(), chunk(b"IEND", &[])].concat()
}

/// Lines of zeros.
fn zeros(width: usize, height: usize, bytes: usize) -> Vec<u8> {
    chunk(b"IDAT", &deflated(&vec![0; (width * bytes + 1) * height]))
}

/// An image of the fixtures.
pub fn fixture(name: &str) -> Vec<u8> {
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vision/images/");
    std::fs::read(format!("{images}{name}")).unwrap()
}

/// Where a JPEG's frame begins: its marker.
fn frame_of(jpeg: &[u8]) -> usize {
    jpeg.windows(2).position(|it| matches!(it, [0xff, 0xc0..=0xc2])).unwrap()
}

/// A JPEG that says another size.
fn resized(jpeg: &[u8], width: u16, height: u16) -> Vec<u8> {
    let (mut jpeg, at) = (jpeg.to_vec(), frame_of(jpeg));
    jpeg[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    jpeg[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    jpeg
}

/// A JPEG with a segment before all others.
fn with_segment(jpeg: &[u8], marker: u8, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, marker], &length, data, &jpeg[2..]].concat()
}

/// A WebP of chunks.
fn webp(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let body: Vec<u8> = chunks
        .iter()
        .flat_map(|(kind, data)| {
            let pad = vec![0; data.len() % 2];
            [&kind[..], &(data.len() as u32).to_le_bytes(), data, &pad].concat()
        })
        .collect();
    [b"RIFF", &(body.len() as u32 + 4).to_le_bytes()[..], b"WEBP", &body].concat()
}

/// The header of a WebP with a canvas.
fn canvas(flags: u8, width: u32, height: u32) -> Vec<u8> {
    let side = |side: u32| (side - 1).to_le_bytes()[..3].to_vec();
    [vec![flags, 0, 0, 0], side(width), side(height)].concat()
}

/// The start of a lossless WebP's data.
fn lossless(width: u32, height: u32) -> Vec<u8> {
    [&[0x2f][..], &((width - 1) | (height - 1) << 14).to_le_bytes(), &[0; 40]].concat()
}

/// The start of a lossy WebP's data: a key frame of the largest sides.
fn lossy() -> Vec<u8> {
    [&[0x10, 0, 0, 0x9d, 0x01, 0x2a, 0xff, 0x3f, 0xff, 0x3f][..], &[0; 40]].concat()
}

/// A WebP that has EXIF of almost 4 GiB, as it says.
fn exif_beyond_the_file() -> Vec<u8> {
    let mut file = webp(&[(b"VP8X", canvas(8, 24, 16)), (b"VP8L", lossless(24, 16)), (b"EXIF", vec![0; 16])]);
    let at = file.len() - 20;
    file[at..at + 4].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    file
}

/// A GIF's header, without a table of colours.
fn screen(width: u16, height: u16) -> Vec<u8> {
    [b"GIF89a", &width.to_le_bytes()[..], &height.to_le_bytes(), &[0, 0, 0]].concat()
}

/// A GIF's frame with a table of two colours and data that ends at once.
fn frame(width: u16, height: u16, code_size: u8) -> Vec<u8> {
    let size = [width.to_le_bytes(), height.to_le_bytes()].concat();
    [&[0x2c, 0, 0, 0, 0][..], &size, &[0x80, 0, 0, 0, 9, 9, 9, code_size, 2, 0x4c, 0x01, 0, 0x3b]].concat()
}

#[allow(clippy::too_many_lines, reason = "a list")]
pub fn files() -> Vec<(String, Vec<u8>, Fate)> {
    let [(_, a_png), (_, a_jpeg), (_, a_gif), (_, a_webp)] = plain();
    let mut files = Vec::new();
    for (name, file) in plain() {
        files.push((format!("{name}, signature alone"), file[..12].to_vec(), Broken));
        for quarter in 1..4 {
            let end = file.len() * quarter / 4;
            let fate = if quarter == 1 && name == "png" { Broken } else { Either };
            files.push((format!("{name}, {quarter} quarters"), file[..end].to_vec(), fate));
        }
        files.push((format!("{name}, all but 5 bytes"), file[..file.len() - 5].to_vec(), Either));
        files.push((format!("{name}, with more behind it"), [file, vec![0xab; 5000]].concat(), Decoded));
    }
    let progressive = fixture("progressive.jpg");
    let scans = progressive.windows(2).position(|it| it == [0xff, 0xda]).unwrap();
    let again = progressive[scans..progressive.len() - 2].repeat(200);
    let many_scans = [&progressive[..scans], &again, &[0xff, 0xd9]].concat();
    let wide_zeros = |samples: usize| zeros(8, 8, samples * 2);
    let mut wrong_sum = a_png.clone();
    wrong_sum[30] ^= 1;
    let at = frame_of(&a_jpeg);
    let altered = |offset: usize, byte: u8| {
        let mut file = a_jpeg.clone();
        file[at + offset] = byte;
        file
    };
    let exif = |data: &[u8]| with_segment(&a_jpeg, 0xe1, &[b"Exif\0\0", data].concat());
    let bomb = || deflated(&vec![0; 64 << 20]);
    let profile = deflated(&vec![0; (4 << 20) - 1]);
    let animation = canvas(2, 24, 16);
    let out_of_canvas =
        [&[0; 6][..], &[0xff; 6], &[0; 4], b"VP8L", &45u32.to_le_bytes(), &lossless(16384, 16384)];
    let small_frame = vec![chunk(b"acTL", &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]), zeros(8, 8, 3)];
    let bytes = |text: &[u8]| text.to_vec();
    for (name, file, fate) in [
        ("a byte", bytes(b"\x89"), Unsupported),
        ("text", bytes(b"hello, world"), Unsupported),
        ("SVG", bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), Unsupported),
        ("BMP", bytes(b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0"), Unsupported),
        ("TIFF", bytes(b"II*\0\x08\0\0\0\0\0"), Unsupported),
        ("PDF", bytes(b"%PDF-1.7\n%\xe2\xe3"), Unsupported),
        ("AVIF", bytes(b"\0\0\0\x20ftypavif\0\0\0\0"), Unsupported),
        ("WAVE", bytes(b"RIFF\x24\0\0\0WAVEfmt "), Unsupported),
        ("zeros", vec![0; 4096], Unsupported),
        ("PNG, largest sides", png(0x7fff_ffff, 0x7fff_ffff, 8, 6, &[]), TooLarge),
        ("PNG, sides beyond the largest", png(u32::MAX, u32::MAX, 8, 6, &[]), TooLarge),
        ("PNG, 65535 squared", png(65535, 65535, 16, 6, &[zeros(9, 9, 9)]), TooLarge),
        ("PNG, elongated", png(1, 16_000, 8, 2, &[zeros(1, 16_000, 3)]), TooLarge),
        ("PNG, no width", png(0, 5, 8, 2, &[zeros(1, 5, 3)]), Broken),
        ("PNG, wrong sum", wrong_sum, Broken),
        ("PNG, no data", png(1900, 1900, 8, 6, &[]), Broken),
        ("PNG, less data than pixels", png(1900, 1900, 8, 6, &[zeros(8, 8, 4)]), Broken),
        ("PNG, bomb within limits", png(1900, 1900, 8, 6, &[zeros(1900, 1900, 4)]), Decoded),
        ("PNG, 16-bit bomb within limits", png(1000, 1000, 16, 6, &[zeros(1000, 1000, 8)]), Decoded),
        ("PNG, 16-bit gray", png(8, 8, 16, 0, &[wide_zeros(1)]), Decoded),
        ("PNG, 16-bit RGB", png(8, 8, 16, 2, &[wide_zeros(3)]), Decoded),
        ("PNG, depth 3", png(8, 8, 3, 2, &[zeros(8, 8, 3)]), Broken),
        ("PNG, palette missing", png(8, 8, 8, 3, &[zeros(8, 8, 1)]), Broken),
        (
            "PNG, bomb of a profile",
            png(8, 8, 8, 2, &[chunk(b"iCCP", &[b"a\0\0", &bomb()[..]].concat()), zeros(8, 8, 3)]),
            Either,
        ),
        (
            "PNG, largest profile",
            png(8, 8, 8, 2, &[chunk(b"iCCP", &[b"a\0\0", &profile[..]].concat()), zeros(8, 8, 3)]),
            Decoded,
        ),
        (
            "PNG, bomb of a text",
            png(8, 8, 8, 2, &[chunk(b"zTXt", &[b"a\0\0", &bomb()[..]].concat()), zeros(8, 8, 3)]),
            Either,
        ),
        ("PNG, frames without number", png(8, 8, 8, 2, &small_frame), Either),
        ("PNG, chunk beyond the file", [&a_png[..33], &[0x7f, 0xff, 0xff, 0xff], b"IDAT"].concat(), Broken),
        ("JPEG, largest sides", resized(&a_jpeg, 65535, 65535), TooLarge),
        ("JPEG, much larger than its data", resized(&a_jpeg, 1900, 1900), Either),
        ("JPEG, no height", resized(&a_jpeg, 24, 0), Broken),
        ("JPEG, no frame", [&a_jpeg[..2], &[0xff, 0xda, 0, 2, 0xff, 0xd9]].concat(), Broken),
        ("JPEG, 12 bits", altered(4, 12), Broken),
        ("JPEG, no components", altered(9, 0), Broken),
        ("JPEG, arithmetic coding", altered(1, 0xc9), Broken),
        ("JPEG, a smaller frame first", with_segment(&a_jpeg, 0xc0, &[8, 0, 1, 0, 1, 1, 1, 0x11, 0]), Either),
        (
            "JPEG, a larger frame behind",
            with_segment(&resized(&a_jpeg, 65535, 65535), 0xc0, &[8, 0, 1, 0, 1, 1, 1, 0x11, 0]),
            Broken,
        ),
        ("JPEG, segment without length", [&a_jpeg[..2], &[0xff, 0xe0, 0, 0], &a_jpeg[2..]].concat(), Either),
        ("JPEG, CMYK", fixture("cmyk.jpg"), Decoded),
        ("JPEG, 2000 scans", many_scans.clone(), Either),
        ("JPEG, 2000 scans of many pixels", resized(&many_scans, 1000, 1000), Either),
        ("JPEG, progressive without scans", resized(&progressive[..scans], 1900, 1900), Either),
        ("JPEG, EXIF that is none", exif(b"II*\0\xff\xff\xff\xff"), Decoded),
        (
            "JPEG, EXIF that leads to itself",
            exif(b"MM\0*\0\0\0\x08\0\x01\x87\x69\0\x04\0\0\0\x01\0\0\0\x08"),
            Decoded,
        ),
        (
            "JPEG, EXIF of an orientation that is none",
            exif(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x63\0\0\0\0\0\0"),
            Decoded,
        ),
        ("GIF, largest screen", [screen(65535, 65535), frame(1, 1, 2)].concat(), TooLarge),
        ("GIF, largest frame on a small screen", [screen(8, 8), frame(65535, 65535, 2)].concat(), Broken),
        ("GIF, no frame", [screen(8, 8), vec![0x3b]].concat(), Broken),
        ("GIF, many pixels and no data", [screen(1900, 1900), frame(1900, 1900, 2)].concat(), Either),
        ("GIF, codes of 200 bits", [screen(8, 8), frame(8, 8, 200)].concat(), Broken),
        ("GIF, a hundred frames", gif(100), Decoded),
        ("GIF, no screen", [&screen(0, 0)[..], &a_gif[13..]].concat(), Broken),
        ("WebP, largest canvas", webp(&[(b"VP8X", canvas(0, 1 << 24, 1 << 24))]), TooLarge),
        ("WebP, largest lossless", webp(&[(b"VP8L", lossless(16384, 16384))]), TooLarge),
        (
            "WebP, small canvas of a large image",
            webp(&[(b"VP8X", canvas(0, 24, 16)), (b"VP8L", lossless(16384, 16384))]),
            Broken,
        ),
        (
            "WebP, small canvas of a large lossy image",
            webp(&[(b"VP8X", canvas(0, 24, 16)), (b"VP8 ", lossy())]),
            Broken,
        ),
        ("WebP, EXIF beyond the file", exif_beyond_the_file(), Broken),
        ("WebP, largest lossy", webp(&[(b"VP8 ", lossy())]), TooLarge),
        (
            "WebP, frame larger than its canvas",
            webp(&[(b"VP8X", animation.clone()), (b"ANIM", vec![0; 6]), (b"ANMF", out_of_canvas.concat())]),
            Broken,
        ),
        ("WebP, animation without frames", webp(&[(b"VP8X", animation), (b"ANIM", vec![0; 6])]), Broken),
        ("WebP, many pixels and no data", webp(&[(b"VP8L", lossless(1900, 1900))]), Either),
        ("WebP, chunk beyond the file", [&a_webp[..16], &[0xff; 4], &a_webp[20..]].concat(), Either),
        ("WebP, none of its chunks", webp(&[(b"ABCD", vec![0; 64])]), Broken),
        ("PNG's signature before a JPEG", [&a_png[..8], &a_jpeg[..]].concat(), Broken),
        ("JPEG's signature before a PNG", [&a_jpeg[..3], &a_png[..]].concat(), Broken),
    ] {
        files.push((name.to_owned(), file, fate));
    }
    files
}
