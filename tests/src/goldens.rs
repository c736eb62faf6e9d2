//! Tiny random checkpoints with logits computed by transformers (tests/reference/make_goldens.py).

use crate::{fixtures, root};
use monomorph_compiler::blocks::Mixer;
use monomorph_compiler::graph::instance;
use monomorph_compiler::spec::types::{Compute, TensorClass};
use monomorph_compiler::{import, spec};
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// A config with the checkpoints `f32/` and `bf16/` and their logits.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of its directory, and of the model.
    pub name: String,
    /// Directory with `config.json`, `tokens.json` and the checkpoints.
    pub directory: PathBuf,
    /// The prompts the logits were computed for.
    pub prompts: Vec<Vec<u32>>,
}

impl Golden {
    /// A [`synthetic`] golden of its config with sizes that 2, 3, 4 and 8 ranks can share: 24 query, key and
    /// value heads where it has several, groups and inner widths alike.
    ///
    /// # Panics
    /// If the directory is not writable.
    pub fn for_ranks(&self, directory: &Path) -> Golden {
        const VOCABULARY: u32 = 96;
        let mut config = self.config();
        let text = text_of(&mut config);
        if let (None, Some(hidden), Some(heads)) =
            (text.get("head_dim"), text["hidden_size"].as_u64(), text["num_attention_heads"].as_u64())
        {
            text["head_dim"] = (hidden / heads).into();
        }
        let (heads, kv) = (text["num_attention_heads"].clone(), text["num_key_value_heads"].clone());
        let sizes = [
            ("num_attention_heads", 24),
            ("num_key_value_heads", if kv == heads { 24 } else { 2 }),
            ("intermediate_size", 48),
            ("num_experts", 24),
            ("num_local_experts", 24),
            ("n_routed_experts", 24),
            ("moe_shared_expert_intermediate_size", 72),
            ("moe_intermediate_size", 24),
            ("shared_expert_intermediate_size", 72),
            ("linear_num_key_heads", 24),
            ("linear_num_value_heads", 48),
            ("mamba_num_heads", 48),
            ("n_groups", 24),
            ("vocab_size", VOCABULARY),
        ];
        for (key, size) in sizes {
            // An only K/V head of several stays one: all ranks hold it.
            let stays = |it: &serde_json::Value| key == "num_key_value_heads" && *it == 1 && kv != heads;
            if text.get(key).is_some_and(|it| !stays(it)) {
                text[key] = size.into();
            }
        }
        // Without one no answer can be constrained to a format.
        if text.get("eos_token_id").is_none() {
            text["eos_token_id"] = (VOCABULARY - 1).into();
        }
        let prompts = self.prompts.iter();
        let prompts =
            prompts.take(2).map(|prompt| prompt.iter().map(|id| id % VOCABULARY).collect()).collect();
        synthetic(directory, &format!("{}-for-ranks", self.name), &config, prompts)
    }
}

/// Every golden, sorted by name.
///
/// # Panics
/// If one is incomplete.
pub fn goldens() -> Vec<Golden> {
    let mut goldens: Vec<Golden> = std::fs::read_dir(fixtures().join("goldens"))
        .expect("goldens are committed")
        .map(|entry| {
            let directory = entry.expect("directory entries are readable").path();
            let tokens = std::fs::read(directory.join("tokens.json")).expect("a golden has tokens");
            Golden {
                name: directory.file_name().expect("it has a name").to_string_lossy().into_owned(),
                prompts: serde_json::from_slice(&tokens).expect("tokens are lists of ids"),
                directory,
            }
        })
        .collect();
    goldens.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(goldens.len() >= 8);
    goldens
}

/// Goldens of models that the CUDA backend has no kernels for yet, or none for their widths.
pub const UNBUILT: [&str; 3] = ["mistral4", "mistral4-halves", "mistral4-one"];

/// Every golden that servers on CUDA devices compute, sorted by name.
///
/// # Panics
/// If one is incomplete.
pub fn on_cards() -> Vec<Golden> {
    goldens().into_iter().filter(|golden| !UNBUILT.contains(&golden.name.as_str())).collect()
}

