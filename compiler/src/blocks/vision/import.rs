//! Vision towers in configs and checkpoints of Hugging Face, and in Mistral's own form.

use super::spec::{CHANNELS, ImageTokens, Vision, VisionFamily};
use crate::import::keys::{Findings, HARMLESS, Keys};
use crate::spec::types::{Compute, FileTensor, RotaryPairs, RowView, SpecFile};
use monomorph_formats::Format;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What a tower has to fit.
pub(crate) struct TextFacts<'a> {
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// The text model's config.
    pub(crate) config: &'a Map<String, Value>,
    /// Names of its mixers with a window.
    pub(crate) sliding: Vec<String>,
}

/// A tower, and the keys whose absence means transformers' default.
pub(crate) struct Tower {
    pub(crate) vision: Vision,
    pub(crate) defaulted: Vec<String>,
}

/// Sizes that every family has.
struct Sizes {
    depth: usize,
    hidden: usize,
    heads: usize,
    width: usize,
    patch: usize,
    merge: usize,
}

/// Reads the tower of a multimodal config of the family called `name`, from its `vision_config` and from the
/// keys beside it.
///
/// # Errors
/// Everything in it that is not known.
pub(crate) fn read(name: &str, outer: &mut Keys, text: &TextFacts) -> Result<Tower, Vec<String>> {
    let mut found = Findings::default();
    let Some(Value::Object(config)) = outer.get("vision_config") else {
        return Err(vec!["`vision_config` is no object".to_owned()]);
    };
    let mut keys = Keys::new(config, "vision_config.");
    keys.harmless(&HARMLESS);
    let vision = match name {
        "gemma4" => gemma(&mut keys, outer, &mut found, text),
        "mistral3" => pixtral(&mut keys, outer, &mut found),
        _ => qwen(name, &mut keys, outer, &mut found, text),
    };
    finished(keys, found, vision)
}

/// Reads the tower of a params.json of Mistral's own releases.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_params(encoder: &Map<String, Value>) -> Result<Tower, Vec<String>> {
    let mut found = Findings::default();
    let mut keys = Keys::new(encoder, "vision_encoder.");
    let sizes = pixtral_sizes(&mut keys, &mut found);
    let merge = keys.count(&mut found, "spatial_merge_size", 2);
    let why = "only patches that are merged by a matrix, behind a norm, are known";
    keys.only(&mut found, "mm_projector_id", &[json!("patch_merge")], why);
    keys.only(&mut found, "add_pre_mm_projector_layer_norm", &[json!(true)], why);
    keys.only(&mut found, "adapter_bias", &[json!(false), Value::Null], "only `false` is known");
    keys.harmless(&["max_image_size"]);
    let mut id = |key: &str, default: usize| keys.count(&mut found, key, default).map(|id| id as u32);
    let (image, row_end) = (id("image_token_id", 10), id("image_break_token_id", 12));
    let end = id("image_end_token_id", 13);
    let vision = (|| {
        let tokens = ImageTokens { image: image?, start: None, end, row_end };
        let sizes = Sizes { merge: merge?, ..sizes? };
        Some(named(sizes, tokens, VisionFamily::Pixtral { pairs: RotaryPairs::Adjacent }, &OWN))
    })();
    finished(keys, found, vision)
}

fn finished(keys: Keys, mut found: Findings, vision: Option<Vision>) -> Result<Tower, Vec<String>> {
    keys.finish(&mut found, "this family's towers");
    match vision {
        Some(vision) if found.problems.is_empty() => Ok(Tower { vision, defaulted: found.defaulted }),
        _ => Err(found.problems),
    }
}

/// An id beside `vision_config`, or transformers' default.
fn id(keys: &mut Keys, found: &mut Findings, key: &str, default: u32) -> Option<u32> {
    let id = keys.count(found, key, default as usize)?;
    u32::try_from(id).ok()
}

