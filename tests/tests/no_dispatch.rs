//! The path from one token to the next is decided at build time: no trait object, no lookup by name after
//! load, no branch on a model, a format or a hardware, in the crates that an emitted one calls. Emitted ones
//! are walked by `digests.rs`, where they are emitted.
//!
//! `runtime/grammar` is not walked. A grammar comes with a request, so the crate matches schema keywords when
//! it compiles and names in what the model wrote; and its parser library uses trait objects.

use monomorph_compiler::spec::types::Target;
use monomorph_compiler::{emit, spec, toolchain};
use monomorph_tests::dispatch::{self, Finding, STACK, Source, exempt_emitted};
use monomorph_tests::root;
use std::collections::BTreeSet;

/// The crates of the forward path.
const CRATES: [&str; 6] = ["device", "world", "sampling", "engine", "cache", "model"];

/// Code that deals with names and formats because it runs once, at load, or in no server: the end of a file's
/// path, an item of it (or all: `*`), and when it runs. Everything else is walked, whatever its name.
const EXEMPT: [(&str, &str, &str); 20] = [
    ("device/src/companions.rs", "companions", "load: a weight's scales in the checkpoint"),
    ("device/src/cpu/arrays.rs", "Mapped::open", "load: whose packed weights a file holds"),
    ("device/src/cpu/loader.rs", "alike", "load: a weight's scales in the checkpoint"),
    ("device/src/cpu/rounded.rs", "is_f16_already", "load: packs a row of a weight"),
    ("device/src/cuda/pack.rs", "place", "load: packs a tile of a weight"),
    ("device/src/cuda/pack.rs", "pack_row", "load: packs a row of a weight"),
    ("device/src/cuda/fill.rs", "Filler::matrix", "load: dummy weights"),
    ("device/src/cuda/fill.rs", "launches", "load: dummy weights"),
    ("device/src/cuda/sources.rs", "load_check_blocks", "load: a weight's scales in the checkpoint"),
    ("device/src/cuda/slice.rs", "SourceColumns::new", "load: a rank's columns of a weight"),
    ("device/src/cuda/module.rs", "Module::any_kernel", "load: a kernel's address by its name"),
    ("device/src/cuda/module.rs", "Module::kernel", "load: a kernel's address by its name"),
    ("device/src/cuda/measure.rs", "*", "in no server: the tuner's kernels are named at run time"),
    ("world/src/meeting.rs", "Meeting::exchange", "load: what ranks meet for"),
    ("device/src/cuda/gpu.rs", "Gpu::ordinal_of", "load: the GPU that a flag names"),
    ("model/src/name.rs", "find", "load: names of tensors in a checkpoint"),
    ("engine/src/scripted/mod.rs", "*", "in no server: a model for tests"),
    ("engine/src/scripted/memory.rs", "*", "in no server: a model for tests"),
    ("engine/src/scripted/rows.rs", "*", "in no server: a model for tests"),
    ("engine/src/scripted/windows.rs", "*", "in no server: a model for tests"),
];

/// The exemption of a finding in a crate of the forward path, if there is one.
fn exemption(finding: &Finding) -> Option<usize> {
    let covers = |(file, item, _): &(&str, &str, &str)| {
        finding.file.ends_with(&format!("runtime/{file}")) && (*item == "*" || finding.item == *item)
    };
    EXEMPT.iter().position(covers)
}

/// The emitted stack of a target.
fn stack(target: &Target) -> Source {
    let plan = toolchain::plan(target).unwrap_or_else(|error| panic!("{}: {error}", target.build()));
    let sources = dispatch::emitted(&emit::emit(&plan, &[]));
    sources.into_iter().find(|source| source.name == STACK).expect("there is a stack")
}

#[test]
fn the_crates_on_the_forward_path_dispatch_nothing() {
    let mut sources = Vec::new();
    for directory in CRATES.map(|name| format!("runtime/{name}/src")) {
        let files = dispatch::read(&root().join(&directory));
        assert!(files.len() > 1, "{directory} has sources");
        sources.extend(files);
    }
    let (exempt, findings): (Vec<_>, Vec<_>) =
        dispatch::walk(&sources).into_iter().partition(|finding| exemption(finding).is_some());
    assert_eq!(findings, []);
    let used: BTreeSet<usize> = exempt.iter().filter_map(exemption).collect();
    let unused: Vec<_> = (0..EXEMPT.len()).filter(|at| !used.contains(at)).map(|at| EXEMPT[at]).collect();
    assert_eq!(unused, [], "these need no exemption");
}

