//! A Debian package of a server: the program, a service, and its flags as a file that is the user's.

use super::VERSION;
use crate::image;
use crate::image::layer::{self, Content, Entry, Layer, with_directories};
use md5::{Digest, Md5};
use monomorph_abi::serve::{DRAIN_SECONDS, END_SECONDS, PORT};
use monomorph_compiler::spec::types::Target;
use monomorph_hub::hex;
use monomorph_launcher::index;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Seconds that a service may be silent, and that it may take to load.
const WATCHDOG_SECONDS: u64 = 10;
const LOAD_SECONDS: u64 = 1800;
/// Seconds that a service has to stop besides those of its drain and its end.
const MARGIN_SECONDS: u64 = 5;

/// The oldest glibc that a program may be linked to.
const OLDEST_GLIBC: u32 = 17;

/// Writes the package of a server, with the files of its archive as documentation, and returns its path.
pub fn write(
    target: &Target,
    server: &Path,
    entry: &index::Entry,
    files: &[Entry],
    out: &Path,
) -> Result<PathBuf, String> {
    let io = |error: io::Error| format!("the package of {}: {error}", entry.target);
    let name = name(&entry.slug);
    let program = std::fs::read(server).map_err(|error| format!("{}: {error}", server.display()))?;
    let mut data = vec![
        Entry { path: format!("usr/bin/{name}"), content: Content::Program(server.to_owned()) },
        Entry::text(format!("usr/lib/systemd/system/{name}.service"), unit(&name, &entry.target)),
        Entry::text(format!("etc/default/{name}"), flags(entry)),
        Entry::text(format!("usr/share/doc/{name}/copyright"), COPYRIGHT),
    ];
    let documents = files.iter().filter(|it| it.path != "server");
    data.extend(
        documents.map(|it| Entry {
            path: format!("usr/share/doc/{name}/{}", it.path),
            content: it.content.clone(),
        }),
    );
    let bytes = data.iter().try_fold(0, |sum, it| Ok(sum + it.bytes()?)).map_err(io)?;
    let architecture = image::platform(&target.hardware).architecture();
    let control = format!(
        "Package: {name}\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: Monomorph <{repository}>\n\
         Installed-Size: {}\n\
         Depends: libc6 (>= 2.{}), libgcc-s1\n\
         Section: net\n\
         Priority: optional\n\
         Homepage: {repository}\n\
         Description: server of {} in {} for {}\n \
         One language model as one program, which speaks OpenAI's and Anthropic's API.\n \
         The weights are not in it: /etc/default/{name} says where they are.\n",
        bytes.div_ceil(1024),
        glibc(&program),
        target.model.name,
        target.quant.name,
        target.hardware.name,
        repository = env!("CARGO_PKG_REPOSITORY"),
    );
    let data = with_directories(data);
    let control = [
        Entry::text("control", control),
        Entry::text("conffiles", format!("/etc/default/{name}\n")),
        Entry::text("md5sums", md5sums(&data).map_err(io)?),
    ];
    let mut package = b"!<arch>\n".to_vec();
    member(&mut package, "debian-binary", b"2.0\n").map_err(io)?;
    for (name, entries) in [("control.tar.gz", &control[..]), ("data.tar.gz", &data)] {
        let (layer, mut bytes) = (Layer::compressed(entries)?, Vec::new());
        layer.read().and_then(|mut it| it.read_to_end(&mut bytes)).map_err(io)?;
        member(&mut package, name, &bytes).map_err(io)?;
    }
    let path = out.join(format!("{name}_{VERSION}_{architecture}.deb"));
    layer::save(&path, &package[..])?;
    Ok(path)
}

/// The package's name, of which Debian allows fewer letters.
fn name(slug: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "+.-".contains(c) { c } else { '-' };
    format!("monomorph-{}", slug.to_lowercase().chars().map(allowed).collect::<String>())
}

/// Appends a file to an archive of `ar`: a head of 60 bytes, and an even number of bytes.
fn member(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (time, user, group, mode) = (0, 0, 0, "100644");
    writeln!(archive, "{name:<16}{time:<12}{user:<6}{group:<6}{mode:<8}{:<10}`", bytes.len())?;
    archive.extend_from_slice(bytes);
    archive.extend((bytes.len() % 2 == 1).then_some(b'\n'));
    Ok(())
}

