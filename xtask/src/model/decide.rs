//! What follows from a model's name and from what a machine has.

use crate::doctor::Fit;
use monomorph_launcher::size;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::PathBuf;

/// What a name on the command line means.
#[derive(Debug, PartialEq)]
pub enum Named {
    /// A repository of the hub.
    Hub {
        id: String,
        /// None is the main branch, or what a spec says.
        revision: Option<String>,
    },
    /// A checkpoint on this machine: a directory, or a GGUF file.
    Local(PathBuf),
}

/// Reads a name; `local` says whether a directory or a GGUF file is called so.
pub fn named(name: &str, local: bool) -> Result<Named, String> {
    if local {
        return Ok(Named::Local(name.into()));
    }
    let (id, revision) = match name.split_once('@') {
        Some((id, revision)) => (id, Some(revision.to_owned())),
        None => (name, None),
    };
    let parts: Vec<&str> = id.split('/').collect();
    let right = parts.len() == 2 && parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'));
    if !right || revision.as_ref().is_some_and(String::is_empty) {
        return Err(format!(
            "--model {name:?} is neither a directory, nor a GGUF file, nor a model of the hub: write owner/name or owner/name@revision"
        ));
    }
    Ok(Named::Hub { id: id.to_owned(), revision })
}

/// The name of an imported model, which is that of no other.
pub fn model_name(named: &Named) -> String {
    let name = match named {
        Named::Hub { id, .. } => id.replace('/', "--"),
        Named::Local(path) => {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            format!("local--{name}")
        }
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    name.to_lowercase().chars().map(plain).collect()
}

/// What tells one config from another.
pub fn version(config: &[u8]) -> String {
    Sha256::digest(config).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The hardware to build for: the one asked for, else a GPU that is here, the largest that its card is, else
/// this machine's processor.
pub fn hardware<'a>(candidates: &'a [Fit], asked: Option<&str>) -> Result<&'a str, String> {
    let why = |it: &Fit| it.not_linked.clone().or_else(|| it.not_run.clone());
    let names = || candidates.iter().map(|it| it.hardware.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(asked) = asked {
        let found = candidates.iter().find(|it| it.hardware.name == asked);
        let found = found.ok_or_else(|| format!("there is no hardware {asked:?}; there is {}", names()))?;
        return match why(found) {
            None => Ok(&found.hardware.name),
            Some(why) => Err(format!("servers for {asked} do not run here: {why}")),
        };
    }
    let fit = candidates.iter().filter(|it| why(it).is_none());
    // `cpu` is the processor of this very machine; others are of many.
    let rank = |it: &&Fit| match it.hardware.cuda() {
        Some(_) => (2, it.hardware.memory_bytes),
        None => (u64::from(it.hardware.name == "cpu"), 0),
    };
    fit.max_by_key(rank).map(|it| it.hardware.name.as_str()).ok_or_else(|| {
        let reasons = candidates.iter().filter_map(|it| Some(format!("{}: {}", it.hardware.name, why(it)?)));
        format!("no server runs on this machine:\n{}", reasons.collect::<Vec<_>>().join("\n"))
    })
}

/// The one of several names, or the one that was asked for.
pub fn one<'a>(what: &str, names: &'a [String], asked: Option<&str>) -> Result<&'a str, String> {
    let list = names.join(", ");
    match (names, asked) {
        (_, Some(asked)) => {
            let found = names.iter().find(|name| *name == asked);
            found.map(String::as_str).ok_or_else(|| format!("there is no {what} {asked:?}; there is {list}"))
        }
        ([first, rest @ ..], None) if rest.iter().all(|it| it == first) => Ok(first),
        _ => Err(format!("there are several: choose a {what} by --quant, of {list}")),
    }
}

/// What a target takes, and what this machine has. All in bytes; what is not known is none.
#[derive(Clone)]
pub struct Needs {
    /// Files of the weights.
    pub weights: u64,
    /// Whether they are there.
    pub there: bool,
    /// Where they are or will be.
    pub place: PathBuf,
    /// Free there.
    pub free: Option<u64>,
    /// Memory of weights, of the largest step, and of one block of keys and values.
    pub memory: u64,
    /// Memory that a server may take.
    pub has: Option<u64>,
    /// Disk that a build takes.
    pub build: u64,
    /// Free where builds go.
    pub build_free: Option<u64>,
}

/// What is chosen, for people.
pub fn summary(target: &str, origin: &str, needs: &Needs) -> String {
    let of = |free: Option<u64>| free.map(|free| format!(", {} free", size(free))).unwrap_or_default();
    let mut out = String::new();
    let (weights, place) = (size(needs.weights), needs.place.display());
    let there = if needs.there { "there already, in" } else { "to be fetched into" };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "target   {target}, {origin}");
    let _ = writeln!(out, "weights  {weights}, {there} {place}{}", of(needs.free));
    let _ = writeln!(out, "memory   {}{}", size(needs.memory), of(needs.has));
    let _ = writeln!(out, "build    up to {}{}", size(needs.build), of(needs.build_free));
    out
}

