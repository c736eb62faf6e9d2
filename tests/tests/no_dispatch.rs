//! The path from a token to the next is decided at build time: no trait object, no lookup by name after
//! load, no branch on a model, a format or a hardware, in the emitted stack and the crates it calls.
//!
//! `runtime/grammar` is none of these and is not walked: what may come next is a request's to say, so it
//! matches keywords of schemas when it compiles, and names in what the model wrote; and the library that it
//! follows grammars with has trait objects of its own.

use monomorph_compiler::{emit, graph, passes, spec};
use monomorph_tests::{dispatch, root};

/// The emitted stack of a target.
fn emitted(target: &str) -> String {
    let root = root();
    let target = spec::load(&[root.join("targets")], target).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).expect("the rules cover it");
    let files = emit::emit(&plan, &root, &[]);
    files.into_iter().find(|file| file.path.ends_with("stack.rs")).expect("there is a stack").text
}

#[test]
fn the_emitted_stack_dispatches_nothing() {
    for target in ["x86-64-v4/smollm2-135m/q4_1", "h200/smollm2-135m/q4_1", "h200/llama-3.1-8b/fp8"] {
        assert_eq!(dispatch::walk("stack.rs", &emitted(target)), [], "{target}");
    }
}

#[test]
fn the_crates_on_the_forward_path_dispatch_nothing() {
    for directory in ["runtime/device/src", "runtime/sampling/src"] {
        // What runs at load is about formats.
        let skipped = ["tests.rs", "load.rs", "pack.rs"];
        let (files, findings) = dispatch::walk_directory(&root().join(directory), &skipped);
        assert!(files > 1, "{directory} has sources");
        assert_eq!(findings, [], "{directory}");
    }
}

#[test]
fn every_kind_of_planted_dispatch_is_found() {
    let stack = emitted("x86-64-v4/smollm2-135m/q4_1");
    for (planted, found) in [
        ("fn f(x: &dyn Fn()) { x() }", "trait object"),
        ("fn f(x: Box<dyn std::fmt::Debug>) {}", "trait object"),
        ("fn f(w: &std::collections::HashMap<String, u32>) -> u32 { w[\"q\"] }", "lookup in a `HashMap`"),
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
        let findings = dispatch::walk("stack.rs", &format!("{stack}\n{planted}\n"));
        assert!(findings.iter().any(|finding| finding.what == found), "{planted}: {findings:?}");
    }
}
