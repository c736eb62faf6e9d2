//! What a config says, in terms of MODEL.toml.

use super::gguf::names::Architecture;
use super::quantization::Quantization;
use crate::blocks::vision::import::Tower;
use crate::spec::types::{Around, Ffn, Mixer, Norm};

/// Names of the mixers in patterns.
pub(super) const FULL: &str = "attention";
pub(super) const LINEAR: &str = "delta";

/// Name of dense blocks in patterns.
pub(super) const DENSE: &str = "dense";

/// The contents of a config, in terms of MODEL.toml.
pub(super) struct Draft {
    pub(super) family: &'static str,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) tied: bool,
    pub(super) norm: Norm,
    pub(super) around: Around,
    /// Kinds of layers, repeated over all of them.
    pub(super) pattern: Vec<Layer>,
    /// The family's mixers, by their names in patterns.
    pub(super) mixers: Vec<(&'static str, Mixer)>,
    pub(super) ffn: Ffn,
    /// Blocks that some layers have instead, by their names in patterns.
    pub(super) others: Vec<(&'static str, Ffn)>,
    /// The draft head: at first what the config says of it, later whether there is one.
    pub(super) head: DraftHead,
    pub(super) stop_ids: Vec<u64>,
    pub(super) naming: Naming,
    /// Of a GGUF file: its architecture, which has other names for tensors.
    pub(super) gguf: Option<&'static Architecture>,
    /// Which tensors are codes, if the config says so.
    pub(super) quantization: Option<Quantization>,
    /// The vision tower of a multimodal config, or why it is left out.
    pub(super) tower: Option<Result<Tower, Vec<String>>>,
    /// Keys whose absence means transformers' default.
    pub(super) defaulted: Vec<String>,
    /// Sentences for readers of the draft.
    pub(super) notes: Vec<String>,
}

/// Tensor names in a family's checkpoints.
pub(super) struct Naming {
    /// Prefix of all names but the head's.
    pub(super) prefix: &'static str,
    /// Names after that prefix, or after a layer's: the embedding, the final norm, and the norms before a
    /// mixer and before the block after it.
    pub(super) embedding: &'static str,
    pub(super) norm: &'static str,
    /// The head's name, which has no prefix.
    pub(super) head: &'static str,
    pub(super) mixer_norm: &'static str,
    pub(super) ffn_norm: &'static str,
    /// Names of the modules of a layer.
    pub(super) modules: Modules,
    /// The draft head's layers, and its tensors.
    pub(super) draft: DraftNames,
    /// How the projections of delta-nets stand in tensors.
    pub(super) projections: Projections,
    /// Whether unquantised experts are stacked.
    pub(super) stacked: Stacked,
    /// Tensors of towers besides the text part, as `unused` names them.
    pub(super) towers: &'static [&'static str],
}

/// The draft head of a family: its layers, and the names of its tensors.
#[derive(Clone, Copy)]
pub(super) struct DraftNames {
    pub(super) layers: &'static [Layer],
    /// The product of embedding and hidden state, side by side, and their norms.
    pub(super) fc: &'static str,
    pub(super) embedding_norm: &'static str,
    pub(super) hidden_norm: &'static str,
    /// The norm before the head.
    pub(super) norm: &'static str,
    /// What is in front of the names of the layer that attends, and of that with the block after it.
    pub(super) mixer: &'static str,
    pub(super) ffn: &'static str,
}

impl DraftNames {
    /// Those of most families: one layer that attends.
    pub(super) const USUAL: DraftNames = DraftNames {
        layers: &[Layer { mixer: FULL, ffn: None }],
        fc: "mtp.fc.weight",
        embedding_norm: "mtp.pre_fc_norm_embedding.weight",
        hidden_norm: "mtp.pre_fc_norm_hidden.weight",
        norm: "mtp.norm.weight",
        mixer: "mtp.layers.0.",
        ffn: "mtp.layers.0.",
    };
}

/// Names of the modules of a layer in a family's checkpoints.
#[derive(Clone, Copy)]
pub(crate) struct Modules {
    /// The module of attention's projections.
    pub(crate) attention: &'static str,
    /// The module of a dense block's projections.
    pub(crate) dense: &'static str,
    /// Gate, up and down of a dense block, and of an expert with a tensor for each.
    pub(crate) parts: [&'static str; 3],
    /// Those of a mixture.
    pub(crate) experts: ExpertNames,
    /// Those of attention over latents.
    pub(crate) latent: LatentNames,
}

impl Modules {
    /// Names of most families.
    pub(crate) const USUAL: Modules = Modules {
        attention: "self_attn",
        dense: "mlp",
        parts: ["gate_proj", "up_proj", "down_proj"],
        experts: ExpertNames::USUAL,
        latent: LatentNames::USUAL,
    };