/// Whether this machine holds it.
pub fn fits(needs: &Needs) -> Result<(), String> {
    let lacks = |need: u64, has: Option<u64>| has.filter(|has| *has < need);
    if let Some(has) = lacks(needs.memory, needs.has) {
        return Err(format!(
            "the server takes {} of memory and {} are free: choose a smaller model or quantisation",
            size(needs.memory),
            size(has)
        ));
    }
    if let Some(free) = lacks(needs.weights, needs.free).filter(|_| !needs.there) {
        return Err(format!(
            "the weights take {}, and {} has {} free: make room there, or let HF_HUB_CACHE name another disk",
            size(needs.weights),
            needs.place.display(),
            size(free)
        ));
    }
    if let Some(free) = lacks(needs.build, needs.build_free) {
        return Err(format!(
            "a build takes up to {} of disk and {} are free: make room",
            size(needs.build),
            size(free)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;
    use monomorph_compiler::spec::load_hardware;

    fn fit(name: &str, not_run: Option<&str>) -> Fit {
        let hardware = load_hardware(&[paths::targets()], name).unwrap_or_else(|error| panic!("{error}"));
        Fit { hardware, not_linked: None, not_run: not_run.map(str::to_owned) }
    }

    #[test]
    fn a_name_is_a_directory_or_a_model_of_the_hub() {
        let hub = |id: &str, revision: Option<&str>| {
            Ok(Named::Hub { id: id.to_owned(), revision: revision.map(str::to_owned) })
        };
        assert_eq!(named("o/n", false), hub("o/n", None));
        assert_eq!(named("o/n@v1", false), hub("o/n", Some("v1")));
        assert_eq!(named("o/n", true), Ok(Named::Local("o/n".into())));
        for wrong in ["", "n", "o/n@", "o/", "./o", "../o", "/o/n", "a/b/c", "@v1"] {
            assert!(named(wrong, false).unwrap_err().contains("owner/name"), "{wrong}");
        }
        assert_eq!(model_name(&named("Owner/Na.me-1", false).unwrap()), "owner--na.me-1");
        assert_eq!(model_name(&Named::Local("/no/such/My model".into())), "local--my-model");
        assert_ne!(version(b"{}"), version(b"{ }"));
    }

    #[test]
    fn a_gpu_goes_before_the_processor_and_what_does_not_run_here_is_never_chosen() {
        let cpu = || fit("cpu", None);
        let generic = || fit("x86-64-v3", None);
        assert_eq!(hardware(&[generic(), cpu(), fit("h200", Some("no driver"))], None), Ok("cpu"));
        assert_eq!(hardware(&[cpu(), fit("h200", None), fit("h100", None), generic()], None), Ok("h200"));
        let none = hardware(&[fit("h200", Some("no driver"))], None).unwrap_err();
        assert!(none.ends_with("h200: no driver"), "{none}");
        let all = [cpu(), generic(), fit("h200", Some("no driver"))];
        assert_eq!(hardware(&all, Some("x86-64-v3")), Ok("x86-64-v3"));
        assert_eq!(hardware(&all, Some("h200")).unwrap_err(), "servers for h200 do not run here: no driver");
        assert!(hardware(&all, Some("h300")).unwrap_err().ends_with("there is cpu, x86-64-v3, h200"));
        let unlinked = Fit { not_linked: Some("no linker".to_owned()), ..fit("h200", None) };
        assert_eq!(hardware(&[unlinked, cpu()], None), Ok("cpu"));
    }

    #[test]
    fn of_several_specs_one_is_asked_for() {
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(one("quant spec", &names(&["bf16"]), None), Ok("bf16"));
        assert_eq!(one("model", &names(&["m", "m"]), None), Ok("m"));
        let both = names(&["bf16", "f32"]);
        assert_eq!(one("quant spec", &both, Some("f32")), Ok("f32"));
        let said = one("quant spec", &both, None).unwrap_err();
        assert_eq!(said, "there are several: choose a quant spec by --quant, of bf16, f32");
        assert!(one("quant spec", &both, Some("q4")).unwrap_err().ends_with("there is bf16, f32"));
    }

    #[test]
    fn what_the_machine_cannot_hold_is_refused_with_both_figures() {
        let gib = 1 << 30;
        let needs = Needs {
            weights: 2 * gib,
            there: false,
            place: "/cache".into(),
            free: Some(3 * gib),
            memory: 4 * gib,
            has: Some(5 * gib),
            build: 3 * gib,
            build_free: Some(6 * gib),
        };
        assert_eq!(fits(&needs), Ok(()));
        let said = summary("cpu/m/q", "imported into /x", &needs);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "target   cpu/m/q, imported into /x");
        assert_eq!(lines[1], "weights  2.0 GiB, to be fetched into /cache, 3.0 GiB free");
        let refused = |needs: &Needs| fits(needs).unwrap_err();
        assert!(
            refused(&Needs { has: Some(gib), ..needs.clone() }).contains("4.0 GiB of memory and 1.0 GiB")
        );
        let full = Needs { free: Some(gib), ..needs.clone() };
        assert!(refused(&full).contains("/cache has 1.0 GiB free"));
        assert_eq!(fits(&Needs { there: true, ..full }), Ok(()));
        assert!(
            refused(&Needs { build_free: Some(gib), ..needs.clone() })
                .contains("a build takes up to 3.0 GiB")
        );
        assert_eq!(fits(&Needs { free: None, has: None, build_free: None, ..needs }), Ok(()));
    }
}
