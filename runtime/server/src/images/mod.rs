//! From the files of a request to what the engine takes: opened within limits, planned, decoded, cut into
//! patches, and put in place of the placeholders that a chat template wrote.
//!
//! Only a server of a model with a vision tower refers to this: [`ReadImages::of`] is generic over it, so
//! that others link no decoder.

mod args;
mod made_up;
mod public;
mod remote;
mod room;

pub use args::ImageArgs;
pub(crate) use made_up::{ImageSize, MadeUpImage};
pub(crate) use room::ImageRoom;

use crate::error::{ApiError, wrong};
use crate::request::images::{ImageSource, RequestImage};
use monomorph_cache::ImageDigest;
use monomorph_engine::{EngineHandle, PromptImage, PromptImages};
use monomorph_model::{Grid, Model, VisionFamily};
use monomorph_vision::{
    Expanded, Family, FileLimits, ImageError, ImageFile, ImagePlan, Levels, PlaceholderMismatch, Positions,
    Span, VisionSpec,
};
use remote::Remote;
use room::DECODING_BYTES;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Changes with what becomes of a file: part of what an image is known by.
const PREPROCESSING: u64 = 1;
/// Tokens of an image unless a server or a request says otherwise.
const MOST_TOKENS: u32 = 1024;
/// Most bytes of the files that are fetched for one request.
const FETCHED_BYTES: u64 = 64 << 20;

/// A prompt in whose place for each image its tokens stand, none of which is decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// The prompt, its placeholders replaced.
    pub(crate) ids: Vec<u32>,
    /// The images in it.
    pub(crate) images: PlacedImages,
}

/// The images of a prompt, before they are decoded.
#[derive(Debug, Default)]
pub(crate) struct PlacedImages {
    images: Vec<PlacedImage>,
    positions: Vec<[u32; 3]>,
    shift: i32,
}

impl PlacedImages {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }
}

/// An image whose file is within limits.
#[derive(Debug)]
struct PlacedImage {
    image: RequestImage,
    plan: ImagePlan,
    span: Span,
    digest: [u8; 32],
    /// Of its patches.
    bytes: u64,
    /// That making them claims at most.
    peak_bytes: u64,
}

type Place = fn(&ImageReader, Vec<RequestImage>, &[u32], &str) -> Result<Placed, ApiError>;
type Decode = fn(&monomorph_model::VisionSpec, &RequestImage, &ImagePlan) -> Result<Vec<f32>, ApiError>;

/// What prepares images, as plain functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadImages {
    place: Place,
    decode: Decode,
}

impl ReadImages {
    /// That of a model, if it takes images.
    pub(crate) fn of<M: Model>() -> Option<ReadImages> {
        if const { M::VISION.is_some() } { Some(ReadImages { place, decode }) } else { None }
    }
}

/// What prepares the images of a server's requests.
#[derive(Clone, Debug)]
pub(crate) struct ImageReader {
    of: monomorph_model::VisionSpec,
    /// Most tokens of an image, and of requests that do not ask for another detail.
    most: u32,
    usual: u32,
    read: ReadImages,
    room: Arc<ImageRoom>,
    /// What fetches images, where some may be.
    remote: Option<Arc<Remote>>,
}

impl ImageReader {
    /// That of an engine, of a model that takes images, as the flags have it.
    pub(crate) fn new(
        read: Option<ReadImages>,
        engine: &EngineHandle,
        args: &ImageArgs,
        room: ImageRoom,
    ) -> Option<ImageReader> {
        let most = u32::try_from(engine.most_image_tokens()).unwrap_or(u32::MAX);
        let usual = args.image_max_tokens.map_or(MOST_TOKENS, NonZero::get).min(most);
        let remote = Remote::new(args.image_hosts.clone()).map(Arc::new);
        Some(ImageReader { of: engine.vision()?, most, usual, read: read?, room: Arc::new(room), remote })
    }

    /// Most tokens of an image, and of one whose request does not ask for another detail.
    pub(crate) fn most_tokens(&self) -> [u32; 2] {
        [self.most, self.usual]
    }

