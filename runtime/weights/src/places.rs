//! Default locations of weights, shared by the commands that fetch and that serve them.

use std::ffi::OsString;
use std::path::PathBuf;

/// The default directory of a target's weights: `monomorph/<model>/<quant>` under `$XDG_CACHE_HOME`, or under
/// `~/.cache` if that is not set. It contains a GGUF file or a checkpoint directory's files, or is a link to
/// such a directory.
pub fn weights_directory(model: &str, quant: &str) -> PathBuf {
    directory_by(|name| std::env::var_os(name), model, quant)
}

/// The directory of everything that is kept of targets: `monomorph` in the same cache.
pub fn cache_directory() -> PathBuf {
    cache_by(|name| std::env::var_os(name))
}

/// [`weights_directory`] with variables from a function. Relative paths count as not set, as the XDG
/// specification requires.
fn directory_by(variable: impl Fn(&str) -> Option<OsString>, model: &str, quant: &str) -> PathBuf {
    cache_by(variable).join(model).join(quant)
}

fn cache_by(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(|| PathBuf::from(".cache"));
    cache.join("monomorph")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let by = |xdg: Option<&str>, home: Option<&str>| {
            let variable = |name: &str| match name {
                "XDG_CACHE_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                other => panic!("{other}"),
            };
            directory_by(variable, "m", "q")
        };
        assert_eq!(by(Some("/x"), Some("/h")), Path::new("/x/monomorph/m/q"));
        assert_eq!(by(None, Some("/h")), Path::new("/h/.cache/monomorph/m/q"));
        assert_eq!(by(Some("relative"), Some("/h")), Path::new("/h/.cache/monomorph/m/q"));
        assert_eq!(by(None, None), Path::new(".cache/monomorph/m/q"));
    }
}
