//! The emitted crate of one target as a golden, so that a review shows how a change of the compiler affects
//! generated code.

use monomorph_compiler::{emit, graph, passes, spec};
use monomorph_tests::{check_golden, fixtures, root};

#[test]
fn the_emitted_crate_is_the_golden() {
    let target = spec::load(&[root().join("targets")], "x86-64-v4/smollm2-135m/q4_1")
        .unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).expect("the rules cover it");
    let features = ["avx512f".to_owned(), "avx512bw".to_owned()];
    let files = emit::emit(&plan, &features);
    assert_eq!(files.len(), 4);
    for file in files {
        golden(&target, &file);
    }
}

/// Two programs and the stack of a CUDA target: one that streams its weights, one on tensor cores. The card
/// has no tuning file, so that measuring another card changes nothing here.
#[test]
fn the_emitted_kernels_are_the_golden() {
    let target = spec::load(&[root().join("targets")], "h100/llama-3.2-1b/bf16")
        .unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).expect("the rules cover it");
    let files = emit::emit(&plan, &[]);
    for kept in ["Cargo.toml", "src/stack.rs", "src/arguments.rs", "cuda/decode_1.cu", "cuda/decode_8.cu"] {
        let file = files.iter().find(|file| file.path == std::path::Path::new(kept));
        golden(&target, file.unwrap_or_else(|| panic!("{kept} is emitted")));
    }
}

/// What kernels and the host look at is printed from the host's declarations.
#[test]
fn the_shared_headers_are_printed_from_the_hosts() {
    let templates = root().join("templates/cuda");
    let core = templates.join("core");
    check_golden(&core.join("step.cuh"), &monomorph_abi::step::header());
    check_golden(&core.join("fill_shape.cuh"), &monomorph_abi::fill::header());
    check_golden(&core.join("packed.cuh"), &monomorph_abi::packed::header());
    check_golden(&templates.join("exchange/world.cuh"), &monomorph_abi::world::header());
    check_golden(&templates.join("attention/sliding.cuh"), &monomorph_abi::sliding::header());
    check_golden(&templates.join("attention/levels.cuh"), &monomorph_abi::kv::header());
    check_golden(&templates.join("vision/images.cuh"), &monomorph_abi::images::header());
}

fn golden(target: &spec::types::Target, file: &emit::File) {
    let path = fixtures().join("emitted").join(target.name()).join(&file.path);
    // Not `.rs` and `.toml`, so that cargo and its tools ignore them.
    check_golden(
        &path.with_extension(format!("{}.txt", path.extension().unwrap_or_default().display())),
        &file.text,
    );
}