/// Planted code, and what is found in it.
const PLANTED: [(&str, &str); 40] = [
    ("fn f(x: &dyn Fn()) { x() }", "trait object"),
    ("fn f(x: Box<dyn std::fmt::Debug>) {}", "trait object"),
    ("struct S { f: Vec<Box<dyn Fn()>> }", "trait object"),
    // Names that once were exempt.
    ("struct Queue; impl Queue { fn new(x: &dyn Fn()) {} }", "trait object"),
    ("fn load_step(x: Format) { if let Format::F32 = x {} }", "branch on `Format`"),
    ("fn pack_step(x: Format) { if let Format::F32 = x {} }", "branch on `Format`"),
    ("macro_rules! f { ($x:ident) => { fn $x(x: &dyn Fn()) { x() } }; }", "trait object"),
    ("thread_local! { static F: Box<dyn Fn()> = Box::new(|| ()); }", "trait object"),
    // Lookups.
    ("fn f(w: &std::collections::HashMap<String, u32>) -> u32 { w[\"q\"] }", "lookup in a `HashMap`"),
    ("fn f(w: &BTreeMap<Arc<str>, u32>) -> u32 { w[\"q\"] }", "lookup in a `BTreeMap`"),
    ("fn f(w: W) { let map: HashMap<_, _> = w.collect(); }", "lookup in a `HashMap`"),
    ("fn f(w: W) { w.collect::<HashMap<_, _>>(); }", "lookup in a `HashMap`"),
    ("fn f() { HashMap::from([(\"q\", 1)]); }", "lookup in a `HashMap`"),
    ("struct Tensor(String); fn f(w: &HashMap<Tensor, u32>) {}", "lookup in a `HashMap`"),
    ("use std::collections::HashMap as Map;", "another name for `HashMap`"),
    ("fn f(w: &W) -> u32 { w[\"q\"] }", "index by name"),
    ("fn f(c: &Checkpoint) { c.tensor(\"q\"); }", "`tensor` by name"),
    ("const NAME: &str = \"q\"; fn f(c: &Checkpoint) { c.tensor(NAME); }", "`tensor` by name"),
    ("static NAMES: [&str; 1] = [\"q\"]; fn f(map: &Map) { map.get(NAMES[0]); }", "`get` by name"),
    ("fn f(map: &Map, name: &str) { map.get(name); }", "`get` by name"),
    ("fn f(map: &Map, i: u32) { let name = format!(\"q{i}\"); map.get(&name); }", "`get` by name"),
    ("fn f(map: &Map) { Map::get(map, \"q\"); }", "`get` by name"),
    ("fn f() { std::env::var_os(\"MODE\"); }", "`var_os` by name"),
    // Branches.
    ("fn f(x: Format) -> u32 { match x { Format::F32 => 1, _ => 2 } }", "branch on `Format`"),
    ("fn f(x: Format) -> bool { matches!(x, Format::F32) }", "branch on `Format`"),
    ("fn f(x: Format) -> bool { x == Format::F32 }", "branch on `Format`"),
    ("fn f(x: Format) -> bool { x.eq(&Format::F32) }", "branch on `Format`"),
    ("fn f(x: Format) { let Format::F32 = x else { return }; }", "branch on `Format`"),
    ("fn f(x: Packing) { if let Packing::Gated = x {} }", "branch on `Packing`"),
    ("fn f(x: HardwareKind) { if let HardwareKind::Cuda(_) = x {} }", "branch on `HardwareKind`"),
    ("impl Format { fn f(self) -> u32 { match self { Self::F32 => 1, _ => 2 } } }", "branch on `Format`"),
    ("use monomorph_formats::Format::*;", "variants of `Format` without it"),
    ("fn f() -> bool { is_x86_feature_detected!(\"avx2\") }", "branch on the CPU it runs on"),
    // Texts.
    ("fn f(x: &str) -> u32 { match x { \"llama\" => 1, _ => 2 } }", "match on the text `\"llama\"`"),
    (
        "const NAME: &str = \"q\"; fn f(x: &str) -> u32 { match x { NAME => 1, _ => 2 } }",
        "match on the text `NAME`",
    ),
    ("fn f() -> bool { crate::spec::SPEC.model == \"llama\" }", "comparison with the text `\"llama\"`"),
    (
        "struct S; impl S { const NAME: &'static str = \"q\"; fn f(x: X) -> bool { x != Self::NAME } }",
        "comparison with the text `Self :: NAME`",
    ),
    (
        "struct K { name: String } fn f(a: &K, b: &K) -> bool { a.name == b.name }",
        "comparison with the text `a . name`",
    ),
    ("fn f(x: X) -> bool { x.eq(\"llama\") }", "comparison with the text `\"llama\"`"),
    ("fn f(x: X) { assert_eq!(x, \"llama\"); }", "comparison with the text `\"llama\"`"),
];