/// The golden of this name.
///
/// # Panics
/// If there is none, or it is incomplete.
pub fn golden(name: &str) -> Golden {
    let found = goldens().into_iter().find(|golden| golden.name == name);
    found.unwrap_or_else(|| panic!("no golden is called {name}"))
}

/// The part of a config that is about the layers of text.
fn text_of(config: &mut serde_json::Value) -> &mut serde_json::Value {
    if config["text_config"].is_object() { &mut config["text_config"] } else { config }
}

impl Golden {
    fn config(&self) -> serde_json::Value {
        let config = std::fs::read_to_string(self.directory.join("config.json")).expect("it has a config");
        serde_json::from_str(&config).expect("configs are JSON")
    }

    /// A [`synthetic`] golden of its config with heads of 64: the narrowest that CUDA devices keep in groups.
    ///
    /// # Panics
    /// If the directory is not writable.
    pub fn with_heads_of_64(&self, directory: &Path) -> Golden {
        let mut config = self.config();
        text_of(&mut config)["head_dim"] = 64.into();
        synthetic(directory, &format!("{}-heads-of-64", self.name), &config, self.prompts.clone())
    }

    /// A copy in another directory, for a context of that many tokens.
    ///
    /// # Panics
    /// If the directory is not writable.
    pub fn in_a_long_context(&self, tokens: usize, directory: &Path) -> Golden {
        let mut config = self.config();
        let text = text_of(&mut config);
        text["max_position_embeddings"] = tokens.into();
        std::fs::write(directory.join("config.json"), config.to_string()).expect("it is writable");
        for format in ["f32", "bf16"] {
            let (from, to) = (self.directory.join(format), directory.join(format));
            std::fs::create_dir(&to).expect("it is writable");
            for file in std::fs::read_dir(from).expect("it has checkpoints") {
                let file = file.expect("entries are readable");
                std::fs::copy(file.path(), to.join(file.file_name())).expect("it is writable");
            }
        }
        Golden { directory: directory.to_owned(), ..self.clone() }
    }

    /// Imports its config into a targets directory; checkpoints in bf16 compute in `rounded`.
    ///
    /// # Panics
    /// If the config is refused or the directory is not writable.
    pub fn import_into(&self, targets: &Path, rounded: Compute) {
        let own = self.directory.join("params.json");
        let (config, import) = match own.is_file() {
            true => (own, import::import_params as Import),
            false => (self.directory.join("config.json"), import::import as Import),
        };
        let config = std::fs::read_to_string(config).expect("a golden has a config");
        let directory = targets.join("models").join(&self.name);
        std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
        // Each checkpoint states how it is stored; for a missing one the config states the usual format.
        for format in ["f32", "bf16"] {
            let seen = import::Seen::read(&self.directory.join(format)).expect("checkpoints are sound");
            let imported = import(&config, &self.name, rounded, &seen);
            let imported = imported.unwrap_or_else(|error| panic!("{}: {error}", self.name));
            std::fs::write(directory.join("MODEL.toml"), &imported.model_toml).expect("it is writable");
            let file = format!("{format}.toml");
            let (_, text) = imported.quants.iter().find(|(name, _)| *name == file).expect("it has this spec");
            std::fs::write(directory.join(file), text).expect("it is writable");
        }
    }
}

/// A reader of a form of config.
type Import = fn(&str, &str, Compute, &import::Seen) -> Result<import::Imported, import::ImportError>;

/// Pseudo-random, normally distributed numbers, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> f32 {
        // Irwin–Hall: the sum of twelve uniform numbers has a variance of 1.
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..12).map(|_| uniform()).sum::<f32>() - 6.0
    }
}

/// A tensor of a target's checkpoint.
#[derive(Clone, Debug)]
pub struct FileTensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Its name in the checkpoint with `{layer}` and `{expert}` in place of indices.
    pub pattern: String,
    /// The model's tensor that it holds; if it holds the rows of several, the first.
    pub model_name: String,
    /// Class of that tensor.
    pub class: TensorClass,
    /// Columns; `None` for a vector.
    pub columns: Option<usize>,
}

