//! Launches of hybrid models and mixtures of experts: which exist, that none reads what is not yet written,
//! and the cost of a token.

use monomorph_compiler::graph;
use monomorph_compiler::kernels::Parameter;
use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::{Argument, CudaPlan, Extent, Launch, Program, Regime};
use monomorph_compiler::spec;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn plan(target: &str) -> Plan {
    let target = spec::load(&[root().join("targets")], target).unwrap_or_else(|error| panic!("{error}"));
    assemble::plan(&target, &graph::build(&target.model, &target.quant))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn cuda(plan: &Plan) -> &CudaPlan {
    plan.cuda.as_ref().expect("a CUDA target has launches")
}

fn program<'a>(cuda: &'a CudaPlan, name: &str) -> &'a Program {
    cuda.programs.iter().find(|program| program.name == name).unwrap_or_else(|| panic!("no program {name}"))
}

/// Attention alternating with delta-nets, with and without experts; mixtures without a shared expert, one of
/// which scores experts and norms whole rows; and models with neither, for the checks that apply to all.
const ALL: [&str; 16] = [
    "gb10/qwen3.5-35b/nvfp4",
    "gb10/qwen3.5-122b/nvfp4",
    "h200/qwen3.5-35b/nvfp4",
    "h200/qwen3.5-35b/bf16",
    "h200/qwen3.6-35b/fp8",
    "h200/qwen3.6-35b/fp8a8",
    "h200/qwen3.5-122b/nvfp4",
    "h200/qwen3.5-27b/nvfp4",
    "h200/qwen3.5-0.8b/bf16",
    "h200/qwen3-next-80b/nvfp4",
    "h200/qwen3-30b-a3b/bf16",
    "h200/minimax-m2.7/nvfp4",
    "h200/nemotron-3-nano/nvfp4",
    "gb10/nemotron-3-super/nvfp4",
    "h200/smollm2-135m/q4_1",
    "h100/llama-3.2-1b/bf16",
];

/// The launches of a body in order: `beside` those of the second stream, and `|` where a stream waits for the
/// other.
fn body_templates(plan: &Plan, program: &Program, body: &str) -> Vec<String> {
    let at = plan.bodies.iter().position(|it| it.name == body).expect("there is such a body");
    let template = |launch: &Launch| {
        let (waits, beside) =
            (if launch.waits { "| " } else { "" }, if launch.beside { "beside " } else { "" });
        format!("{waits}{beside}{}", cuda(plan).kernel(launch.kernel).function())
    };
    program.bodies[at].iter().map(template).collect()
}

#[test]
fn few_rows_stream_the_experts_they_choose_and_more_are_sorted() {
    let plan = plan("h200/qwen3.5-35b/nvfp4");
    let cuda = cuda(&plan);
    let stream = "stream_product";
    let experts = ["route", "experts_stream"];
    let decode = program(cuda, "decode_1");
    assert_eq!(
        body_templates(&plan, decode, "attention"),
        [&[stream, "attention_decode", stream][..], &experts].concat()
    );
    assert_eq!(
        body_templates(&plan, decode, "delta"),
        [&["stream_beside", "delta_decode", stream][..], &experts].concat()
    );
    let (gemm, grouped) = ("gemm_wgmma", "experts_gemm_wgmma");
    // The shared expert runs beside router, sort and chosen experts, the gates' product beside q, k, v and z.
    let [beside, first, stage] = ["beside gemm_wgmma", "| beside gemm_wgmma", "beside stage"];
    let sorts = ["stage", first, stage, beside, "route_batch", "experts_sort"];
    let ends = ["| experts_batch_combine"];
    let sorted = [&sorts[..], &["experts_rings", "experts_rings_down"], &ends].concat();
    assert_eq!(
        body_templates(&plan, program(cuda, "decode_64"), "delta"),
        [&["stage", first, gemm, "| delta_decode", "stage", gemm][..], &sorted].concat()
    );
    // A step of more than 128 tokens is sorted in chunks, and another launch turns places into rows.
    let sorted = [&sorts[..], &["experts_place", grouped, "experts_stage", grouped], &ends].concat();
    let delta = ["stage", first, gemm, "| delta_prepare", "delta_chunks", "delta_gate", "stage", gemm];
    assert_eq!(body_templates(&plan, program(cuda, "prefill"), "delta"), [&delta[..], &sorted].concat());
    assert_eq!(
        body_templates(&plan, program(cuda, "prefill"), "attention")[2..4],
        ["attention_write", "attention_prefill_wgmma"]
    );
}

