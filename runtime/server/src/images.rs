//! From the files of a request to what the engine takes: opened within limits, planned, decoded, cut into
//! patches, and put in place of the placeholders that a chat template wrote.
//!
//! Only a server of a model with a vision tower refers to this: [`ReadImages::of`] is generic over it, so that
//! others link no decoder.

use crate::error::{ApiError, wrong};
use crate::request::images::RequestImage;
use monomorph_cache::ImageDigest;
use monomorph_engine::{EngineHandle, PromptImage, PromptImages};
use monomorph_model::{Grid, Model, VisionFamily};
use monomorph_vision::{
    Family, FileLimits, ImageError, ImageFile, ImagePlan, Levels, PlaceholderMismatch, Positions, VisionSpec,
};
use sha2::{Digest, Sha256};

/// Changes with what becomes of a file: part of what an image is known by.
const PREPROCESSING: u64 = 1;
/// Tokens of an image unless a server or a request says otherwise.
const MOST_TOKENS: u32 = 1024;
/// Bytes that the decoding of one image may claim.
const PEAK_BYTES: u64 = 1 << 30;

/// A prompt with images, as the engine takes it.
pub(crate) struct Seen {
    /// The prompt, its placeholders replaced.
    pub(crate) ids: Vec<u32>,
    /// The images in it.
    pub(crate) images: PromptImages,
}

/// What prepares images, as plain functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadImages {
    read: fn(&ImageReader, &[RequestImage], &[u32], &str) -> Result<Seen, ApiError>,
    place: fn(&ImageReader, &[RequestImage], &[u32], &str) -> Result<Vec<u32>, ApiError>,
}

impl ReadImages {
    /// That of a model, if it takes images.
    pub(crate) fn of<M: Model>() -> Option<ReadImages> {
        if const { M::VISION.is_some() } { Some(ReadImages { read, place }) } else { None }
    }
}

/// What prepares the images of a server's requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageReader {
    of: monomorph_model::VisionSpec,
    /// Most tokens of an image, and of requests that do not ask for another detail.
    most: u32,
    usual: u32,
    read: ReadImages,
}

impl ImageReader {
    /// That of an engine, of a model that takes images; of requests that ask for nothing, `usual` tokens.
    pub(crate) fn new(
        read: Option<ReadImages>,
        engine: &EngineHandle,
        usual: Option<u32>,
    ) -> Option<ImageReader> {
        let most = u32::try_from(engine.most_image_tokens()).unwrap_or(u32::MAX);
        let usual = usual.unwrap_or(MOST_TOKENS).min(most);
        Some(ImageReader { of: engine.vision()?, most, usual, read: read? })
    }

    /// Prepares images for a prompt whose template wrote a placeholder for each; `at` is the field of the
    /// conversation.
    ///
    /// # Errors
    /// When one of them is none that the model takes, or there are other placeholders.
    pub(crate) fn read(&self, images: &[RequestImage], ids: &[u32], at: &str) -> Result<Seen, ApiError> {
        (self.read.read)(self, images, ids, at)
    }

    /// The ids of the same prompt, for which nothing is decoded.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn place(&self, images: &[RequestImage], ids: &[u32], at: &str) -> Result<Vec<u32>, ApiError> {
        (self.read.place)(self, images, ids, at)
    }
}

fn place(reader: &ImageReader, images: &[RequestImage], ids: &[u32], at: &str) -> Result<Vec<u32>, ApiError> {
    let spec = processor(&reader.of);
    let plans: Vec<ImagePlan> = open(reader, &spec, images)?.iter().map(|(_, plan)| *plan).collect();
    Ok(spec.expand(ids, &plans).map_err(|error| mismatch(at, error))?.ids)
}