fn qwen(
    name: &str,
    keys: &mut Keys,
    outer: &mut Keys,
    found: &mut Findings,
    text: &TextFacts,
) -> Option<Vision> {
    let stacked = name == "qwen3_vl_moe";
    let depth = keys.count(found, "depth", 27);
    let hidden = keys.count(found, "hidden_size", 1152);
    let heads = keys.count(found, "num_heads", 16);
    let width = keys.count(found, "intermediate_size", 4304);
    let patch = keys.count(found, "patch_size", 16);
    let merge = keys.count(found, "spatial_merge_size", 2);
    let table = keys.count(found, "num_position_embeddings", 2304);
    keys.only(found, "hidden_act", &[json!("gelu_pytorch_tanh"), Value::Null], "only tanh GELU is known");
    keys.only(found, "in_channels", &[json!(CHANNELS)], "a pixel has three channels");
    keys.only(found, "temporal_patch_size", &[json!(2)], "a patch has two frames");
    let out = keys.count(found, "out_hidden_size", text.hidden);
    if let Some(out) = out.filter(|out| *out != text.hidden) {
        let path = keys.path("out_hidden_size");
        found.problems.push(format!("`{path}` is {out}, and the text model is {} wide", text.hidden));
    }
    let deepstack = match (keys.given("deepstack_visual_indexes"), stacked) {
        (None, true) => Some(vec![8, 16, 24]),
        (None, false) => Some(Vec::new()),
        (Some(value), _) => {
            let taps =
                value.as_array().and_then(|taps| taps.iter().map(as_index).collect::<Option<Vec<_>>>());
            if taps.is_none() {
                let path = keys.path("deepstack_visual_indexes");
                found.problems.push(format!("`{path}` is {value}: a list of layers is wanted"));
            }
            taps
        }
    };
    let mrope = sections(found, text, if stacked { [24, 20, 20] } else { [11, 11, 10] });
    let [image, _, start, end] = match stacked {
        true => [151_655, 151_656, 151_652, 151_653],
        false => [248_056, 248_057, 248_053, 248_054],
    };
    let image = id(outer, found, "image_token_id", image);
    let start = id(outer, found, "vision_start_token_id", start);
    let end = id(outer, found, "vision_end_token_id", end);
    outer.harmless(&["video_token_id"]);
    let table = table?;
    let side = table.isqrt();
    if side * side != table {
        let path = keys.path("num_position_embeddings");
        found.problems.push(format!("`{path}` is {table}: the table of positions is a square"));
        return None;
    }
    let family = VisionFamily::Qwen { positions: side, deepstack: deepstack?, mrope: mrope? };
    let tokens = ImageTokens { image: image?, start, end, row_end: None };
    let sizes =
        Sizes { depth: depth?, hidden: hidden?, heads: heads?, width: width?, patch: patch?, merge: merge? };
    Some(named(sizes, tokens, family, &QWEN))
}

fn as_index(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|index| usize::try_from(index).ok())
}

/// Frequencies of the text model by axis, from its rotary settings.
fn sections(found: &mut Findings, text: &TextFacts, default: [usize; 3]) -> Option<[usize; 3]> {
    let settings = ["rope_scaling", "rope_parameters"].into_iter().filter_map(|key| text.config.get(key));
    let given = settings.filter_map(|settings| settings.get("mrope_section")).next();
    let Some(given) = given else { return Some(default) };
    let axes = given.as_array().and_then(|axes| axes.iter().map(as_index).collect::<Option<Vec<_>>>());
    match axes.as_deref() {
        Some(&[time, height, width]) => Some([time, height, width]),
        _ => {
            found.problems.push(format!("`mrope_section` is {given}: a list of three numbers is wanted"));
            None
        }
    }
}

