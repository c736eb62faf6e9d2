//! Specs of a model on the hub, from its small files and from the headers of its weights alone.

use crate::import;
use monomorph_compiler::import::{Imported, PARAMS_FILE};
use monomorph_compiler::spec::types::Compute;
use monomorph_hub::{Entry, File, Hub, Shown, Tree};
use std::fmt::Write;

/// Files that a server reads beside its weights, and those that an import does.
const TEXT: [&str; 8] = [
    "config.json",
    PARAMS_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tekken.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The bytes before a safetensors header, which say its length.
const LENGTH_BYTES: usize = 8;

/// Bytes that are fetched of every file of weights at first; most headers are shorter.
const BEGINNING: u64 = 128 << 10;

/// Longest header that safetensors has.
const LONGEST_HEADER: u64 = 100_000_000;

/// Specs of a commit.
pub struct Remote {
    pub commit: String,
    /// With the hub as a source.
    pub imported: Imported,
    /// Bytes of all files that are to be fetched.
    pub bytes: u64,
}

/// Imports a model of the hub. Of its weights only the headers are fetched, which say how they are stored.
pub fn draft(hub: &Hub, id: &str, revision: &str, model: &str, compute: Compute) -> Result<Remote, String> {
    let mut shown = Shown::default();
    let failed = |error: monomorph_hub::Error| error.to_string();
    let tree = hub.tree(id, revision, &mut shown).map_err(failed)?;
    let (text, weights) = wanted(id, &tree)?;
    let named: Vec<File> = text.iter().map(|it| File::named(it.path.clone())).collect();
    let snapshot = hub.snapshot(id, &tree.commit, &named, &mut shown).map_err(failed)?;

    // An import looks at files beside a config: here those of the snapshot, and the beginnings of weights.
    let beside = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let io = |error: std::io::Error| format!("{}: {error}", beside.path().display());
    for it in &text {
        std::fs::copy(snapshot.join(&it.path), beside.path().join(&it.path)).map_err(io)?;
    }
    for it in &weights {
        let begin =
            header(it, |bytes| hub.beginning(id, &tree.commit, &it.path, bytes, &mut shown).map_err(failed))?;
        let path = beside.path().join(&it.path);
        std::fs::write(&path, begin).map_err(io)?;
        // A hole up to the size that the header is checked against.
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(it.size))
            .map_err(io)?;
    }
    let mut imported = import::draft(&import::config_of(beside.path()), id, model, compute)?;
    let all: Vec<&Entry> = text.into_iter().chain(weights).collect();
    let source = source(id, &tree.commit, &all);
    imported.quants.iter_mut().for_each(|(_, text)| text.push_str(&source));
    Ok(Remote { bytes: all.iter().map(|it| it.size).sum(), commit: tree.commit, imported })
}

/// The small files and the weights that a checkpoint is made of.
fn wanted<'a>(id: &str, tree: &'a Tree) -> Result<(Vec<&'a Entry>, Vec<&'a Entry>), String> {
    let has = |path: &str| tree.files.iter().find(|it| it.path == path);
    let stem = match (has("config.json"), has(PARAMS_FILE)) {
        (Some(_), _) => "model",
        (None, Some(_)) => "consolidated",
        (None, None) => {
            return Err(format!(
                "{id} has neither config.json nor {PARAMS_FILE} at {}, so nothing says what it computes: name the repository that it was made from",
                tree.commit
            ));
        }
    };
    let index = format!("{stem}.safetensors.index.json");
    // Of two forms the one that the config goes with.
    let other = if stem == "model" { PARAMS_FILE } else { "" };
    let text =
        TEXT.iter().copied().filter(|it| *it != other).chain([index.as_str()]).filter_map(has).collect();
    let whole = format!("{stem}.safetensors");
    let shard =
        |path: &str| path == whole || path.starts_with(&format!("{stem}-")) && path.ends_with(".safetensors");
    let weights: Vec<&Entry> = tree.files.iter().filter(|it| shard(&it.path)).collect();
    if weights.is_empty() {
        return Err(format!(
            "{id} has no {whole} and no shards of it at {}: only safetensors are read",
            tree.commit
        ));
    }
    Ok((text, weights))
}

