//! Images of requests: each vendor's part of a message, read to the bytes of a file or to its address.
//!
//! No message of an error quotes either.

use crate::error::{ApiError, wrong};
use crate::openapi::schema::{only, words};
use crate::request::fields::{Fields, Neutral, wrong_word};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use monomorph_vision::Detail;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// How closely an image may be asked to be looked at.
const DETAILS: [&str; 4] = ["auto", "low", "high", "original"];
/// What a request may send.
const AS_DATA: &str = "must be a data URL with the image in base64, as `data:image/png;base64,...`";

/// What a part of a message shows the model.
#[derive(Clone, PartialEq)]
pub(crate) struct RequestImage {
    /// The path of what holds it in the body.
    pub(crate) at: String,
    /// The file, or where it is.
    pub(crate) source: ImageSource,
    /// How closely to look.
    pub(crate) detail: Detail,
}

/// Where an image is.
#[derive(Clone, PartialEq)]
pub(crate) enum ImageSource {
    /// Here: its file.
    File(Arc<[u8]>),
    /// At an address, until it is fetched.
    Remote(Arc<str>),
}

impl RequestImage {
    /// Its file.
    ///
    /// # Errors
    /// When it is still to be fetched, which this server does not do.
    pub(crate) fn file(&self) -> Result<&Arc<[u8]>, ApiError> {
        match &self.source {
            ImageSource::File(bytes) => Ok(bytes),
            ImageSource::Remote(_) => {
                let what = format!("{AS_DATA}: this server fetches nothing (--image-hosts)");
                Err(ApiError { code: "invalid_image_url", ..wrong!(&self.at, "{what}") })
            }
        }
    }
}

/// The images of a request, collected as its messages are read.
#[derive(Debug)]
pub(crate) struct RequestImages {
    taken: bool,
    read: Vec<RequestImage>,
}

impl RequestImages {
    /// None yet, of a request to a model that takes images or does not.
    pub(crate) fn new(taken: bool) -> RequestImages {
        RequestImages { taken, read: Vec::new() }
    }

    /// Whether the model takes images.
    pub(crate) fn are_taken(&self) -> bool {
        self.taken
    }

    /// Takes the image of a part at `path`, as `read` reads it.
    ///
    /// # Errors
    /// When the model takes none, before anything of the image is looked at, or those of `read`.
    pub(crate) fn push(
        &mut self,
        path: &str,
        part: &Value,
        read: fn(&str, &Value) -> Result<RequestImage, ApiError>,
    ) -> Result<(), ApiError> {
        if !self.taken {
            return Err(ApiError::unsupported(
                path,
                "images, for which a model has to be built with `--vision on`",
            ));
        }
        self.read.push(read(path, part)?);
        Ok(())
    }

    /// All of them, in the order in which they stand in the messages.
    pub(crate) fn into_vec(self) -> Vec<RequestImage> {
        self.read
    }
}

impl fmt::Debug for RequestImage {
    /// Without its bytes or its address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            ImageSource::File(bytes) => format!("{} bytes", bytes.len()),
            ImageSource::Remote(_) => "remote".to_owned(),
        };
        write!(f, "RequestImage({}, {source}, {:?})", self.at, self.detail)
    }
}

/// A part of a chat's message: `image_url` with a `url` and a `detail`.
pub(crate) fn read_chat_image(path: &str, part: &Value) -> Result<RequestImage, ApiError> {
    let mut fields = Fields::new(path, part)?;
    fields.of(|| only("image_url")).required_tag("type")?;
    let at = fields.path("image_url");
    let image = fields.required("image_url")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, image)?;
    let at = fields.path("url");
    let source = of_url(&at, fields.required_string("url")?)?;
    let detail = read_detail(&mut fields)?;
    fields.finish()?;
    Ok(RequestImage { at, source, detail })
}

/// A part of a response's item: `input_image` with an `image_url` that is a text.
pub(crate) fn read_response_image(path: &str, part: &Value) -> Result<RequestImage, ApiError> {
    let mut fields = Fields::new(path, part)?;
    fields.of(|| only("input_image")).required_tag("type")?;
    fields.refuse_unless("file_id", &Neutral::Nothing, "stored files; send the image as a data URL")?;
    let at = fields.path("image_url");
    let source = of_url(&at, fields.required_string("image_url")?)?;
    let detail = read_detail(&mut fields)?;
    fields.finish()?;
    Ok(RequestImage { at, source, detail })
}

/// A block of Anthropic's: `image` with a `source` of type `base64` or `url`.
pub(crate) fn read_block_image(path: &str, block: &Value) -> Result<RequestImage, ApiError> {
    let mut fields = Fields::new(path, block)?;
    fields.of(|| only("image")).required_tag("type")?;
    fields.harmless(&["cache_control"]);
    let at = fields.path("source");
    let source = fields.required("source")?;
    fields.finish()?;
    let mut fields = Fields::new(&at, source)?;
    let kind = fields.of(|| words(&["base64", "url"])).required_tag("type")?;
    if kind == "url" {
        let at = fields.path("url");
        let source = of_url(&at, fields.required_string("url")?)?;
        fields.finish()?;
        return Ok(RequestImage { at, source, detail: Detail::High });
    }
    if kind != "base64" {
        let what = format!("sources of type {kind:?}; send the image as `base64`");
        return Err(ApiError::unsupported(fields.path("type"), &what));
    }
    let media = fields.path("media_type");
    check_media(&media, fields.required_string("media_type")?)?;
    let at = fields.path("data");
    let source = ImageSource::File(of_base64(&at, fields.required_string("data")?)?);
    fields.finish()?;
    Ok(RequestImage { at, source, detail: Detail::High })
}

