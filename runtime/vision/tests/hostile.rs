//! Files that lie: each is refused or decoded within a second, and never with more memory than was said
//! beforehand.

#[path = "support/hostile.rs"]
mod files;
mod support;

use files::{Broken, Decoded, Either, PLAIN, TooLarge, Unsupported, files, fixture, picture, plain, rgb};
use image::codecs::{jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder};
use image::{ExtendedColorType, ImageEncoder};
use monomorph_vision::{FileLimits, ImageError, ImageFile, Rgb};
use monomorph_weights::hostile::{Counting, damaged, measured};
use proptest::prelude::*;
use support::{GEMMA, PIXTRAL, QWEN};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bombs within the limit take long enough without optimisation.
const LIMITS: FileLimits = FileLimits { bytes: 1 << 20, pixels: 4_000_000, ratio: 200 };
/// What opening may claim beside three copies of the file: tables, and a profile of bounded size.
const OPENING: usize = 9 << 20;
/// What a refusal by the header may claim: its message.
const REFUSING: usize = 4096;

/// Nanoseconds that this thread has run.
fn ran() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Opens and decodes a file, and checks the memory of both.
fn tried(name: &str, file: &[u8]) -> Result<Rgb, ImageError> {
    let (opened, claimed) = measured(|| ImageFile::open(file, &LIMITS));
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let by_header = !matches!(error, ImageError::Parse(_));
            let most = if by_header { REFUSING } else { 3 * file.len() + OPENING };
            assert!(claimed <= most, "{name}: {claimed} bytes claimed for: {error}");
            return Err(error);
        }
    };
    assert!(claimed <= 3 * file.len() + OPENING, "{name}: {claimed} bytes claimed by its header");
    let plan = QWEN.plan(opened.size(), 64)?;
    let (decoded, claimed) = measured(|| opened.decode());
    let most = opened.peak_bytes(&QWEN, &plan);
    assert!(claimed as u64 <= most, "{name}: {claimed} bytes claimed, {most} announced");
    decoded
}

#[test]
fn each_file_is_refused_or_decoded_in_time_and_within_memory() {
    let files = files();
    assert!(files.len() >= 60);
    let mut wrong = Vec::new();
    for (name, file, fate) in files {
        let before = ran();
        let made = tried(&name, &file);
        let fits = match (&made, fate) {
            (_, Either) | (Ok(_), Decoded) => true,
            (Err(error), fate) => match error {
                ImageError::UnsupportedMediaType => fate == Unsupported,
                ImageError::TooManyPixels { .. } | ImageError::TooElongated { .. } => fate == TooLarge,
                ImageError::Parse(_) => fate == Broken,
                ImageError::Empty | ImageError::FileTooLarge { .. } => false,
            },
            (Ok(_), _) => false,
        };
        if !fits {
            let said = made.map(|it| it.size()).map_err(|error| error.to_string());
            wrong.push(format!("{name}, to be {fate:?}: {said:?}"));
        }
        if let Some((before, after)) =
            before.zip(ran()).filter(|(before, after)| after - before > 1_000_000_000)
        {
            wrong.push(format!("{name}: {} ms", (after - before) / 1_000_000));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_has_no_bytes_or_too_many_is_not_looked_at() {
    assert_eq!(ImageFile::open(&[], &LIMITS).unwrap_err(), ImageError::Empty);
    let [(_, file), ..] = plain();
    let limits = FileLimits { bytes: file.len() - 1, ..LIMITS };
    let refused = ImageError::FileTooLarge { bytes: file.len(), most: file.len() - 1 };
    assert_eq!(ImageFile::open(&file, &limits).unwrap_err(), refused);
    assert!(ImageFile::open(&file, &FileLimits { bytes: file.len(), ..LIMITS }).is_ok());
}

#[test]
fn no_message_quotes_control_characters_or_much() {
    for (name, file, _) in files() {
        if let Err(error) = ImageFile::open(&file, &LIMITS).and_then(|it| it.decode()) {
            let text = error.to_string();
            assert!(text.len() < 600 && !text.contains(char::is_control), "{name}: {text:?}");
        }
    }
}

/// The whole way, of every family and format: nothing beyond what was announced.
#[test]
fn preparing_claims_what_was_announced() {
    let large = |name: &str| -> Vec<u8> {
        let mut file = Vec::new();
        let (pixels, alpha) = (rgb(700, 500), picture(700, 500));
        match name {
            "png" => {
                PngEncoder::new(&mut file).write_image(&alpha, 700, 500, ExtendedColorType::Rgba8).unwrap()
            }
            "jpeg" => JpegEncoder::new(&mut file).encode(&pixels, 700, 500, ExtendedColorType::Rgb8).unwrap(),
            _ => WebPEncoder::new_lossless(&mut file)
                .encode(&pixels, 700, 500, ExtendedColorType::Rgb8)
                .unwrap(),
        }
        file
    };
    let names =
        ["lossy.webp", "lossless.webp", "moving.webp", "progressive.jpg", "turned-6.jpg", "clear.gif"];
    let files = names.map(fixture).into_iter().chain(["png", "jpeg", "webp"].map(large));
    for file in files {
        let file = ImageFile::open(&file, &LIMITS).unwrap();
        for spec in [QWEN, GEMMA, PIXTRAL] {
            let plan = spec.plan(file.size(), u32::MAX).unwrap();
            let (rows, claimed) = measured(|| spec.prepare(&file, &plan).unwrap());
            assert_eq!(rows.len(), plan.patches.cells() as usize * spec.row_elements());
            let most = file.peak_bytes(&spec, &plan);
            assert!(claimed as u64 <= most, "{file:?}: {claimed} bytes claimed, {most} announced");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_decoded_or_refused(
        damage in prop::collection::vec(any::<[u32; 3]>(), 1..5), which in 0usize..4,
    ) {
        let (name, whole) = &PLAIN[which];
        let _ = tried(name, &damaged(whole, &damage));
    }
}