    /// The name of a block's `gate`, `up` or `down`.
    pub(crate) fn part(&self, part: &str) -> Option<&'static str> {
        let at = ["gate", "up", "down"].iter().position(|it| *it == part)?;
        Some(self.parts[at])
    }
}

/// Names of the tensors of attention over latents, in its module.
#[derive(Clone, Copy)]
pub(crate) struct LatentNames {
    /// The latent of queries, its norm, and queries of it.
    pub(crate) q_a: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) q_b: &'static str,
    /// Queries that are made directly.
    pub(crate) q: &'static str,
    /// The latent of keys and values beside the key that rotates, its norm, and keys and values of it.
    pub(crate) kv_a: &'static str,
    pub(crate) kv_norm: &'static str,
    pub(crate) kv: &'static str,
    pub(crate) o: &'static str,
}

impl LatentNames {
    /// Names of most families.
    pub(crate) const USUAL: LatentNames = LatentNames {
        q_a: "q_a_proj",
        q_norm: "q_a_layernorm",
        q_b: "q_b_proj",
        q: "q_proj",
        kv_a: "kv_a_proj_with_mqa",
        kv_norm: "kv_a_layernorm",
        kv: "kv_b_proj",
        o: "o_proj",
    };
}

/// Names of a mixture's tensors in a family's checkpoints.
#[derive(Clone, Copy)]
pub(crate) struct ExpertNames {
    /// The router's module.
    pub(crate) router: &'static str,
    /// The norm through which it reads the residual stream, and the scales of experts.
    pub(crate) router_norm: &'static str,
    pub(crate) scales: &'static str,
    /// What is in front of `gate_up_proj` and `down_proj` of stacked experts.
    pub(crate) stacked: &'static str,
    /// What is in front of the numbers of experts with a tensor for each matrix.
    pub(crate) apart: &'static str,
    /// What is added to scores to choose by.
    pub(crate) correction: &'static str,
    /// The shared expert's module.
    pub(crate) shared: &'static str,
    /// The projections before and behind experts of another width.
    pub(crate) latent: [&'static str; 2],
    /// The norms before the chosen experts, behind them, and behind the shared one.
    pub(crate) norms: [&'static str; 3],
}

impl ExpertNames {
    /// Names of most families.
    pub(crate) const USUAL: ExpertNames = ExpertNames {
        router: "mlp.gate",
        // Only one family has these, and the norms below.
        router_norm: "router.scale",
        scales: "router.per_expert_scale",
        stacked: "mlp.experts",
        apart: "mlp.experts",
        correction: "mlp.gate.e_score_correction_bias",
        shared: "mlp.shared_expert",
        latent: ["mlp.fc1_latent_proj", "mlp.fc2_latent_proj"],
        norms: [
            "pre_feedforward_layernorm_2.weight",
            "post_feedforward_layernorm_2.weight",
            "post_feedforward_layernorm_1.weight",
        ],
    };
}

/// The tensors of a delta-net's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projections {
    /// One of q, k and v, one below the other; z, b and a have one each.
    Apart,
    /// Two, with rows grouped by key heads: of q, k, v and z, and of b and a.
    Grouped,
    /// As [`Projections::Apart`], but b and a as in [`Projections::Grouped`].
    GroupedGates,
}

/// How a family's unquantised checkpoints store the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacked {
    /// As a tensor for each matrix.
    No,
    /// As two tensors, the experts one below the other.
    Yes,
    /// As two tensors of transposed matrices, `[experts, inputs, outputs]`, which no loader reads.
    Transposed,
}

/// State of knowledge about a draft head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftHead {
    /// The family has none.
    Never,
    /// There is none, or none of a known kind.
    Absent,
    /// The config does not say.
    Unsaid,
    /// There is one.
    Present,
}

/// A layer: its mixer's name in patterns, and that of the block after it if it has another than the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) mixer: &'static str,
    pub(crate) ffn: Option<&'static str>,
}

impl Layer {
    /// The layer's name in the pattern of MODEL.toml.
    pub(super) fn name(self) -> String {
        match self.ffn {
            Some(ffn) => format!("{}/{ffn}", self.mixer),
            None => self.mixer.to_owned(),
        }
    }

    /// The shortest pattern that repeats evenly over all layers; `None` if there are none.
    pub(super) fn pattern(layers: &[Layer]) -> Option<Vec<Layer>> {
        let repeats = |period: &usize| {
            layers.len().is_multiple_of(*period)
                && layers.iter().zip(layers.iter().cycle().skip(*period)).all(|(a, b)| a == b)
        };
        let period = (1..=layers.len()).find(repeats)?;
        Some(layers[..period].to_vec())
    }
}
