//! `info`: what this binary was compiled for.

use crate::process::out;
use crate::start::batches;
use crate::start::draft;
use crate::start::paths::default_weights;
use crate::verbs::version;
use monomorph_abi::serve;
use monomorph_model::{FileSpec, Model, ModelSpec, SlidingSpec, VisionFamily, VisionSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Flags of `info`.
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A build: its constants, and what a model says beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Build {
    pub(crate) spec: &'static ModelSpec,
    /// Its vision tower, of a model that takes images.
    pub(crate) vision: Option<VisionSpec>,
    /// Ranks that it is cut into.
    pub(crate) ranks: usize,
    /// Whether it can take the times of phases.
    pub(crate) profiling: bool,
}

impl Build {
    /// That of a model.
    pub(crate) fn of<M: Model>() -> Build {
        Build { spec: M::SPEC, vision: M::VISION, ranks: M::RANKS, profiling: M::PROFILE.is_some() }
    }
}

/// Prints the facts of the build.
pub(crate) fn info(build: &Build, sliding: Option<SlidingSpec>, args: &InfoArgs) -> Result<(), String> {
    if args.json {
        let mut facts = facts(build);
        if let Some(SlidingSpec { window, block_bytes }) = sliding {
            facts["sliding"] = json!({"window": window, "block_bytes": block_bytes});
        }
        out::print(format_args!("{facts:#}"));
    } else {
        out::print(format_args!("{}", as_text(build, sliding)));
    }
    Ok(())
}

/// What the build fixed, as JSON.
pub(crate) fn facts(build: &Build) -> Value {
    let Build { spec, vision, ranks, profiling } = *build;
    let formats = spec
        .formats
        .iter()
        .map(|line| json!({"class": line.class, "stored": line.stored.name(), "compute": line.compute}));
    let sampling = spec.sampling.iter().map(|preset| {
        json!({
            "name": preset.name, "temperature": preset.temperature, "top_p": preset.top_p, "top_k": preset.top_k,
            "min_p": preset.min_p, "repetition_penalty": preset.repetition_penalty,
        })
    });
    let figures = &spec.figures;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": spec.commit,
        "rustc": version::RUSTC,
        "target": spec.target,
        "specs": digests(spec.specs),
        "model": spec.model,
        "hardware": hardware_json(spec),
        "ranks": ranks,
        "hidden": spec.hidden,
        "layers": spec.layers,
        "vocabulary": spec.vocabulary,
        "context": spec.context,
        "usable_context": spec.usable_context(),
        "draft": draft::facts(spec),
        "batch_invariant": batches::facts(spec),
        "profiling": profiling,
        "vision": vision.map(|vision| vision_facts(&vision)),
        "block_tokens": spec.block_tokens,
        "block_bytes": spec.block_bytes,
        "state_bytes": spec.state_bytes,
        "step_tokens": spec.step_tokens,
        "step_sequences": spec.step_sequences,
        "kv_format": spec.kv_formats.to_string(),
        "kv_exact_layers": spec.kv_exact_layers,
        "kv_scales": spec.kv_scales.map(|scales| scales.names),
        "kv_bits": spec.kv_bits(),
        "kv_tokens_per_gb": spec.kv_tokens_per_gb(),
        "formats": formats.collect::<Vec<_>>(),
        "tensors": spec.tensor_count(),
        "weight_bytes": spec.weight_bytes,
        "scratch_bytes": spec.scratch_bytes,
        "stop_ids": spec.protocol.stop_ids,
        "chat_template": if spec.protocol.chat_template.is_some() { "build" } else { "checkpoint" },
        "tools": spec.protocol.tools,
        "reasoning": spec.protocol.reasoning,
        "sampling": sampling.collect::<Vec<_>>(),
        "limit": {"prefill": figures.limit_prefill, "decode": figures.limit_decode},
        "predicted": {"prefill": figures.predicted_prefill, "decode": figures.predicted_decode},
        "weights": default_weights(spec).display().to_string(),
        "canaries": spec.canaries.len(),
        "digests": digests(spec.files),
    })
}

