//! Kernels compile for the architectures there are targets for, and what is not fit to ship fails the build. No card is needed:
//! nvcc is found or fetched, and compiled modules are kept by content.

use monomorph_compiler::spec::types::Target;
use monomorph_compiler::toolchain::{self, modules};
use monomorph_compiler::{emit, spec};
use monomorph_tests::root;

fn target(name: &str) -> Target {
    spec::load(&[root().join("targets")], name).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a target's kernels and checks what the build checks.
fn compiles(name: &str, instruction_set: &str) {
    let target = target(name);
    let report = toolchain::cubins(&root(), &target).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(report.architecture, instruction_set);
    let kernels =
        || report.modules.iter().flat_map(|module| module.kernels.iter().map(move |it| (module, it)));
    for wanted in ["embed_rows", "attention_qkv", "attention", "ffn_down", "sample"] {
        assert!(kernels().any(|(_, kernel)| kernel.name == wanted), "{name} has no kernel {wanted}");
    }
    for (module, kernel) in kernels() {
        assert!(kernel.usage.registers > 0, "{}.{} has figures", module.name, kernel.name);
        let file = root().join("generated").join(name).join("cubins").join(format!("{}.cubin", module.name));
        assert_eq!(file.metadata().map(|it| it.len()).unwrap_or(0), module.bytes, "{}", file.display());
    }
}

#[test]
fn a_hopper_target_compiles() {
    compiles("h200/llama-3.2-1b/bf16", "sm_90a");
}

#[test]
fn a_gb10_target_compiles() {
    compiles("gb10/llama-3.2-1b/bf16", "sm_121a");
}

#[test]
fn an_exact_target_compiles() {
    compiles("h200/smollm2-135m/q4_1", "sm_90a");
}

/// Compiles one program of a target after `plant` changed its plan; the error there must be.
fn planted(plant: impl Fn(&mut monomorph_compiler::plan::cuda::Kernel)) -> String {
    let target = target("h200/llama-3.2-1b/bf16");
    let graph = monomorph_compiler::graph::build(&target.model, &target.quant);
    let mut plan = monomorph_compiler::passes::assemble::plan(&target, &graph).expect("the rules cover it");
    let cuda = plan.cuda.as_mut().expect("a CUDA target");
    cuda.modules.retain(|module| module.name == "decode_1");
    cuda.programs.clear();
    cuda.modules[0].kernels.retain(|kernel| kernel.name == "attention");
    cuda.modules[0].kernels.iter_mut().for_each(plant);
    let directory = tempfile::tempdir().expect("there is room");
    for file in emit::cuda::modules(&plan, plan.cuda.as_ref().expect("it is still there")) {
        let path = directory.path().join(&file.path);
        std::fs::create_dir_all(path.parent().expect("it stands in a directory")).expect("it is writable");
        std::fs::write(path, file.text).expect("it is writable");
    }
    modules::copy_library(&root(), directory.path()).unwrap_or_else(|error| panic!("{error}"));
    match modules::compile(&root(), directory.path(), &plan) {
        Ok(_) => "nothing wrong".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_planted_defect_fails_the_build_naming_kernel_and_figure() {
    assert_eq!(planted(|_| ()), "nothing wrong");
    // Eight blocks a multiprocessor leave a thread too few registers.
    let error = planted(|kernel| kernel.resident = 8);
    assert!(error.contains("kernel `attention` of `decode_1` spills "), "{error}");
    let error = planted(|kernel| kernel.shared = 240_000);
    assert!(error.contains("kernel `attention` of `decode_1` uses 240000 bytes of shared memory"), "{error}");
    // A figure of the plan that the kernel's header does not agree with never reaches a card.
    let error = planted(|kernel| kernel.shared = 1000);
    assert!(error.contains("the plan's figures"), "{error}");
}