    /// The memory for images.
    pub(crate) fn room(&self) -> &ImageRoom {
        &self.room
    }

    /// Fetches the images that are elsewhere, one after another, each address once; what is returned claims
    /// memory for their files until it is dropped. `at` is the field of the conversation, and `wait` how long
    /// a client is to wait where there is no room for them.
    ///
    /// # Errors
    /// When one may not be fetched or cannot be, or there is no room.
    pub(crate) async fn fetch(
        &self,
        images: &mut [RequestImage],
        at: &str,
        wait: impl FnOnce() -> NonZero<u32>,
    ) -> Result<Option<Arc<OwnedSemaphorePermit>>, ApiError> {
        let mut known: HashMap<Arc<str>, Arc<[u8]>> = HashMap::new();
        let mut bytes = 0;
        for image in images {
            let ImageSource::Remote(address) = image.source.clone() else { continue };
            // Without hosts that may be asked this is an error.
            let Some(remote) = &self.remote else { return image.file().map(|_| None) };
            let file = match known.get(&address) {
                Some(file) => Arc::clone(file),
                None => {
                    let most = (FETCHED_BYTES - bytes).min(FileLimits::DEFAULT.bytes as u64);
                    let (remote, at, asked) = (Arc::clone(remote), image.at.clone(), Arc::clone(&address));
                    let file = self.room.fetch(move || remote.fetch(&at, &asked, most)).await??;
                    bytes += file.len() as u64;
                    known.entry(address).or_insert(file.into()).clone()
                }
            };
            image.source = ImageSource::File(file);
        }
        if bytes == 0 { Ok(None) } else { self.room.claim(bytes, at, wait).map(Some) }
    }

    /// Puts images into a prompt whose template wrote a placeholder for each; `at` is the field of the
    /// conversation. Nothing is decoded.
    ///
    /// # Errors
    /// When the file of one is out of bounds, by its header, or there are other placeholders.
    pub(crate) fn place(&self, images: Vec<RequestImage>, ids: &[u32], at: &str) -> Result<Placed, ApiError> {
        (self.read.place)(self, images, ids, at)
    }

    /// Makes the patches of images, one after another, each file once. `at` is the field of the conversation,
    /// and `wait` how long a client is to wait where there is no room for them.
    ///
    /// # Errors
    /// When one cannot be decoded, or there is no room.
    pub(crate) async fn decode(
        &self,
        placed: PlacedImages,
        at: &str,
        wait: impl FnOnce() -> NonZero<u32>,
    ) -> Result<PromptImages, ApiError> {
        let PlacedImages { images, positions, shift } = placed;
        let files: HashMap<[u8; 32], u64> = images.iter().map(|image| (image.digest, image.bytes)).collect();
        let claim = self.room.claim(files.values().sum(), at, wait)?;
        let mut known: HashMap<[u8; 32], Arc<[f32]>> = HashMap::new();
        let mut given = PromptImages { positions, shift, room: Some(claim), ..PromptImages::default() };
        for PlacedImage { image, plan, span, digest, peak_bytes, .. } in images {
            let pixels = match known.get(&digest) {
                Some(pixels) => Arc::clone(pixels),
                None => {
                    let (decode, of) = (self.read.decode, self.of);
                    let work = move || decode(&of, &image, &plan).map(Arc::<[f32]>::from);
                    let pixels = self.room.decode(peak_bytes, work).await??;
                    known.insert(digest, Arc::clone(&pixels));
                    pixels
                }
            };
            given.images.push(PromptImage {
                digest: ImageDigest(digest),
                start: span.start,
                tokens: span.tokens,
                grid: grid(&plan),
                pixels,
            });
        }
        Ok(given)
    }
}