fn gemma(keys: &mut Keys, outer: &mut Keys, found: &mut Findings, text: &TextFacts) -> Option<Vision> {
    let depth = keys.count(found, "num_hidden_layers", 16);
    let hidden = keys.count(found, "hidden_size", 768);
    let heads = keys.count(found, "num_attention_heads", 12);
    let kv_heads = keys.count(found, "num_key_value_heads", 12);
    let head_dim = keys.count(found, "head_dim", 64);
    let width = keys.count(found, "intermediate_size", 3072);
    let patch = keys.count(found, "patch_size", 16);
    let merge = keys.count(found, "pooling_kernel_size", 3);
    let positions = keys.count(found, "position_embedding_size", 10_240);
    let standardise = keys.flag(found, "standardize", false);
    let off = [json!(false), Value::Null];
    keys.only(found, "attention_bias", &off, "only `false` is known");
    keys.only(found, "use_clipped_linears", &off, "only `false` is known");
    keys.only(found, "hidden_activation", &[json!("gelu_pytorch_tanh")], "only tanh GELU is known");
    keys.only(found, "rms_norm_eps", &[json!(1e-6)], "only 1e-6 is known");
    let rope = json!({ "rope_theta": 100.0, "rope_type": "default" });
    keys.only(found, "rope_parameters", &[rope, Value::Null], "only a base of 100 is known");
    // Of heads that no layer has, limits of the preprocessing, and lengths in tokens.
    keys.harmless(&["global_head_dim", "default_output_length", "image_seq_length", "video_seq_length"]);
    keys.harmless(&["max_position_embeddings"]);
    let (heads, hidden) = (heads?, hidden?);
    if kv_heads != Some(heads) || head_dim.map(|dim| dim * heads) != Some(hidden) {
        let path = keys.path("num_key_value_heads");
        let known = "as many heads of keys and values as of queries, as wide together as a row, are known";
        found.problems.push(format!("`{path}` and `head_dim`: {known}"));
    }
    let sees = text.config.get("use_bidirectional_attention").and_then(Value::as_str) == Some("vision");
    let bidirectional = if sees { text.sliding.clone() } else { Vec::new() };
    let tokens = ImageTokens {
        image: id(outer, found, "image_token_id", 258_880)?,
        start: id(outer, found, "boi_token_id", 255_999),
        end: match outer.given("eoi_token_id") {
            Some(_) => id(outer, found, "eoi_token_id", 258_882),
            None => id(outer, found, "eoi_token_index", 258_882),
        },
        row_end: None,
    };
    let family = VisionFamily::Gemma { positions: positions?, standardise: standardise?, bidirectional };
    let sizes = Sizes { depth: depth?, hidden, heads, width: width?, patch: patch?, merge: merge? };
    Some(named(sizes, tokens, family, &GEMMA))
}

fn pixtral(keys: &mut Keys, outer: &mut Keys, found: &mut Findings) -> Option<Vision> {
    let sizes = pixtral_sizes(keys, found);
    keys.only(found, "hidden_act", &[json!("silu")], "only SiLU is known");
    let merge = outer.count(found, "spatial_merge_size", 2);
    outer.only(found, "projector_hidden_act", &[json!("gelu"), Value::Null], "only GELU is known");
    outer.only(found, "multimodal_projector_bias", &[json!(false), Value::Null], "only `false` is known");
    outer.only(found, "vision_feature_layer", &[json!(-1), Value::Null], "only the last layer is known");
    let key = if outer.given("image_token_id").is_some() { "image_token_id" } else { "image_token_index" };
    let image = id(outer, found, key, 10)?;
    // Said by no key: ids of the tokenizer that goes with it.
    let tokens = ImageTokens { image, start: None, end: Some(13), row_end: Some(12) };
    let family = VisionFamily::Pixtral { pairs: RotaryPairs::Halves };
    Some(named(Sizes { merge: merge?, ..sizes? }, tokens, family, &PIXTRAL))
}

/// All sizes but that of a merge block.
fn pixtral_sizes(keys: &mut Keys, found: &mut Findings) -> Option<Sizes> {
    let depth = keys.count(found, "num_hidden_layers", 24);
    let hidden = keys.count(found, "hidden_size", 1024);
    let heads = keys.count(found, "num_attention_heads", 16);
    let width = keys.count(found, "intermediate_size", 4096);
    let patch = keys.count(found, "patch_size", 16);
    keys.only(found, "num_channels", &[json!(CHANNELS)], "a pixel has three channels");
    keys.only(
        found,
        "rope_theta",
        &[json!(1e4), json!(10_000), Value::Null],
        "only a base of 10000 is known",
    );
    let rope = json!({ "rope_theta": 10_000.0, "rope_type": "default" });
    keys.only(found, "rope_parameters", &[rope, Value::Null], "only a base of 10000 is known");
    // A limit of the preprocessing.
    keys.harmless(&["image_size"]);
    let (hidden, heads) = (hidden?, heads?);
    let wide = keys.count_or_null(found, "head_dim")?;
    if let Some(wide) = wide.filter(|wide| wide * heads != hidden) {
        let path = keys.path("head_dim");
        found.problems.push(format!("`{path}` is {wide}: {heads} heads together are as wide as a row"));
    }
    Some(Sizes { depth: depth?, hidden, heads, width: width?, patch: patch?, merge: 0 })
}