/// Reads the headers of all images, before any is decoded.
fn open<'a>(
    reader: &ImageReader,
    spec: &VisionSpec,
    images: &'a [RequestImage],
) -> Result<Vec<(ImageFile<'a>, ImagePlan)>, ApiError> {
    let limits = FileLimits::DEFAULT;
    let opened = images.iter().map(|image| {
        let refused = |error| refusal(&image.at, &error);
        let file = ImageFile::open(&image.bytes, &limits).map_err(refused)?;
        let most = image.detail.most_tokens(reader.usual).min(reader.most);
        let plan = spec.plan(file.size(), most).map_err(refused)?;
        let peak = file.peak_bytes(spec, &plan);
        if peak > PEAK_BYTES {
            let code = "image_too_large";
            let error = wrong!(&image.at, "takes {peak} bytes to decode; at most {PEAK_BYTES} are taken");
            return Err(ApiError { code, ..error });
        }
        Ok((file, plan))
    });
    opened.collect()
}

fn read(reader: &ImageReader, images: &[RequestImage], ids: &[u32], at: &str) -> Result<Seen, ApiError> {
    let spec = processor(&reader.of);
    let opened = open(reader, &spec, images)?;
    let plans: Vec<ImagePlan> = opened.iter().map(|(_, plan)| *plan).collect();
    let expanded = spec.expand(ids, &plans).map_err(|error| mismatch(at, error))?;
    let mut given = PromptImages::default();
    for ((image, (file, plan)), span) in images.iter().zip(&opened).zip(&expanded.spans) {
        let pixels = spec.prepare(file, plan).map_err(|error| refusal(&image.at, &error))?;
        given.images.push(PromptImage {
            digest: ImageDigest(digest(&image.bytes, plan)),
            start: span.start,
            tokens: span.tokens,
            grid: Grid {
                frames: 1,
                rows: plan.patches.rows as usize,
                columns: plan.patches.columns as usize,
            },
            pixels: pixels.into(),
        });
    }
    if reader.of.grid_positions {
        let placed: Vec<_> =
            expanded.spans.iter().copied().zip(plans.iter().map(|plan| plan.merged)).collect();
        let Positions { axes, delta } = Positions::new(expanded.ids.len(), &placed);
        given.positions = axes;
        given.shift = i32::try_from(delta).map_err(|_| wrong!(at, "has positions beyond all numbers"))?;
    }
    Ok(Seen { ids: expanded.ids, images: given })
}

/// What an image is known by: its file, and all that decides what becomes of it.
fn digest(file: &[u8], plan: &ImagePlan) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(PREPROCESSING.to_le_bytes());
    hash.update(plan.resized.width.to_le_bytes());
    hash.update(plan.resized.height.to_le_bytes());
    hash.update(file);
    hash.finalize().into()
}

/// What the processors of a tower's family do. What no release changes stands here; import refuses others.
fn processor(of: &monomorph_model::VisionSpec) -> VisionSpec {
    let (image, id) = (of.tokens.image, |id: Option<u32>| id.unwrap_or(of.tokens.image));
    let (levels, family) = match of.family {
        VisionFamily::Qwen => (
            Levels::Normalised { mean: [0.5; 3], deviation: [0.5; 3] },
            Family::Qwen {
                least_pixels: 65_536,
                most_pixels: 16_777_216,
                most_ratio: 200,
                frames: of.frames as u32,
                image,
            },
        ),
        VisionFamily::Gemma => (
            Levels::Signed,
            Family::Gemma {
                tokens: 280,
                budgets: &[70, 140, 280, 560, 1120],
                begin: id(of.tokens.start),
                image,
                end: id(of.tokens.end),
            },
        ),
        VisionFamily::Pixtral => (
            Levels::Normalised {
                mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
                deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
            },
            Family::Pixtral { longest: 1540, image, row_end: id(of.tokens.row_end), end: id(of.tokens.end) },
        ),
    };
    VisionSpec { patch: of.patch as u32, merge: of.merge as u32, levels, family }
}

/// The error for a refused image.
fn refusal(at: &str, error: &ImageError) -> ApiError {
    let code = match error {
        ImageError::Empty => "empty_image_file",
        ImageError::FileTooLarge { .. } => "image_file_too_large",
        ImageError::UnsupportedMediaType => "unsupported_image_media_type",
        ImageError::Parse(_) => "image_parse_error",
        ImageError::TooManyPixels { .. } | ImageError::TooElongated { .. } => "image_too_large",
    };
    ApiError { code, ..ApiError::field(at, format!("`{at}`: {error}")) }
}

