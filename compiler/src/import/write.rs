//! A draft as TOML that people like to read.

use super::Imported;
use super::family::Draft;
use crate::spec::types::{Activation, Compute, RotaryScaling};
use std::fmt::Write;

/// Writes MODEL.toml and the quant specs of a safetensors checkpoint.
pub(super) fn write(draft: &Draft, name: &str, bf16: Compute) -> Imported {
    let quants = [("f32", Compute::F32), ("bf16", bf16)]
        .map(|(format, compute)| (format!("{format}.toml"), quant(draft, name, format, compute)));
    Imported { model_toml: model(draft, name), quants: quants.into() }
}

fn model(draft: &Draft, name: &str) -> String {
    let Draft { family, hidden, layers, vocabulary, context, tied, eps, .. } = draft;
    let Draft { heads, kv_heads, head_dim, width, stop_ids, .. } = draft;
    let mut comment = format!("# {name}: imported from a Hugging Face config.json of the {family} family.\n");
    if !draft.defaulted.is_empty() {
        let keys = draft.defaulted.join(", ");
        comment += &format!("# Not in the config, so as transformers has it: {keys}.\n");
    }
    for note in &draft.notes {
        comment += &format!("# {note}\n");
    }
    let norm = format!("{{ kind = \"rms\", weight = \"plain\", eps = {eps:?} }}");
    let mut attention = String::new();
    if draft.qk_norm {
        attention += &format!("qk_norm = {norm} # over every head\n");
    }
    if draft.attention_bias {
        attention += "qkv_bias = true\noutput_bias = true\n";
    }
    let rotary = rotary(draft);
    let activation = activation(draft.activation);
    let ffn_bias = if draft.ffn_bias { "bias = true\n" } else { "" };
    format!(
        "\
{comment}
[model]
hidden = {hidden}
layers = {layers}
vocabulary = {vocabulary}
context = {context}
tied = {tied} # whether the head is the embedding
norm = {norm}
pattern = [\"attention\"] # in every layer

[mixer.attention]
kind = \"attention\"
heads = {heads}
kv_heads = {kv_heads}
head_dim = {head_dim}
{attention}
{rotary}
[ffn]
kind = \"gated\"
width = {width}
activation = \"{activation}\"
{ffn_bias}
# The chat template is the checkpoint's own.
[protocol]
stop_ids = {stop_ids:?}

# A config.json recommends nothing: put the makers' parameters here.
[[sampling]]
name = \"default\"
temperature = 1.0
"
    )
}

fn rotary(draft: &Draft) -> String {
    let rotary = &draft.rotary;
    let mut text = format!(
        "[mixer.attention.rotary]\ndims = {}\ntheta = {:?}\npairs = \"halves\"\n",
        rotary.dims, rotary.theta
    );
    let scaling = match rotary.scaling {
        RotaryScaling::None => return text,
        RotaryScaling::Linear { factor } => format!("kind = \"linear\"\nfactor = {factor:?}\n"),
        RotaryScaling::Llama3 { factor, low, high, original } => format!(
            "kind = \"llama3\"\nfactor = {factor:?}\nlow = {low:?}\nhigh = {high:?}\noriginal = {original:?}\n"
        ),
        RotaryScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate } => {
            format!(
                "kind = \"yarn\"\nfactor = {factor:?}\noriginal = {original:?}\nbeta_fast = {beta_fast:?}\n\
             beta_slow = {beta_slow:?}\nattention_factor = {attention_factor:?}\ntruncate = {truncate}\n"
            )
        }
    };
    text += "\n[mixer.attention.rotary.scaling]\n";
    text + &scaling
}

fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu-tanh",
        Activation::Relu => "relu",
    }
}

fn quant(draft: &Draft, name: &str, format: &str, compute: Compute) -> String {
    let mut names = String::new();
    let mut add = |model: &str, file: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(names, "{model:?} = {file:?}");
    };
    add("embedding", "model.embed_tokens.weight");
    add("layers.{layer}.mixer.norm", "model.layers.{layer}.input_layernorm.weight");
    for part in ["q", "k", "v", "o"] {
        let file = format!("model.layers.{{layer}}.self_attn.{part}_proj");
        add(&format!("layers.{{layer}}.attention.{part}"), &format!("{file}.weight"));
        if draft.attention_bias {
            add(&format!("layers.{{layer}}.attention.{part}.bias"), &format!("{file}.bias"));
        }
    }
    if draft.qk_norm {
        for part in ["q_norm", "k_norm"] {
            let file = format!("model.layers.{{layer}}.self_attn.{part}.weight");
            add(&format!("layers.{{layer}}.attention.{part}"), &file);
        }
    }
    add("layers.{layer}.ffn.norm", "model.layers.{layer}.post_attention_layernorm.weight");
    for part in ["gate", "up", "down"] {
        let file = format!("model.layers.{{layer}}.mlp.{part}_proj");
        add(&format!("layers.{{layer}}.ffn.{part}"), &format!("{file}.weight"));
        if draft.ffn_bias {
            add(&format!("layers.{{layer}}.ffn.{part}.bias"), &format!("{file}.bias"));
        }
    }
    add("norm", "model.norm.weight");
    let mut unused = vec!["model.layers.{layer}.self_attn.rotary_emb.inv_freq"];
    let mut head = String::new();
    if draft.tied {
        unused.push("lm_head.weight");
    } else {
        add("head", "lm_head.weight");
        head = format!("head = {format:?}\n");
    }
    let kv = if compute == Compute::Bf16 { "bf16" } else { "f32" };
    let mut computes = String::new();
    if compute != Compute::F32 {
        let classes = ["embedding", "attention", "ffn", "head"];
        let lines = classes[..if draft.tied { 3 } else { 4 }].iter();
        let lines: String = lines.map(|class| format!("{class} = {:?}\n", compute.name())).collect();
        computes = format!("\n# What both operands of a product are rounded to.\n[compute]\n{lines}");
    }
    let unused: String = unused.iter().map(|name| format!("    {name:?},\n")).collect();
    format!(
        "\
# {name} as a safetensors checkpoint stored in {format}; products in {compute}, keys and values in {kv}.

[checkpoint]
container = \"safetensors\"
rotary_rows = \"as-model\"
# What older checkpoints also hold; nothing reads it.
unused = [
{unused}]

[checkpoint.names]
{names}
[stored]
embedding = {format:?}
attention = {format:?}
ffn = {format:?}
{head}norm = {format:?} # and biases
{computes}
[kv]
format = \"{kv}\"
block = 16
",
        compute = compute.name()
    )
}
