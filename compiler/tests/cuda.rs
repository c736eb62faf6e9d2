//! Plans of CUDA targets: their launches, the memory these use, and how the toolchain's figures are judged.

use monomorph_compiler::blocks::ends::kernels::Select;
use monomorph_compiler::blocks::products::kernels::StreamProduct;
use monomorph_compiler::emit;
use monomorph_compiler::graph;
use monomorph_compiler::kernels::Arguments;
use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::cuda::{Argument, Constant, CudaPlan, Kernel, Launch, Program, Regime};
use monomorph_compiler::plan::{FieldKind, Plan, packed};
use monomorph_compiler::report;
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_compiler::toolchain::cubin::{self, KernelLimits};
use monomorph_formats::Format;
use monomorph_formats::cached::KvFormats;
use std::path::{Path, PathBuf};

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")
}

fn plan(target: &str) -> Plan {
    let target = spec::load(&[targets()], target).unwrap_or_else(|error| panic!("{error}"));
    assemble::plan(&target, &graph::build(&target.model, &target.quant))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn cuda(plan: &Plan) -> &CudaPlan {
    plan.cuda.as_ref().expect("a CUDA target has launches")
}

fn program<'a>(cuda: &'a CudaPlan, name: &str) -> &'a Program {
    cuda.programs.iter().find(|program| program.name == name).unwrap_or_else(|| panic!("no program {name}"))
}

fn launches(program: &Program) -> impl Iterator<Item = &Launch> {
    program.bodies.iter().flatten().chain(&program.tail)
}

fn templates(cuda: &CudaPlan, program: &Program) -> Vec<&'static str> {
    launches(program).map(|launch| cuda.kernel(launch.kernel).function()).collect()
}

const ALL: [&str; 6] = [
    "h100/llama-3.2-1b/bf16",
    "h200/llama-3.1-8b/fp8",
    "h200/qwen3-8b/nvfp4",
    "h200/smollm2-135m/q4_1",
    "gb10/llama-3.2-1b/bf16",
    "gb10/qwen3-8b/nvfp4",
];

#[test]
fn a_layer_of_a_small_bucket_is_five_launches() {
    let plan = plan("h100/llama-3.2-1b/bf16");
    let cuda = cuda(&plan);
    let stream = "stream_product";
    assert_eq!(
        templates(cuda, program(cuda, "decode_1")),
        ["embed", stream, "attention_decode", stream, stream, stream, stream, "sample"]
    );
    let gemm = "gemm_wgmma";
    assert_eq!(
        templates(cuda, program(cuda, "decode_64")),
        [
            &["embed", "stage", gemm, "attention_decode", "stage", gemm][..],
            &["stage", gemm, "stage", gemm, "stage", gemm, "sample"]
        ]
        .concat()
    );
}

#[test]
fn a_card_without_warpgroup_products_gets_the_other_kernel() {
    for target in ["gb10/llama-3.2-1b/bf16", "gb10/qwen3-8b/nvfp4"] {
        let plan = plan(target);
        let all: Vec<&str> = cuda(&plan).programs.iter().flat_map(|it| templates(cuda(&plan), it)).collect();
        assert!(
            all.contains(&"gemm_mma") && !all.iter().any(|name| name.contains("wgmma")),
            "{target}: {all:?}"
        );
    }
}

