//! The emitted CUDA stack of models with delta-nets and experts: what it loads, and the state it allocates.

use monomorph_compiler::blocks;
use monomorph_compiler::blocks::recurrent::CudaState;
use monomorph_compiler::plan::{FieldKind, PhaseKind, Plan};
use monomorph_compiler::{emit, graph, passes, spec};
use std::path::Path;

/// The plan, and the emitted text without white space, so that line breaks do not matter.
fn planned(target: &str) -> (Plan, String) {
    emitted(target, "stack.rs")
}

/// The same of another file.
fn emitted(target: &str, file: &str) -> (Plan, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let target = spec::load(&[root.join("targets")], target).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(&target, &graph).unwrap_or_else(|error| panic!("{error}"));
    let files = emit::emit(&plan, &[]);
    let found = files.into_iter().find(|it| it.path.ends_with(file)).expect("the crate has it");
    (plan, found.text.split_whitespace().collect())
}

/// As the emitter writes it, without underscores in numbers and trailing commas, which are the printer's
/// choice.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let digits = out.ends_with(|it: char| it.is_ascii_digit())
            && characters.peek().is_some_and(char::is_ascii_digit);
        if character != '_' || !digits {
            out.push(character);
        }
    }
    out.replace(",)", ")").replace(",]", "]")
}

#[test]
fn stacked_experts_and_rows_of_tensors_are_loaded_as_the_plan_says() {
    let (plan, text) = planned("h200/qwen3.5-35b/bf16");
    let text = plain(&text);
    for field in &plan.fields {
        let experts = match field.kind {
            FieldKind::Matrix { experts, .. } => experts,
            _ => None,
        };
        for part in &field.parts {
            let shape = part.file_shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let name = format!("\"{}\"", part.file.name);
            let name = if name.contains('{') { format!("format!({name})") } else { name };
            let rows = match part.file.view {
                None => String::new(),
                Some(view) if part.file.stacks_experts(&part.weight) => {
                    format!(".of_group({},{},{},expert)", view.first, view.take, view.of)
                }
                Some(view) => format!(".of_groups({},{},{})", view.first, view.take, view.of),
            };
            let wanted = format!("Part::new({name},&[{shape}]){rows}");
            assert!(text.contains(&wanted), "{}: {wanted}", field.name);
        }
        if let Some(experts) = experts {
            assert!(text.contains(&format!("experts:{experts},")), "{}", field.name);
        }
        if let FieldKind::Convolution { channels, taps, .. } = field.kind {
            assert!(text.contains(&format!(",{channels},{taps},&kernels.")), "{}", field.name);
        }
    }
    assert_eq!(text.matches(",|expert|[").count(), 4, "gate and up, down, in both kinds of layers");
}

#[test]
fn experts_in_tensors_of_their_own_bring_their_scales() {
    let (_, text) = planned("h200/qwen3-next-80b/nvfp4");
    let text = plain(&text);
    let expert = "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight";
    assert!(text.contains(&format!(".scaled_by(format!(\"{expert}_scale\"))")), "{expert}");
}

#[test]
fn layers_that_store_a_tensor_unlike_the_rest_are_expected_to() {
    let (_, text) = emitted("h200/nemotron-3-nano/nvfp4", "spec.rs");
    let text = plain(&text);
    let of = |shape: &str, format: &str| {
        let found = text.split("TensorSpec{").find(|it| {
            it.starts_with("name:\"backbone.layers.{layer}.mixer.in_proj.weight\"")
                && it.contains(&format!("shape:&[{shape}]"))
                && it.contains(&format!("format:Format::{format}"))
        });
        let (_, layers) =
            found.unwrap_or_else(|| panic!("none in {format}")).split_once("layers:&[").unwrap();
        layers.split(']').next().unwrap().split(',').count()
    };
    assert_eq!(of("10304,2688", "Bf16"), 6, "before layers of attention");
    assert_eq!(of("10304,2688", "Nvfp4"), 17);
}

#[test]
fn every_layer_of_a_delta_net_has_its_state_for_every_slot() {
    let (plan, text) = planned("h200/qwen3.5-35b/bf16");
    let text = plain(&text);
    let mut bytes = 0;
    for body in &plan.bodies {
        for phase in &body.phases {
            let PhaseKind::Delta(blocks::Delta { shape, .. }) = &phase.kind else { continue };
            let state = CudaState::new(&shape.recurrence(), shape.key_width(), 0);
            assert_eq!(
                (state.bytes(), state.journal_floats),
                (4 * (state.window_floats + state.matrix_floats) as u64, 0)
            );
            // Four taps: the ring has a row for the current token too.
            assert_eq!(state.window_floats, 4 * (2 * 2048 + 4096));
            assert_eq!(state.matrix_floats, 32 * 128 * 128);
            let (window, matrices) = (4 * state.window_floats, 4 * state.matrix_floats);
            assert!(text.contains(&format!("memory.state({},[{window},{matrices},0])?", body.layers.len())));
            bytes += state.bytes() * body.layers.len() as u64;
        }
    }
    assert!(bytes > 0 && plan.state_bytes() == bytes && plan.memory.state == bytes);
    assert!(text.contains(&format!("state:{bytes},")), "claimed beside weights and K/V");
}