/// A line for each file that is no configuration.
fn md5sums(entries: &[Entry]) -> io::Result<String> {
    let mut lines = Vec::new();
    for Entry { path, content } in entries {
        let digest = match content {
            Content::Directory | Content::Scratch => continue,
            _ if path.starts_with("etc/") => continue,
            Content::Text(text) => Md5::digest(text),
            Content::File(from) | Content::Program(from) => Md5::digest(std::fs::read(from)?),
        };
        lines.push(format!("{}  {path}\n", hex(&digest)));
    }
    lines.sort_by(|a, b| a[32..].cmp(&b[32..]));
    Ok(lines.concat())
}

/// The minor version of the newest glibc 2 whose symbols a program names.
fn glibc(program: &[u8]) -> u32 {
    const BEFORE: &[u8] = b"GLIBC_2.";
    let minor = |at: usize| {
        let digits = program[at + BEFORE.len()..].iter().take_while(|it| it.is_ascii_digit());
        digits.take(3).fold(0, |number, digit| 10 * number + u32::from(digit - b'0'))
    };
    let found = program.windows(BEFORE.len()).enumerate().filter(|(_, it)| *it == BEFORE);
    found.map(|(at, _)| minor(at)).max().unwrap_or(0).max(OLDEST_GLIBC)
}

/// The flags of the service.
fn flags(entry: &index::Entry) -> String {
    let index::Entry { target, .. } = entry;
    format!(
        "# Flags of the server of {target}; `server serve --help` explains all. It is started by\n\
         #     systemctl enable --now {}\n\
         # once the weights are there.\n\
         FLAGS=\"--weights /var/lib/monomorph/{} --port {PORT}\"\n",
        name(&entry.slug),
        target.split_once('/').map_or(target.as_str(), |(_, model)| model)
    )
}

/// The service. A wrong command line and hardware that is not there (exit codes 2 and 3) are not mended by
/// another start.
fn unit(name: &str, target: &str) -> String {
    let mut text = format!(
        "[Unit]\n\
         Description=Monomorph's server of {target}\n\
         Documentation={}\n\
         After=network.target\n\n\
         [Service]\n\
         Type=notify\n\
         WatchdogSec={WATCHDOG_SECONDS}\n\
         TimeoutStartSec={LOAD_SECONDS}\n\
         EnvironmentFile=/etc/default/{name}\n\
         ExecStart=/usr/bin/{name} serve $FLAGS\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         RestartPreventExitStatus=2 3\n\
         TimeoutStopSec={}\n\
         LimitNOFILE=65536\n",
        env!("CARGO_PKG_REPOSITORY"),
        DRAIN_SECONDS + END_SECONDS + MARGIN_SECONDS,
    );
    for line in HARDENING {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text.push_str("\n[Install]\nWantedBy=multi-user.target\n");
    text
}

/// What the service may not do. Devices stay visible, for the driver; memory that is written and run is not
/// needed by a processor's servers, but by the driver.
const HARDENING: [&str; 15] = [
    "DynamicUser=yes",
    "StateDirectory=monomorph",
    "CapabilityBoundingSet=",
    "NoNewPrivileges=yes",
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHome=read-only",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectSystem=strict",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces=yes",
    "SystemCallArchitectures=native",
];

const COPYRIGHT: &str = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n\
    Files: *\n\
    Copyright: the contributors of Monomorph\n\
    License: Expat or Apache-2.0\n \
    Both are in licenses/ beside this file, with those of all crates that are linked.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_a_name_that_debian_allows_and_the_glibc_that_it_needs() {
        assert_eq!(name("x86-64-v3-smollm2-135m-q4_1"), "monomorph-x86-64-v3-smollm2-135m-q4-1");
        assert_eq!(glibc(b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"), 34);
        assert_eq!(glibc(b"none"), OLDEST_GLIBC);
    }

    #[test]
    fn members_begin_at_even_bytes() {
        let mut archive = Vec::new();
        member(&mut archive, "one", b"abc").expect("memory");
        member(&mut archive, "two", b"").expect("memory");
        assert_eq!(archive.len(), 60 + 4 + 60);
        assert!(archive[64..].starts_with(b"two             0"));
    }
}
