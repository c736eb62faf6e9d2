//! The kernels of several targets are compiled together, each distinct one once, and an error names the
//! targets it concerns. Needs nvcc, which is found or installed, but no card.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::Kernel;
use monomorph_compiler::spec;
use monomorph_compiler::toolchain;
use monomorph_compiler::toolchain::kernels::{Known, Report, Survey, summary};
use monomorph_compiler::toolchain::listed::{Listed, sampled};
use monomorph_compiler::toolchain::nvcc::Compiler;
use std::path::{Path, PathBuf};

const H100: &str = "h100/llama-3.2-1b/bf16";
const H200: &str = "h200/llama-3.2-1b/bf16";
const GB10: &str = "gb10/llama-3.2-1b/bf16";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it stands in the workspace").to_owned()
}

/// A target's plan with a few kernels of one module that compile quickly, after `change`.
fn plan(name: &str, change: impl Fn(&mut Kernel)) -> Plan {
    let target = spec::load(&[root().join("targets")], name).unwrap_or_else(|error| panic!("{error}"));
    let plan = toolchain::plan(&target).unwrap_or_else(|error| panic!("{error}"));
    plan.planted(|cuda| {
        cuda.modules.retain(|module| module.name == "decode_1");
        cuda.modules[0].kernels.retain(|kernel| ["embed_rows", "attention"].contains(&kernel.name.as_str()));
        assert_eq!(cuda.modules[0].kernels.len(), 2, "{name}");
        cuda.modules[0].kernels.iter_mut().for_each(change);
    })
}

fn survey(cache: &Path, plans: &[Plan]) -> Report {
    survey_with(&Known { cache, listed: &Listed::default(), again: sampled, fresh: false }, plans)
}

fn survey_with(known: &Known, plans: &[Plan]) -> Report {
    let compiler = Compiler::find(&root()).unwrap_or_else(|error| panic!("{error}"));
    let mut survey = Survey::new(&root(), &compiler);
    plans.iter().for_each(|plan| survey.add(plan).unwrap_or_else(|error| panic!("{error}")));
    survey.compile(known, &|_, _, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

fn only(kernel: &mut Kernel, name: &str, change: impl Fn(&mut Kernel)) {
    if kernel.name == name {
        change(kernel);
    }
}

#[test]
fn a_spill_is_said_of_the_target_and_kernel_that_has_it_and_of_no_other() {
    let cache = tempfile::tempdir().expect("there is room");
    let whole = |name| plan(name, |_| ());
    let report = survey(cache.path(), &[whole(H100), whole(H200), whole(GB10)]);
    assert_eq!(report.defects, Vec::<String>::new());
    assert_eq!((report.targets, report.modules, report.kernels), (3, 3, 6));
    // Eight blocks per multiprocessor leave a thread too few registers.
    let spilling = plan(H200, |kernel| only(kernel, "attention", |it| it.resident = 8));
    let report = survey(cache.path(), &[whole(H100), spilling, whole(GB10)]);
    let [defect] = &report.defects[..] else { panic!("{:?}", report.defects) };
    assert!(
        defect.starts_with("h200/llama-3.2-1b/bf16: kernel `attention` of `decode_1` spills "),
        "{defect}"
    );
    assert_eq!(report.compiled, 1, "all but the planted kernel were known");
    // Cached figures are checked against each target's limits like fresh ones; a different amount of shared
    // memory changes the text.
    let greedy = plan(GB10, |kernel| only(kernel, "attention", |it| it.shared = 240_000));
    let report = survey(cache.path(), &[greedy]);
    let [defect] = &report.defects[..] else { panic!("{:?}", report.defects) };
    assert!(defect.contains("kernel `attention` of `decode_1` uses 240"), "{defect}");
    assert!(defect.starts_with(GB10) && defect.contains("and there are 101376"), "{defect}");
}

#[test]
fn what_differs_in_name_only_is_compiled_once_for_all_who_share_a_cache() {
    let cache = tempfile::tempdir().expect("there is room");
    let named = |target, name: &str| {
        plan(target, |kernel| kernel.name = format!("{name}_{}", kernel.name)).planted(|cuda| {
            cuda.modules[0].name = name.to_owned();
            cuda.modules[0].kernels.retain(|kernel| kernel.name.ends_with("embed_rows"));
        })
    };
    let plans = [named(H100, "one"), named(H200, "other"), named(H200, "third")];
    let report = survey(cache.path(), &plans);
    assert_eq!((report.kernels, report.distinct, report.compiled, report.cached), (3, 1, 1, 0));
    let names: Vec<&str> = report.usages.iter().map(|it| it.kernel.as_str()).collect();
    assert_eq!(names, ["one_embed_rows", "other_embed_rows", "third_embed_rows"]);
    assert!(report.usages.iter().all(|it| it.usage == report.usages[0].usage && it.usage.registers > 0));
    // Another architecture makes another kernel; several surveys may run at the same time.
    let plans = [named(H100, "again"), named(GB10, "one")];
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let surveys: Vec<_> = (0..2).map(|_| scope.spawn(|| survey(cache.path(), &plans))).collect();
        surveys.into_iter().map(|it| it.join().expect("nothing panics")).collect()
    });
    for report in &reports {
        assert_eq!((report.distinct, report.defects.len()), (2, 0));
        assert_eq!(report.usages, reports[0].usages);
    }
    // No temporary files are left, and a damaged file is replaced.
    let files =
        || std::fs::read_dir(cache.path()).expect("it is there").map(|it| it.expect("it is readable").path());
    assert_eq!(files().count(), 2);
    assert!(files().all(|path| path.extension().is_some_and(|it| it == "json")));
    std::fs::write(files().next().expect("there are two"), "{").expect("it is writable");
    let report = survey(cache.path(), &plans);
    assert_eq!((report.compiled, report.cached), (1, 1));
    assert!(
        summary(&report).starts_with(
            "2 targets, 2 modules, 2 kernels, 2 distinct: 1 compiled, 1 cached and 0 listed in "
        )
    );
}

