//! What a build makes of a target's modules: machine code, figures, and an error for a kernel that is not fit
//! to ship. No card is needed: nvcc is found or fetched, and its output is cached by content. `cargo xtask
//! test` compiles the kernels of all targets through `cargo xtask kernels`; this file tests what that does
//! not, and that both report the same figures.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::toolchain::kernels::{Known, Survey};
use monomorph_compiler::toolchain::listed::{Listed, sampled};
use monomorph_compiler::toolchain::nvcc::Compiler;
use monomorph_compiler::toolchain::{self, BuildError, modules};
use monomorph_compiler::{emit, spec};
use monomorph_tests::root;
use std::path::Path;

/// A target's plan reduced to one of its modules.
fn plan(name: &str) -> Plan {
    let target = spec::load(&[root().join("targets")], name).unwrap_or_else(|error| panic!("{error}"));
    let plan = toolchain::plan(&target).unwrap_or_else(|error| panic!("{error}"));
    plan.planted(|cuda| {
        cuda.modules.retain(|module| module.name == "decode_1");
        cuda.programs.clear();
    })
}

/// Emits a plan's modules and compiles them as a build does.
fn compile(plan: &Plan, directory: &Path) -> Result<modules::CubinReport, BuildError> {
    for file in emit::cuda::modules(plan, plan.cuda.as_ref().expect("a CUDA target")) {
        let path = directory.join(&file.path);
        std::fs::create_dir_all(path.parent().expect("it stands in a directory")).expect("it is writable");
        std::fs::write(path, file.text).expect("it is writable");
    }
    modules::copy_library(&root(), directory).unwrap_or_else(|error| panic!("{error}"));
    modules::compile(&root(), directory, plan)
}

/// A build inspects its kernels and reports the same figures as the survey of all targets.
fn compiles(name: &str, instruction_set: &str) {
    let (plan, directory) = (plan(name), tempfile::tempdir().expect("there is room"));
    let report = compile(&plan, directory.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(report.architecture, instruction_set);
    let [module] = &report.modules[..] else { panic!("{name} has other modules") };
    let file = directory.path().join("cubins/decode_1.cubin");
    assert_eq!(file.metadata().map(|it| it.len()).unwrap_or(0), module.bytes, "{}", file.display());
    for wanted in ["embed_rows", "attention_qkv", "attention", "ffn_down", "sample"] {
        assert!(module.kernels.iter().any(|kernel| kernel.name == wanted), "{name} has no kernel {wanted}");
    }
    // A separate cache, so that no figures come from the build.
    let cache = tempfile::tempdir().expect("there is room");
    let compiler = Compiler::find(&root()).unwrap_or_else(|error| panic!("{error}"));
    let mut survey = Survey::new(&root(), &compiler);
    survey.add(&plan).unwrap_or_else(|error| panic!("{error}"));
    let known = Known { cache: cache.path(), listed: &Listed::default(), again: sampled, fresh: false };
    let surveyed = survey.compile(&known, &|_, _, _| ()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(surveyed.defects, Vec::<String>::new());
    assert_eq!(surveyed.usages.len(), module.kernels.len());
    for (kernel, alone) in module.kernels.iter().zip(&surveyed.usages) {
        assert!(kernel.usage.registers > 0, "{name}: {} has figures", kernel.name);
        assert_eq!((&kernel.name, &kernel.usage), (&alone.kernel, &alone.usage), "{name}");
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

/// Compiles one program of a target after `plant` changed its plan, and returns the error, which must occur.
fn planted(plant: impl Fn(&mut monomorph_compiler::plan::cuda::Kernel)) -> String {
    let plan = plan("h200/llama-3.2-1b/bf16").planted(|cuda| {
        cuda.modules[0].kernels.retain(|kernel| kernel.name == "attention");
        cuda.modules[0].kernels.iter_mut().for_each(plant);
    });
    let directory = tempfile::tempdir().expect("there is room");
    match compile(&plan, directory.path()) {
        Ok(_) => "nothing wrong".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_planted_defect_fails_the_build_naming_kernel_and_figure() {
    assert_eq!(planted(|_| ()), "nothing wrong");
    // Eight blocks per multiprocessor leave a thread too few registers.
    let error = planted(|kernel| kernel.resident = 8);
    assert!(error.contains("kernel `attention` of `decode_1` spills "), "{error}");
    let error = planted(|kernel| kernel.shared = 240_000);
    assert!(error.contains("kernel `attention` of `decode_1` uses 240000 bytes of shared memory"), "{error}");
    // A figure that differs between the plan and the kernel's header never reaches a card.
    let error = planted(|kernel| kernel.shared = 1000);
    assert!(error.contains("the plan's figures"), "{error}");
}
