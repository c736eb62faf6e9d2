//! Weights by the name of a repository on a hub: `owner/name`, or `owner/name@revision`.

use crate::process::out;
use monomorph_hub::{Entry, File, Hub, Shown};
use monomorph_model::ModelSpec;
use monomorph_weights::{BESIDE, Safetensors};
use std::fmt;
use std::path::{Path, PathBuf};

/// The revision where none is named.
const REVISION: &str = "main";

/// A repository of a hub, at a revision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repository<'a> {
    id: &'a str,
    revision: &'a str,
}

/// The files of a repository that a build reads.
#[derive(Debug, PartialEq, Eq)]
struct Chosen<'a> {
    files: Vec<&'a Entry>,
    /// The one GGUF file, where it is that; else all of them are read as a directory.
    gguf: Option<&'a str>,
}

impl<'a> Repository<'a> {
    /// The repository that `--weights` names: none where there is such a file or directory, or where it can
    /// only be the path of one.
    pub(crate) fn named(path: &'a Path) -> Option<Repository<'a>> {
        let text = path.to_str().filter(|_| !path.exists())?;
        let (id, revision) = text.split_once('@').unwrap_or((text, REVISION));
        let (owner, name) = id.split_once('/')?;
        let part = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
        };
        let is_file = [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end));
        (part(owner) && part(name) && !is_file).then_some(Repository { id, revision })
    }

    /// Fetches what this build reads into the hub's cache, or the one in `cache`, and returns what
    /// [`monomorph_weights::Checkpoint::open`] takes. What the cache has is not fetched again; offline it is
    /// all there is.
    ///
    /// # Errors
    /// When the hub or the disk does not give the files, or the repository has none that this build reads.
    pub(crate) fn fetch(&self, spec: &ModelSpec, cache: Option<&Path>) -> Result<PathBuf, String> {
        let Repository { id, revision } = *self;
        let mut hub = Hub::from_environment();
        if let Some(cache) = cache {
            cache.clone_into(&mut hub.cache);
        }
        let failed = |why: &dyn fmt::Display| format!("--weights {id}, which is no path here: {why}");
        if hub.offline {
            let snapshot = hub.cached(id, revision, &[]).map_err(|error| failed(&error))?;
            let snapshot = snapshot.filter(|it| it.is_dir()).ok_or_else(|| {
                let cache = hub.cache.display();
                failed(&format_args!(
                    "{cache} has no {revision} of it, and HF_HUB_OFFLINE forbids asking the hub"
                ))
            })?;
            let kept = kept(&snapshot).map_err(|error| format!("{}: {error}", snapshot.display()))?;
            let Chosen { gguf, .. } = choose(spec, &kept).map_err(|why| failed(&why))?;
            return Ok(gguf.map_or_else(|| snapshot.clone(), |gguf| snapshot.join(gguf)));
        }
        let mut shown = Shown::default();
        let tree = hub.tree(id, revision, &mut shown).map_err(|error| failed(&error))?;
        let Chosen { files, gguf } = choose(spec, &tree.files).map_err(|why| failed(&why))?;
        let files: Vec<File> =
            files.iter().map(|it| File { path: it.path.clone(), sha256: it.sha256.clone() }).collect();
        let snapshot = hub.snapshot(id, &tree.commit, &files, &mut shown).map_err(|error| failed(&error))?;
        // A cache that is not written to is as good as long as the hub answers.
        if let Err(error) = hub.refer(id, revision, &tree.commit) {
            out::say(format_args!("warning: {revision} of {id} will not be found offline: {error}"));
        }
        out::say(format_args!("weights: {id} at {}, in {}", tree.commit, snapshot.display()));
        Ok(gguf.map_or_else(|| snapshot.clone(), |gguf| snapshot.join(gguf)))
    }
}

