//! The launcher's archive: with gzip, which every machine can unpack.

use super::{about, below, empty, part, write};
use crate::image::Platform;
use crate::image::layer::{Content, Entry, Layer};
use crate::paths;
use monomorph_compiler::toolchain;
use monomorph_compiler::toolchain::python::run;
use monomorph_launcher::index::{Index, Launcher};
use monomorph_launcher::size;
use std::path::{Path, PathBuf};

const README: &str = "# monomorph\n\n\
    Installs and starts servers of language models, each built for one model and one machine.\n\n    \
    monomorph list    the servers of a release, and which run on this machine\n    \
    monomorph run     installs one and its weights, and serves\n    \
    monomorph doctor  what this machine is, and what it lacks\n\n\
    Every verb explains itself with --help.\n";

/// Writes the launcher for this machine's host: this program, else it is built.
pub fn archive(program: Option<&Path>, out: &Path) -> Result<(), String> {
    let program = match program {
        Some(program) => program.to_owned(),
        None => build()?,
    };
    let platform = if cfg!(target_arch = "aarch64") { Platform::Arm64 } else { Platform::Amd64 };
    let host = platform.triple();
    let stem = format!("monomorph-{host}");
    let mut files = about(&paths::root().join("runtime/launcher"), host, "monomorph")?;
    files.push(Entry { path: "monomorph".to_owned(), content: Content::Program(program) });
    files.push(Entry::text("README.md", README));
    let layer = Layer::compressed(&below(&stem, &files))?;
    let archive = write(&layer, &out.join(format!("{stem}.tar.gz")))?;
    println!("{}  {}", out.join(&archive.name).display(), size(archive.bytes));
    part(out, &stem, Index { launchers: vec![Launcher { host: host.to_owned(), archive }], ..empty() })
}

/// Builds it small, with no path of this machine in it.
fn build() -> Result<PathBuf, String> {
    let below = paths::root().join("target/servers");
    let flags: Vec<String> = toolchain::remapped(&paths::root()).collect();
    let mut cargo = toolchain::cargo();
    cargo
        .current_dir(paths::root())
        .args(["build", "--quiet", "--locked", "--profile", "launcher", "--package", "monomorph-launcher"])
        .arg("--target-dir")
        .arg(&below)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env_remove("CARGO_TARGET_DIR");
    run(&mut cargo)?;
    Ok(below.join("launcher/monomorph"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_binstall_is_told_the_archive_that_a_release_has() {
        let manifest = std::fs::read_to_string(paths::root().join("runtime/launcher/Cargo.toml"));
        let manifest: toml::Table = manifest.expect("it is there").parse().expect("TOML");
        let told = &manifest["package"]["metadata"]["binstall"];
        let host = Platform::Amd64.triple();
        let of = |key: &str| {
            let text = told[key].as_str().expect("a text").replace("{ target }", host);
            text.replace("{ bin }", "monomorph").replace("{ binary-ext }", "")
        };
        assert!(of("pkg-url").ends_with(&format!("/v{{ version }}/monomorph-{host}.tar.gz")));
        assert_eq!(of("bin-dir"), format!("monomorph-{host}/monomorph"));
        assert_eq!(of("pkg-fmt"), "tgz");
    }
}
