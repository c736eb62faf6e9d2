//! `cargo xtask release`: servers and the launcher as archives, and the index that launchers read.
//!
//! Every archive has its entry of the index beside it, so that archives of several machines make one release:
//! the index is made of all entries that are in the directory.

mod debian;
mod entry;
mod launcher;
mod sbom;

pub use entry::needs;

use crate::image::layer::{self, Content, Entry, Layer, with_directories};
use crate::image::{self, notices};
use crate::{BuildOptions, TargetOptions, paths};
use clap::Args;
use monomorph_compiler::spec::types::Target;
use monomorph_compiler::toolchain;
use monomorph_launcher::index::{self, Archive, Index, SCHEMA};
use monomorph_launcher::size;
use std::path::{Path, PathBuf};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What installs the launcher.
const INSTALL: &str = include_str!("../release/install.sh");

#[derive(Args)]
pub struct Options {
    /// hardware/model/quant, once or more.
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    #[command(flatten)]
    build: BuildOptions,
    /// Take this server instead of building one: for a GB10's that was linked elsewhere.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Write Debian packages of the servers too.
    #[arg(long)]
    deb: bool,
    /// Write the launcher for this machine's host, and the script that installs it.
    #[arg(long)]
    launcher: bool,
    /// Take this launcher instead of building one.
    #[arg(long, value_name = "PATH", requires = "launcher")]
    launcher_program: Option<PathBuf>,
    /// Directory of the release. With neither --target nor --launcher only its index is written, of what
    /// other machines wrote [default: dist/release].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn release(options: Options) -> Result<(), String> {
    if options.server.is_some() && options.targets.len() != 1 {
        return Err("--server takes the place of one build: name one --target".to_owned());
    }
    let out = options.out.clone().unwrap_or_else(|| paths::root().join("dist/release"));
    for name in &options.targets {
        let of = TargetOptions { target: name.clone(), targets_dir: options.targets_dir.clone() };
        let (target, server) = image::shippable(&of, options.build, options.server.as_deref())?;
        of_target(&target, &server, &out, options.deb)?;
    }
    if options.launcher {
        launcher::archive(options.launcher_program.as_deref(), &out)?;
        layer::save(&out.join("install.sh"), INSTALL.as_bytes())?;
    }
    write_index(&out)
}

/// Writes the archive of a server, its digest and entry, and its Debian package where asked for.
fn of_target(target: &Target, server: &Path, out: &Path, deb: bool) -> Result<(), String> {
    let (directory, plan) = toolchain::write_crate(&paths::root(), target).map_err(|it| it.to_string())?;
    let triple = image::platform(&target.hardware).triple();
    let slug = paths::slug(&target.build());
    let stem = format!("monomorph-{VERSION}-{slug}");
    let mut files = about(&directory, triple, &target.build())?;
    files.push(Entry { path: "server".to_owned(), content: Content::Program(server.to_owned()) });
    files.push(Entry::text("README.md", entry::readme(target)));
    let unpacked = files.iter().try_fold(0, |sum, it| Ok(sum + it.bytes()?));
    let unpacked = unpacked.map_err(|error: std::io::Error| format!("{}: {error}", server.display()))?;
    let layer = Layer::zstd(&below(&stem, &files))?;
    let archive = write(&layer, &out.join(format!("{stem}.tar.zst")))?;
    println!("{}  {}", out.join(&archive.name).display(), size(archive.bytes));
    let entry = entry::of(target, &plan, slug, archive, unpacked)?;
    if deb {
        let path = debian::write(target, server, &entry, &files, out)?;
        println!("{}", path.display());
    }
    part(out, &stem, Index { targets: vec![entry], ..empty() })
}

/// What every archive says of the program in it: what it is made of, and under which licences.
fn about(directory: &Path, triple: &str, name: &str) -> Result<Vec<Entry>, String> {
    let own = |name: &str| Entry {
        path: format!("licenses/{name}"),
        content: Content::File(paths::root().join(name)),
    };
    Ok(vec![
        own("LICENSE-APACHE"),
        own("LICENSE-MIT"),
        Entry::text("licenses/rust.txt", notices::of(directory, triple)?),
        Entry::text("sbom.cdx.json", sbom::of(directory, triple, name)?),
    ])
}

/// Files below one directory.
fn below(stem: &str, files: &[Entry]) -> Vec<Entry> {
    let below = |it: &Entry| Entry { path: format!("{stem}/{}", it.path), content: it.content.clone() };
    with_directories(files.iter().map(below).collect())
}