/// The files of a snapshot in the cache.
fn kept(snapshot: &Path) -> std::io::Result<Vec<Entry>> {
    let (mut files, mut directories) = (Vec::new(), vec![snapshot.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            // Files are links to blobs, which may be gone.
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else if let Some(name) = path.strip_prefix(snapshot).ok().and_then(Path::to_str)
                && path.is_file()
            {
                files.push(Entry { path: name.to_owned(), size: 0, sha256: None });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Chooses of a repository's files those that a build reads: its safetensors with what stands beside them, or
/// one GGUF file, where the build is of formats that only those have or there is nothing else.
///
/// # Errors
/// When there are neither, or several GGUF files of which the build names none.
fn choose<'a>(spec: &ModelSpec, files: &'a [Entry]) -> Result<Chosen<'a>, String> {
    let there = |name: &str| files.iter().any(|it| it.path == name);
    let stem = [Safetensors::HUGGING_FACE, Safetensors::MISTRAL].into_iter().find(|stem| {
        there(&format!("{stem}.safetensors")) || there(&format!("{stem}.safetensors.index.json"))
    });
    let of_gguf = spec.formats.iter().any(|it| it.stored.is_quantised() && !it.stored.has_companions());
    if let Some(stem) = stem.filter(|_| !of_gguf) {
        let whole = format!("{stem}.safetensors");
        let (index, shards) = (format!("{whole}.index.json"), format!("{stem}-"));
        let is_read = |it: &&Entry| {
            let path = it.path.as_str();
            let shard = path.starts_with(&shards) && path.ends_with(".safetensors") && !path.contains('/');
            let weights = if there(&whole) { path == whole } else { path == index || shard };
            weights || BESIDE.contains(&path)
        };
        return Ok(Chosen { files: files.iter().filter(is_read).collect(), gguf: None });
    }
    let ggufs = files.iter().filter(|it| it.path.ends_with(".gguf")).collect::<Vec<_>>();
    let named = |it: &&&Entry| spec.files.iter().any(|file| it.path == file.name);
    match (&ggufs[..], ggufs.iter().find(named)) {
        ([one], _) | (_, Some(one)) => Ok(Chosen { files: vec![*one], gguf: Some(&one.path) }),
        ([], None) if of_gguf => Err("it has no .gguf file, which is what this build reads".to_owned()),
        ([], None) => Err("it has neither safetensors nor a .gguf file".to_owned()),
        (several, None) => {
            let names: Vec<&str> = several.iter().map(|it| it.path.as_str()).collect();
            Err(format!("it has several .gguf files; download one and name its path: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Shape, Small};
    use monomorph_formats::Format;
    use monomorph_model::{ClassFormat, FileSpec};

    #[test]
    fn what_is_no_path_is_a_repository() {
        let named = |text: &'static str| Repository::named(Path::new(text)).map(|it| (it.id, it.revision));
        assert_eq!(named("org/name"), Some(("org/name", "main")));
        assert_eq!(named("org/Na-me_1.5@refs/pr/1"), Some(("org/Na-me_1.5", "refs/pr/1")));
        for path in [
            "name",
            "dummy:3",
            "/org/name",
            "./name",
            "../name",
            "org/name/part",
            "org/",
            "org/a b",
            "org/name.gguf",
            "dir/model.safetensors",
            // A directory of this crate, in which its tests run.
            "src/start",
        ] {
            assert_eq!(named(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_kept_is_listed_by_its_paths() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path();
        std::fs::create_dir_all(root.join("snapshot/part")).expect("made");
        std::fs::write(root.join("blob"), b"").expect("written");
        for (link, to) in [("a.gguf", "../blob"), ("part/b.gguf", "../../blob"), ("gone.gguf", "../none")] {
            std::os::unix::fs::symlink(to, root.join("snapshot").join(link)).expect("linked");
        }
        let found = kept(&root.join("snapshot")).expect("readable");
        assert_eq!(found.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["a.gguf", "part/b.gguf"]);
    }

    #[test]
    fn what_a_build_reads_is_chosen() {
        let files = |names: &[&str]| -> Vec<Entry> {
            let one = |name: &&str| Entry { path: (*name).to_owned(), size: 1, sha256: None };
            names.iter().map(one).collect()
        };
        let gguf = ModelSpec {
            formats: &[ClassFormat { class: "attention", stored: Format::Q4_1, compute: "int8-block32" }],
            files: &[FileSpec { name: "b.gguf", sha256: "" }],
            ..*Small::SPEC
        };
        let chosen = |spec: &ModelSpec, names: &[&str]| {
            let files = files(names);
            choose(spec, &files).map(|it| {
                let paths: Vec<String> = it.files.iter().map(|it| it.path.clone()).collect();
                (paths.join(" "), it.gguf.map(str::to_owned))
            })
        };
        let both = ["a.gguf", "b.gguf", "config.json", "model.safetensors", "README.md", "tokenizer.json"];
        let of = |paths: &str, gguf: Option<&str>| Ok((paths.to_owned(), gguf.map(str::to_owned)));
        assert_eq!(chosen(Small::SPEC, &both), of("config.json model.safetensors tokenizer.json", None));
        assert_eq!(chosen(&gguf, &both), of("b.gguf", Some("b.gguf")));
        assert_eq!(chosen(&gguf, &["c.gguf", "model.safetensors"]), of("c.gguf", Some("c.gguf")));
        assert_eq!(chosen(Small::SPEC, &["a.gguf"]), of("a.gguf", Some("a.gguf")));
        let shards = [
            "consolidated.safetensors",
            "model-1-of-2.safetensors",
            "model-2-of-2.safetensors",
            "model.safetensors.index.json",
            "onnx/model.safetensors",
            "original/model-1.safetensors",
            "tekken.json",
        ];
        let read =
            "model-1-of-2.safetensors model-2-of-2.safetensors model.safetensors.index.json tekken.json";
        assert_eq!(chosen(Small::SPEC, &shards), of(read, None));
        let mistral = ["consolidated.safetensors", "tekken.json"];
        assert_eq!(chosen(Small::SPEC, &mistral), of("consolidated.safetensors tekken.json", None));
        for (spec, names, word) in [
            (
                Small::SPEC,
                &["a.gguf", "c.gguf"][..],
                "several .gguf files; download one and name its path: a.gguf, c.gguf",
            ),
            (&gguf, &["a.gguf", "c.gguf"], "several"),
            (&gguf, &["model.safetensors"], "no .gguf file"),
            (Small::SPEC, &["pytorch_model.bin"], "neither safetensors nor a .gguf file"),
        ] {
            let message = chosen(spec, names).expect_err(word);
            assert!(message.contains(word), "{message}");
        }
    }
}
