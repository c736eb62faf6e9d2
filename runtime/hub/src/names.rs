//! Names from outside that become paths and addresses.

use crate::Error;

/// Longest name of a part of a path that file systems take, less what is appended to it here.
const LONGEST: usize = 200;

/// Checks `name` or `owner/name`.
pub fn id(id: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let part = |part: &str| {
        let ends = part.starts_with(['.', '-']) || part.ends_with(['.', '-']);
        // A pair of hyphens stands for the slash in the cache.
        !part.is_empty() && part.chars().all(plain) && !ends && !part.contains("--") && !part.contains("..")
    };
    let right = id.len() <= LONGEST && id.split('/').count() <= 2 && id.split('/').all(part);
    refuse_unless(right, "model's id (owner/name)", id)
}

/// Checks a branch, tag or commit.
pub fn revision(revision: &str) -> Result<(), Error> {
    refuse_unless(relative(revision), "revision", revision)
}

/// Checks the path of a file in a repository.
pub fn file(path: &str) -> Result<(), Error> {
    refuse_unless(relative(path), "file name", path)
}

/// Checks a commit or an etag, of which files and directories are named.
pub fn digest(what: &'static str, digest: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    refuse_unless(!digest.is_empty() && digest.len() <= LONGEST && digest.chars().all(plain), what, digest)
}

/// Whether these are as many hex digits.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|it| it.is_ascii_hexdigit())
}

fn refuse_unless(right: bool, what: &'static str, name: &str) -> Result<(), Error> {
    if right { Ok(()) } else { Err(Error::Name { what, name: name.to_owned() }) }
}

/// Whether a path stays below the directory that it is appended to, on any system.
fn relative(path: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= LONGEST
            && part != "."
            && part != ".."
            && !part.chars().any(|c| c.is_control() || c == '\\' || c == ':')
    };
    path.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_a_directory_are_refused() {
        for right in ["config.json", "a/b.c", "refs/pr/1", "…", "a..b"] {
            assert!(file(right).is_ok() && revision(right).is_ok(), "{right}");
        }
        for wrong in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a\\..\\b", "a\0", "C:x", "a\nb"]
        {
            assert!(file(wrong).is_err() && revision(wrong).is_err(), "{wrong:?}");
        }
        assert!(file(&"a".repeat(300)).is_err());
        for right in ["gpt2", "o/n", "HuggingFaceTB/SmolLM2-135M-Instruct", "a/b_c.d"] {
            assert!(id(right).is_ok(), "{right}");
        }
        for wrong in
            ["", "/", "o/", "../n", "o/..", "a/b/c", "a--b/c", "o/n ", "o/.n", "o/n?x", "o/n#", "o/%2e"]
        {
            assert!(id(wrong).is_err(), "{wrong:?}");
        }
        assert!(digest("commit", "c0ffee").is_ok() && digest("commit", "W/x").is_err());
        assert!(is_hex("0aF", 3) && !is_hex("0ag", 3) && !is_hex("0a", 3));
    }
}