fn place(reader: &ImageReader, images: Vec<RequestImage>, ids: &[u32], at: &str) -> Result<Placed, ApiError> {
    let spec = processor(&reader.of);
    let opened: Vec<(ImagePlan, u64)> =
        images.iter().map(|image| open(reader, &spec, image)).collect::<Result<_, _>>()?;
    let plans: Vec<ImagePlan> = opened.iter().map(|(plan, _)| *plan).collect();
    let expanded = spec.expand(ids, &plans).map_err(|error| mismatch(at, error))?;
    let (positions, shift) = positions(&reader.of, &expanded, &plans)
        .ok_or_else(|| wrong!(at, "has positions beyond all numbers"))?;
    let mut placed = PlacedImages { positions, shift, ..PlacedImages::default() };
    for ((image, (plan, peak)), span) in images.into_iter().zip(opened).zip(expanded.spans) {
        let bytes = u64::from(plan.patches.cells()) * spec.row_elements() as u64 * 4;
        let digest = digest(image.file()?, &plan);
        // Sharing the patches copies them once.
        placed.images.push(PlacedImage { image, plan, span, digest, bytes, peak_bytes: peak.max(2 * bytes) });
    }
    Ok(Placed { ids: expanded.ids, images: placed })
}

/// Patches each way.
fn grid(plan: &ImagePlan) -> Grid {
    let [rows, columns] = [plan.patches.rows, plan.patches.columns].map(|side| side as usize);
    Grid { frames: 1, rows, columns }
}

/// Positions of a prompt with images and what comes behind it, as [`PromptImages`] have them; `None` where
/// the shift is no number of its type.
fn positions(
    of: &monomorph_model::VisionSpec,
    expanded: &Expanded,
    plans: &[ImagePlan],
) -> Option<(Vec<[u32; 3]>, i32)> {
    if !of.grid_positions {
        return Some((Vec::new(), 0));
    }
    let spans: Vec<_> = expanded.spans.iter().copied().zip(plans.iter().map(|plan| plan.merged)).collect();
    let Positions { axes, delta } = Positions::new(expanded.ids.len(), &spans);
    Some((axes, i32::try_from(delta).ok()?))
}

/// Reads the header of an image: what becomes of it, and the bytes that decoding it claims.
fn open(reader: &ImageReader, spec: &VisionSpec, image: &RequestImage) -> Result<(ImagePlan, u64), ApiError> {
    let refused = |error| refusal(&image.at, &error);
    let file = ImageFile::open(image.file()?, &FileLimits::DEFAULT).map_err(refused)?;
    let most = image.detail.most_tokens(reader.usual).min(reader.most);
    let plan = spec.plan(file.size(), most).map_err(refused)?;
    let peak = file.peak_bytes(spec, &plan);
    if peak > DECODING_BYTES {
        let error = wrong!(&image.at, "takes {peak} bytes to decode; at most {DECODING_BYTES} are taken");
        return Err(ApiError { code: "image_too_large", ..error });
    }
    Ok((plan, peak))
}

