//! The instruction sets of this machine for which the CPU kernels have paths of their own.

use crate::paths;
use crate::tidy::walk;
use std::collections::BTreeSet;
use std::process::Command;

/// A set of features, by the names of `target_feature`.
type Features = BTreeSet<String>;

/// What of the kernels' tests an instruction set is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those of vectors, which every kernel is written in.
    Vectors,
    /// Those and every kernel's.
    All,
}

/// Processors, as `-C target-cpu` takes them, that this machine can run and whose kernels differ from the
/// baseline's, which the workspace's tests run, and from each other. A set between others differs from the
/// last in a few operations on vectors of the same width, and compiles kernels for two minutes.
pub fn instruction_sets() -> Result<Vec<(&'static str, Part)>, String> {
    let named = named()?;
    let baseline = features(None)?;
    let candidates = candidates().into_iter().map(|cpu| Ok((cpu, features(Some(cpu))?)));
    Ok(distinct(&named, baseline, candidates.collect::<Result<_, String>>()?))
}

/// The candidates whose features that the kernels name are those of none before them.
fn distinct<'a>(
    named: &Features,
    baseline: Features,
    candidates: Vec<(&'a str, Features)>,
) -> Vec<(&'a str, Part)> {
    let of = |features: &Features| features.intersection(named).cloned().collect::<Features>();
    let mut seen = BTreeSet::from([of(&baseline)]);
    let sets: Vec<_> = candidates.into_iter().filter(|(_, features)| seen.insert(of(features))).collect();
    let last = sets.len().saturating_sub(1);
    let part = |at| if at == 0 || at == last { Part::All } else { Part::Vectors };
    sets.into_iter().enumerate().map(|(at, (cpu, _))| (cpu, part(at))).collect()
}

#[cfg(target_arch = "x86_64")]
fn candidates() -> Vec<&'static str> {
    let v3 = ["x86-64-v3"]
        .into_iter()
        .filter(|_| is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"));
    let v4 = ["x86-64-v4"].into_iter().filter(|_| is_x86_feature_detected!("avx512bw"));
    v3.chain(v4).chain(["native"]).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn candidates() -> Vec<&'static str> {
    vec!["native"]
}

/// The features that sources of the runtime name, in whatever condition.
fn named() -> Result<Features, String> {
    let (mut named, mut failed) = (Features::new(), None);
    walk(&paths::root().join("runtime"), &mut |path| {
        if path.extension().is_some_and(|it| it == "rs") {
            match std::fs::read_to_string(path) {
                Ok(text) => named.extend(quoted(&text, "target_feature = \"")),
                Err(error) => failed = Some(format!("{}: {error}", path.display())),
            }
        }
    });
    failed.map_or(Ok(named), Err)
}

/// The features that rustc compiles a processor's code with; without one, any processor's.
fn features(cpu: Option<&str>) -> Result<Features, String> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "cfg"]).args(cpu.map(|cpu| format!("-Ctarget-cpu={cpu}")));
    let output = rustc.output().map_err(|error| format!("rustc could not be started: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(quoted(&String::from_utf8_lossy(&output.stdout), "target_feature=\"").collect())
}

/// What follows each `before`, up to the next quote.
fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = String> + 'a {
    text.split(before).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Part::{All, Vectors};
    use super::{Features, distinct, named};

    #[test]
    fn a_set_is_tested_where_it_adds_a_feature_that_kernels_ask_for() {
        let of = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Features>();
        let named = named().unwrap_or_else(|error| panic!("{error}"));
        let v3 = || ("v3", of(&["sse2", "avx2", "fma", "f16c"]));
        let v4 = || ("v4", of(&["sse2", "avx2", "fma", "f16c", "avx512bw", "avx512vl"]));
        let native = |more: &[&str]| ("native", &v4().1 | &of(more));
        let sets = |candidates| distinct(&named, of(&["sse2"]), candidates);
        assert_eq!(
            sets(vec![v3(), v4(), native(&["avx512vnni"])]),
            [("v3", All), ("v4", Vectors), ("native", All)]
        );
        assert_eq!(sets(vec![v3(), v4(), native(&["vaes", "gfni"])]), [("v3", All), ("v4", All)]);
        assert_eq!(sets(vec![v3(), ("native", &v3().1 | &of(&["vaes"]))]), [("v3", All)]);
        assert_eq!(sets(vec![("native", of(&["sse2", "neon"]))]), []);
    }
}
