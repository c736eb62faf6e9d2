//! How well the crates of a server are optimised.

use super::BuildError;
use std::path::Path;
use toml::{Table, Value};

/// Levels of optimisation, 0 to 3, of the crates of a server. Kernels of CPUs are always at 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Everything else that the generated crate depends on.
    pub dependencies: Dependencies,
    /// The generated crate. Generic kernels of a CPU are compiled into it. That of a CUDA target has none,
    /// only copies of all that is generic over the model, and takes longer to compile than all else behind
    /// a server's dependencies; at 0 rustc takes what these have already.
    pub generated: u8,
}

/// How well what a server depends on is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies {
    /// All at one level.
    All(u8),
    /// Each as the profile `dev` of the project's Cargo.toml has it: what tests wait for at 1, and most at 0.
    AsDeveloped,
}

/// The level of everything that ships.
const SHIPPED: u8 = 3;

impl Levels {
    /// What ships.
    pub const SHIPPED: Levels = Levels { dependencies: Dependencies::All(SHIPPED), generated: SHIPPED };

    /// Cargo options for a server whose generated crate has this name, of the project at `root`.
    ///
    /// # Errors
    /// When the project's Cargo.toml cannot be read.
    pub(super) fn options(self, root: &Path, generated: &str) -> Result<Vec<String>, BuildError> {
        if self == Self::SHIPPED {
            return Ok(Vec::new());
        }
        let mut levels = match self.dependencies {
            // The profile's own level: one for the package `"*"` would hold for build scripts and macros as
            // well, which are quickest not optimised.
            Dependencies::All(level) => vec![("opt-level".to_owned(), i64::from(level))],
            Dependencies::AsDeveloped => {
                let path = root.join("Cargo.toml");
                let text =
                    std::fs::read_to_string(&path).map_err(|error| BuildError::Io(path.clone(), error))?;
                let manifest: Table =
                    text.parse().map_err(|error| BuildError::Tool(format!("{}: {error}", path.display())))?;
                developed(&manifest)
            }
        };
        let own =
            [("monomorph-device", SHIPPED), ("monomorph-formats", SHIPPED), (generated, self.generated)];
        levels.extend(own.map(|(package, level)| (format!("package.{package}.opt-level"), level.into())));
        Ok(levels.into_iter().map(|(key, level)| format!("--config=profile.release.{key}={level}")).collect())
    }
}

/// The keys below `profile.dev` that are levels of optimisation, and the levels.
fn developed(manifest: &Table) -> Vec<(String, i64)> {
    fn below(table: &Table, within: &str, levels: &mut Vec<(String, i64)>) {
        for (key, value) in table {
            // Names of packages may have characters that a key has only between quotes.
            let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            let key = if plain { key.clone() } else { format!("{key:?}") };
            match value {
                Value::Integer(level) if key == "opt-level" => {
                    levels.push((format!("{within}{key}"), *level))
                }
                Value::Table(table) => below(table, &format!("{within}{key}."), levels),
                _ => {}
            }
        }
    }
    let mut levels = Vec::new();
    let profile = manifest.get("profile").and_then(|it| it.get("dev")).and_then(Value::as_table);
    profile.into_iter().for_each(|profile| below(profile, "", &mut levels));
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_as_developed_but_for_kernels_and_the_generated_crate() {
        let root = tempfile::tempdir().unwrap();
        let manifest = "[profile.dev]\nopt-level = 1\ndebug = false\n[profile.dev.package.\"*\"]\nopt-level = 0\n\
                        [profile.dev.package.\"syn@3\"]\nopt-level = 1\n[profile.release]\nopt-level = 2\n";
        std::fs::write(root.path().join("Cargo.toml"), manifest).unwrap();
        let levels = Levels { dependencies: Dependencies::AsDeveloped, generated: 0 };
        let expected = [
            "opt-level=1",
            "package.\"*\".opt-level=0",
            "package.\"syn@3\".opt-level=1",
            "package.monomorph-device.opt-level=3",
            "package.monomorph-formats.opt-level=3",
            "package.own.opt-level=0",
        ];
        let expected = expected.map(|it| format!("--config=profile.release.{it}"));
        assert_eq!(levels.options(root.path(), "own").unwrap(), expected);
        assert!(Levels::SHIPPED.options(root.path(), "own").unwrap().is_empty());
    }
}
