//! Cuts a directory into zip files below a size.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Files above this are cut, so that parts fill up.
const PIECE: usize = 12_000_000;

/// Packs every file of `store` into `out/part-<n>.zip`, none above `limit` bytes. Returns the files that were cut, each
/// with its pieces, and the parts.
///
/// # Errors
/// When a file cannot be read or written.
pub fn pack(store: &Path, out: &Path, limit: u64) -> Result<(Value, Vec<PathBuf>), String> {
    let mut cut = serde_json::Map::new();
    let mut parts: Vec<PathBuf> = Vec::new();
    let mut open: Option<ZipWriter<BufWriter<File>>> = None;
    for path in walk(store)? {
        let name = path.strip_prefix(store).expect("it stands in the store").to_string_lossy().into_owned();
        let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let size = path.metadata().map_err(|error| problem(&error))?.len() as usize;
        let mut file = File::open(&path).map_err(|error| problem(&error))?;
        let pieces: Vec<String> = match size.div_ceil(PIECE) {
            0 | 1 => vec![name.clone()],
            count => (0..count).map(|index| format!("{name}.{index:03}")).collect(),
        };
        for piece in &pieces {
            let mut bytes = Vec::new();
            Read::by_ref(&mut file)
                .take(PIECE as u64)
                .read_to_end(&mut bytes)
                .map_err(|error| problem(&error))?;
            // Deflate makes what it cannot shrink a few bytes longer; the directory at the end takes some too.
            let full = parts.last().is_some_and(|part: &PathBuf| {
                part.metadata().is_ok_and(|it| it.len() + bytes.len() as u64 + (1 << 20) > limit)
            });
            if full && let Some(part) = open.take() {
                part.finish().map_err(|error| problem(&error))?;
            }
            let zip = match &mut open {
                Some(zip) => zip,
                None => {
                    let part = out.join(format!("part-{}.zip", parts.len() + 1));
                    let file = File::create(&part).map_err(|error| format!("{}: {error}", part.display()))?;
                    parts.push(part);
                    open.insert(ZipWriter::new(BufWriter::new(file)))
                }
            };
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
            zip.start_file(piece.as_str(), options).map_err(|error| problem(&error))?;
            zip.write_all(&bytes).and_then(|()| zip.flush()).map_err(|error| problem(&error))?;
        }
        if pieces.len() > 1 {
            cut.insert(name, json!(pieces));
        }
    }
    if let Some(part) = open {
        part.finish().map_err(|error| error.to_string())?;
    }
    Ok((Value::Object(cut), parts))
}

/// Every file below a directory, ascending.
pub fn walk(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        if path.is_dir() { paths.extend(walk(&path)?) } else { paths.push(path) }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_below_the_limit_and_hold_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let (store, out) = (directory.path().join("store"), directory.path().join("out"));
        for directory in [store.join("a"), out.clone()] {
            std::fs::create_dir_all(directory).unwrap();
        }
        // Bytes that do not shrink.
        let mut state = 1u64;
        let mut noise = |length: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            (0..length).map(|_| next()).collect()
        };
        let files = [
            ("a/large", noise(2 * PIECE + 7)),
            ("a/small", noise(100)),
            ("b", noise(5_000_000)),
            ("empty", vec![]),
        ];
        for (name, bytes) in &files {
            std::fs::write(store.join(name), bytes).unwrap();
        }
        let limit = 15_000_000;
        let (cut, parts) = pack(&store, &out, limit).unwrap();
        assert_eq!(cut, json!({ "a/large": ["a/large.000", "a/large.001", "a/large.002"] }));
        assert_eq!(parts.len(), 3);
        let mut found = std::collections::BTreeMap::new();
        for part in &parts {
            assert!(part.metadata().unwrap().len() <= limit, "{}", part.display());
            let mut zip = zip::ZipArchive::new(File::open(part).unwrap()).unwrap();
            for index in 0..zip.len() {
                let mut entry = zip.by_index(index).unwrap();
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                found.insert(entry.name().unwrap().into_owned(), bytes);
            }
        }
        let large: Vec<u8> =
            (0..3).flat_map(|piece| found.remove(&format!("a/large.{piece:03}")).unwrap()).collect();
        found.insert("a/large".to_owned(), large);
        assert!(
            files.iter().all(|(name, bytes)| found.get(*name) == Some(bytes)) && found.len() == files.len()
        );
    }
}