#[test]
fn prompts_of_a_spec_in_fp8_multiply_codes_and_steps_do_not() {
    let (codes, halves) = (plan("h200/qwen3.6-35b/fp8a8"), plan("h200/qwen3.6-35b/fp8"));
    let (quantise, gemm, grouped) = ("quantise", "gemm_fp8", "experts_gemm_fp8");
    let mixture = [
        &[quantise, "| beside gemm_fp8", "beside quantise", "beside gemm_fp8", "route_batch"][..],
        &["experts_sort", "experts_place", grouped, grouped, "| experts_batch_combine"],
    ]
    .concat();
    // The products of the delta-nets' gates are in f16: the launch that quantises their rows stages them too.
    let delta =
        [
            &[
                quantise,
                "| beside gemm_wgmma",
                gemm,
                "| delta_prepare",
                "delta_chunks",
                "delta_gate",
                quantise,
            ][..],
            &[gemm],
        ]
        .concat();
    let attention = [quantise, gemm, "attention_write", "attention_prefill_wgmma", quantise, gemm];
    for name in ["prefill_1024", "prefill"] {
        let launches = |body| body_templates(&codes, program(cuda(&codes), name), body);
        assert_eq!(launches("delta"), [&delta[..], &mixture].concat(), "{name}");
        assert_eq!(launches("attention"), [&attention[..], &mixture].concat(), "{name}");
    }
    // Up to 128 rows the launches are those of f16, and so is the head.
    for (program, other) in cuda(&codes).programs.iter().zip(&cuda(&halves).programs) {
        assert_eq!(program.name, other.name);
        if program.rows <= 128 {
            for body in ["delta", "attention", "head"]
                .iter()
                .filter(|it| codes.bodies.iter().any(|of| of.name == **it))
            {
                assert_eq!(
                    body_templates(&codes, program, body),
                    body_templates(&halves, other, body),
                    "{} {body}",
                    program.name
                );
            }
        }
    }
}

#[test]
fn what_cannot_multiply_codes_says_so() {
    let target = spec::load(&[root().join("targets")], "gb10/qwen3.6-35b/fp8a8");
    let target = target.unwrap_or_else(|error| panic!("{error}"));
    let refused = assemble::plan(&target, &graph::build(&target.model, &target.quant)).expect_err("no wgmma");
    let said = refused.to_string();
    assert!(
        said.contains("no kernels for products in `fp8` on a card without `wgmma`: say `f16` in [compute]"),
        "{said}"
    );
}

#[test]
fn rows_are_normed_before_attention_and_scores_made_by_the_router() {
    let plan = plan("h200/minimax-m2.7/nvfp4");
    let launches = |name| body_templates(&plan, program(cuda(&plan), name), "attention");
    let stream = "stream_product";
    let few = [stream, "attention_norm", "attention_decode", stream, "route_scores", "experts_stream"];
    assert_eq!(launches("decode_1"), few);
    let many = launches("prefill");
    let norm = many.iter().position(|it| *it == "attention_norm").expect("it is launched");
    assert_eq!(many[norm + 1..norm + 3], ["attention_write", "attention_prefill_wgmma"]);
    let has = |name: &str| many.iter().any(|launch| launch == name);
    assert!(has("route_batch_scores") && !has("route_batch"), "{many:?}");
}

#[test]
fn every_phase_of_a_hybrid_is_launched_in_every_program_and_fits_its_card() {
    for target in ALL {
        let plan = plan(target);
        let card = plan.target.hardware.cuda().expect("a CUDA target");
        let cuda = cuda(&plan);
        for program in &cuda.programs {
            for (body, launches) in plan.bodies.iter().zip(&program.bodies).filter(|(_, it)| !it.is_empty()) {
                for (at, phase) in body.phases.iter().enumerate() {
                    let skipped = program.regime == Regime::Decode && phase.name == "select";
                    // With few rows, one launch computes both products of a mixture.
                    let before = |it: &&Launch| it.phase + 1 == at;
                    let together = launches
                        .iter()
                        .filter(before)
                        .any(|it| cuda.kernel(it.kernel).function() == "experts_stream");
                    let launched = launches.iter().any(|it| it.phase == at) != together;
                    assert!(skipped || launched, "{target} {}: {}", program.name, phase.name);
                }
            }
        }
        for kernel in cuda.modules.iter().flat_map(|module| &module.kernels) {
            assert!(
                kernel.block <= 1024 && kernel.shared <= card.shared_per_block,
                "{target}: {}",
                kernel.name
            );
            assert!(kernel.cluster == 1 || card.clusters, "{target}: {}", kernel.name);
            let registers = kernel.resident * kernel.block * 32;
            assert!(registers <= 65_536, "{target}: {} leaves a thread {registers}", kernel.name);
        }
    }
}