/// Writes an archive, and its digest beside it as `sha256sum -c` takes it.
fn write(layer: &Layer, path: &Path) -> Result<Archive, String> {
    let name = path.file_name().expect("an archive has a name").to_string_lossy().into_owned();
    layer::save(path, layer.read().map_err(|error| format!("reading {name} again: {error}"))?)?;
    let line = format!("{}  {name}\n", layer.digest);
    layer::save(&path.with_file_name(format!("{name}.sha256")), line.as_bytes())?;
    Ok(Archive { name, bytes: layer.bytes, sha256: layer.digest.clone() })
}

/// An index of nothing.
fn empty() -> Index {
    let commit = toolchain::commit(&paths::root());
    Index { schema: SCHEMA, version: VERSION.to_owned(), commit, targets: Vec::new(), launchers: Vec::new() }
}

/// Writes the index of one archive beside it.
fn part(out: &Path, stem: &str, part: Index) -> Result<(), String> {
    layer::save(&out.join(format!("{stem}.json")), part.text().as_bytes())
}

/// Writes the index of all archives of a directory.
fn write_index(out: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| format!("{}: {error}", out.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(out).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_part = path.extension().is_some_and(|it| it == "json")
            && path.file_name().is_some_and(|it| it != index::FILE);
        paths.extend(is_part.then_some(path));
    }
    paths.sort();
    let mut parts = Vec::new();
    for path in paths {
        let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        parts.push((path.display().to_string(), Index::read(&text, &path.display().to_string())?));
    }
    let all = joined(&parts).map_err(|why| format!("{}: {why}", out.display()))?;
    for archive in all.targets.iter().map(|it| &it.archive).chain(all.launchers.iter().map(|it| &it.archive))
    {
        let there = std::fs::metadata(out.join(&archive.name)).map(|it| it.len());
        if there.as_ref().ok() != Some(&archive.bytes) {
            return Err(format!(
                "{}: {} should have {} bytes, and there are {}",
                out.display(),
                archive.name,
                archive.bytes,
                there.unwrap_or(0)
            ));
        }
    }
    let path = out.join(index::FILE);
    layer::save(&path, all.text().as_bytes())?;
    println!("{}  {} servers, {} launchers", path.display(), all.targets.len(), all.launchers.len());
    Ok(())
}

/// One index of several, each named, which must be of one commit.
fn joined(parts: &[(String, Index)]) -> Result<Index, String> {
    let Some((first, one)) = parts.first() else {
        return Err("there are no archives to index; --target and --launcher write some".to_owned());
    };
    let (mut targets, mut launchers) = (Vec::new(), Vec::new());
    for (name, part) in parts {
        if (&part.version, &part.commit) != (&one.version, &one.commit) {
            let of =
                |it: &Index| format!("{} at {}", it.version, it.commit.as_deref().unwrap_or("no commit"));
            return Err(format!(
                "{first} is of {}, and {name} of {}: a release is of one commit; remove the others, or name another --out",
                of(one),
                of(part)
            ));
        }
        targets.extend(part.targets.iter().cloned());
        launchers.extend(part.launchers.iter().cloned());
    }
    targets.sort_by(|a: &index::Entry, b| a.target.cmp(&b.target));
    launchers.sort_by(|a: &index::Launcher, b| a.host.cmp(&b.host));
    Ok(Index { targets, launchers, ..one.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(commit: &str, host: &str) -> (String, Index) {
        let archive = Archive { name: format!("monomorph-{host}.tar.gz"), bytes: 1, sha256: "0".repeat(64) };
        let launcher = index::Launcher { host: host.to_owned(), archive };
        (host.to_owned(), Index { commit: Some(commit.to_owned()), launchers: vec![launcher], ..empty() })
    }

    #[test]
    fn a_release_is_of_one_commit() {
        let of = |it: &[(String, Index)]| {
            joined(it).map(|it| it.launchers.into_iter().map(|it| it.host).collect::<Vec<_>>())
        };
        assert_eq!(of(&[part("a", "y"), part("a", "x")]), Ok(vec!["x".to_owned(), "y".to_owned()]));
        let why = of(&[part("a", "y"), part("b", "x")]).expect_err("two commits");
        assert!(why.contains("y is of") && why.contains("at b"), "{why}");
        assert!(of(&[]).expect_err("nothing").contains("no archives"));
    }
}