#[test]
fn caches_of_narrow_formats_have_their_bytes_and_kernels_and_mixed_ones_are_refused() {
    let kept = |formats: &str| {
        let kv = Some(KvFormats::from_name(formats).unwrap());
        let options = BuildOptions { kv, ..BuildOptions::default() };
        let target = spec::load_with(&[targets()], "h200/llama-3.1-8b/bf16", &options);
        let target = target.unwrap_or_else(|error| panic!("{error}"));
        assemble::plan(&target, &graph::build(&target.model, &target.quant))
            .map_err(|error| error.to_string())
    };
    let [bf16, fp8] = ["bf16", "fp8"].map(|formats| kept(formats).unwrap());
    assert_eq!(bf16.memory.kv_block, 2 * fp8.memory.kv_block);
    let attention = |plan: &Plan| -> Vec<(&'static str, Constant)> {
        let kernels = cuda(plan).modules.iter().flat_map(|module| &module.kernels);
        let kernels = kernels.filter(|it| it.function().starts_with("attention_"));
        let element = kernels.flat_map(|it| it.constants.iter().find(|(name, _)| *name == "Kv").cloned());
        element.collect()
    };
    let element = |name: &str| ("Kv", Constant::Type(name.to_owned()));
    assert!(attention(&fp8).iter().all(|it| *it == element("E4m3")) && !attention(&fp8).is_empty());
    assert!(attention(&bf16).iter().all(|it| *it == element("__nv_bfloat16")));
    let widens = |plan: &Plan| {
        let kernels = templates(cuda(plan), program(cuda(plan), "prefill"));
        let attention = kernels.into_iter().filter(|it| it.starts_with("attention_"));
        attention.collect::<Vec<_>>() == ["attention_write", "attention_widen", "attention_prefill_widened"]
    };
    assert!(widens(&fp8) && !widens(&bf16));
    // A context's tokens of 8 heads of 128, keys and values, in 16 bits each.
    let area = |plan: &Plan| {
        let scratch = cuda(plan).scratch.iter().find(|it| it.name == "attention_widened");
        scratch.map(|it| it.bytes)
    };
    let tokens = fp8.target.model.context as u64;
    assert_eq!((area(&bf16), area(&fp8)), (None, Some(tokens * 2 * 8 * 128 * 2)));
    let said = format!("prompts widen keys and values of {tokens} tokens, one layer at a time");
    assert!(report::text(&fp8).contains(&said) && !report::text(&bf16).contains("prompts widen"));
    let stack = |plan: &Plan| {
        let files = emit::emit(plan, &[]);
        files.into_iter().find(|file| file.path.ends_with("stack.rs")).unwrap().text
    };
    // 8 heads of keys and of values.
    assert!(stack(&fp8).contains("cache_behind(256, ") && stack(&fp8).contains("from.static_scales("));
    assert!(!stack(&bf16).contains("_behind(") && !stack(&bf16).contains("static_scales"));
    for (formats, name, bits) in [
        ("nvfp4", "Nvfp4", 72),
        ("turbo8", "Turbo8", 144),
        ("turbo4", "Turbo4", 72),
        ("turbo3", "Turbo3", 56),
        ("turbo8/turbo4", "GroupedPair<Turbo8, Turbo4>", 108),
    ] {
        let plan = kept(formats).unwrap();
        assert_eq!(plan.memory.kv_block * 256, bf16.memory.kv_block * bits, "{formats}");
        assert!(attention(&plan).iter().all(|it| *it == element(name)) && !attention(&plan).is_empty());
        assert!(widens(&plan) && area(&plan) == area(&fp8), "{formats}");
        // A turbo8 has no static scales.
        assert_eq!(stack(&plan).contains("static_scales"), formats != "turbo8", "{formats}");
    }
    for formats in ["fp8/bf16", "fp8/turbo4", "turbo4/bf16"] {
        let refused = kept(formats).unwrap_err();
        let what = KvFormats::from_name(formats).unwrap();
        assert!(refused.contains(&format!("no kernel keeps keys and values as {what}")), "{refused}");
    }
}

#[test]
fn exact_products_stream_in_every_regime() {
    let plan = plan("h200/smollm2-135m/q4_1");
    let cuda = cuda(&plan);
    for program in &cuda.programs {
        let names = templates(cuda, program);
        assert!(
            names.iter().all(|name| !name.contains("gemm") && *name != "stage"),
            "{}: {names:?}",
            program.name
        );
    }
    assert_eq!(
        templates(cuda, program(cuda, "prefill"))[..4],
        ["embed", "stream_product", "attention_write", "attention_exact"]
    );
}

#[test]
fn every_phase_is_launched_once_a_run_and_every_kernel_fits_its_card() {
    for target in ALL {
        let plan = plan(target);
        let card = plan.target.hardware.cuda().expect("a CUDA target");
        let cuda = cuda(&plan);
        for program in &cuda.programs {
            for (body, launches) in plan.bodies.iter().zip(&program.bodies).filter(|(_, it)| !it.is_empty()) {
                let selects = |phase: usize| body.phases[phase].name == "select";
                for phase in
                    (0..body.phases.len()).filter(|at| program.regime != Regime::Decode || !selects(*at))
                {
                    let name = &body.phases[phase].name;
                    assert!(launches.iter().any(|it| it.phase == phase), "{target} {}: {name}", program.name);
                }
            }
        }
        for Kernel { name, block, shared, cluster, .. } in
            cuda.modules.iter().flat_map(|module| &module.kernels)
        {
            assert!(*block <= 1024 && *shared <= card.shared_per_block, "{target}: {name}");
            assert!(*cluster == 1 || card.clusters, "{target}: {name}");
        }
    }
}