/// What is found in a source with this behind it.
fn planted(source: &Source, planted: &str, others: &[Source]) -> Vec<Finding> {
    let text = format!("{}\n{planted}\n", source.text);
    let with = Source { name: source.name.clone(), text };
    let findings = dispatch::walk(&[&[with], others].concat());
    findings.into_iter().filter(|it| exemption(it).is_none() && !exempt_emitted(it)).collect()
}

#[test]
fn every_kind_of_planted_dispatch_is_found() {
    let search = [root().join("targets")];
    let target = |name: &str| spec::load(&search, name).unwrap_or_else(|error| panic!("{error}"));
    let hybrid = target("h100/qwen3.5-0.8b/bf16");
    let drafting = spec::variants(&hybrid).into_iter().find(|it| it.build().ends_with("+mtp3"));
    let builds = [
        target("x86-64-v4/smollm2-135m/q4_1"),
        target("h100/qwen3-30b-a3b/bf16"),
        drafting.expect("a hybrid drafts with its head"),
        hybrid,
    ];
    let mut sources: Vec<Source> = builds.iter().map(stack).collect();
    for file in [
        "device/src/cpu/model.rs",
        "device/src/cuda/model.rs",
        "device/src/cuda/queue.rs",
        "device/src/cuda/load.rs",
        "engine/src/forward/step.rs",
        "cache/src/index.rs",
        "model/src/step.rs",
    ] {
        let path = root().join("runtime").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        sources.push(Source { name: path.display().to_string(), text });
    }
    for source in &sources {
        for (code, found) in PLANTED {
            let findings = planted(source, code, &[]);
            let place = &source.name;
            assert!(findings.iter().any(|finding| finding.what == found), "{place}: {code}: {findings:?}");
        }
        let text =
            "pub const NAME: &str = \"llama\"; pub struct Kernel { pub name: &'static str }".to_owned();
        let other = [Source { name: "src/spec.rs".to_owned(), text }];
        for (code, found) in [
            ("fn f(x: &X) -> bool { x.it == spec::NAME }", "comparison with the text `spec :: NAME`"),
            ("fn f(x: &X) -> u32 { match x.it { spec::NAME => 1, _ => 2 } }", "match on the text `NAME`"),
            ("fn f(map: &Map) { map.get(spec::NAME); }", "`get` by name"),
            ("fn f(a: &Kernel, b: &X) -> bool { b.it == a.name }", "comparison with the text `a . name`"),
        ] {
            let findings = planted(source, code, &other);
            assert!(findings.iter().any(|it| it.what == found), "{}: {code}: {findings:?}", source.name);
        }
    }
}

#[test]
fn tests_and_what_is_no_text_are_let_pass() {
    let source = |name: &str, text: &str| Source { name: name.to_owned(), text: text.to_owned() };
    let sources = [
        source("a/src/lib.rs", "#[cfg(test)] mod walk; #[cfg(test)] mod tests { fn f(x: &dyn Fn()) {} }"),
        source("a/src/walk.rs", "fn f(x: &dyn Fn()) {}"),
        source("a/src/one.rs", "struct S { kind: &'static str, drafts: Option<&'static str> }"),
        source(
            "a/src/two.rs",
            "const MOST: usize = 2; struct S { places: HashMap<u32, u32> }
             fn f(x: &X) -> bool { x.kind == Kind::Decode && x.drafts == 0 && [0, 3].contains(&x.drafts) }
             fn g() -> S { S { places: HashMap::new() } }
             fn h(payload: Box<dyn Any + Send>) {}",
        ),
    ];
    assert_eq!(dispatch::walk(&sources), []);
}