/// The header of a safetensors file, by a function that fetches so many first bytes.
fn header(of: &Entry, mut fetch: impl FnMut(u64) -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    let wrong = |why: String| format!("{} is no safetensors file: {why}", of.path);
    let begin = fetch(BEGINNING)?;
    let length = begin.first_chunk::<LENGTH_BYTES>().map(|it| u64::from_le_bytes(*it));
    let length = length.ok_or_else(|| wrong(format!("it has {} bytes", begin.len())))?;
    let end = length.saturating_add(LENGTH_BYTES as u64);
    if length > LONGEST_HEADER || end > of.size {
        return Err(wrong(format!("its header would have {length} bytes, and the file has {}", of.size)));
    }
    let mut all = if end > begin.len() as u64 { fetch(end)? } else { begin };
    all.truncate(end as usize);
    Ok(all)
}

/// A quant spec's source: this commit, and the digests that the hub knows.
fn source(id: &str, commit: &str, files: &[&Entry]) -> String {
    let mut out =
        format!("\n[[checkpoint.source]]\nkind = \"hub\"\nid = {id:?}\nrevision = {commit:?}\nfiles = [\n");
    for Entry { path, sha256, .. } in files {
        let digest =
            sha256.as_ref().map(|it| format!(", sha256 = {:?}", it.to_lowercase())).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "    {{ path = {path:?}{digest} }},");
    }
    out + "]\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> Entry {
        Entry { path: path.to_owned(), size: 1 << 20, sha256: None }
    }

    fn tree(paths: &[&str]) -> Tree {
        Tree { commit: "c0ffee".to_owned(), files: paths.iter().map(|it| entry(it)).collect() }
    }

    #[test]
    fn of_a_repository_what_goes_with_its_config_is_wanted() {
        let names = |paths: &[&str]| {
            let tree = tree(paths);
            let (text, weights) = wanted("o/n", &tree)?;
            let name = |of: Vec<&Entry>| of.into_iter().map(|it| it.path.clone()).collect::<Vec<_>>();
            Ok::<_, String>((name(text), name(weights)))
        };
        let strings = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let both = [
            "params.json",
            "config.json",
            "consolidated.safetensors",
            "model-1.safetensors",
            "a.bin",
            "tokenizer.json",
        ];
        assert_eq!(
            names(&both),
            Ok((strings(&["config.json", "tokenizer.json"]), strings(&["model-1.safetensors"])))
        );
        let own = ["params.json", "consolidated.safetensors", "model.safetensors", "tekken.json"];
        assert_eq!(
            names(&own),
            Ok((strings(&["params.json", "tekken.json"]), strings(&["consolidated.safetensors"])))
        );
        assert!(names(&["model.gguf"]).unwrap_err().contains("neither config.json nor params.json"));
        assert!(names(&["config.json", "model.bin"]).unwrap_err().contains("only safetensors are read"));
    }

    #[test]
    fn a_header_is_fetched_whole_and_a_false_length_is_refused() {
        let file = |length: u64| [&length.to_le_bytes()[..], &vec![b' '; 300 << 10]].concat();
        let of = entry("model.safetensors");
        let mut asked = Vec::new();
        let mut fetched = |length: u64| {
            header(&of, |bytes| {
                asked.push(bytes);
                let all = file(length);
                Ok(all[..all.len().min(bytes as usize)].to_vec())
            })
        };
        assert_eq!(fetched(100).unwrap().len(), 108);
        assert_eq!(fetched(200 << 10).unwrap().len(), (200 << 10) + 8);
        assert!(fetched(2 << 20).unwrap_err().contains("the file has 1048576"));
        assert!(fetched(u64::MAX).unwrap_err().contains("is no safetensors file"));
        assert_eq!(asked, [BEGINNING, BEGINNING, (200 << 10) + 8, BEGINNING, BEGINNING]);
        assert!(header(&of, |_| Ok(b"<html>".to_vec())).unwrap_err().contains("it has 6 bytes"));
    }

    #[test]
    fn a_source_names_the_commit_and_the_digests_that_are_known() {
        let large = Entry { sha256: Some("AB".repeat(32)), ..entry("model.safetensors") };
        let text = source("o/n", "c0ffee", &[&entry("config.json"), &large]);
        assert!(text.contains("id = \"o/n\"\nrevision = \"c0ffee\"\n"), "{text}");
        assert!(
            text.contains(&format!("{{ path = \"model.safetensors\", sha256 = \"{}\" }},", "ab".repeat(32)))
        );
        assert!(text.contains("    { path = \"config.json\" },\n"));
    }
}
