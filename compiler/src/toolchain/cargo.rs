//! Cargo, told nothing of the package that this program belongs to.

use std::process::Command;

/// What cargo tells programs that it runs, by the beginnings of the variables' names.
const TOLD: [&str; 5] =
    ["CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PRIMARY_PACKAGE"];

/// `cargo`, still without arguments.
///
/// Programs that cargo runs (tests, `cargo xtask`) would hand on the variables about their own package. There
/// are build scripts that run again when one of these has changed (that of ring does), and everything behind
/// them is compiled again: most of this workspace, for every test that builds a program of it.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    let told = std::env::vars_os().filter(|(name, _)| {
        name.to_str().is_some_and(|name| TOLD.iter().any(|beginning| name.starts_with(beginning)))
    });
    for (name, _) in told {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::cargo;
    use std::ffi::OsStr;

    #[test]
    fn cargo_is_not_told_of_this_package() {
        let command = cargo();
        let removed =
            |name: &str| command.get_envs().any(|(it, value)| it == OsStr::new(name) && value.is_none());
        // Cargo sets the first for tests; the second is where dependencies are.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && removed("CARGO_MANIFEST_DIR"));
        assert!(!removed("CARGO_HOME"));
    }
}
