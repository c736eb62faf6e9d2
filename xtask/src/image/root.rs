//! The root file system of an image: the server, what its loader wants, who it runs as, and notices.

use super::layer::{Content, Entry, with_directories};
use super::layout::{Platform, SCRATCH, USER};
use super::notices;
use monomorph_compiler::spec::types::{Hardware, Target};
use monomorph_compiler::toolchain;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a server is linked to.
const LIBRARIES: [&str; 3] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"];

/// What the driver's libraries are linked to, by the names of before glibc 2.34.
const OF_DRIVERS: [&str; 3] = ["libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// Where the text of licences of Debian's packages is.
const COPYRIGHTS: [(&str, &str); 2] = [("glibc", "libc6"), ("libgcc", "libgcc-s1")];

/// What servers for this hardware run on.
pub fn platform(hardware: &Hardware) -> Platform {
    match hardware.host() {
        Some(host) if host.starts_with("aarch64") => Platform::Arm64,
        Some(_) => Platform::Amd64,
        None if cfg!(target_arch = "aarch64") => Platform::Arm64,
        None => Platform::Amd64,
    }
}

/// The files of an image with this server.
pub fn root(target: &Target, server: &Path) -> Result<Vec<Entry>, String> {
    if !Path::new("/etc/debian_version").is_file() {
        // Others' loaders look elsewhere, and the NVIDIA runtime mounts the driver by what it finds.
        return Err("an image takes libc from this system, which must be Debian or made from it".to_owned());
    }
    let (gcc, triplet, loader) = match platform(&target.hardware) {
        Platform::Amd64 => ("x86_64-linux-gnu-gcc", "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2"),
        Platform::Arm64 => ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1"),
    };
    let entry = |path: &str, content| Entry { path: path.to_owned(), content };
    let text = |path: &str, text: &str| entry(path, Content::Text(text.into()));
    let mut entries = vec![
        entry("server", Content::Program(server.to_owned())),
        text("etc/passwd", &format!("root:x:0:0::/:/none\nserver:x:{USER}:{USER}::{SCRATCH}:/none\n")),
        text("etc/group", &format!("root:x:0:\nserver:x:{USER}:\n")),
        // By this file the NVIDIA runtime mounts the driver where Debian's loader looks.
        text("etc/debian_version", "12\n"),
        entry("tmp", Content::Scratch),
    ];
    for directory in ["dev", "proc", "sys", "weights"] {
        entries.push(entry(directory, Content::Directory));
    }
    let (_, loader_name) = loader.split_once('/').expect("a loader is in a directory");
    entries.push(entry(loader, Content::Program(library(gcc, loader_name)?)));
    for name in LIBRARIES.iter().chain(&OF_DRIVERS) {
        entries.push(entry(&format!("lib/{triplet}/{name}"), Content::File(library(gcc, name)?)));
    }
    for (name, package) in COPYRIGHTS {
        let from = Path::new("/usr/share/doc").join(package).join("copyright");
        entries.push(entry(&format!("licenses/{name}.txt"), Content::File(from)));
    }
    let (directory, _) =
        toolchain::write_crate(&crate::paths::root(), target).map_err(|it| it.to_string())?;
    let notices = notices::of(&directory, platform(&target.hardware).triple())?;
    entries.push(entry("licenses/rust.txt", Content::Text(notices.into_bytes())));
    Ok(with_directories(entries))
}

/// A library for the host of a compiler, by that compiler.
fn library(gcc: &str, name: &str) -> Result<PathBuf, String> {
    let failed = |why: String| format!("{gcc} does not say where {name} is, which the image holds: {why}");
    let output = Command::new(gcc)
        .arg(format!("-print-file-name={name}"))
        .output()
        .map_err(|error| failed(format!("{error}; install it")))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A name that it does not find comes back as it is.
    if path.is_absolute() {
        std::fs::canonicalize(path).map_err(|it| failed(it.to_string()))
    } else {
        Err(failed("there is none".to_owned()))
    }
}

/// The files of a checkpoint below /weights.
pub fn weights(path: &Path) -> Result<Vec<Entry>, String> {
    let io = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut entries = vec![Entry { path: "weights".to_owned(), content: Content::Directory }];
    let files = if path.is_dir() {
        std::fs::read_dir(path)
            .map_err(io)?
            .map(|it| it.map(|it| it.path()))
            .collect::<Result<_, _>>()
            .map_err(io)?
    } else {
        vec![path.to_owned()]
    };
    for file in files {
        let name = file.file_name().expect("a directory's entry has a name").to_string_lossy().into_owned();
        let of = std::fs::canonicalize(&file).map_err(io)?;
        if of.is_file() {
            entries.push(Entry { path: format!("weights/{name}"), content: Content::File(of) });
        }
    }
    Ok(entries)
}