#[test]
fn a_kernel_that_nvcc_refuses_does_not_take_the_others_along() {
    let cache = tempfile::tempdir().expect("there is room");
    // The header does not agree with this figure.
    let wrong = plan(H200, |kernel| only(kernel, "attention", |it| it.shared = 1000));
    let alike = plan(H100, |kernel| only(kernel, "attention", |it| it.resident = 1));
    let report = survey(cache.path(), &[wrong, alike]);
    let [defect] = &report.defects[..] else { panic!("{:?}", report.defects) };
    assert!(
        defect.starts_with("h200/llama-3.2-1b/bf16: kernel `attention` of `decode_1`: nvcc refuses it:\n")
            && defect.contains("the plan's figures"),
        "{defect}"
    );
    assert_eq!(report.usages.len(), 3);
}

/// A list with lines changed by hand.
fn edited(list: &Listed, change: impl Fn(&str) -> String) -> Listed {
    let directory = tempfile::tempdir().expect("there is room");
    let path = directory.path().join("kernels.txt");
    list.write(&path).unwrap_or_else(|error| panic!("{error}"));
    let text = std::fs::read_to_string(&path).expect("it is there");
    let (compiler, lines) = text.split_once('\n').expect("it begins with the compiler");
    std::fs::write(&path, format!("{compiler}\n{}", change(lines))).expect("it is writable");
    Listed::read(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_list_is_believed_and_what_is_compiled_must_agree_with_it() {
    let cache = tempfile::tempdir().expect("there is room");
    let embedding = |name| {
        plan(name, |_| ()).planted(|cuda| cuda.modules[0].kernels.retain(|it| it.name == "embed_rows"))
    };
    let plans = [embedding(H100), embedding(GB10)];
    let made = survey(cache.path(), &plans);
    assert_eq!((made.compiled, made.unlisted.len(), made.stale.len()), (2, 2, 0));
    // A cache of its own, so that only the list is known.
    let by = |listed: &Listed, again: fn(&str) -> bool, plans: &[Plan]| {
        let cache = tempfile::tempdir().expect("there is room");
        survey_with(&Known { cache: cache.path(), listed, again, fresh: false }, plans)
    };
    let counts = |it: &Report| (it.compiled, it.cached, it.listed);
    let wrong = |it: &Report| (it.differing.len(), it.unlisted.len(), it.stale.len());
    let report = by(&made.list, |_| false, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((0, 0, 2), (0, 0, 0)));
    assert_eq!((&report.usages, &report.list), (&made.usages, &made.list));
    let report = by(&made.list, |_| true, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((2, 0, 0), (0, 0, 0)));
    // A line of no kernel, and a kernel without a line.
    let report = by(&made.list, |_| false, &plans[..1]);
    assert_eq!((counts(&report), wrong(&report)), ((0, 0, 1), (0, 0, 1)));
    let less = edited(&made.list, |lines| lines.lines().take(1).map(|line| format!("{line}\n")).collect());
    let report = by(&less, |_| false, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((1, 0, 1), (0, 1, 0)));
    assert!(report.unlisted[0].ends_with(": kernel `embed_rows` of `decode_1`"), "{:?}", report.unlisted);
    // Wrong figures: what a listed kernel may not take is a defect like any other.
    let more = edited(&made.list, |lines| {
        let spilling = |line: &str| format!("{} 40 0 0 8\n", line.split(' ').next().unwrap_or_default());
        lines.lines().map(spilling).collect()
    });
    let report = by(&more, |_| false, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((0, 0, 2), (0, 0, 0)));
    assert!(
        report.defects[0].contains("kernel `embed_rows` of `decode_1` spills 8 "),
        "{:?}",
        report.defects
    );
    let report = by(&more, |_| true, &plans);
    assert_eq!((report.defects.len(), wrong(&report)), (0, (2, 0, 0)));
    let [first, _] = &report.differing[..] else { panic!("{:?}", report.differing) };
    assert!(
        first.starts_with("h100/llama-3.2-1b/bf16: kernel `embed_rows` of `decode_1`: the list says "),
        "{first}"
    );
    // Figures of the cache are compared too, and a fresh survey has neither.
    let known = Known { cache: cache.path(), listed: &more, again: |_| false, fresh: false };
    let report = survey_with(&known, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((0, 2, 0), (2, 0, 0)));
    let report = survey_with(&Known { fresh: true, ..known }, &plans);
    assert_eq!((counts(&report), wrong(&report)), ((2, 0, 0), (2, 0, 0)));
}