/// After attention with wide heads the multiprocessors are empty, so two blocks of one kernel would share a
/// multiprocessor if they could ([0016](../../docs/adr/0016-one-block-of-a-kernel.md)). After narrow heads
/// the rings of two kernels must fit side by side.
#[test]
fn blocks_of_streaming_kernels_are_alone_where_heads_are_wide() {
    const STREAMING: [&str; 6] = [
        "stream_product",
        "stream_beside",
        "route",
        "experts_stream",
        "experts_stream_up",
        "experts_stream_down",
    ];
    for (target, alone) in [
        ("h200/qwen3.5-35b/nvfp4", true),
        ("h200/qwen3.6-35b/fp8", true),
        ("h200/qwen3.5-27b/nvfp4", true),
        ("gb10/qwen3.5-35b/nvfp4", true),
        ("h100/llama-3.2-1b/bf16", false),
    ] {
        let plan = plan(target);
        let card = plan.target.hardware.cuda().expect("a CUDA target");
        let cuda = cuda(&plan);
        let mut seen = 0;
        for launch in program(cuda, "decode_1").bodies.iter().flatten() {
            let kernel = cuda.kernel(launch.kernel);
            let one_each = launch.grid[0] == Extent::Fixed(card.multiprocessors);
            if STREAMING.contains(&kernel.function()) && one_each {
                let two_fit = 2 * (kernel.shared + 1024) <= card.shared_per_multiprocessor;
                assert_eq!(two_fit, !alone, "{target}: {} has {} bytes", kernel.name, kernel.shared);
                seen += 1;
            }
        }
        assert!(seen >= 2, "{target}: {seen} streaming kernels with a block a multiprocessor");
    }
}

/// Buffers and scratch of a launch: those it only reads, and those it writes.
fn memory<'a>(cuda: &CudaPlan, launch: &'a Launch) -> (Vec<&'a Argument>, Vec<&'a Argument>) {
    let parameters = cuda.kernel(launch.kernel).signature.parameters;
    let all = parameters.iter().zip(&launch.arguments);
    let memory = all.filter(|(_, it)| matches!(it, Argument::Buffer(_) | Argument::Scratch(_)));
    let (read, written): (Vec<_>, Vec<_>) = memory.partition(|(it, _)| it.kind.starts_with("const "));
    let arguments = |some: Vec<(&Parameter, &'a Argument)>| some.into_iter().map(|(_, it)| it).collect();
    (arguments(read), arguments(written))
}

#[test]
fn nothing_is_read_that_the_body_has_not_written() {
    for target in ALL {
        let plan = plan(target);
        let cuda = cuda(&plan);
        let residual =
            plan.buffers.iter().position(|buffer| buffer.name == "residual").expect("there is one");
        for program in &cuda.programs {
            for launches in &program.bodies {
                let mut known: Vec<&Argument> = Vec::new();
                for launch in launches {
                    let (read, written) = memory(cuda, launch);
                    for argument in read {
                        let handed_on = matches!(argument, Argument::Buffer(id) if id.0 == residual);
                        let name = &cuda.kernel(launch.kernel).name;
                        assert!(
                            handed_on || known.contains(&argument),
                            "{target} {}: `{name}` reads {argument:?}, which nobody wrote",
                            program.name
                        );
                    }
                    known.extend(written);
                }
            }
        }
    }
}

/// GB of weights that one token reads, from the published sizes of the same checkpoints' tensors.
#[test]
fn a_token_reads_the_weights_that_the_checkpoints_arithmetic_says() {
    let published = [
        ("gb10/qwen3.5-35b/nvfp4", 3.873),
        ("h200/qwen3.5-35b/bf16", 5.893),
        ("h200/qwen3.6-35b/fp8", 3.481),
        ("h200/qwen3.6-35b/nvfp4", 2.255),
        ("h200/qwen3.5-122b/nvfp4", 10.800),
        ("h200/qwen3.5-27b/nvfp4", 16.279),
        ("h200/qwen3.5-27b/bf16", 51.249),
        ("h200/qwen3-next-80b/nvfp4", 4.161),
        ("h200/qwen3.5-0.8b/bf16", 1.505),
        ("h200/qwen3-30b-a3b/bf16", 6.084),
    ];
    for (target, gigabytes) in published {
        let plan = plan(target);
        let phases = plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
        let read = phases.map(|phase| phase.decode.weight_bytes).sum::<f64>() / 1e9;
        assert!((read / gigabytes - 1.0).abs() < 0.01, "{target}: {read:.3} GB against {gigabytes}");
    }
}