#[test]
fn kernels_of_equal_instantiation_stand_in_one_module() {
    let plan = plan("h200/smollm2-135m/q4_1");
    let kernels: Vec<&Kernel> = cuda(&plan).modules.iter().flat_map(|module| &module.kernels).collect();
    for (at, kernel) in kernels.iter().enumerate() {
        let key =
            |it: &Kernel| (it.function(), it.constants.clone(), it.block, it.resident, it.cluster, it.shared);
        assert!(kernels[..at].iter().all(|earlier| key(earlier) != key(kernel)), "{}", kernel.name);
    }
    // Buckets of eight rows and more differ only in their grids.
    assert!(cuda(&plan).modules.iter().all(|module| module.name != "decode_128"));
}

#[test]
fn a_decode_program_reads_the_residual_stream_where_a_head_reads_selected_rows() {
    let plan = plan("h100/llama-3.2-1b/bf16");
    let cuda = cuda(&plan);
    let reads = |program: &Program| -> Vec<String> {
        let head = program.bodies.last().expect("a head");
        let buffers =
            head.iter().flat_map(|launch| &launch.arguments).filter_map(|argument| match argument {
                Argument::Buffer(id) => Some(plan.buffer(*id).name.clone()),
                _ => None,
            });
        buffers.collect()
    };
    assert_eq!(reads(program(cuda, "decode_1")), ["residual", "logits"]);
    assert_eq!(reads(program(cuda, "head")), ["residual", "selected", "selected", "logits"]);
}

#[test]
fn buffers_hold_what_the_largest_program_that_uses_them_needs() {
    let plan = plan("h100/llama-3.2-1b/bf16");
    let at = |name: &str| plan.buffers.iter().position(|buffer| buffer.name == name).expect("there is one");
    let most = |name: &str| plan.rows[at(name)];
    assert_eq!([most("residual"), most("qkv"), most("logits")], [8192, 8192, 128]);
    assert_eq!([most("context"), most("inner")], [8192, 8192]);
    let staged =
        |name: &str| cuda(&plan).scratch.iter().find(|it| it.name == name).expect("there is one").bytes;
    // 16-bit values, and the factors of a row's sums.
    let bytes = |width: u64| 8192 * (2 * width + 4);
    assert_eq!([staged("staged_context"), staged("staged_inner")], [bytes(2048), bytes(8192)]);
    assert!(cuda(&plan).scratch.iter().any(|it| it.name == "attention_counters" && it.zeroed));
}

#[test]
fn packed_planes_add_nothing_to_what_a_file_stores_but_a_scale_a_row() {
    for stored in [Format::Bf16, Format::F16, Format::F32] {
        assert!(packed::halves(stored, Compute::F16) && !packed::halves(stored, Compute::F32), "{stored}");
    }
    assert!(!packed::halves(Format::Nvfp4, Compute::F16));
    let plan = plan("h100/llama-3.2-1b/bf16");
    for field in plan.fields.iter().filter(|field| matches!(field.kind, FieldKind::Matrix { .. })) {
        let stored: usize = field.parts.iter().map(|part| part.rows * (2 * part.columns + 4)).sum();
        assert_eq!(field.bytes(&plan.target.hardware.kind), stored as u64, "{}", field.name);
    }
}

#[test]
fn the_prediction_counts_every_launch() {
    let plan = plan("h100/llama-3.2-1b/bf16");
    let hardware = &plan.target.hardware;
    // Embedding, five launches a layer, head, sampling.
    let boundaries = (1 + 16 * 5 + 1 + 1) as f64;
    let apart = plan.prediction.decode - boundaries * hardware.boundary_seconds;
    // Each phase is bounded by its own bytes, so the sum is at least the time of all bytes together.
    assert!(apart >= plan.prediction.decode_floor * 0.999 && apart < plan.prediction.decode_floor * 1.05);
}

