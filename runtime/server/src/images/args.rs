//! Flags of images.

use super::remote::ImageHost;
use super::room::DECODING_BYTES;
use crate::process::memory::Host;
use std::num::NonZero;

/// The default room for images: this part of host memory, up to so many bytes.
const PART: u64 = 16;
const MOST_BYTES: u64 = 4096 << 20;

/// How large images are, and what they take of memory.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ImageArgs {
    /// Tokens that an image takes at most, unless a request asks for its `original` detail [default: 1024, or
    /// what the model takes].
    #[arg(long, value_name = "N")]
    pub image_max_tokens: Option<NonZero<u32>>,
    /// Most memory, in MiB, for the images of requests that wait or are answered; a request whose images find
    /// none is answered 429 [default: a sixteenth of the memory, at most 4096].
    #[arg(long, value_name = "MIB")]
    pub image_memory: Option<NonZero<u32>>,
    /// Hosts from which images are fetched that a request names by an https address, `*.example.com` for all
    /// below one, `*` for any; private addresses are never asked [default: none].
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub image_hosts: Vec<ImageHost>,
}

impl ImageArgs {
    /// Checks that a model that takes no images is given no flags of them.
    ///
    /// # Errors
    /// Names the flag.
    pub(crate) fn check(&self, takes_images: bool) -> Result<(), String> {
        let given = [
            ("--image-max-tokens", self.image_max_tokens.is_some()),
            ("--image-memory", self.image_memory.is_some()),
            ("--image-hosts", !self.image_hosts.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given && !takes_images) {
            Some((flag, _)) => Err(format!("{flag}: this build takes no images")),
            None => Ok(()),
        }
    }

    /// Bytes for patches.
    pub(crate) fn patch_bytes(&self, host: Host) -> u64 {
        let default = (host.total / PART).min(MOST_BYTES);
        self.image_memory.map_or(default, |mib| u64::from(mib.get()) << 20)
    }

    /// Bytes of host memory that images take at most, decoding included.
    pub(crate) fn bytes(&self, host: Host) -> u64 {
        self.patch_bytes(host) + DECODING_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_a_part_of_the_machine_or_what_is_said() {
        let host = |total| Host { total, available: total };
        let bytes = |mib, total| {
            let args = ImageArgs { image_memory: NonZero::new(mib), ..ImageArgs::default() };
            args.patch_bytes(host(total))
        };
        assert_eq!(bytes(0, 16 << 30), 1 << 30);
        assert_eq!(bytes(0, 512 << 30), 4 << 30);
        assert_eq!(bytes(7, 512 << 30), 7 << 20);
    }

    #[test]
    fn flags_of_a_model_without_images_are_named() {
        let given = ImageArgs { image_memory: NonZero::new(1), ..ImageArgs::default() };
        assert_eq!(given.check(true), Ok(()));
        assert_eq!(given.check(false), Err("--image-memory: this build takes no images".to_owned()));
        assert_eq!(ImageArgs::default().check(false), Ok(()));
    }
}
