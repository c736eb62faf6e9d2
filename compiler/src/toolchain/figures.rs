//! Resources of kernel instantiations, cached under a digest of their inputs, independent of target and name.

use super::cubin::Usage;
use super::nvcc::{Compiler, with_includes};
use super::{BuildError, digest, replace};
use crate::emit::cuda::Writer;
use crate::plan::cuda::Kernel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where surveys keep figures, below the workspace's root. Builds of modules add none: in a module with tiles
/// aligned to 1 KiB the static shared memory of its other kernels is rounded up to that.
pub const STORE: &str = "target/cubins/figures";

/// Resources and compile time of one instantiation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Resources, from the assembler and the machine code.
    pub usage: Usage,
    /// Its share of the wall seconds that its source took to compile.
    pub seconds: f64,
}

/// Computes the digests that identify instantiations.
pub(super) struct Keys<'a> {
    compiler: &'a Compiler,
    /// Directory of the library's headers.
    library: PathBuf,
    writer: Writer,
    /// Digests of headers and everything they include.
    headers: BTreeMap<&'static str, String>,
}

impl<'a> Keys<'a> {
    /// Keys of kernels compiled by `compiler` with the headers in `library`.
    pub fn new(compiler: &'a Compiler, library: PathBuf) -> Keys<'a> {
        Keys { compiler, library, writer: Writer::new(), headers: BTreeMap::new() }
    }

    /// A digest of everything that determines a kernel's resources on an architecture (`90a`): its own text
    /// under a name common to all, the headers it includes without their comments, the compiler and its
    /// options.
    ///
    /// # Errors
    /// When a header cannot be read.
    pub fn of(&mut self, architecture: &str, racecheck: bool, kernel: &Kernel) -> Result<String, BuildError> {
        let name = kernel.signature.header;
        if !self.headers.contains_key(name) {
            let texts = with_includes(&self.library.join(name), &self.library)?;
            let texts: Vec<String> = texts.iter().map(|text| without_comments(text)).collect();
            self.headers.insert(name, digest(texts.iter().map(String::as_bytes)));
        }
        let nameless = Kernel { name: "kernel".to_owned(), ..kernel.clone() };
        let text = self.writer.module(&[], racecheck, &[nameless]);
        let identity = self.compiler.identity(architecture);
        let parts = [text.as_str(), &self.headers[name]];
        Ok(digest(identity.iter().map(String::as_str).chain(parts).map(str::as_bytes)))
    }
}

/// C++ without comments, empty lines, and whitespace around lines. The rest is unchanged, quoted text in
/// particular.
fn without_comments(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.chars().peekable());
    let mut quote = None;
    while let Some(c) = rest.next() {
        match (quote, c, rest.peek()) {
            (Some(_), '\\', _) => {
                out.push(c);
                out.extend(rest.next());
                continue;
            }
            (Some(open), _, _) if c == open => quote = None,
            (Some(_), ..) => {}
            (None, '/', Some('/')) => {
                while rest.next_if(|it| *it != '\n').is_some() {}
                continue;
            }
            (None, '/', Some('*')) => {
                let mut before = ' ';
                rest.next();
                while let Some(it) = rest.next().filter(|it| (before, *it) != ('*', '/')) {
                    before = it;
                }
                // A comment separates tokens.
                out.push(' ');
                continue;
            }
            (None, '"', _) => quote = Some('"'),
            // Between digits it is a separator, not a quote.
            (None, '\'', _) if !out.ends_with(|it: char| it.is_alphanumeric()) => quote = Some('\''),
            _ => {}
        }
        out.push(c);
    }
    out.lines().map(str::trim).filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// Cached figures, one small file each in a directory. Threads, processes and checkouts may share it: files
/// are replaced atomically, and are used only if they name the right key.
pub(super) struct Store {
    directory: PathBuf,
}

/// The file of an instantiation.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Key of the instantiation.
    key: String,
    figures: Figures,
    /// Digest of key and figures.
    digest: String,
}

impl Store {
    /// A store in a directory, which need not exist yet.
    pub fn new(directory: &Path) -> Store {
        Store { directory: directory.to_owned() }
    }

    /// Looks up a key. A damaged file counts as missing.
    pub fn get(&self, key: &str) -> Option<Figures> {
        let record = serde_json::from_slice::<Record>(&std::fs::read(self.path(key)).ok()?).ok()?;
        let sound = record.key == key && record.digest == seal(key, &record.figures);
        sound.then_some(record.figures)
    }

    /// Stores figures.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, key: &str, figures: &Figures) -> Result<(), BuildError> {
        // Whole microseconds: more digits might not round-trip.
        let figures = Figures { seconds: (figures.seconds * 1e6).round() / 1e6, ..figures.clone() };
        let digest = seal(key, &figures);
        let record = Record { key: key.to_owned(), figures, digest };
        replace(&self.path(key), serde_json::to_string(&record).expect("numbers and names").as_bytes())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(key).with_extension("json")
    }
}

fn seal(key: &str, figures: &Figures) -> String {
    let text = serde_json::to_string(figures).expect("numbers and names");
    digest([key.as_bytes(), text.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::{Figures, Store, without_comments};
    use crate::toolchain::cubin::Usage;

    #[test]
    fn comments_and_space_go_and_what_is_quoted_stays() {
        let text = "// all\n  int a = 65'536; // one's own\n\n/* two\n lines */ int/*x*/b;\n\
                    asm(\"// %0; /* */ \\\" //\");\nchar c = '\"'; // \"\n";
        let bare = "int a = 65'536;\nint b;\nasm(\"// %0; /* */ \\\" //\");\nchar c = '\"';\n";
        assert_eq!(without_comments(text), bare);
    }

    #[test]
    fn a_file_that_is_damaged_cut_or_another_keys_is_not_believed() {
        let directory = tempfile::tempdir().expect("there is room");
        let store = Store::new(directory.path());
        let figures = Figures { usage: Usage { registers: 40, ..Usage::default() }, seconds: 0.1 };
        assert_eq!(store.get("a"), None);
        store.put("a", &figures).expect("it is writable");
        assert_eq!(store.get("a"), Some(figures));
        for (at, key) in (1..500).map(|at| (at, at.to_string())) {
            let seconds = 1.0 / f64::from(at) + f64::from(at).sqrt();
            store.put(&key, &Figures { usage: Usage::default(), seconds }).expect("it is writable");
            assert!(store.get(&key).is_some(), "{seconds} s");
        }
        let text = std::fs::read_to_string(store.path("a")).expect("it is there");
        for damaged in [text.replace("40", "41"), text[..text.len() / 2].to_owned(), String::new()] {
            std::fs::write(store.path("a"), damaged).expect("it is writable");
            assert_eq!(store.get("a"), None);
        }
        std::fs::write(store.path("b"), &text).expect("it is writable");
        assert_eq!(store.get("b"), None);
    }
}