/// Every tensor of a target's checkpoint except scales, in the model's order.
pub fn file_tensors(target: &spec::types::Target) -> Vec<FileTensor> {
    let mut found: Vec<FileTensor> = Vec::new();
    for tensor in spec::stored_tensors(&target.model, &target.quant) {
        let file = &target.quant.checkpoint.names[&tensor.base()];
        let layers = tensor.layers.iter().flatten().copied().map(Some);
        let layers: Vec<_> = if tensor.layers.is_some() { layers.collect() } else { vec![None] };
        let experts = tensor.experts.filter(|_| file.name.contains("{expert}")).unwrap_or(1);
        for (layer, expert) in layers.into_iter().flat_map(|layer| (0..experts).map(move |it| (layer, it))) {
            let name = instance(&file.name, layer).replace("{expert}", &expert.to_string());
            if found.iter().all(|known| known.name != name) {
                found.push(FileTensor {
                    name,
                    shape: tensor.file_shape(file),
                    pattern: file.name.clone(),
                    model_name: tensor.name.clone(),
                    class: tensor.class,
                    columns: tensor.columns,
                });
            }
        }
    }
    found
}

/// A golden of any size whose oracle is the interpreter: `config` as on Hugging Face, and in `directory`
/// random f32 weights scaled so that every product keeps the size of its input. There are no logits beside
/// them.
///
/// # Panics
/// If the config is refused or the directory is not writable.
pub fn synthetic(directory: &Path, name: &str, config: &serde_json::Value, prompts: Vec<Vec<u32>>) -> Golden {
    let directory = directory.join(name);
    // The import would take what is stored in an older checkpoint of this name, of other sizes.
    if directory.exists() {
        std::fs::remove_dir_all(&directory).expect("a temporary directory is writable");
    }
    std::fs::create_dir_all(directory.join("f32")).expect("a temporary directory is writable");
    let write =
        |file: &str, text: String| std::fs::write(directory.join(file), text).expect("it is writable");
    write("config.json", config.to_string());
    write("tokens.json", serde_json::json!(prompts).to_string());
    let golden = Golden { name: name.to_owned(), directory: directory.clone(), prompts };
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    golden.import_into(targets.path(), Compute::F32);
    let search = [targets.path().to_owned(), root().join("targets")];
    let target = spec::load(&search, &format!("h200/{name}/f32")).unwrap_or_else(|error| panic!("{error}"));

    // Where scores are not divided by the root of the width, models norm queries that much smaller.
    let mut attends = target.model.layer_mixers().filter_map(|mixer| match mixer {
        Mixer::Attention(attention) => Some(attention),
        _ => None,
    });
    let undivided = attends.any(|it| it.scale == Some(1.0));
    let mut random = Random(name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte)));
    let value = |tensor: &FileTensor, random: &mut Random| {
        let one = |random: &mut Random| match tensor.model_name.rsplit('.').next() {
            Some("a_log") => 0.5 * random.next(),
            Some("dt_bias") => random.next() - 2.0,
            Some("bias" | "convolution_bias") => 0.1 * random.next(),
            Some("q_norm") if undivided => (1.0 + 0.1 * random.next()) / (tensor.shape[0] as f32).sqrt(),
            _ => match tensor.columns {
                Some(columns) => random.next() / (columns as f32).sqrt(),
                None => 1.0 + 0.1 * random.next(),
            },
        };
        (0..tensor.shape.iter().product()).flat_map(|_| one(random).to_le_bytes()).collect::<Vec<u8>>()
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = file_tensors(&target)
        .into_iter()
        .map(|tensor| (tensor.name.clone(), tensor.shape.clone(), value(&tensor, &mut random)))
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    let file = safetensors::tensor::serialize(views, None).expect("the tensors are sound");
    std::fs::write(directory.join("f32/model.safetensors"), file).expect("it is writable");
    golden
}

/// A model whose heads have the widths that the fast kernels need: chunks of a delta-net, attention on tensor
/// cores, experts. A row of its logits is sampled by several blocks.
///
/// # Panics
/// If the directory is not writable.
pub fn wide(directory: &Path) -> Golden {
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 4099).collect();
    synthetic(directory, "wide", &wide_config(), [1, 9, 70, 150, 200].map(prompt).to_vec())
}