/// Samples of the three, for their schemas.
pub(crate) fn samples() -> [Value; 3] {
    let url = "data:image/png;base64,AAAA";
    [
        json!({"type": "image_url", "image_url": {"url": url}}),
        json!({"type": "input_image", "image_url": url}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
    ]
}

fn read_detail(fields: &mut Fields) -> Result<Detail, ApiError> {
    let at = fields.path("detail");
    match fields.of(|| words(&DETAILS)).string("detail")? {
        None | Some("auto" | "high") => Ok(Detail::High),
        Some("low") => Ok(Detail::Low),
        Some("original") => Ok(Detail::Original),
        other => Err(wrong_word(&at, &DETAILS, other)),
    }
}

/// What a URL stands for: a data URL for the bytes in it, others for what is there.
fn of_url(at: &str, url: &str) -> Result<ImageSource, ApiError> {
    if url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
        return Ok(ImageSource::Remote(url.into()));
    }
    let invalid = || ApiError { code: "invalid_image_url", ..wrong!(at, "{AS_DATA}") };
    let scheme = url.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:")).ok_or_else(invalid)?;
    let (head, data) = url[scheme.len()..].split_once(',').ok_or_else(invalid)?;
    let media = head.strip_suffix(";base64").ok_or_else(invalid)?;
    check_media(at, media)?;
    Ok(ImageSource::File(of_base64(at, data)?))
}

/// Checks what a request says of its image; which format it has, its first bytes say.
fn check_media(at: &str, media: &str) -> Result<(), ApiError> {
    let begins = media.get(..6).is_some_and(|begin| begin.eq_ignore_ascii_case("image/"));
    if begins {
        return Ok(());
    }
    let what = "is no image: PNG, JPEG, WebP and GIF are taken";
    Err(ApiError { code: "unsupported_image_media_type", ..wrong!(at, "{what}") })
}

fn of_base64(at: &str, data: &str) -> Result<Arc<[u8]>, ApiError> {
    let bytes = STANDARD.decode(data).map_err(|_| ApiError {
        code: "invalid_base64_image",
        ..wrong!(at, "is not base64 (RFC 4648, with its padding and without line breaks)")
    })?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(read: Result<RequestImage, ApiError>) -> (&'static str, String, String) {
        let error = read.expect_err("it is refused");
        (error.code, error.param.unwrap_or_default(), error.message)
    }

    #[test]
    fn parts_of_all_vendors_are_read_to_their_bytes() {
        let [chat, response, block] = samples();
        let at = |image: Result<RequestImage, ApiError>| {
            let image = image.expect("a sample is taken");
            assert_eq!((&**image.file().expect("it was sent"), image.detail), (&[0, 0, 0][..], Detail::High));
            image.at
        };
        assert_eq!(at(read_chat_image("p", &chat)), "p.image_url.url");
        assert_eq!(at(read_response_image("p", &response)), "p.image_url");
        assert_eq!(at(read_block_image("p", &block)), "p.source.data");
        for (word, detail) in [
            ("low", Detail::Low),
            ("auto", Detail::High),
            ("high", Detail::High),
            ("original", Detail::Original),
        ] {
            let mut chat = chat.clone();
            chat["image_url"]["detail"] = word.into();
            assert_eq!(read_chat_image("p", &chat).expect("a detail").detail, detail);
        }
    }

    #[test]
    fn what_is_no_image_is_refused_with_its_path_and_without_its_bytes() {
        for (url, code) in [
            ("http://example.com/a.png", "invalid_image_url"),
            ("file:///etc/passwd", "invalid_image_url"),
            ("data:image/png,secret", "invalid_image_url"),
            ("data:image/png;base64", "invalid_image_url"),
            ("", "invalid_image_url"),
            ("data:text/html;base64,AAAA", "unsupported_image_media_type"),
            ("data:;base64,AAAA", "unsupported_image_media_type"),
            ("data:image/png;base64,secret!", "invalid_base64_image"),
            ("data:image/png;base64,AAA", "invalid_base64_image"),
        ] {
            let (found, at, message) =
                refused(read_chat_image("p", &json!({"type": "image_url", "image_url": {"url": url}})));
            assert_eq!((found, at.as_str()), (code, "p.image_url.url"), "{url}");
            assert!(!message.contains("secret") && !message.contains("example"), "{message}");
        }
        let chat =
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "x"}});
        assert_eq!(refused(read_chat_image("p", &chat)).1, "p.image_url.detail");
        let file = json!({"type": "input_image", "file_id": "f"});
        assert_eq!(refused(read_response_image("p", &file)).0, "unsupported_parameter");
        let file = json!({"type": "image", "source": {"type": "file", "file_id": "f"}});
        let (code, at, _) = refused(read_block_image("p", &file));
        assert_eq!((code, at.as_str()), ("unsupported_parameter", "p.source.type"));
    }

    #[test]
    fn an_address_is_read_and_has_no_file_until_it_is_fetched() {
        let url = "https://example.com/secret.png";
        for image in [
            read_chat_image("p", &json!({"type": "image_url", "image_url": {"url": url}})),
            read_response_image("p", &json!({"type": "input_image", "image_url": url})),
            read_block_image("p", &json!({"type": "image", "source": {"type": "url", "url": url}})),
        ] {
            let image = image.expect("an address");
            assert!(image.source == ImageSource::Remote(url.into()));
            let error = image.file().expect_err("it is not here");
            assert_eq!((error.code, error.param.as_ref()), ("invalid_image_url", Some(&image.at)));
            assert!(!format!("{image:?}{}", error.message).contains("secret"), "{}", error.message);
        }
    }
}
