//! What prefixes are compared by: token ids, and the images that stand among them.
//!
//! All images have the same ids, so ids alone do not say what a block holds. A block's key is its ids and the
//! digest of each image that has tokens in it. Digests are compared whole. Which tokens of an image a block
//! has need not be said: the blocks before it say where the image began, and its digest how long it is.

use std::borrow::Cow;

/// SHA-256 of an image: of its file, and of what was done to it before the tower. Equal images have equally
/// many tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageDigest(pub [u8; 32]);

impl std::fmt::Debug for ImageDigest {
    /// Its first bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageDigest({:02x}{:02x}{:02x}..)", self.0[0], self.0[1], self.0[2])
    }
}

/// Words of an image's digest.
pub(crate) const DIGEST_WORDS: usize = 8;

/// A block's ids, followed by the words of its images, if it has some. All blocks have equally many ids, so
/// what is longer has images, and no two blocks of other images have one key.
pub(crate) fn key<'a>(tokens: &'a [u32], images: &[ImageDigest]) -> Cow<'a, [u32]> {
    if images.is_empty() {
        return Cow::Borrowed(tokens);
    }
    let words = images.iter().flat_map(|ImageDigest(digest)| digest.as_chunks::<4>().0);
    tokens.iter().copied().chain(words.map(|bytes| u32::from_le_bytes(*bytes))).collect()
}

/// An image among the tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedImage {
    /// Which image it is.
    pub digest: ImageDigest,
    /// The index of its first token.
    pub start: usize,
    /// The index behind its last token.
    pub end: usize,
}

/// The tokens of a sequence, or the first of them, with its images. These stand in order and apart; one may
/// end behind the tokens.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    tokens: &'a [u32],
    images: &'a [PlacedImage],
}

impl<'a> Content<'a> {
    /// Tokens with images among them.
    pub fn new(tokens: &'a [u32], images: &'a [PlacedImage]) -> Content<'a> {
        Content { tokens, images }
    }

    /// The token ids.
    pub fn tokens(&self) -> &'a [u32] {
        self.tokens
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The first `count` tokens.
    #[must_use]
    pub fn first(&self, count: usize) -> Content<'a> {
        Content { tokens: &self.tokens[..count], images: self.images }
    }

    /// Whether the first `count` tokens of both are the same, of the same images.
    pub fn begins_like(&self, other: &Content<'_>, count: usize) -> bool {
        let images = |of: &'a [PlacedImage]| of.iter().take_while(move |image| image.start < count);
        self.tokens[..count] == other.tokens[..count]
            && images(self.images).eq(other.images.iter().take_while(|image| image.start < count))
    }

    /// The ids and the images of block `at` of `size` tokens.
    pub(crate) fn block(&self, at: usize, size: usize) -> (&'a [u32], Vec<ImageDigest>) {
        let (start, end) = (at * size, (at + 1) * size);
        let here = self.images.iter().filter(|image| image.start < end && start < image.end);
        (&self.tokens[start..end], here.map(|image| image.digest).collect())
    }
}

impl<'a> From<&'a [u32]> for Content<'a> {
    fn from(tokens: &'a [u32]) -> Content<'a> {
        Content { tokens, images: &[] }
    }
}

impl<'a> From<&'a Vec<u32>> for Content<'a> {
    fn from(tokens: &'a Vec<u32>) -> Content<'a> {
        Content { tokens, images: &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ImageDigest = ImageDigest([1; 32]);
    const B: ImageDigest = ImageDigest([2; 32]);

    #[test]
    fn a_block_has_the_images_that_have_tokens_in_it() {
        let tokens: Vec<u32> = (0..16).collect();
        let images =
            [PlacedImage { digest: A, start: 3, end: 9 }, PlacedImage { digest: B, start: 9, end: 12 }];
        let content = Content::new(&tokens, &images);
        let block = |at| content.block(at, 4).1;
        assert_eq!(block(0), [A]);
        assert_eq!(block(1), [A]);
        assert_eq!(block(2), [A, B]);
        assert_eq!(block(3), []);
        assert_eq!(content.block(2, 4).0, &tokens[8..12]);
    }

    #[test]
    fn what_begins_alike_has_the_same_images_at_the_same_places() {
        let tokens: Vec<u32> = (0..8).collect();
        let image = |digest, start, end| [PlacedImage { digest, start, end }];
        let [one, other, longer, later] = [image(A, 2, 5), image(B, 2, 5), image(A, 2, 6), image(A, 3, 5)];
        let alike = |images: &[PlacedImage], count| {
            Content::new(&tokens, &one).begins_like(&Content::new(&tokens, images), count)
        };
        assert!(alike(&one, 8) && alike(&other, 2), "nothing of an image is in the first two");
        assert!(!alike(&other, 3) && !alike(&longer, 3) && !alike(&later, 4) && !alike(&[], 8));
        assert!(alike(&later, 2));
        assert!(!Content::new(&tokens, &one).begins_like(&Content::from(&[0, 1, 2, 9][..]), 4));
    }
}
