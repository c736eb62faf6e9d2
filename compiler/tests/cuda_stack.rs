//! The emitted CUDA stack against the plan it was emitted from.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::Regime;
use monomorph_compiler::{emit, graph, passes, spec};
use std::path::Path;

fn planned(target: &str) -> (Plan, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let target = spec::load(&[root.join("targets")], target).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).unwrap_or_else(|error| panic!("{error}"));
    let files = emit::emit(&plan, &[]);
    let stack = files.into_iter().find(|file| file.path.ends_with("stack.rs")).expect("there is a stack");
    (plan, stack.text)
}

/// Without white space, so that line breaks do not matter.
fn solid(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn every_launch_of_the_plan_is_emitted_once() {
    for target in
        ["h200/smollm2-135m/q4_1", "h200/llama-3.1-8b/fp8", "h200/qwen3-8b/nvfp4", "gb10/llama-3.2-1b/bf16"]
    {
        let (plan, text) = planned(target);
        let cuda = plan.cuda.as_ref().expect("a CUDA target");
        let launches = cuda.programs.iter().flat_map(|it| it.bodies.iter().flatten().chain(&it.tail)).count();
        assert_eq!(text.matches(".launch(").count(), launches, "{target}");
        for program in &cuda.programs {
            assert!(text.contains(&format!("fn {}(&self, queue: &mut Queue)", program.name)), "{target}");
            let recorded = format!("name:\"{}\",sequences:{},tokens:1,", program.name, program.sequences);
            let recorded = solid(&text).contains(&recorded);
            assert_eq!(recorded, program.regime == Regime::Decode, "{target}: {}", program.name);
        }
        for module in &cuda.modules {
            assert!(text.contains(&format!("../cubins/{}.cubin", module.name)), "{target}");
        }
        let scratch: u64 = cuda.scratch.iter().map(|it| it.bytes).sum();
        let activations: u64 = plan.sizes().map(|(_, bytes)| bytes).sum();
        for bytes in [scratch, activations] {
            assert!(text.contains(&format!("const BYTES: u64 = {bytes};")), "{target}: {bytes}");
        }
    }
}

#[test]
fn tensors_and_their_companions_are_named() {
    let companion = ".scaled_by(format!(\"model.layers.{layer}.self_attn.q_proj.weight_scale";
    assert!(solid(&planned("h200/llama-3.1-8b/fp8").1).contains(companion));
    assert!(
        solid(&planned("h200/smollm2-135m/q4_1").1).contains(".interleaved(64)"),
        "rotary rows change places"
    );
}