/// The vision tower: how it cuts images, and how large they may be.
fn vision_facts(vision: &VisionSpec) -> Value {
    let VisionSpec { patch, merge, .. } = *vision;
    json!({
        "family": family(vision), "patch": patch, "merge": merge, "most_tokens": vision.most_tokens(),
    })
}

/// Whose preprocessing a tower has, as VISION.toml writes it.
fn family(vision: &VisionSpec) -> &'static str {
    match vision.family {
        VisionFamily::Qwen => "qwen",
        VisionFamily::Gemma => "gemma",
        VisionFamily::Pixtral => "pixtral",
    }
}

/// Digests of files by their names.
fn digests(files: &[FileSpec]) -> BTreeMap<&str, &str> {
    files.iter().map(|file| (file.name, file.sha256)).collect()
}

/// Formats of keys and values, and how many layers have exact ones.
fn kv_formats(spec: &ModelSpec) -> String {
    match spec.kv_exact_layers {
        0 => spec.kv_formats.to_string(),
        layers => format!("{} (bf16 in {layers} layers)", spec.kv_formats),
    }
}

/// Where static scales come from; `None` where formats have none.
fn kv_scales(spec: &ModelSpec) -> Option<String> {
    let measured = spec.measures_kv().then_some("1, or measured by --kv-calibration-tokens");
    let read = spec.kv_scales.map(|scales| {
        let [keys, values] = scales.names;
        format!("of fp8 the checkpoint's, {keys} and {values}")
    });
    let said: Vec<String> = read.into_iter().chain(measured.map(str::to_owned)).collect();
    (!said.is_empty()).then(|| format!("static scales {}", said.join("; others ")))
}

fn hardware_json(spec: &ModelSpec) -> Value {
    let hardware = &spec.hardware;
    let mut value = json!({"name": hardware.name, "features": hardware.features});
    if let Some(cuda) = &hardware.cuda {
        let (major, minor) = cuda.capability;
        value["cuda"] = json!({
            "architecture": cuda.architecture, "capability": [major, minor], "tuning": cuda.tuning,
        });
    }
    value
}

