//! Builds for several ranks: allowed numbers, names, memory, and what stays of one rank's text.

use monomorph_abi::world::Exchanged;
use monomorph_compiler::plan::cuda::{Constant, Regime};
use monomorph_compiler::plan::touched_experts_of_busiest;
use monomorph_compiler::plan::traffic::traffic;
use monomorph_compiler::plan::{PhaseKind, Plan};
use monomorph_compiler::report;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption, Ranks, Target};
use monomorph_compiler::{emit, graph, passes, spec};
use std::path::Path;

fn load(name: &str, ranks: Ranks) -> Result<Target, String> {
    load_with(name, &ranks.of(BuildOptions::default()))
}

fn load_with(name: &str, options: &BuildOptions) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    spec::load_with(&[targets], name, options).map_err(|error| error.to_string())
}

fn spread(name: &str, ranks: Option<usize>, hosts: usize) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let options = BuildOptions { ranks, hosts: Some(hosts), ..BuildOptions::default() };
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

fn plan(name: &str, ranks: usize) -> Plan {
    plan_of(name, &Ranks::tensor_parallel(ranks).of(BuildOptions::default()))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn plan_of(name: &str, options: &BuildOptions) -> Result<Plan, String> {
    let target = load_with(name, options)?;
    let graph = graph::build(&target.model, &target.quant);
    passes::assemble::plan(&target, &graph).map_err(|error| error.to_string())
}

fn planned(target: &Target) -> Plan {
    let graph = graph::build(&target.model, &target.quant);
    passes::assemble::plan(target, &graph).unwrap_or_else(|error| panic!("{error}"))
}

/// Its text, but for templates, which are the same files for all.
fn text(plan: &Plan) -> String {
    let files = emit::emit(plan, &[]);
    files.into_iter().filter(|file| !file.path.starts_with("cuda/lib")).map(|file| file.text).collect()
}

#[test]
fn what_cannot_be_built_is_refused_with_what_can() {
    let [tp, ep] = [Ranks::tensor_parallel, Ranks::expert_parallel];
    for (target, ranks, message, help) in [
        ("h200/qwen3.5-35b/nvfp4", tp(0), "`--tp` is 0", "1 to 8"),
        ("h200/qwen3.5-35b/nvfp4", tp(9), "`--tp` is 9", "1 to 8"),
        ("h200/qwen3.5-35b/nvfp4", ep(9), "`--ep` is 9", "1 to 8"),
        ("cpu/smollm2-135m/q4_1", tp(2), "runs on a CPU, and `--tp 2`", "build it without"),
        (
            "h200/qwen3.5-27b/nvfp4",
            ep(2),
            "qwen3.5-27b/nvfp4 has no experts, and `--ep 2` was given",
            "`--tp 2`",
        ),
    ] {
        let error = load(target, ranks).map(|it| it.build()).expect_err("it is refused");
        assert!(error.contains(message) && error.contains(help), "{target}: {error}");
    }
}

/// Each GPU of a process has all of a tower; of several processes one would have to send the others pixels.
#[test]
fn ranks_of_one_process_see_images() {
    let of = |hosts| {
        let ranks = Ranks::tensor_parallel(2);
        let options = BuildOptions { vision: true, hosts, ..ranks.of(BuildOptions::default()) };
        let target = load_with("h200/qwen3.5-35b/nvfp4", &options)?;
        let tower = target.tower.as_ref().expect("the model has one");
        let graph = graph::build_with_vision(&target.model, &target.quant, tower);
        passes::assemble::plan(&target, &graph).map_err(|error| error.to_string())
    };
    let plan = of(None).expect("it is whole");
    assert_eq!(plan.target.build(), "h200/qwen3.5-35b/nvfp4+tp2+vision");
    let tower = plan.tower.as_ref().expect("it has a tower");
    let phases = plan.bodies[tower.first.0..].iter().flat_map(|body| &body.phases);
    let exchanges = phases.filter(|phase| matches!(phase.kind, PhaseKind::Sum(_))).count();
    assert_eq!(exchanges, 0, "every rank has the whole tower");
    let error = of(Some(2)).expect_err("it is refused");
    assert!(error.contains("processes do not see images yet") && error.contains("--hosts"), "{error}");
}

#[test]
fn a_process_has_one_rank() {
    for (ranks, hosts, message) in [
        (Some(4), 2, "`--hosts` is 2, and the build has 4 ranks"),
        (None, 2, "`--hosts` is 2, and the build has 1 rank"),
        (Some(2), 0, "`--hosts` is 0, and the build has 2 ranks"),
    ] {
        let error = spread("h200/qwen3.5-35b/nvfp4", ranks, hosts).expect_err("it is refused");
        assert!(error.contains(message) && error.contains("as many as `--tp`"), "{error}");
    }
    let one = spread("h200/qwen3.5-27b/nvfp4", Some(2), 1).expect("it is one process");
    assert_eq!(one.build(), "h200/qwen3.5-27b/nvfp4+tp2");
}

/// Packets reach only GPUs of the process.
#[test]
fn processes_gather_and_push_no_packets() {
    let several = spread("h200/llama-3.2-1b/bf16", Some(2), 2).expect("it is whole");
    assert_eq!(several.build(), "h200/llama-3.2-1b/bf16+tp2+hosts2");
    let text = |plan: &Plan| {
        let files = emit::emit(plan, &[]);
        files.into_iter().map(|file| file.text).collect::<Vec<_>>().join("\n")
    };
    let (one, several) = (text(&plan("h200/llama-3.2-1b/bf16", 2)), text(&planned(&several)));
    for (word, of_one) in
        [("exchange_sum", true), ("WorldMemory", true), ("all_gather", false), ("gathered_sum", false)]
    {
        assert_eq!([one.contains(word), several.contains(word)], [of_one, !of_one], "{word}");
    }
}

#[test]
fn a_build_is_named_after_its_ranks() {
    assert_eq!(plan("h200/qwen3.5-27b/nvfp4", 2).target.build(), "h200/qwen3.5-27b/nvfp4+tp2");
    assert_eq!(plan("h200/qwen3.5-27b/nvfp4", 1).target.build(), "h200/qwen3.5-27b/nvfp4");
    let build = |ranks| load("h200/qwen3.5-35b/nvfp4", ranks).map(|target| target.build());
    assert_eq!(build(Ranks::expert_parallel(2)), Ok("h200/qwen3.5-35b/nvfp4+ep2".to_owned()));
    assert_eq!(build(Ranks::expert_parallel(1)), Ok("h200/qwen3.5-35b/nvfp4".to_owned()));
}

#[test]
fn ranks_share_the_weights_the_state_and_the_keys() {
    let (one, two) = (plan("h200/qwen3.5-27b/nvfp4", 1), plan("h200/qwen3.5-27b/nvfp4", 2));
    assert_eq!(2 * two.memory.kv_block, one.memory.kv_block);
    assert_eq!(2 * two.memory.state, one.memory.state);
    // The embedding, norms, and scales that are one a row stand on both.
    let (half, embedding) = (one.memory.weights / 2, 248_320 * 5120 * 2);
    assert!((half..half + embedding).contains(&two.memory.weights), "{}", two.memory.weights);
}

/// Two sums a layer and the gather of logits.
#[test]
fn what_ranks_exchange_is_known_of_every_program() {
    let plan = plan("h200/qwen3.5-27b/nvfp4", 2);
    let cuda = plan.cuda.as_ref().expect("a CUDA target");
    let traffic = traffic(&plan, cuda);
    assert_eq!(traffic.layers, Exchanged { exchanges: 2 * 64, row_values: 2 * 64 * 5120 });
    assert_eq!(traffic.head, Exchanged { exchanges: 1, row_values: 248_320 / 2 });
    assert_eq!([traffic.learn, traffic.drafts], [Exchanged::NONE; 2]);
    let ranks = report::report(&plan).ranks.expect("several");
    assert_eq!(ranks.exchanges, 129);
    assert_eq!(ranks.each.iter().map(|it| it.times).sum::<usize>(), 129);
    assert_eq!(ranks.decode_bytes, 4.0 * (2.0 * 64.0 * 5120.0 + 124_160.0));
    let sum: f64 = ranks.each.iter().map(|it| it.times as f64 * it.decode_microseconds).sum();
    assert!((sum - ranks.decode_microseconds).abs() < 1e-6, "{sum} and {}", ranks.decode_microseconds);
    assert!(ranks.decode_microseconds < ranks.rank_decode_microseconds);
}

/// Two sums of squares a row, of queries and of keys, in one exchange a layer beside its two sums.
#[test]
fn ranks_that_norm_a_row_together_exchange_its_sums_of_squares() {
    let plan = plan("h200/minimax-m2.7/nvfp4", 2);
    let cuda = plan.cuda.as_ref().expect("a CUDA target");
    let Exchanged { exchanges, row_values } = traffic(&plan, cuda).layers;
    let (layers, hidden) = (plan.target.model.layers as u64, plan.target.model.hidden as u64);
    assert_eq!((exchanges, row_values), (3 * layers, layers * (2 * hidden + 2)));
    let text = text(&plan);
    for stated in ["attention_norm_ranks", "INBOX_WIDTH = 3072", "HEADS = 24", "KEYS_SHARED = true"] {
        assert!(text.contains(stated), "{stated}");
    }
    let refused = spread("h200/minimax-m2.7/nvfp4", Some(2), 2).map(|target| {
        let graph = graph::build(&target.model, &target.quant);
        passes::assemble::plan(&target, &graph).expect_err("processes push nothing").to_string()
    });
    assert!(refused.expect("it fits").contains("exchanged by ranks of one process"));
}

/// Gemma norms what a mixer and what a dense block gives before that is added; of a mixture, what each of two
/// branches gives.
#[test]
fn what_is_normed_behind_a_block_is_summed_before_and_in_place() {
    let [tp, ep] = [Ranks::tensor_parallel, Ranks::expert_parallel];
    for (name, ranks, sums) in [
        ("h200/gemma-4-31b/bf16", tp(2), 2),
        ("h200/gemma-4-31b/nvfp4", tp(8), 2),
        ("h200/gemma-4-26b-a4b/bf16", tp(2), 3),
        ("h200/gemma-4-26b-a4b/nvfp4", ep(2), 3),
        ("gb10/gemma-4-26b-a4b/nvfp4", tp(2), 3),
    ] {
        let plan = plan_of(name, &ranks.of(BuildOptions::default()));
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (cuda, model) = (plan.cuda.as_ref().expect("a CUDA target"), &plan.target.model);
        let (layers, hidden) = (model.layers as u64, model.hidden as u64);
        let traffic = traffic(&plan, cuda);
        let of_layers = Exchanged { exchanges: sums * layers, row_values: sums * layers * hidden };
        assert_eq!(traffic.layers, of_layers, "{name}");
        // Logits are capped by parts, and then gathered.
        let row_values = (model.vocabulary / ranks.count) as u64;
        assert_eq!(traffic.head, Exchanged { exchanges: 1, row_values }, "{name}");
        for body in plan.bodies.iter().filter(|body| !body.layers.is_empty()) {
            for (at, phase) in body.phases.iter().enumerate() {
                let PhaseKind::Sum(sum) = phase.kind else { continue };
                assert!(
                    !sum.adds() && body.phases[at - 1].kind.result() == sum.part,
                    "{name}: {}",
                    body.name
                );
                let reads = |it: &PhaseKind| {
                    matches!(it, PhaseKind::AddNormed(it) if it.x == sum.part)
                        || matches!(it, PhaseKind::SumNormed(it) if [it.x, it.sum].contains(&sum.part))
                };
                assert!(body.phases[at + 1..].iter().any(|it| reads(&it.kind)), "{name}: {}", body.name);
            }
        }
        // Prompts have launches of sums; steps of one token sum where parts are computed, unless the kernel
        // has more blocks than are on the card together: a GB10's down products of experts.
        let replaces = ("REPLACES", Constant::Flag(true));
        let functions = |regime| -> Vec<&str> {
            let program = cuda.programs.iter().find(|it| it.regime == regime).expect("one of each");
            let kernels = program.launches().map(|launch| cuda.kernel(launch.kernel));
            kernels.filter(|it| it.constants.contains(&replaces)).map(|it| it.function()).collect()
        };
        let (prompts, decode) = (functions(Regime::Prefill), functions(Regime::Decode));
        assert!(prompts.contains(&"exchange_sum"), "{name}: {prompts:?}");
        let (experts, small) = (sums == 3, name.starts_with("gb10"));
        assert!(decode.contains(&"stream_sum"), "{name}: {decode:?}");
        assert_eq!(decode.contains(&"exchange_sum"), small, "{name}: {decode:?}");
        assert_eq!(decode.contains(&"experts_stream_down_sum"), experts && !small, "{name}: {decode:?}");
    }
    for (name, ranks, why) in [
        ("h200/gemma-4-26b-a4b/bf16", tp(3), "16 query heads with 2 K/V heads cannot be shared out to 3"),
        ("h200/gemma-4-26b-a4b/nvfp4", tp(8), "columns, and each of 8 ranks would hold "),
    ] {
        let refused = plan_of(name, &ranks.of(BuildOptions::default())).expect_err("sizes cannot be shared");
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn one_rank_has_no_trace_of_others() {
    let words = ["World", "RANKS", "TRAFFIC", "exchange", "peer", "Segment", "cut_", "partial_sums", "inbox"];
    let (one, two) = (text(&plan("h200/qwen3.6-35b/fp8", 1)), text(&plan("h200/qwen3.6-35b/fp8", 2)));
    let found = |text: &str| words.into_iter().filter(|word| text.contains(word)).collect::<Vec<_>>();
    assert_eq!(found(&one), [""; 0]);
    assert_eq!(
        found(&two),
        ["World", "RANKS", "TRAFFIC", "exchange", "Segment", "cut_", "partial_sums", "inbox"]
    );
}

#[test]
fn whole_experts_are_shared_out_and_the_rest_is_cut_as_without() {
    let name = "h200/qwen3.6-35b/fp8";
    let [tp, ep] = [Ranks::tensor_parallel(2), Ranks::expert_parallel(2)]
        .map(|ranks| plan_of(name, &ranks.of(BuildOptions::default())).expect("it can be shared out"));
    // 128 of 256 experts, each of 512 features.
    let matrices = |plan: &Plan| -> Vec<String> {
        let of_experts = plan.fields.iter().filter(|field| field.all_experts(2).is_some());
        of_experts.map(|field| format!("{:?}", field.kind)).collect()
    };
    let has = |plan: &Plan, figure: &str| matrices(plan).iter().all(|it| it.contains(figure));
    assert!(!matrices(&ep).is_empty() && has(&ep, "experts: Some(128)"), "{:?}", matrices(&ep));
    assert!(has(&tp, "experts: Some(256)"), "{:?}", matrices(&tp));
    // Each has the scales of rows of its own experts alone.
    let less = tp.memory.weights - ep.memory.weights;
    assert!(less > 0 && less < tp.memory.weights / 100, "{less}");
    assert_eq!((ep.memory.kv_block, ep.memory.state), (tp.memory.kv_block, tp.memory.state));
    let (of_tp, of_ep) = (text(&tp), text(&ep));
    for trace in ["own_experts", "ROUTED = 256", "experts_sort_part", "EXPERTS = 128"] {
        assert!(of_ep.contains(trace) && !of_tp.contains(trace), "{trace}");
    }
    // Both know all experts of the checkpoint.
    assert!(of_tp.contains("experts: 256") && of_ep.contains("experts: 256"));
}

#[test]
fn ranks_are_predicted_to_wait_for_the_one_with_most_of_the_chosen_experts() {
    // Drawn without replacement, eight of 256: 5.07, 3.50 and 2.57 are on the busiest of 2, 4 and 8 ranks.
    for (ranks, most) in [(1, 8.0), (2, 5.07), (4, 3.50), (8, 2.57)] {
        let found = touched_experts_of_busiest(256, 8, 1, ranks);
        assert!((found / most - 1.0f64).abs() < 0.03, "{ranks} ranks: {found}");
    }
    // Many tokens touch all.
    assert!((touched_experts_of_busiest(256, 8, 2000, 4) - 64.0).abs() < 1e-6);
    assert_eq!(touched_experts_of_busiest(4, 4, 1, 2), 2.0);
}

#[test]
fn ranks_share_the_first_rows_of_a_head_that_drafts_fewer_ids() {
    let method = DraftMethod::Layers;
    let draft = |vocabulary| DraftOption { method, drafts: 2, vocabulary, forced_acceptance: None };
    let of = |vocabulary| {
        let options = BuildOptions { draft: Some(draft(vocabulary)), ..BuildOptions::default() };
        text(
            &plan_of("h200/qwen3.5-27b/nvfp4", &Ranks::tensor_parallel(2).of(options))
                .expect("it is planned"),
        )
    };
    let (few, all) = (of(Some(32_768)), of(None));
    let part = "of_groups(0, 32768, 248320).cut_rows(&[Segment { units: 2, unit: 16384 }])";
    let flat: String = few.split_whitespace().collect();
    assert!(flat.contains(&part.replace(' ', "")), "the draft head's rows");
    assert!(!all.contains("of_groups(0, 248320"));
}
