//! Files of a repository on a Hugging Face hub, kept in the hub's own cache and so shared with other
//! programs.
//!
//! Nothing that the hub says is believed: names that would leave the cache are refused, whole files are
//! hashed also where a download was resumed, and a file appears in a snapshot only when it is whole and
//! right.

mod address;
mod ask;
mod blob;
mod disk;
mod error;
mod file;
mod names;
mod place;
mod progress;
mod snapshot;
#[cfg(feature = "test-support")]
pub mod stand_in;
mod tree;

pub use address::joined;
pub use disk::{free, hex};
pub use error::Error;
pub use file::Known;
pub use progress::{Progress, Shown};
pub use tree::{Entry, Tree};

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The hub's address, unless `HF_ENDPOINT` names another.
pub const ENDPOINT: &str = "https://huggingface.co";

/// A hub, and where its files are kept.
#[derive(Clone)]
pub struct Hub {
    /// Address, without a path: `https://huggingface.co` or a mirror's.
    pub endpoint: String,
    /// Directory of the cache, in which every repository has one of its own.
    pub cache: PathBuf,
    /// The access token, which is sent to the endpoint's own host alone.
    pub token: Option<String>,
    /// Whether only what the cache has is used.
    pub offline: bool,
    /// How long to wait, and how often to try again.
    pub limits: Limits,
}

/// How long to wait, and how often to try again.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time to connect.
    pub connect: Duration,
    /// Longest time until a request is answered, without the body.
    pub answer: Duration,
    /// Longest silence within a body; also the time in which [`Limits::least`] bytes have to come.
    pub silence: Duration,
    /// Bytes that a body brings in each [`Limits::silence`], or it counts as broken off.
    pub least: u64,
    /// Attempts in a row that brought fewer than [`Limits::least`] bytes, after which it is an error.
    pub attempts: u32,
    /// Pause before the second attempt; it doubles with every further one.
    pub pause: Duration,
    /// Longest pause, and the longest that a hub may ask for.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            least: 3000,
            attempts: 6,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(120),
        }
    }
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path in the repository.
    pub path: String,
    /// Hex SHA-256 that it must have, if known.
    pub sha256: Option<String>,
}

impl File {
    /// A file whose digest is known to the hub alone.
    pub fn named(path: impl Into<String>) -> File {
        File { path: path.into(), sha256: None }
    }
}

impl Hub {
    /// The hub that the variables of its own client name: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`,
    /// `HF_TOKEN`, `HF_TOKEN_PATH` (else `$HF_HOME/token`) and `HF_HUB_OFFLINE`.
    pub fn from_environment() -> Hub {
        Hub::by(|name| std::env::var_os(name))
    }

    /// [`Hub::from_environment`] with variables from a function; empty ones count as not set.
    fn by(variable: impl Fn(&str) -> Option<OsString>) -> Hub {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .unwrap_or_else(|| path("HOME").unwrap_or_else(std::env::temp_dir).join(".cache/huggingface"));
        let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(file).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let yes = |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        Hub {
            endpoint: text("HF_ENDPOINT")
                .map_or_else(|| ENDPOINT.to_owned(), |it| it.trim_end_matches('/').to_owned()),
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            token,
            offline: text("HF_HUB_OFFLINE").is_some_and(yes),
            limits: Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_variables_of_the_hubs_own_client_say_where_and_as_whom() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let by = |pairs: &[(&str, &str)]| {
            Hub::by(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let plain = by(&[("HOME", "/h")]);
        assert_eq!(plain.endpoint, ENDPOINT);
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!((plain.token, plain.offline), (None, false));
        let own = home.path().to_str().unwrap();
        let set = by(&[("HF_HOME", own), ("HF_ENDPOINT", "http://mirror/"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!((set.endpoint.as_str(), set.offline), ("http://mirror", true));
        assert_eq!((set.cache, set.token.as_deref()), (home.path().join("hub"), Some("hf_file")));
        let named =
            by(&[("HF_HOME", own), ("HF_TOKEN", " hf_own "), ("HF_HUB_CACHE", "/c"), ("HF_ENDPOINT", "")]);
        assert_eq!((named.cache.as_path(), named.token.as_deref()), (Path::new("/c"), Some("hf_own")));
        assert_eq!(named.endpoint, ENDPOINT);
        assert_eq!(by(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
    }
}