/// What a family's checkpoints call tensors: the model's names without [`super::VISION_PREFIX`] and `.bias`,
/// and theirs without `.weight`.
type Naming = [(&'static str, &'static str)];

const QWEN: [(&str, &str); 16] = [
    ("patch", "model.visual.patch_embed.proj"),
    ("positions", "model.visual.pos_embed"),
    ("layers.{layer}.attention.norm", "model.visual.blocks.{layer}.norm1"),
    ("layers.{layer}.attention.q", "model.visual.blocks.{layer}.attn.qkv"),
    ("layers.{layer}.attention.k", "model.visual.blocks.{layer}.attn.qkv"),
    ("layers.{layer}.attention.v", "model.visual.blocks.{layer}.attn.qkv"),
    ("layers.{layer}.attention.o", "model.visual.blocks.{layer}.attn.proj"),
    ("layers.{layer}.ffn.norm", "model.visual.blocks.{layer}.norm2"),
    ("layers.{layer}.ffn.up", "model.visual.blocks.{layer}.mlp.linear_fc1"),
    ("layers.{layer}.ffn.down", "model.visual.blocks.{layer}.mlp.linear_fc2"),
    ("merger.norm", "model.visual.merger.norm"),
    ("merger.up", "model.visual.merger.linear_fc1"),
    ("merger.down", "model.visual.merger.linear_fc2"),
    ("deepstack.{layer}.norm", "model.visual.deepstack_merger_list.{layer}.norm"),
    ("deepstack.{layer}.up", "model.visual.deepstack_merger_list.{layer}.linear_fc1"),
    ("deepstack.{layer}.down", "model.visual.deepstack_merger_list.{layer}.linear_fc2"),
];

const GEMMA: [(&str, &str); 17] = [
    ("patch", "model.vision_tower.patch_embedder.input_proj"),
    ("positions", "model.vision_tower.patch_embedder.position_embedding_table"),
    ("layers.{layer}.attention.norm", "model.vision_tower.encoder.layers.{layer}.input_layernorm"),
    ("layers.{layer}.attention.q", "model.vision_tower.encoder.layers.{layer}.self_attn.q_proj.linear"),
    ("layers.{layer}.attention.k", "model.vision_tower.encoder.layers.{layer}.self_attn.k_proj.linear"),
    ("layers.{layer}.attention.v", "model.vision_tower.encoder.layers.{layer}.self_attn.v_proj.linear"),
    ("layers.{layer}.attention.o", "model.vision_tower.encoder.layers.{layer}.self_attn.o_proj.linear"),
    ("layers.{layer}.attention.q_norm", "model.vision_tower.encoder.layers.{layer}.self_attn.q_norm"),
    ("layers.{layer}.attention.k_norm", "model.vision_tower.encoder.layers.{layer}.self_attn.k_norm"),
    (
        "layers.{layer}.attention.post_norm",
        "model.vision_tower.encoder.layers.{layer}.post_attention_layernorm",
    ),
    ("layers.{layer}.ffn.norm", "model.vision_tower.encoder.layers.{layer}.pre_feedforward_layernorm"),
    ("layers.{layer}.ffn.gate", "model.vision_tower.encoder.layers.{layer}.mlp.gate_proj.linear"),
    ("layers.{layer}.ffn.up", "model.vision_tower.encoder.layers.{layer}.mlp.up_proj.linear"),
    ("layers.{layer}.ffn.down", "model.vision_tower.encoder.layers.{layer}.mlp.down_proj.linear"),
    ("layers.{layer}.ffn.post_norm", "model.vision_tower.encoder.layers.{layer}.post_feedforward_layernorm"),
    ("standard", "model.vision_tower.std"),
    ("projection", "model.embed_vision.embedding_projection"),
];

