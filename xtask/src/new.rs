//! `cargo xtask new`: specs to begin with, in which every key says what it is.

use crate::paths;
use clap::{Args, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// A model, and a quant spec for weights in bf16.
    Model(Named),
    /// A quant spec of a model that is there.
    Quant {
        #[command(flatten)]
        named: Named,
        /// The model's directory name.
        #[arg(long)]
        model: String,
    },
    /// A processor or a card.
    Hardware {
        #[command(flatten)]
        named: Named,
        /// Whether it is a processor or a card with CUDA.
        #[arg(long, value_enum)]
        kind: HardwareKind,
    },
}

#[derive(Args)]
struct Named {
    /// Its name, which is that of the directory or file.
    name: String,
    /// Directory with hardware/ and models/ to write into.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum HardwareKind {
    Cpu,
    Cuda,
}

/// Paths below the targets directory, each with the template of its text.
type Files = Vec<(PathBuf, &'static str)>;

pub fn new(options: Options) -> Result<(), String> {
    let (named, files) = match options.kind {
        Kind::Model(named) => {
            let directory = Path::new("models").join(&named.name);
            let files = vec![
                (directory.join("MODEL.toml"), "MODEL.toml"),
                (directory.join("bf16.toml"), "quant.toml"),
            ];
            (named, files)
        }
        Kind::Quant { named, model } => {
            let directory = Path::new("models").join(&model);
            let places = [named.out.clone(), paths::targets()];
            if !places.iter().any(|place| place.join(&directory).join("MODEL.toml").is_file()) {
                return Err(format!(
                    "there is no model {model:?}: cargo xtask new model {model} --out {}",
                    named.out.display()
                ));
            }
            let files: Files = vec![(directory.join(format!("{}.toml", named.name)), "quant.toml")];
            (named, files)
        }
        Kind::Hardware { named, kind } => {
            let template = match kind {
                HardwareKind::Cpu => "cpu.toml",
                HardwareKind::Cuda => "cuda.toml",
            };
            let files = vec![(Path::new("hardware").join(&named.name).join("HARDWARE.toml"), template)];
            (named, files)
        }
    };
    check_name(&named.name)?;
    for (path, template) in files {
        let path = named.out.join(path);
        if path.exists() {
            return Err(format!("{} is there already, and is left as it is", path.display()));
        }
        let io = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(path.parent().expect("a spec is in a directory")).map_err(io)?;
        std::fs::copy(paths::root().join("templates/new").join(template), &path).map_err(io)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Names are parts of a target's, which slashes divide, and of paths.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    match name.chars().all(allowed) && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        true => Ok(()),
        false => Err(format!("the name {name:?} would not do in a target's: use a-z, 0-9, `.`, `_` and `-`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_compiler::{spec, toolchain};

    fn written(kind: Kind) -> Result<(), String> {
        new(Options { kind })
    }

    fn named(name: &str, out: &Path) -> Named {
        Named { name: name.to_owned(), out: out.to_owned() }
    }

    #[test]
    fn what_is_new_can_be_planned_with_each_key_that_may_be_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let out = directory.path();
        written(Kind::Model(named("mine", out))).expect("a model");
        written(Kind::Quant { named: named("other", out), model: "mine".to_owned() }).expect("a quant spec");
        for (name, kind) in [("small", HardwareKind::Cpu), ("card", HardwareKind::Cuda)] {
            written(Kind::Hardware { named: named(name, out), kind }).expect("hardware");
        }
        let plans = |target: &str| {
            let target = spec::load(&[out.to_owned()], target).unwrap_or_else(|error| panic!("{error}"));
            toolchain::plan(&target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
        };
        for target in ["small/mine/bf16", "small/mine/other", "card/mine/bf16"] {
            plans(target);
        }
        for file in ["models/mine/MODEL.toml", "models/mine/other.toml", "hardware/small/HARDWARE.toml"] {
            let path = out.join(file);
            let text = std::fs::read_to_string(&path).expect("it was written");
            assert!(text.contains("#="), "{file}");
            for (at, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with("#= ")) {
                // A table's first key comes with its head.
                if line.starts_with("#= [") {
                    continue;
                }
                let lines = text.lines().enumerate();
                let uncommented =
                    |(n, it): (usize, &str)| match n == at || (n + 1 == at && it.starts_with("#= [")) {
                        true => it.trim_start_matches("#= ").to_owned() + "\n",
                        false => it.to_owned() + "\n",
                    };
                std::fs::write(&path, lines.map(uncommented).collect::<String>()).expect("writable");
                println!("{file}: {line}");
                plans("small/mine/other");
            }
            std::fs::write(&path, text).expect("writable");
        }
    }

    #[test]
    fn nothing_is_overwritten_and_names_are_those_of_targets() {
        let directory = tempfile::tempdir().expect("a directory");
        let out = directory.path();
        written(Kind::Model(named("mine", out))).expect("a model");
        let why = written(Kind::Model(named("mine", out))).expect_err("it is there");
        assert!(why.contains("is there already"), "{why}");
        for name in ["a/b", "", "Upper", "..", "a b"] {
            assert!(written(Kind::Model(named(name, out))).is_err(), "{name:?}");
        }
        let why = written(Kind::Quant { named: named("x", out), model: "none".to_owned() });
        assert!(why.is_err_and(|why| why.contains("there is no model")));
    }
}
