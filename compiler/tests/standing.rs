//! `cargo xtask list` agrees with planning the project's targets and with docs/performance.md.

use monomorph_compiler::passes::assemble;
use monomorph_compiler::spec::types::{Target, TensorClass};
use monomorph_compiler::standing::{self, Lack, Listed, Standing, Weights};
use monomorph_compiler::{graph, spec};
use monomorph_formats::Format;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the compiler stands in the workspace").to_owned()
}

fn targets() -> PathBuf {
    root().join("targets")
}

fn list(search: &[PathBuf]) -> Vec<Listed> {
    standing::list(search).unwrap_or_else(|error| panic!("{error}"))
}

fn plan(target: &Target) -> Result<(), String> {
    let graph = graph::build(&target.model, &target.quant);
    assemble::plan(target, &graph).map(drop).map_err(|error| error.to_string())
}

/// What is listed as buildable builds, what waits does not, and the reason names the missing format or
/// memory.
#[test]
fn every_target_is_what_it_is_listed_as() {
    let listed = list(&[targets()]);
    let names: Vec<&str> = listed.iter().map(|it| it.target.as_str()).collect();
    assert_eq!(names, spec::list(&[targets()]).unwrap());
    let (mut built, mut waiting) = (0, BTreeSet::new());
    for Listed { target: name, standing } in &listed {
        let loaded = spec::load(&[targets()], name);
        let Standing::Waiting { waits_for, reason } = standing else {
            let target = loaded.unwrap_or_else(|error| panic!("{name}:\n{error}"));
            plan(&target).unwrap_or_else(|error| panic!("{name}: {error}"));
            built += 1;
            continue;
        };
        waiting.insert(*waits_for);
        match waits_for {
            Lack::Memory => {
                assert!(loaded.is_err(), "{name} loads, and is said not to: {reason}");
                let (hardware, _) = name.split_once('/').unwrap();
                assert!(reason.contains(&format!("memory of {hardware}: ")), "{name}: {reason}");
                let gb: Vec<f64> = reason.split(' ').filter_map(|word| word.parse().ok()).collect();
                assert!(matches!(gb[..], [needed, there] if needed >= there), "{name}: {reason}");
            }
            Lack::Kernels => {
                let target = loaded.unwrap_or_else(|error| panic!("{name}:\n{error}"));
                assert!(plan(&target).is_err(), "{name} can be planned, and is said not to: {reason}");
                // Formats that a CPU has no kernels for, or what a card has none for.
                let named = |(class, format): (&TensorClass, &Format)| {
                    reason.contains(&format!("`{}`", class.name())) && reason.contains(format.name())
                };
                let unbuilt = reason.contains("the CUDA backend has no kernels for");
                assert!(unbuilt || target.quant.stored.classes.iter().any(named), "{name}: {reason}");
            }
            Lack::Specs => panic!("{name}: {reason}"),
        }
    }
    assert_eq!(waiting, BTreeSet::from([Lack::Kernels, Lack::Memory]));
    assert!(built >= 60, "{built} of {} can be built", listed.len());
}

/// A mistake in one spec is listed at that spec and hides no other target.
#[test]
fn a_spec_with_a_mistake_is_listed_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models/mine");
    fs::create_dir_all(&model).unwrap();
    for file in ["MODEL.toml", "q4_1.toml"] {
        fs::copy(targets().join("models/smollm2-135m").join(file), model.join(file)).unwrap();
    }
    fs::write(model.join("typo.toml"), "[checkpoint]\nname = {}\n").unwrap();
    let listed = list(&[dir.path().to_owned(), targets()]);
    let of = |name: &str| &listed.iter().find(|it| it.target == name).expect("it is listed").standing;
    assert_eq!(of("cpu/mine/q4_1"), &Standing::Compiled);
    let Standing::Waiting { waits_for: Lack::Specs, reason } = of("cpu/mine/typo") else {
        panic!("{:?}", of("cpu/mine/typo"))
    };
    assert!(reason.contains("models/mine/typo.toml:2: "), "{reason}");
}

/// Measurements of one model do not apply to another that takes its name, and an unknown name is refused.
#[test]
fn measurements_are_of_what_stands_beside_them() {
    let name = "cpu/smollm2-135m/q4_1";
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models/smollm2-135m");
    fs::create_dir_all(&model).unwrap();
    let search = [dir.path().to_owned(), targets()];
    let standing =
        |search: &[PathBuf]| list(search).into_iter().find(|it| it.target == name).unwrap().standing;
    assert!(matches!(standing(&search), Standing::Measured { .. }));
    for file in ["MODEL.toml", "q4_1.toml"] {
        fs::copy(targets().join("models/smollm2-135m").join(file), model.join(file)).unwrap();
    }
    assert_eq!(standing(&search), Standing::Compiled);

    let line = |name: &str| {
        format!(
            "[measured.{name:?}]\ndecode = 7\nafter = 32\nweights = \"made-up\"\ndate = \"2026-11-23\"\ncommit = \"0000000\"\nmachine = \"mine\"\n"
        )
    };
    fs::write(dir.path().join(standing::MEASURED), line(name)).unwrap();
    let Standing::Measured { measured } = standing(&search) else { panic!("it was measured") };
    assert_eq!((measured.decode, measured.weights), (7.0, Weights::MadeUp));

    fs::write(dir.path().join(standing::MEASURED), line("cpu/smollm2-135m/q4_2")).unwrap();
    let error = standing::list(&search).unwrap_err();
    assert!(error.contains("\"cpu/smollm2-135m/q4_2\"") && error.contains("measured.toml"), "{error}");
}

/// Every line of measured.toml is of a buildable target, with a day and a commit; docs/performance.md shows
/// them all.
#[test]
fn what_was_measured_stands_in_the_ledger() {
    let measured = standing::measured(&targets()).unwrap_or_else(|error| panic!("{error}"));
    assert!(!measured.is_empty());
    let listed = list(&[targets()]);
    let mut table = String::from(
        "| target | tok/s | after | weights | machine | date | commit |\n|---|---|---|---|---|---|---|\n",
    );
    for (name, it) in &measured {
        let entry = listed.iter().find(|it| it.target == *name).expect("it is listed");
        assert_eq!(entry.standing, Standing::Measured { measured: it.clone() }, "{name}");
        assert!(it.commit.len() == 7 && it.commit.bytes().all(|it| it.is_ascii_hexdigit()), "{name}: {it:?}");
        let day: Vec<&str> = it.date.split('-').collect();
        assert!(
            matches!(day[..], [year, month, day] if [year.len(), month.len(), day.len()] == [4, 2, 2]),
            "{name}"
        );
        let (rate, after, weights) = (it.decode, it.after, it.weights.words());
        table += &format!(
            "| {name} | {rate} | {after} | {weights} | {} | {} | {} |\n",
            it.machine, it.date, it.commit
        );
    }
    let path = root().join("docs/performance.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- measured.toml -->\n", "<!-- end -->\n");
    let (before, rest) = text.split_once(begin).expect("the table has a place");
    let (shown, after) = rest.split_once(end).expect("the table ends");
    if std::env::var_os("MONOMORPH_BLESS").is_some() {
        fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, table, "docs/performance.md: `cargo xtask test --bless` writes the table");
}