fn decode(
    of: &monomorph_model::VisionSpec,
    image: &RequestImage,
    plan: &ImagePlan,
) -> Result<Vec<f32>, ApiError> {
    let refused = |error| refusal(&image.at, &error);
    let file = ImageFile::open(image.file()?, &FileLimits::DEFAULT).map_err(refused)?;
    processor(of).prepare(&file, plan).map_err(refused)
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
#[allow(clippy::excessive_precision, reason = "as published")]
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
        let source = ImageSource::File(bytes.into());
        RequestImage { at: "messages[0].content[1]".to_owned(), source, detail }
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
            pass_images: 1,
            layers: 2,
            step_patches: 64,
            slots: 1,
        };
        let room = Arc::new(ImageRoom::new(1 << 20));
        ImageReader { of, most, usual: most.min(6), read: ReadImages { place, decode }, room, remote: None }
    }

    fn wait() -> NonZero<u32> {
        NonZero::new(3).expect("it is not 0")
    }

    /// All that becomes of images and a prompt.
    async fn seen(
        reader: &ImageReader,
        images: &[RequestImage],
        ids: &[u32],
    ) -> Result<(Vec<u32>, PromptImages), ApiError> {
        let placed = reader.place(images.to_vec(), ids, "messages")?;
        Ok((placed.ids, reader.decode(placed.images, "messages", wait).await?))
    }

    #[tokio::test]
    async fn placeholders_become_images_with_positions_and_patches() {
        let images =
            [image(gif(1), Detail::High), image(gif(2), Detail::Original), image(gif(1), Detail::High)];
        let ids = [1, 7, 9, 8, 2, 7, 9, 8, 7, 9, 8, 3];
        let reader = reader(16);
        let (ids, seen) = seen(&reader, &images, &ids).await.expect("they are images");
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
        // One file asked for twice is decoded once, and counts once until the request is forgotten.
        assert!(Arc::ptr_eq(&seen.images[0].pixels, &seen.images[2].pixels));
        let bytes = |image: usize| 4 * seen.images[image].pixels.len() as u64;
        assert_eq!(reader.room().claimed(), (bytes(0) + bytes(1)).next_multiple_of(1 << 10));
        drop(seen);
        assert_eq!(reader.room().claimed(), 0);
    }

    #[tokio::test]
    async fn images_that_find_no_room_are_refused_before_they_are_decoded() {
        let reader = ImageReader { room: Arc::new(ImageRoom::new(2 << 10)), ..reader(4) };
        let one = |red, ids: &'static [u32]| (vec![image(gif(red), Detail::High); ids.len()], ids);
        // Sixteen patches of 96 bytes, whatever it is asked for.
        let (images, ids) = one(1, &[9, 9]);
        let (_, held) = seen(&reader, &images, ids).await.expect("there is room");
        let (images, ids) = one(2, &[9]);
        let full = seen(&reader, &images, ids).await.expect_err("others have it");
        assert_eq!((full.code, full.retry_after), ("image_memory_full", Some(wait())));
        drop(held);
        seen(&reader, &images, ids).await.expect("it is there again");
        let several = [1, 2].map(|red| image(gif(red), Detail::High));
        let large = seen(&reader, &several, &[9, 9]).await.expect_err("there is not so much");
        assert_eq!((large.code, large.param.as_deref()), ("image_too_large", Some("messages")));
    }

    async fn refused(bytes: Vec<u8>, ids: &[u32]) -> (&'static str, String, String) {
        let error = seen(&reader(16), &[image(bytes, Detail::High)], ids).await.map(drop);
        let error = error.expect_err("it is refused");
        (error.code, error.param.unwrap_or_default(), error.message)
    }

    #[tokio::test]
    async fn what_cannot_be_seen_is_refused_by_what_is_wrong() {
        let at = "messages[0].content[1]";
        let cut = gif(1)[..20].to_vec();
        for (bytes, code) in [
            (Vec::new(), "empty_image_file"),
            (b"%PDF-1.7".to_vec(), "unsupported_image_media_type"),
            (cut, "image_parse_error"),
            ([&b"GIF89a"[..], &[0xff, 0xff, 0xff, 0xff, 0, 0, 0]].concat(), "image_too_large"),
        ] {
            let (found, param, message) = refused(bytes, &[9]).await;
            assert_eq!((found, param.as_str()), (code, at), "{message}");
        }
        // Tables of a lossless WebP may take hundreds of times its bytes.
        let mut webp = Vec::new();
        let encoder = image::codecs::webp::WebPEncoder::new_lossless(&mut webp);
        encoder.encode(&[7; 48], 4, 4, image::ExtendedColorType::Rgb8).expect("written");
        webp.resize(3 << 20, 0);
        let (code, param, message) = refused(webp, &[9]).await;
        assert_eq!((code, param.as_str()), ("image_too_large", at));
        assert!(message.contains("bytes to decode; at most 1073741824 are taken"), "{message}");
        let (_, param, message) = refused(gif(1), &[9, 9]).await;
        assert_eq!(param, "messages");
        assert!(message.contains("2 places for images") && message.contains("chat template"), "{message}");
        // The same file for another number of tokens is another image.
        let mut digests = Vec::new();
        for most in [4, 16] {
            let images = [image(gif(1), Detail::Original)];
            let (_, seen) = seen(&reader(most), &images, &[9]).await.expect("an image");
            digests.push(seen.images[0].digest);
        }
        assert_ne!(digests[0], digests[1]);
    }
}