/// [`wide`] for Mamba-2: heads of the widths that its fast kernels need, eight to a group.
///
/// # Panics
/// If the directory is not writable.
pub fn wide_mamba2(directory: &Path) -> Golden {
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 199).collect();
    synthetic(directory, "wide-mamba2", &mamba2_config("MM"), [1, 9, 70, 150, 200].map(prompt).to_vec())
}

/// The config of a Nemotron-H of Mamba-2 alone, with these layers.
fn mamba2_config(pattern: &str) -> serde_json::Value {
    serde_json::json!({
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 200, "hidden_size": 128,
        "hybrid_override_pattern": pattern, "num_hidden_layers": pattern.len(), "mamba_num_heads": 16, "mamba_head_dim": 64,
        "n_groups": 2, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128, "expand": 2,
        "mamba_hidden_act": "silu", "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "use_bias": false,
        "use_conv_bias": true, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 512, "dtype": "float32",
        "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "initializer_range": 0.02, "use_cache": true,
    })
}

/// [`wide_mamba2`] beside attention, and experts whose kernels stream them: without gates, of whole pairs of
/// tiles. `latent`: of a width of their own.
///
/// # Panics
/// If the directory is not writable.
pub fn wide_nemotron(directory: &Path, latent: bool) -> Golden {
    let mut config = mamba2_config("ME*E");
    let more = serde_json::json!({
        "attention_bias": false, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
        "mlp_hidden_act": "relu2", "mlp_bias": false, "n_routed_experts": 16, "num_experts_per_tok": 3,
        "n_shared_experts": 1, "moe_intermediate_size": 144, "moe_shared_expert_intermediate_size": 96,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "moe_latent_size": latent.then_some(64), "sliding_window": null,
    });
    for (key, value) in more.as_object().expect("keys") {
        config[key] = value.clone();
    }
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 199).collect();
    let name = if latent { "wide-nemotron-latent" } else { "wide-nemotron" };
    synthetic(directory, name, &config, [1, 9, 70].map(prompt).to_vec())
}

/// A Gemma 4 with the widths of heads that its releases have, experts that are streamed, and a window that a
/// prompt outgrows.
///
/// # Panics
/// If the directory is not writable.
pub fn wide_gemma4(directory: &Path) -> Golden {
    let config = serde_json::json!({
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": 200,
        "vocab_size_per_layer_input": 200, "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 256, "num_global_key_value_heads": 1, "global_head_dim": 512,
        "attention_k_eq_v": true, "attention_bias": false, "attention_dropout": 0.0, "enable_moe_block": true,
        "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 128, "final_logit_softcapping": 8.0,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention":
                { "partial_rotary_factor": 0.25, "rope_theta": 1000.0, "rope_type": "proportional" },
            "sliding_attention": { "rope_theta": 100.0, "rope_type": "default" },
        },
        "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "tie_word_embeddings": true, "dtype": "float32",
        "use_bidirectional_attention": "vision", "use_double_wide_mlp": false, "use_cache": true,
        "initializer_range": 0.02, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    });
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 199).collect();
    synthetic(directory, "wide-gemma4", &config, [1, 9, 70, 150].map(prompt).to_vec())
}

/// Mistral Small 4 with the widths that its kernels need: on warpgroups latents of 256 whose rows in the
/// cache are whole panels of 64. Every expert is chosen, so that rounding moves no row far.
///
/// # Panics
/// If the directory is not writable.
pub fn wide_mistral(directory: &Path) -> Golden {
    let mut config = serde_json::json!({
        "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "vocab_size": 200, "hidden_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 80,
        "q_lora_rank": 48, "kv_lora_rank": 256, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64, "v_head_dim": 40,
        "hidden_act": "silu", "intermediate_size": 40, "moe_intermediate_size": 96, "n_routed_experts": 4,
        "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.0, "first_k_dense_replace": 0, "attention_bias": false,
        "attention_dropout": 0.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "dtype": "float32",
        "rope_interleave": true, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 11, "initializer_range": 0.02, "use_cache": true,
    });
    config["rope_parameters"] = serde_json::json!({
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 0.8,
    });
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 199).collect();
    synthetic(directory, "wide-mistral", &config, [1, 9, 70, 200].map(prompt).to_vec())
}