const PIXTRAL: [(&str, &str); 15] = [
    ("patch", "vision_tower.patch_conv"),
    ("norm", "vision_tower.ln_pre"),
    ("layers.{layer}.attention.norm", "vision_tower.transformer.layers.{layer}.attention_norm"),
    ("layers.{layer}.attention.q", "vision_tower.transformer.layers.{layer}.attention.q_proj"),
    ("layers.{layer}.attention.k", "vision_tower.transformer.layers.{layer}.attention.k_proj"),
    ("layers.{layer}.attention.v", "vision_tower.transformer.layers.{layer}.attention.v_proj"),
    ("layers.{layer}.attention.o", "vision_tower.transformer.layers.{layer}.attention.o_proj"),
    ("layers.{layer}.ffn.norm", "vision_tower.transformer.layers.{layer}.ffn_norm"),
    ("layers.{layer}.ffn.gate", "vision_tower.transformer.layers.{layer}.feed_forward.gate_proj"),
    ("layers.{layer}.ffn.up", "vision_tower.transformer.layers.{layer}.feed_forward.up_proj"),
    ("layers.{layer}.ffn.down", "vision_tower.transformer.layers.{layer}.feed_forward.down_proj"),
    ("merger.norm", "multi_modal_projector.norm"),
    ("merger.merge", "multi_modal_projector.patch_merger.merging_layer"),
    ("merger.up", "multi_modal_projector.linear_1"),
    ("merger.down", "multi_modal_projector.linear_2"),
];

/// Of Mistral's own files.
const OWN: [(&str, &str); 15] = [
    ("patch", "vision_encoder.patch_conv"),
    ("norm", "vision_encoder.ln_pre"),
    ("layers.{layer}.attention.norm", "vision_encoder.transformer.layers.{layer}.attention_norm"),
    ("layers.{layer}.attention.q", "vision_encoder.transformer.layers.{layer}.attention.wq"),
    ("layers.{layer}.attention.k", "vision_encoder.transformer.layers.{layer}.attention.wk"),
    ("layers.{layer}.attention.v", "vision_encoder.transformer.layers.{layer}.attention.wv"),
    ("layers.{layer}.attention.o", "vision_encoder.transformer.layers.{layer}.attention.wo"),
    ("layers.{layer}.ffn.norm", "vision_encoder.transformer.layers.{layer}.ffn_norm"),
    ("layers.{layer}.ffn.gate", "vision_encoder.transformer.layers.{layer}.feed_forward.w1"),
    ("layers.{layer}.ffn.up", "vision_encoder.transformer.layers.{layer}.feed_forward.w3"),
    ("layers.{layer}.ffn.down", "vision_encoder.transformer.layers.{layer}.feed_forward.w2"),
    ("merger.norm", "pre_mm_projector_norm"),
    ("merger.merge", "patch_merger.merging_layer"),
    ("merger.up", "vision_language_adapter.w_in"),
    ("merger.down", "vision_language_adapter.w_out"),
];

/// A tower with the names of its tensors.
fn named(sizes: Sizes, tokens: ImageTokens, family: VisionFamily, naming: &Naming) -> Vision {
    let Sizes { depth, hidden, heads, width, patch, merge } = sizes;
    let mut vision = Vision {
        family,
        depth,
        hidden,
        heads,
        width,
        patch,
        merge,
        tokens,
        names: BTreeMap::new(),
        stored: Format::Bf16,
        compute: Compute::F32,
        file: SpecFile { name: String::new(), sha256: String::new() },
    };
    // No name depends on the width of what comes out.
    let names = vision.tensors(1).into_iter().map(|decl| {
        let name = decl.name.strip_prefix(super::VISION_PREFIX).expect("it is a tower's");
        let (stem, kind) = name.strip_suffix(".bias").map_or((name, "weight"), |stem| (stem, "bias"));
        let of = |stem: &str| {
            let there = naming.iter().find(|(ours, _)| *ours == stem);
            there.unwrap_or_else(|| unreachable!("{stem:?} is of no known tower")).1
        };
        let name = match stem {
            "standard" | "standard.scale" => {
                format!("{}_{}", of("standard"), if kind == "bias" { "bias" } else { "scale" })
            }
            // No module, so it has no weight.
            "positions" if matches!(vision.family, VisionFamily::Gemma { .. }) => of(stem).to_owned(),
            _ => format!("{}.{kind}", of(stem)),
        };
        let part = ["q", "k", "v"].into_iter().position(|part| stem.ends_with(&format!("attention.{part}")));
        let fused = matches!(vision.family, VisionFamily::Qwen { .. });
        let view =
            part.filter(|_| fused).map(|at| RowView { first: at * hidden, take: hidden, of: 3 * hidden });
        (decl.name, FileTensor { name, view })
    });
    vision.names = names.collect();
    vision
}
