//! Weights from a Hugging Face hub, kept in the hub's own cache layout and so shared with other programs.

use super::Wanted;
use monomorph_compiler::spec::types::HubFile;
use std::path::{Path, PathBuf};

/// The hub's address, unless `HF_ENDPOINT` names another, as for the hub's own client.
const ENDPOINT: &str = "https://huggingface.co";

/// Fetches files of a repository at a revision; returns the snapshot's directory.
pub fn fetch(id: &str, revision: &str, files: &[HubFile]) -> Result<PathBuf, String> {
    let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| ENDPOINT.to_owned());
    let cache = cache();
    Repository { endpoint: &endpoint, cache: &cache, id, revision }.fetch(files)
}

/// `$HF_HUB_CACHE`, `$HF_HOME/hub` or `~/.cache/huggingface/hub`: the cache of the hub's own client.
fn cache() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from);
    from("HF_HUB_CACHE").unwrap_or_else(|| {
        let home = || from("HOME").unwrap_or_else(std::env::temp_dir).join(".cache/huggingface");
        from("HF_HOME").unwrap_or_else(home).join("hub")
    })
}

/// A repository on a hub and in its cache.
struct Repository<'a> {
    endpoint: &'a str,
    cache: &'a Path,
    id: &'a str,
    revision: &'a str,
}

