//! The path from one token to the next is decided at build time: no trait object, no lookup by name after
//! load, no branch on a model, a format or a hardware, in the emitted stack and the crates it calls.
//!
//! `runtime/grammar` is not walked. A grammar comes with a request, so the crate matches schema keywords when
//! it compiles and names in what the model wrote; and its parser library uses trait objects.

use monomorph_compiler::spec::types::Target;
use monomorph_compiler::{emit, spec, toolchain};
use monomorph_tests::{dispatch, root, shipped};

/// The emitted stack of a target.
fn emitted(target: &Target) -> String {
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.build()));
    let files = emit::emit(&plan, &root(), &[]);
    files.into_iter().find(|file| file.path.ends_with("stack.rs")).expect("there is a stack").text
}

#[test]
fn no_emitted_stack_dispatches_anything() {
    // Counts of targets with recurrent state, with experts, and with drafts made by the stack.
    let mut walked = [0; 3];
    for build in shipped::builds() {
        let stack = emitted(&build);
        assert_eq!(dispatch::walk("stack.rs", &stack), [], "{}", build.build());
        let kinds = [stack.contains("_state"), stack.contains("experts"), stack.contains("draft_")];
        for (count, is) in walked.iter_mut().zip(kinds) {
            *count += usize::from(is);
        }
    }
    assert!(walked.iter().all(|count| *count > 10), "{walked:?}");
}

#[test]
fn the_crates_on_the_forward_path_dispatch_nothing() {
    let crates = ["device", "sampling", "engine", "cache", "model"];
    for directory in crates.map(|name| format!("runtime/{name}/src")) {
        // Code that runs at load deals with names and formats; the scripted model is for tests.
        let skipped = ["tests.rs", "load.rs", "pack.rs", "name.rs", "scripted"];
        let (files, findings) = dispatch::walk_directory(&root().join(&directory), &skipped);
        assert!(files > 1, "{directory} has sources");
        assert_eq!(findings, [], "{directory}");
    }
}

#[test]
fn every_kind_of_planted_dispatch_is_found() {
    let search = [root().join("targets")];
    let target = spec::load(&search, "x86-64-v4/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"));
    let device = root().join("runtime/device/src");
    let model = |backend: &str| {
        let path = device.join(backend).join("model.rs");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let sources = [emitted(&target), model("cpu"), model("cuda")];
    for (planted, found) in [
        ("fn f(x: &dyn Fn()) { x() }", "trait object"),
        ("fn f(x: Box<dyn std::fmt::Debug>) {}", "trait object"),
        ("fn f(w: &std::collections::HashMap<String, u32>) -> u32 { w[\"q\"] }", "lookup in a `HashMap`"),
        ("fn f(w: &BTreeMap<Arc<str>, u32>) -> u32 { w[\"q\"] }", "lookup in a `BTreeMap`"),
        ("fn f(c: &Checkpoint) { c.tensor(\"q\"); }", "`tensor` by name"),
        ("fn f(x: Format) -> u32 { match x { Format::F32 => 1, _ => 2 } }", "branch on `Format`"),
        ("fn f(x: Format) -> bool { matches!(x, Format::F32) }", "branch on `Format`"),
        ("fn f(x: Format) { if let Format::F32 = x {} }", "branch on `Format`"),
        ("fn f(x: Format) -> bool { x == Format::F32 }", "branch on `Format`"),
        ("fn f(x: &str) -> u32 { match x { \"llama\" => 1, _ => 2 } }", "match on the name \"llama\""),
        ("fn f() -> bool { crate::spec::SPEC.model == \"llama\" }", "comparison with the name \"llama\""),
        (
            "const NAME: &str = \"llama\"; fn f(x: &str) -> bool { x == NAME }",
            "comparison with the name in `NAME`",
        ),
        (
            "struct S; impl S { const NAME: &'static str = \"llama\"; fn f(x: &str) -> bool { x != Self::NAME } }",
            "comparison with the name in `NAME`",
        ),
        (
            "const NAME: &str = \"llama\"; fn f(x: &str) -> u32 { match x { NAME => 1, _ => 2 } }",
            "match on the name in `NAME`",
        ),
        ("fn f() -> bool { is_x86_feature_detected!(\"avx2\") }", "branch on the CPU it runs on"),
    ] {
        for source in &sources {
            let findings = dispatch::walk("stack.rs", &format!("{source}\n{planted}\n"));
            assert!(findings.iter().any(|finding| finding.what == found), "{planted}: {findings:?}");
        }
    }
}