#[test]
fn figures_of_the_assembler_and_of_the_machine_code_are_read_and_compared() {
    let report = "ptxas info    : Compiling entry function 'bar' for 'sm_90a'\n\
                  ptxas info    : Function properties for bar\n\
                  \x20   16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
                  ptxas info    : Used 31 registers, used 2 barriers, 128 bytes smem\n";
    let mut kernels = cubin::assembler_report(report);
    let usage = kernels["bar"].clone();
    assert_eq!((usage.registers, usage.barriers, usage.static_shared), (31, 2, 128));
    assert_eq!((usage.stack, usage.spill_stores, usage.spill_loads), (16, 12, 8));
    let dump = |registers: u32| {
        format!(" Function bar:\n  REG:{registers} STACK:16 SHARED:1152 LOCAL:4 CONSTANT[0]:540\n")
    };
    cubin::add_inspection(&mut kernels, &dump(31)).expect("they agree");
    assert_eq!((kernels["bar"].local, kernels["bar"].static_shared), (4, 128));
    let error = cubin::add_inspection(&mut kernels, &dump(32)).unwrap_err();
    assert_eq!(error, "`bar` has 31 registers by ptxas and 32 in the cubin");
    assert!(cubin::add_inspection(&mut kernels, "").unwrap_err().contains("holds 0 kernels"));
}

#[test]
fn a_kernel_has_the_constants_that_it_declares() {
    let (hidden, threads) = (("HIDDEN", Constant::Integer(8)), ("THREADS", Constant::Integer(128)));
    let checked = |constants: &[(&'static str, Constant)]| Select::SIGNATURE.check(constants);
    assert_eq!(checked(&[threads.clone(), hidden.clone()]), Ok(()));
    for (wrong, why) in [
        (vec![hidden.clone()], "`select` lacks its constant `THREADS`"),
        (vec![("HIDEN", Constant::Integer(8)), threads.clone()], "`select` declares no constant `HIDEN`"),
        (vec![hidden.clone(), hidden.clone()], "`select` has more than one constant `HIDDEN`"),
        (
            vec![("HIDDEN", Constant::Flag(true)), threads],
            "`HIDDEN` of `select` is declared as int, not bool",
        ),
    ] {
        assert_eq!(checked(&wrong), Err(why.to_owned()));
    }
}

#[test]
fn what_no_card_could_run_or_decode_should_not_is_a_defect_with_its_figure() {
    let kernel = Kernel {
        name: "gate".to_owned(),
        signature: StreamProduct::SIGNATURE,
        constants: vec![("ROWS", Constant::Integer(1))],
        figures: Vec::new(),
        block: 288,
        resident: 1,
        cluster: 1,
        shared: 100_000,
        decode: true,
    };
    let limits =
        KernelLimits { registers_per_thread: 255, registers_per_sm: 65_536, shared_per_block: 101_376 };
    let usage = cubin::Usage { registers: 64, ..cubin::Usage::default() };
    let defects = |usage: &cubin::Usage, decode| {
        cubin::defects("decode_1", &Kernel { decode, ..kernel.clone() }, usage, &limits)
    };
    assert_eq!(defects(&usage, true), [""; 0]);
    let spilling = cubin::Usage { spill_stores: 12, spill_loads: 8, stack: 16, ..usage.clone() };
    assert_eq!(defects(&spilling, true), ["kernel `gate` of `decode_1` spills 12 + 8 bytes a thread"]);
    assert_eq!(defects(&spilling, false), [""; 0], "a spill in prefill costs little");
    let local = cubin::Usage { stack: 64, ..usage.clone() };
    assert_eq!(
        defects(&local, true),
        ["kernel `gate` of `decode_1` keeps 64 bytes a thread in local memory"]
    );
    let greedy = cubin::Usage { registers: 240, static_shared: 4096, ..usage };
    assert_eq!(
        defects(&greedy, true),
        [
            "kernel `gate` of `decode_1` uses 69120 registers a block, and an SM has 65536",
            "kernel `gate` of `decode_1` uses 104096 bytes of shared memory a block (4096 static, 100000 dynamic), and \
             there are 101376",
        ]
    );
}