/// [`wide`] with more layers, fewer experts, sizes that two and four ranks can share and a long context.
///
/// # Panics
/// If the directory is not writable.
pub fn shared(directory: &Path) -> Golden {
    let mut config = wide_config();
    for (key, value) in [
        ("vocab_size", 4128),
        ("num_hidden_layers", 4),
        ("num_key_value_heads", 2),
        ("max_position_embeddings", 4096),
        ("linear_num_key_heads", 4),
        ("linear_num_value_heads", 8),
        ("num_experts", 8),
    ] {
        config[key] = value.into();
    }
    synthetic(directory, "shared", &config, Vec::new())
}

/// [`shared`] with as few heads, experts and ids as an emulated card runs quickly.
///
/// # Panics
/// If the directory is not writable.
pub fn shared_slim(directory: &Path) -> Golden {
    let mut config = wide_config();
    for (key, value) in [
        ("vocab_size", 200),
        ("hidden_size", 128),
        ("num_attention_heads", 2),
        ("num_key_value_heads", 2),
        ("head_dim", 64),
        ("max_position_embeddings", 512),
        ("linear_num_value_heads", 2),
        ("num_experts_per_tok", 2),
        ("num_experts", 8),
    ] {
        config[key] = value.into();
    }
    synthetic(directory, "shared-slim", &config, Vec::new())
}

/// [`wide`] with as few heads, experts and ids as possible, so that an emulated card runs it quickly.
///
/// # Panics
/// If the directory is not writable.
pub fn slim(directory: &Path) -> Golden {
    synthetic(directory, "slim", &slim_config(), Vec::new())
}

/// [`slim`] with prompts: a hybrid with a mixture whose rows fill blocks of 16.
///
/// # Panics
/// If the directory is not writable.
pub fn slim_with_prompts(directory: &Path) -> Golden {
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + i * i % 11 + length) % 199).collect();
    synthetic(directory, "slim-prompts", &slim_config(), [1, 9, 40].map(prompt).to_vec())
}

/// [`slim`] with three prompts of six blocks of 16 each, which a step takes together, in a context of 16
/// blocks.
///
/// # Panics
/// If the directory is not writable.
pub fn slim_with_a_crowd(directory: &Path) -> Golden {
    let prompt = |start: u32| (0..82).map(|i| (i * 37 + i * i % 11 + start) % 199).collect();
    synthetic(directory, "slim-crowd", &slim_config(), [3, 71, 140].map(prompt).to_vec())
}

/// A dense model of several blocks of 128 each way, with partial last blocks, and rows of whole blocks of 32.
///
/// # Panics
/// If the directory is not writable.
pub fn blocks(directory: &Path) -> Golden {
    let config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 211, "hidden_size": 288, "intermediate_size": 416, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
    });
    synthetic(directory, "blocks", &config, vec![(0..24).map(|i| i * 37 % 211).collect()])
}

/// A dense model whose rows are whole blocks of 256.
///
/// # Panics
/// If the directory is not writable.
pub fn whole_blocks(directory: &Path) -> Golden {
    let config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 211, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
    });
    let prompt = |length: u32| (0..length).map(|i| (i * 37 + length) % 211).collect();
    synthetic(directory, "whole-blocks", &config, [1, 24].map(prompt).to_vec())
}

fn slim_config() -> serde_json::Value {
    let mut config = wide_config();
    for (key, value) in [
        ("vocab_size", 200),
        ("hidden_size", 128),
        ("num_attention_heads", 2),
        ("head_dim", 64),
        ("max_position_embeddings", 256),
        ("linear_num_key_heads", 1),
        ("linear_num_value_heads", 2),
        ("num_experts_per_tok", 2),
        ("num_experts", 8),
    ] {
        config[key] = value.into();
    }
    config
}

fn wide_config() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 4100, "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "rope_theta": 10_000_000, "rope_scaling": null, "partial_rotary_factor": 0.25,
        "attention_bias": false, "full_attention_interval": 2, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128, "num_experts_per_tok": 4, "num_experts": 16, "norm_topk_prob": true,
        "router_aux_loss_coef": 0.001, "bos_token_id": 1, "eos_token_id": 2, "use_sliding_window": false,
    })
}
