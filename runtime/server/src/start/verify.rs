//! `--verify`: compares the digests of the weights' files before they are loaded.

use crate::process::out;
use monomorph_model::{FileSpec, ModelSpec};
use monomorph_weights::{Checkpoint, WeightsFile};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// A file of digests beside the weights, as `sha256sum` writes it.
const SUMS: &str = "SHA256SUMS";

/// Compares the SHA-256 of every file of the checkpoint with the digests that are known of it, on several
/// files at a time; of a file of packed weights the digests of its arrays with those that it has of them.
///
/// # Errors
/// Names a file whose digest differs or is not known, or that cannot be read.
pub(crate) fn verify(spec: &ModelSpec, checkpoint: &Checkpoint, threads: usize) -> Result<(), String> {
    let started = Instant::now();
    let (count, what, bytes) = match checkpoint.packed() {
        Some(packed) => {
            let arrays = packed.arrays().len();
            let check = |at| packed.check_array(at).map_err(|error| format!("--verify: {error}"));
            each(arrays, threads, check)?;
            (arrays, "arrays", packed.array_bytes())
        }
        None => {
            let files = checkpoint.files();
            each(files.len(), threads, |at| check(spec.files, &files[at]))?;
            (files.len(), "files", files.iter().map(WeightsFile::bytes).sum())
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    out::say(format_args!("--verify: {count} {what}, {}, are whole ({seconds:.2} s)", out::bytes(bytes)));
    Ok(())
}

/// Checks so many things, several at a time; no thread begins another one behind an error.
fn each(
    count: usize,
    threads: usize,
    check: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), String> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            if let Err(error) = check(at) {
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<_>| {
            thread.join().unwrap_or_else(|_| Err("--verify: a thread panicked".to_owned()))
        };
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect::<Result<(), String>>()
    })
}

fn check(known: &[FileSpec], file: &WeightsFile) -> Result<(), String> {
    let path = file.path();
    let sums = path.with_file_name(SUMS);
    let sums = match std::fs::read_to_string(&sums) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("--verify: {}: {error}", sums.display())),
    };
    // A hub's cache names what it fetched by its digest, and snapshots link to that.
    let blob = std::fs::canonicalize(path).ok();
    let expected = expected(known, &sums, path, blob.as_deref());
    if expected.is_empty() {
        return Err(format!(
            "--verify: no digest of {} is known: neither the build's quant spec, nor {SUMS} beside it, nor a hub's cache names one \
             (sha256sum * > {SUMS} in its directory does, of files that are known to be whole)",
            path.display()
        ));
    }
    let found = digest(file)?;
    if expected.contains(&found) {
        return Ok(());
    }
    Err(format!("--verify: {} has SHA-256 {found} and should have {}", path.display(), expected.join(" or ")))
}

/// The digests that a file may have: those of its name in the build's spec; else what a list beside it says;
/// else its name in a hub's cache; else those of the spec's files of its kind, as of a renamed GGUF.
fn expected(known: &[FileSpec], sums: &str, path: &Path, blob: Option<&Path>) -> Vec<String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let of_spec = |matches: &dyn Fn(&FileSpec) -> bool| -> Vec<String> {
        known.iter().filter(|file| matches(file)).map(|file| file.sha256.to_owned()).collect()
    };
    let listed = || {
        let line = |line: &str| {
            // The name follows two spaces, or a space and an asterisk.
            let (digest, rest) = line.split_once(' ')?;
            let listed = rest.strip_prefix([' ', '*'])?.trim_end();
            (listed.strip_prefix("./").unwrap_or(listed) == name && is_digest(digest))
                .then(|| digest.to_ascii_lowercase())
        };
        sums.lines().filter_map(line).collect::<Vec<_>>()
    };
    let of_blob = || {
        let blob = blob.filter(|blob| blob.parent().is_some_and(|it| it.ends_with("blobs")));
        let digest = blob.and_then(|blob| blob.file_name()?.to_str()).filter(|name| is_digest(name));
        digest.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let of_kind = || {
        let kind = |name: &str| Path::new(name).extension().map(std::ffi::OsStr::to_owned);
        of_spec(&|file: &FileSpec| kind(file.name) == kind(name))
    };
    let candidates: [&dyn Fn() -> Vec<String>; 4] =
        [&|| of_spec(&|file: &FileSpec| file.name == name), &listed, &of_blob, &of_kind];
    candidates.iter().map(|candidate| candidate()).find(|digests| !digests.is_empty()).unwrap_or_default()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn digest(file: &WeightsFile) -> Result<String, String> {
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < file.bytes() {
        let length = usize::try_from(file.bytes() - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.read_at(at, &mut chunk[..length]).map_err(|error| format!("--verify: {error}"))?;
        digest.update(&chunk[..length]);
        at += length as u64;
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_engine::scripted::{Scripted, Small};
    use monomorph_formats::Format;
    use monomorph_model::Model;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

    #[test]
    fn digests_come_from_the_spec_then_a_list_then_a_hub() {
        static SPEC: [FileSpec; 1] = [FileSpec { name: "m.gguf", sha256: A }];
        let sums =
            format!("{B}  m.gguf\n{C} *other.safetensors\nnonsense\n{}  ./third.gguf\n", C.to_uppercase());
        let blob = format!("/hub/models--o--n/blobs/{C}");
        let of = |known: &'static [FileSpec], sums: &str, path: &str, blob: Option<&str>| {
            expected(known, sums, Path::new(path), blob.map(Path::new))
        };
        assert_eq!(of(&SPEC, &sums, "/d/m.gguf", Some(&blob)), [A]);
        assert_eq!(of(&[], &sums, "/d/m.gguf", Some(&blob)), [B]);
        assert_eq!(of(&[], &sums, "/d/other.safetensors", None), [C]);
        assert_eq!(of(&[], &sums, "/d/third.gguf", None), [C]);
        assert_eq!(of(&[], "", "/d/m.gguf", Some(&blob)), [C]);
        assert_eq!(of(&SPEC, "", "/d/renamed.gguf", Some("/d/renamed.gguf")), [A]);
        assert!(of(&SPEC, "", "/d/renamed.safetensors", None).is_empty());
        assert!(of(&[], "", "/d/m.gguf", Some("/d/blobs/0123")).is_empty());
        assert!(of(&[], &format!("{B} m.gguf"), "/d/m.gguf", None).is_empty(), "one space is no list");
    }

    #[test]
    fn a_file_of_another_digest_is_named_and_one_of_no_digest_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.gguf");
        let whole = monomorph_weights::test_support::GgufWriter::new()
            .tensor("a", &[1024, 1024], Format::F32, vec![1; 4 << 20])
            .finish();
        let run = || {
            let checkpoint = Checkpoint::open(&path).unwrap();
            verify(Scripted::<Small>::SPEC, &checkpoint, 2)
        };
        std::fs::write(&path, &whole).unwrap();
        let unknown = run().unwrap_err();
        assert!(unknown.contains("no digest of") && unknown.contains("m.gguf"), "{unknown}");
        let right: String = Sha256::digest(&whole).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(directory.path().join(SUMS), format!("{right}  m.gguf\n")).unwrap();
        run().unwrap();
        // One flipped bit in four megabytes, which no canary would notice.
        let mut damaged = whole.clone();
        damaged[2 << 20] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let wrong = run().unwrap_err();
        assert!(wrong.contains("m.gguf has SHA-256") && wrong.contains(&right), "{wrong}");
    }
}
