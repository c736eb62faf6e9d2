//! Images in the ids of a prompt.

use crate::{Family, ImagePlan, VisionSpec};
use std::fmt;

/// A prompt whose placeholders have become images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// All ids.
    pub ids: Vec<u32>,
    /// Where each image is, ascending.
    pub spans: Vec<Span>,
}

/// Where an image is among the ids of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The index of its first id: of an image's token, not of what begins an image.
    pub start: usize,
    /// Its [`ImagePlan::tokens`].
    pub tokens: usize,
}

/// A prompt that has another number of placeholders than images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceholderMismatch {
    /// In the prompt.
    pub placeholders: usize,
    /// Of the request.
    pub images: usize,
}

impl fmt::Display for PlaceholderMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { placeholders, images } = self;
        write!(f, "the prompt has {placeholders} places for images, and the request {images} images")
    }
}

impl std::error::Error for PlaceholderMismatch {}

impl VisionSpec {
    /// A template's ids with each placeholder, [`VisionSpec::image_id`], replaced by an image's ids.
    ///
    /// # Errors
    /// Unless there are as many placeholders as images.
    pub fn expand(&self, prompt: &[u32], images: &[ImagePlan]) -> Result<Expanded, PlaceholderMismatch> {
        let placeholder = self.image_id();
        let placeholders = prompt.iter().filter(|id| **id == placeholder).count();
        if placeholders != images.len() {
            return Err(PlaceholderMismatch { placeholders, images: images.len() });
        }
        let more: usize = images.iter().map(|image| image.tokens as usize + 2).sum();
        let mut expanded = Expanded {
            ids: Vec::with_capacity(prompt.len() + more),
            spans: Vec::with_capacity(images.len()),
        };
        let mut images = images.iter();
        for id in prompt {
            match images.as_slice().first().filter(|_| *id == placeholder) {
                Some(image) => {
                    self.push(image, &mut expanded);
                    images.next();
                }
                None => expanded.ids.push(*id),
            }
        }
        Ok(expanded)
    }

    /// Appends an image's ids and what the family has around them.
    fn push(&self, image: &ImagePlan, expanded: &mut Expanded) {
        let ids = &mut expanded.ids;
        let (rows, columns) = (image.merged.rows as usize, image.merged.columns as usize);
        if let Family::Gemma { begin, .. } = self.family {
            ids.push(begin);
        }
        let start = ids.len();
        match self.family {
            Family::Qwen { image, .. } | Family::Gemma { image, .. } => {
                ids.extend(std::iter::repeat_n(image, rows * columns));
            }
            Family::Pixtral { image, row_end, end, .. } => {
                for row in 1..=rows {
                    ids.extend(std::iter::repeat_n(image, columns));
                    ids.push(if row == rows { end } else { row_end });
                }
            }
        }
        expanded.spans.push(Span { start, tokens: ids.len() - start });
        if let Family::Gemma { end, .. } = self.family {
            ids.push(end);
        }
    }
}
