//! A draft as a MODEL.toml that people like to read.

use super::family::{Draft, DraftHead};
use super::layers::Kind;
use crate::spec::types::{Activation, DeltaNet, Ffn, Norm, NormWeight, RotaryScaling};

/// Writes MODEL.toml.
pub(super) fn write(draft: &Draft, name: &str) -> String {
    let Draft { family, hidden, layers, vocabulary, context, tied, stop_ids, .. } = draft;
    let mut comment = format!("# {name}: imported from a Hugging Face config.json of the {family} family.\n");
    if !draft.defaulted.is_empty() {
        let keys = draft.defaulted.join(", ");
        comment += &format!("# Not in the config, so as transformers has it: {keys}.\n");
    }
    for note in &draft.notes {
        comment += &format!("# {note}\n");
    }
    let pattern =
        draft.pattern.iter().map(|layer| format!("{:?}", layer.name())).collect::<Vec<_>>().join(", ");
    let repeats = if draft.pattern.len() == 1 { " # in every layer" } else { "" };
    let norm = norm(draft.norm);
    let has = |kind| draft.pattern.iter().any(|layer| layer.kind == kind);
    let drafts = draft.head == DraftHead::Present;
    let attention = if has(Kind::Attention) || drafts { attention(draft) } else { String::new() };
    let delta = draft.delta.as_ref().filter(|_| has(Kind::DeltaNet)).map_or(String::new(), delta);
    let dense = |block| {
        format!("\n# What follows the mixer in layers that say so.\n[other_ffn.dense]\n{}", ffn(block))
    };
    let head = if drafts { "\n[draft.mtp]\nlayer = \"attention\" # what its one layer is\n" } else { "" };
    let (ffn, dense) = (ffn(&draft.ffn), draft.dense.as_ref().map_or(String::new(), dense));
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
pattern = [{pattern}]{repeats}
{delta}{attention}
[ffn]
{ffn}{dense}{head}
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

fn norm(norm: Norm) -> String {
    let weight = match norm.weight {
        NormWeight::Plain => "plain",
        NormWeight::OnePlus => "one-plus",
    };
    format!("{{ kind = \"rms\", weight = {weight:?}, eps = {:?} }}", norm.eps)
}

fn attention(draft: &Draft) -> String {
    let it = &draft.attention;
    let mut text = format!(
        "\n[mixer.attention]\nkind = \"attention\"\nheads = {}\nkv_heads = {}\nhead_dim = {}\n",
        it.heads, it.kv_heads, it.head_dim
    );
    if let Some(qk_norm) = it.qk_norm {
        text += &format!("qk_norm = {} # over every head\n", norm(qk_norm));
    }
    if it.qkv_bias {
        text += "qkv_bias = true\n";
    }
    if it.output_bias {
        text += "output_bias = true\n";
    }
    if it.gate {
        text += "gate = \"sigmoid\"\n";
    }
    text + "\n" + &rotary(draft)
}

fn delta(it: &DeltaNet) -> String {
    let (shape, norm, activation) = (it.shape, norm(it.norm), activation(it.activation));
    format!(
        "\n[mixer.delta]\nkind = \"gated-delta-net\"\nkey_heads = {}\nvalue_heads = {}\nkey_dim = {}\n\
         value_dim = {}\ntaps = {}\nnorm = {norm} # over every value head\nactivation = \"{activation}\"\n",
        shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.taps
    )
}

fn ffn(ffn: &Ffn) -> String {
    match ffn {
        Ffn::Gated { width, activation: act, bias } => {
            let bias = if *bias { "bias = true\n" } else { "" };
            format!("kind = \"gated\"\nwidth = {width}\nactivation = \"{}\"\n{bias}", activation(*act))
        }
        Ffn::Experts(it) => {
            let router = if it.renormalise { "softmax-top-k-renormalised" } else { "softmax-top-k" };
            let shared = it.shared.map_or(String::new(), |shared| {
                format!("shared = {{ width = {}, gate = \"sigmoid\" }}\n", shared.width)
            });
            format!(
                "kind = \"experts\"\nexperts = {}\nactive = {}\nwidth = {}\nactivation = \"{}\"\n\
                 router = \"{router}\"\n{shared}",
                it.experts,
                it.active,
                it.width,
                activation(it.activation)
            )
        }
    }
}

fn rotary(draft: &Draft) -> String {
    let rotary = &draft.attention.rotary;
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