impl Repository<'_> {
    fn directory(&self) -> PathBuf {
        self.cache.join(format!("models--{}", self.id.replace('/', "--")))
    }

    fn fetch(&self, files: &[HubFile]) -> Result<PathBuf, String> {
        if let Some(snapshot) = self.cached(files) {
            return Ok(snapshot);
        }
        let mut snapshot = None;
        for file in files {
            eprintln!("fetching {} of {}", file.path, self.id);
            snapshot = Some(self.download(file)?);
        }
        snapshot.ok_or_else(|| format!("the spec names no files of {}", self.id))
    }

    /// The snapshot of the revision, if every file is there.
    fn cached(&self, files: &[HubFile]) -> Option<PathBuf> {
        let commit = std::fs::read_to_string(self.directory().join("refs").join(self.revision));
        let commit = commit.map_or_else(|_| self.revision.to_owned(), |commit| commit.trim().to_owned());
        let snapshot = self.directory().join("snapshots").join(commit);
        (!files.is_empty() && files.iter().all(|file| snapshot.join(&file.path).is_file()))
            .then_some(snapshot)
    }

    /// Downloads one file as a blob named by its etag and links it into the commit's snapshot.
    fn download(&self, file: &HubFile) -> Result<PathBuf, String> {
        let url = format!("{}/{}/resolve/{}/{}", self.endpoint, self.id, self.revision, file.path);
        let what = |error: &dyn std::fmt::Display| format!("{url}: {error}");
        // The commit is a header of the hub's own answer, which may redirect to the bytes.
        let agent = ureq::Agent::new_with_config(ureq::config::Config::builder().max_redirects(0).build());
        let head = agent.head(&url).call().map_err(|error| what(&error))?;
        let header =
            |name: &str| head.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let commit = header("x-repo-commit").ok_or_else(|| what(&"the answer names no commit"))?;
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.ok_or_else(|| what(&"the answer names no etag"))?;
        let blob = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        for part in [&commit, &blob] {
            if part.is_empty() || !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(what(&format!("the answer names {part:?}, which is no digest")));
            }
        }
        let bytes = header("x-linked-size").and_then(|size| size.parse().ok());
        // The etag of a large file is its SHA-256; it serves when the spec names none.
        let digest = header("x-linked-etag").map(|_| blob.clone()).filter(|etag| etag.len() == 64);
        let wanted = Wanted { bytes, sha256: file.sha256.as_deref().or(digest.as_deref()) };
        // As the hub's own client links: the cache may be moved, or be mounted elsewhere.
        let target = format!("{}blobs/{blob}", "../".repeat(2 + file.path.matches('/').count()));
        let blob = self.directory().join("blobs").join(blob);
        if !wanted.present(&blob) {
            let mut answer = ureq::get(&url).call().map_err(|error| what(&error))?;
            wanted.receive(&mut answer.body_mut().with_config().limit(u64::MAX).reader(), &blob)?;
        }
        let io = |error: std::io::Error| format!("{}: {error}", self.directory().display());
        let snapshot = self.directory().join("snapshots").join(&commit);
        let link = snapshot.join(&file.path);
        std::fs::create_dir_all(link.parent().ok_or_else(|| what(&"the file has no name"))?).map_err(io)?;
        if std::fs::symlink_metadata(&link).is_ok() {
            std::fs::remove_file(&link).map_err(io)?;
        }
        std::os::unix::fs::symlink(target, &link).map_err(io)?;
        let reference = self.directory().join("refs").join(self.revision);
        std::fs::create_dir_all(reference.parent().ok_or_else(|| what(&"the revision has no name"))?)
            .map_err(io)?;
        std::fs::write(&reference, &commit).map_err(io)?;
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    /// Serves one file to any path on loopback until the process ends; returns its address.
    fn hub(content: &'static [u8], commit: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                while !lines.next().unwrap().unwrap().is_empty() {}
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-repo-commit: {commit}\r\netag: \"abc\"\r\n\
                     connection: close\r\n\r\n",
                    content.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                if request.starts_with("GET") {
                    stream.write_all(content).unwrap();
                }
            }
        });
        address
    }

    fn file(sha256: Option<&str>) -> Vec<HubFile> {
        named("model.safetensors", sha256)
    }

    fn named(path: &str, sha256: Option<&str>) -> Vec<HubFile> {
        vec![HubFile { path: path.to_owned(), sha256: sha256.map(str::to_owned) }]
    }

    #[test]
    fn a_file_lands_in_the_hubs_layout_and_is_found_again_without_the_hub() {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = hub(b"abc", "c0ffee");
        let repository = Repository { endpoint: &endpoint, cache: cache.path(), id: "o/n", revision: "main" };
        let snapshot = repository.fetch(&file(None)).unwrap();
        assert_eq!(snapshot, cache.path().join("models--o--n/snapshots/c0ffee"));
        assert_eq!(std::fs::read(snapshot.join("model.safetensors")).unwrap(), b"abc");
        assert_eq!(std::fs::read(cache.path().join("models--o--n/blobs/abc")).unwrap(), b"abc");
        let offline = Repository { endpoint: "http://127.0.0.1:9", ..repository };
        assert_eq!(offline.fetch(&file(None)).unwrap(), snapshot);
    }

    #[test]
    fn a_cache_may_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        let endpoint = hub(b"abc", "c0ffee");
        let repository = Repository { endpoint: &endpoint, cache: &here, id: "o/n", revision: "main" };
        for path in ["model.safetensors", "parts/of/it.safetensors"] {
            repository.fetch(&named(path, None)).unwrap();
        }
        std::fs::rename(&here, &there).unwrap();
        for path in ["model.safetensors", "parts/of/it.safetensors"] {
            let moved = there.join("models--o--n/snapshots/c0ffee").join(path);
            assert_eq!(std::fs::read(moved).unwrap(), b"abc", "{path}");
        }
    }

    #[test]
    fn a_wrong_digest_and_a_hostile_commit_are_refused_and_leave_no_file() {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = hub(b"abd", "c0ffee");
        let repository = Repository { endpoint: &endpoint, cache: cache.path(), id: "o/n", revision: "main" };
        assert!(repository.fetch(&file(Some("00"))).unwrap_err().contains("should have 00"));
        assert_eq!(std::fs::read_dir(cache.path().join("models--o--n/blobs")).unwrap().count(), 0);
        let endpoint = hub(b"abc", "../../x");
        let repository = Repository { endpoint: &endpoint, cache: cache.path(), id: "o/m", revision: "main" };
        assert!(repository.fetch(&file(None)).unwrap_err().contains("which is no digest"));
    }
}
