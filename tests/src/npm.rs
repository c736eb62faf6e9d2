//! npm packages that tests run, pinned by a lock file and run by a pinned Node.

use crate::root;
use monomorph_compiler::toolchain::python::{installed, run};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package manager's inputs.
const FILES: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];

/// Installed packages.
pub struct Npm {
    /// The directory that holds `node_modules`.
    pub directory: PathBuf,
}

impl Npm {
    /// The packages that the files in `tests/NAME` pin, below `target`; reinstalled when these files change.
    /// No package's scripts are run.
    ///
    /// # Panics
    /// When a package cannot be installed; npm's own message goes to standard error.
    pub fn install(name: &str) -> Npm {
        let (pinned, directory) = (root().join("tests").join(name), root().join("target/npm").join(name));
        let wanted: Vec<String> = FILES.iter().map(|file| read(&pinned.join(file))).collect();
        let install = || {
            std::fs::create_dir_all(&directory)
                .map_err(|error| format!("{}: {error}", directory.display()))?;
            for (file, text) in FILES.iter().zip(&wanted) {
                write(&directory.join(file), text);
            }
            run(Command::new("npm").current_dir(&directory).args([
                "ci",
                "--ignore-scripts",
                "--loglevel=error",
            ]))
        };
        installed(&directory, &wanted.concat(), install).unwrap_or_else(|error| panic!("{error}"));
        Npm { directory }
    }

    /// A file of a package; `KIND` in its path is this machine's architecture as npm names it.
    pub fn file(&self, path: &str) -> PathBuf {
        let kind = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        self.directory.join("node_modules").join(path.replace("KIND", kind))
    }

    /// The pinned Node.
    pub fn node(&self) -> Command {
        Command::new(self.file("node-linux-KIND/bin/node"))
    }

    /// Puts the TypeScript of `tests/NAME` beside its packages, where Node resolves them, and type-checks it.
    ///
    /// # Panics
    /// When a type is wrong; the compiler's own message goes to standard error.
    pub fn check_types(&self, name: &str) {
        let sources = root().join("tests").join(name);
        for file in std::fs::read_dir(&sources).expect("tests are there") {
            let file = file.expect("entries are readable").path();
            let name = file.file_name().and_then(|name| name.to_str()).expect("files have names");
            if Path::new(name).extension().is_some_and(|it| it == "ts") || name == "tsconfig.json" {
                write(&self.directory.join(name), &read(&file));
            }
        }
        let compiler = self.file("typescript/bin/tsc");
        run(self.node().current_dir(&self.directory).arg(compiler).args(["-p", "."]))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs a file of tests.
    ///
    /// # Panics
    /// When one fails; the output names it.
    pub fn test(&self, file: &str, arguments: &[&str]) {
        let mut node = self.node();
        node.current_dir(&self.directory).arg(self.directory.join(file)).args(arguments);
        run(&mut node).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes a file in one go: another test that runs on the same packages sees it whole.
fn write(path: &Path, text: &str) {
    let directory = path.parent().expect("files stand in a directory");
    let fresh = tempfile::NamedTempFile::new_in(directory).and_then(|mut fresh| {
        fresh.write_all(text.as_bytes())?;
        Ok(fresh.persist(path)?)
    });
    fresh.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