fn as_text(build: &Build, sliding: Option<SlidingSpec>) -> String {
    let Build { spec, vision, ranks, profiling } = *build;
    let mut lines = vec![format!("{} (monomorph {})", spec.target, env!("CARGO_PKG_VERSION")), String::new()];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
    if profiling {
        line("profiling", "this is a profiling build: `profile` takes the time of each phase".to_owned());
    }
    let features = spec.hardware.features;
    let needs = if features.is_empty() { "the baseline".to_owned() } else { features.join(" ") };
    line("hardware", format!("{}, needs {needs}", spec.hardware.name));
    if let Some(cuda) = &spec.hardware.cuda {
        let (major, minor) = cuda.capability;
        line(
            "kernels",
            format!("machine code of {}, for a GPU of compute capability {major}.{minor}", cuda.architecture),
        );
        line("tuning", cuda.tuning.to_owned());
        if ranks > 1 {
            line("ranks", format!("{ranks}, a GPU each (--gpu-ordinals); sizes are of all together"));
        }
        let sequence = serve::CONTEXT.min(spec.usable_context());
        let cache = ((sequence + spec.reach()).div_ceil(spec.block_tokens) * spec.block_bytes) as u64;
        let of_state = match spec.state_bytes {
            0 => String::new(),
            state => format!(" and {} its state", out::bytes(state)),
        };
        line(
            "memory",
            format!(
                "{} for a sequence of {sequence} tokens, {} of it K/V{of_state}; a server takes what --memory-fraction \
                 allows",
                out::bytes(spec.weight_bytes + spec.scratch_bytes + spec.state_bytes + cache),
                out::bytes(cache)
            ),
        );
    }
    let usable = match spec.reach() {
        0 => String::new(),
        reach => format!(", {} of them usable: drafts take {reach}", spec.usable_context()),
    };
    line(
        "model",
        format!(
            "{} layers of {}, {} ids, context {} tokens{usable}",
            spec.layers, spec.hidden, spec.vocabulary, spec.context
        ),
    );
    if let Some(it) = &spec.draft {
        line("drafts", draft::describe(spec, it));
    }
    if let Some(invariant) = &spec.batch_invariant {
        line("batches", batches::describe(spec, invariant));
    }
    let shared = match spec.hardware.cuda {
        Some(_) => "",
        None => "; of a file that `pack` wrote they are pages of that file, which servers share",
    };
    line("weights", format!("{} in {} tensors{shared}", out::bytes(spec.weight_bytes), spec.tensor_count()));
    let least = spec.canaries.iter().map(|canary| canary.margin).fold(f32::INFINITY, f32::min);
    line(
        "canaries",
        match spec.canaries.len() {
            0 => "none known: damaged weights that answer like others are not found out at the start"
                .to_owned(),
            known => format!("{known} known answers, each token of which leads by {least:.1} logits or more"),
        },
    );
    for file in spec.files {
        line("digest", format!("{} is SHA-256 {}", file.name, file.sha256));
    }
    line("scratch", out::bytes(spec.scratch_bytes));
    let block = out::bytes(spec.block_bytes as u64);
    line("K/V", format!("{}, blocks of {} tokens, {block} each", kv_formats(spec), spec.block_tokens));
    if let Some((bits, tokens)) = spec.kv_bits().zip(spec.kv_tokens_per_gb()) {
        line("", format!("{bits:.3} bits an element, {tokens} tokens in 1 GB"));
    }
    if let Some(scales) = kv_scales(spec) {
        line("", scales);
    }
    if let Some(SlidingSpec { window, block_bytes }) = sliding {
        let block = out::bytes(block_bytes as u64);
        line("windows", format!("of {window} tokens in other layers, whose blocks take {block} each"));
    }
    if let Some(vision) = &vision {
        let side = vision.patch * vision.merge;
        line(
            "images",
            format!(
                "a token for {side} x {side} pixels, at most {} an image, as {} has it",
                vision.most_tokens(),
                family(vision)
            ),
        );
    }
    if spec.state_bytes > 0 {
        line("state", format!("{} for each sequence and snapshot", out::bytes(spec.state_bytes)));
    }
    line(
        "a step",
        format!("at most {} tokens of at most {} sequences", spec.step_tokens, spec.step_sequences),
    );
    line("stop ids", format!("{:?}, and the checkpoint's own", spec.protocol.stop_ids));
    let template =
        if spec.protocol.chat_template.is_some() { "fixed at build time" } else { "the checkpoint's own" };
    line("template", template.to_owned());
    for preset in spec.sampling {
        let (temperature, top_p, top_k) = (preset.temperature, preset.top_p, preset.top_k);
        let rest = format!("min_p {}, repetition_penalty {}", preset.min_p, preset.repetition_penalty);
        line(
            "sampling",
            format!("{}: temperature {temperature}, top_p {top_p}, top_k {top_k}, {rest}", preset.name),
        );
    }
    let figures = &spec.figures;
    line(
        "decode",
        format!("{:.0} tok/s predicted, {:.0} at the limit", figures.predicted_decode, figures.limit_decode),
    );
    line(
        "prefill",
        format!(
            "{:.0} tok/s predicted, {:.0} at the limit",
            figures.predicted_prefill, figures.limit_prefill
        ),
    );
    line("default", format!("weights at {}, or --weights dummy", default_weights(spec).display()));
    lines.push(String::new());
    lines.push(format!("{:<12} {:<8} {}", "class", "stored", "compute"));
    for format in spec.formats {
        lines.push(format!("{:<12} {:<8} {}", format.class, format.stored.name(), format.compute));
    }
    lines.join("\n")
}
