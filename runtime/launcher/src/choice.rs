//! Which server of a release is started.

use monomorph_launcher::index::{Entry, Index};
use monomorph_launcher::machine::Machine;
use monomorph_launcher::size;

/// The model and quantisation that are started where none is named.
const DEFAULT: &str = "smollm2-135m/q4_1";

/// Whether a server runs on this machine.
pub fn fits(entry: &Entry, machine: &Machine) -> Result<(), String> {
    entry.needs.met(machine)?;
    match (entry.needs.gpu.is_some(), machine.memory) {
        (false, Some((_, free))) if free < entry.memory.least() => {
            Err(format!("it needs {} of memory, and {} are free", size(entry.memory.least()), size(free)))
        }
        _ => Ok(()),
    }
}

/// The server of this name: a target, or a model and its quantisation, or a model. Without the hardware it is
/// the best that runs here. `from` names the index.
pub fn choose<'a>(
    index: &'a Index,
    named: Option<&str>,
    machine: &Machine,
    from: &str,
) -> Result<&'a Entry, String> {
    let name = named.unwrap_or(DEFAULT);
    if name.matches('/').count() == 2 {
        let entry = index.target(name, from)?;
        return match fits(entry, machine) {
            Ok(()) => Ok(entry),
            Err(why) => Err(format!("{name} does not run here: {why}{}", instead(index, entry, machine))),
        };
    }
    let of_it: Vec<&Entry> = index.targets.iter().filter(|it| is(it, name)).collect();
    if of_it.is_empty() && named.is_none() {
        return Err(format!(
            "name a target: {from} has no {DEFAULT}, and `monomorph list` names what it has"
        ));
    }
    if of_it.is_empty() {
        return index.target(name, from);
    }
    let mut fitting: Vec<&Entry> = of_it.iter().copied().filter(|it| fits(it, machine).is_ok()).collect();
    // A card before the processor, and the code that knows most of either.
    fitting.sort_by_key(|it| std::cmp::Reverse((it.needs.gpu.is_some(), it.needs.features.len())));
    let Some(best) = fitting.first() else {
        let why = of_it.iter().filter_map(|it| Some(format!("{}: {}", it.target, fits(it, machine).err()?)));
        return Err(format!("no server of {name} runs here:\n{}", why.collect::<Vec<_>>().join("\n")));
    };
    let mut others: Vec<&str> = fitting.iter().map(|it| model(it)).filter(|it| *it != model(best)).collect();
    others.sort_unstable();
    others.dedup();
    match others[..] {
        [] => Ok(best),
        _ => Err(format!("name one of them: {}, {}", model(best), others.join(", "))),
    }
}

/// A target without its hardware.
fn model(entry: &Entry) -> &str {
    entry.target.split_once('/').map_or(&entry.target, |(_, model)| model)
}

/// Whether a server is of this model, and of this quantisation if it is named.
fn is(entry: &Entry, name: &str) -> bool {
    let model = model(entry);
    model == name || model.split_once('/').is_some_and(|(model, _)| model == name)
}

/// What runs here of the same model.
fn instead(index: &Index, entry: &Entry, machine: &Machine) -> String {
    let other = index.targets.iter().find(|it| model(it) == model(entry) && fits(it, machine).is_ok());
    other.map_or(String::new(), |it| format!("; {} does", it.target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_launcher::index::{Archive, Memory, SCHEMA};
    use monomorph_launcher::machine::Gpu;
    use monomorph_launcher::needs::{GpuNeeds, Needs};

    fn entry(target: &str, features: &[&str], gpu: bool) -> Entry {
        let archive = Archive { name: "a".to_owned(), bytes: 1, sha256: "0".repeat(64) };
        let gpu =
            gpu.then_some(GpuNeeds { capability: (9, 0), least_driver: 580, count: 1, memory: 100 << 30 });
        Entry {
            target: target.to_owned(),
            slug: target.replace('/', "-"),
            host: "x86_64-unknown-linux-gnu".to_owned(),
            archive,
            unpacked: 1,
            needs: Needs {
                architecture: "x86_64".to_owned(),
                features: features.iter().map(|it| (*it).to_owned()).collect(),
                gpu,
            },
            formats: Vec::new(),
            kv_format: "f16".to_owned(),
            memory: Memory { weights: 1 << 30, scratch: 0, kv_token: 0, state: 0 },
            weights: Vec::new(),
        }
    }

    fn index() -> Index {
        let targets = vec![
            entry("h200/m/q", &[], true),
            entry("v3/m/q", &["avx2"], false),
            entry("v4/m/q", &["avx2", "avx512f"], false),
            entry("v3/m/r", &["avx2"], false),
            entry("v3/n/q", &["avx2"], false),
        ];
        Index { schema: SCHEMA, version: "1".to_owned(), commit: None, targets, launchers: Vec::new() }
    }

    fn machine(features: &[&str], free: u64, gpu: bool) -> Machine {
        let card = Gpu { name: "a card".to_owned(), capability: (9, 0), memory: 100 << 30 };
        Machine {
            architecture: "x86_64".to_owned(),
            features: features.iter().map(|it| (*it).to_owned()).collect(),
            threads: 1,
            memory: Some((free, free)),
            driver: gpu.then(|| "580.1".to_owned()),
            gpus: gpu.then_some(card).into_iter().collect(),
        }
    }

    #[test]
    fn the_best_that_fits_is_taken_and_what_is_not_clear_is_asked() {
        let index = index();
        let chosen = |name: &str, machine: &Machine| {
            choose(&index, Some(name), machine, "it").map(|it| it.target.clone())
        };
        let ok = |name: &str| Ok(name.to_owned());
        let (old, new) = (machine(&["avx2"], 2 << 30, false), machine(&["avx2", "avx512f"], 2 << 30, false));
        assert_eq!(chosen("m/q", &old), ok("v3/m/q"));
        assert_eq!(chosen("m/q", &new), ok("v4/m/q"));
        assert_eq!(chosen("m/q", &machine(&["avx2"], 0, true)), ok("h200/m/q"));
        assert_eq!(chosen("n", &old), ok("v3/n/q"));
        assert_eq!(chosen("v3/m/q", &new), ok("v3/m/q"));
        let why = |name: &str, machine: &Machine| chosen(name, machine).expect_err("it is refused");
        assert_eq!(why("m", &old), "name one of them: m/q, m/r");
        assert!(why("v4/m/q", &old).ends_with("lacks avx512f; v3/m/q does"));
        assert!(why("n", &machine(&["avx2"], 1 << 20, false)).contains("memory"));
        assert!(why("v5/m/q", &old).contains("is v3/m/q meant?"));
        assert!(choose(&index, None, &old, "it").is_err_and(|it| it.contains("smollm2-135m/q4_1")));
    }
}