/// The error for a template that writes other placeholders than the messages have images.
fn mismatch(at: &str, error: PlaceholderMismatch) -> ApiError {
    ApiError::field(
        at,
        format!("`{at}`: {error}: this checkpoint's chat template does not show the model images"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::ImageTokens;
    use monomorph_vision::Detail;

    /// A GIF of one pixel, of this colour.
    fn gif(red: u8) -> Vec<u8> {
        let colours = [red, 0, 0, 0, 0, 0];
        let frame = [0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0, 2, 2, 0x44, 1, 0, 0x3b];
        [&b"GIF89a"[..], &[1, 0, 1, 0, 0x80, 0, 0], &colours, &frame].concat()
    }

    fn image(bytes: Vec<u8>, detail: Detail) -> RequestImage {
        RequestImage { at: "messages[0].content[1]".to_owned(), bytes: bytes.into(), detail }
    }

    /// Of a tower of Qwen's with patches of 2 pixels, four to a token: at most so many tokens, and 6.
    fn reader(most: u32) -> ImageReader {
        let of = monomorph_model::VisionSpec {
            family: VisionFamily::Qwen,
            patch: 2,
            frames: 2,
            merge: 2,
            values: 24,
            taps: 0,
            grid_positions: true,
            whole_spans: false,
            tokens: ImageTokens { image: 9, start: Some(7), end: Some(8), row_end: None },
            most_patches: 64,
            slots: 1,
        };
        ImageReader { of, most, usual: most.min(6), read: ReadImages { read, place } }
    }

    #[test]
    fn placeholders_become_images_with_positions_and_patches() {
        let images =
            [image(gif(1), Detail::High), image(gif(2), Detail::Original), image(gif(1), Detail::High)];
        let ids = [1, 7, 9, 8, 2, 7, 9, 8, 7, 9, 8, 3];
        let Seen { ids, images: seen } = reader(16).read(&images, &ids, "messages").expect("they are images");
        // A square of at most 6 tokens has 4, of at most 16 all of them.
        assert_eq!(ids.iter().filter(|id| **id == 9).count(), 4 + 16 + 4);
        assert_eq!(
            seen.images.iter().map(|it| (it.start, it.tokens)).collect::<Vec<_>>(),
            [(2, 4), (9, 16), (27, 4)]
        );
        assert!(seen.images.iter().all(|it| it.pixels.len() == it.grid.patches() * 24));
        let digests: Vec<_> = seen.images.iter().map(|it| it.digest).collect();
        assert!(digests[0] == digests[2] && digests[0] != digests[1]);
        // Each takes as many positions as its longer side: 2, 4 and 2.
        assert_eq!((seen.positions.len(), seen.shift), (ids.len(), 8 - 24));
        assert_eq!(reader(16).place(&images, &[9, 9, 9], "messages").expect("they are").len(), 24);
    }

    #[test]
    fn what_cannot_be_seen_is_refused_by_what_is_wrong() {
        let refused = |bytes: Vec<u8>, ids: &[u32]| {
            let error = reader(16).read(&[image(bytes, Detail::High)], ids, "messages").map(drop);
            let error = error.expect_err("it is refused");
            (error.code, error.param.unwrap_or_default(), error.message)
        };
        let at = "messages[0].content[1]";
        let cut = gif(1)[..20].to_vec();
        for (bytes, code) in [
            (Vec::new(), "empty_image_file"),
            (b"%PDF-1.7".to_vec(), "unsupported_image_media_type"),
            (cut, "image_parse_error"),
            ([&b"GIF89a"[..], &[0xff, 0xff, 0xff, 0xff, 0, 0, 0]].concat(), "image_too_large"),
        ] {
            let (found, param, message) = refused(bytes, &[9]);
            assert_eq!((found, param.as_str()), (code, at), "{message}");
        }
        let (_, param, message) = refused(gif(1), &[9, 9]);
        assert_eq!(param, "messages");
        assert!(message.contains("2 places for images") && message.contains("chat template"), "{message}");
        // The same file for another number of tokens is another image.
        let digest = |most| {
            let seen = reader(most).read(&[image(gif(1), Detail::Original)], &[9], "messages");
            seen.expect("an image").images.images[0].digest
        };
        assert_ne!(digest(4), digest(16));
    }
}
