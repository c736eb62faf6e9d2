//! Metadata read key by key: as [`super::super::keys::Keys`] reads a config.

use monomorph_weights::{Metadata, MetadataType, WeightsError};
use std::collections::BTreeSet;

/// More blocks than any model has.
const MOST_BLOCKS: usize = 1 << 14;

/// Counts of every architecture with a key in configs, and below the architecture's name.
pub(super) const COUNTS: [(&str, &str); 3] = [
    ("hidden_size", "embedding_length"),
    ("max_position_embeddings", "context_length"),
    ("num_attention_heads", "attention.head_count"),
];

/// Those of delta-nets and those of Mamba-2.
pub(super) const OF_DELTA_NETS: [(&str, &str); 3] = [
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_key_head_dim", "ssm.state_size"),
    ("linear_conv_kernel_dim", "ssm.conv_kernel"),
];
pub(super) const OF_MAMBA: [(&str, &str); 4] = [
    ("mamba_num_heads", "ssm.time_step_rank"),
    ("n_groups", "ssm.group_count"),
    ("ssm_state_size", "ssm.state_size"),
    ("conv_kernel", "ssm.conv_kernel"),
];

/// Those of the mixtures of Nemotron-H.
pub(super) const OF_MIXTURES: [(&str, &str); 4] = [
    ("n_routed_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
];

/// Other keys of configs that problems may be about.
const OTHERS: [(&str, &str); 25] = [
    ("num_hidden_layers", "block_count"),
    ("intermediate_size", "feed_forward_length"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("rope_scaling.original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("full_attention_interval", "full_attention_interval"),
    ("layer_types", "attention.recurrent_layers"),
    ("mtp_num_hidden_layers", "nextn_predict_layers"),
    ("num_nextn_predict_layers", "nextn_predict_layers"),
    ("num_global_key_value_heads", "attention.head_count_kv"),
    ("sliding_window", "attention.sliding_window"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("top_k_experts", "expert_used_count"),
    ("mamba_head_dim", "ssm.inner_size"),
    ("moe_latent_size", "moe_latent_size"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
];

/// A problem of a config, by the names that metadata has for its keys.
pub(super) fn own_words(problem: &str, architecture: &str) -> String {
    let keys = COUNTS.iter().chain(&OF_DELTA_NETS).chain(&OF_MAMBA).chain(&OF_MIXTURES).chain(&OTHERS);
    keys.fold(problem.to_owned(), |problem, (theirs, own)| {
        problem.replace(&format!("`{theirs}`"), &format!("`{architecture}.{own}`"))
    })
}

/// The keys below an architecture's name, and those read so far.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    asked: BTreeSet<String>,
    problems: Vec<String>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, architecture: &'a str) -> Keys<'a> {
        Keys { metadata, architecture, asked: BTreeSet::new(), problems: Vec::new() }
    }

    /// The full name of a key.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn refuse(&mut self, problem: String) {
        self.problems.push(problem);
    }

    fn read<T>(
        &mut self,
        key: &str,
        get: impl Fn(&'a Metadata, &str) -> Result<Option<T>, WeightsError>,
    ) -> Option<T> {
        let path = self.path(key);
        let read = get(self.metadata, &path);
        self.asked.insert(path);
        read.unwrap_or_else(|error| {
            self.problems.push(error.to_string());
            None
        })
    }

    /// A whole number, if it is there.
    pub(super) fn optional(&mut self, key: &str) -> Option<usize> {
        self.read(key, Metadata::u32).map(|count| count as usize)
    }

    /// A whole number that must be there; 0 where it is not, which is then a problem.
    pub(super) fn count(&mut self, key: &str) -> usize {
        let before = self.problems.len();
        let count = self.optional(key);
        self.required(key, count, before).unwrap_or(0)
    }

    /// A number, or the default.
    pub(super) fn number(&mut self, key: &str, default: Option<f64>) -> f64 {
        let before = self.problems.len();
        let number = self.optional_number(key).or(default);
        self.required(key, number, before).unwrap_or(0.0)
    }

    /// A number, if it is there.
    pub(super) fn optional_number(&mut self, key: &str) -> Option<f64> {
        // As it was written before it became an f32.
        self.read(key, Metadata::f32).and_then(|number| number.to_string().parse().ok())
    }

    /// A whole number of every one of so many blocks, where one may stand for all; zeros where it is not
    /// there or of other blocks, which is then a problem.
    pub(super) fn each(&mut self, key: &str, blocks: usize) -> Vec<usize> {
        let path = self.path(key);
        // A file of a few bytes may say any number.
        if blocks > MOST_BLOCKS {
            let count = self.path("block_count");
            self.refuse(format!("metadata `{count}` is {blocks}: at most {MOST_BLOCKS} are known"));
            return Vec::new();
        }
        if self.metadata.kind(&path) != Some(MetadataType::Array) {
            return vec![self.count(key); blocks];
        }
        let numbers = self.read(key, Metadata::u32s).unwrap_or_default();
        if numbers.len() != blocks {
            let found = numbers.len();
            self.refuse(format!(
                "metadata `{path}` has {found} numbers: one for each of {blocks} blocks is known"
            ));
            return vec![0; blocks];
        }
        numbers.into_iter().map(|number| number as usize).collect()
    }

    /// The ids of tokens with these texts, of those that there are.
    pub(super) fn ids_of(&mut self, texts: &[&str]) -> Vec<u32> {
        match self.metadata.strs("tokenizer.ggml.tokens") {
            Ok(tokens) => (0..)
                .zip(tokens.unwrap_or_default())
                .filter(|(_, it)| texts.contains(it))
                .map(|it| it.0)
                .collect(),
            Err(error) => {
                self.refuse(error.to_string());
                Vec::new()
            }
        }
    }

    fn required<T>(&mut self, key: &str, value: Option<T>, before: usize) -> Option<T> {
        if value.is_none() && self.problems.len() == before {
            let problem = format!("metadata `{}` is missing", self.path(key));
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        value
    }

    /// A string, if it is there.
    pub(super) fn word(&mut self, key: &str) -> Option<String> {
        self.read(key, |metadata, path| Ok(metadata.str(path)?.map(str::to_owned)))
    }

    /// Truth values, if they are there.
    pub(super) fn flags(&mut self, key: &str) -> Option<Vec<bool>> {
        self.read(key, Metadata::bools)
    }

    /// A truth value that, where it is there, is true.
    pub(super) fn only_true(&mut self, key: &str, why: &str) {
        if self.read(key, Metadata::bool) == Some(false) {
            let problem = format!("metadata `{}` is false: {why}", self.path(key));
            self.problems.push(problem);
        }
    }

    /// A key that, where it is there, has one value only.
    pub(super) fn only(&mut self, key: &str, value: usize, why: &str) {
        if let Some(found) = self.optional(key).filter(|found| *found != value) {
            let problem = format!("metadata `{}` is {found}: {value}, {why}", self.path(key));
            self.problems.push(problem);
        }
    }

    /// Marks a key as known: what it says does not matter.
    pub(super) fn harmless(&mut self, key: &str) {
        self.asked.insert(self.path(key));
    }

    /// Ids that end an answer, by what they are called among the tokenizer's.
    pub(super) fn stop_ids(&mut self) -> Vec<u32> {
        let mut ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            match self.metadata.u32(&format!("tokenizer.ggml.{key}")) {
                Ok(id) => ids.extend(id),
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        ids
    }

    /// Reports every key below the architecture's name that was never read, and every problem.
    pub(super) fn finish(mut self) -> Vec<String> {
        let below = format!("{}.", self.architecture);
        let mut unknown: Vec<&str> = self.metadata.keys().filter(|key| key.starts_with(&below)).collect();
        unknown.retain(|key| !self.asked.contains(*key) && *key != format!("{below}rope.scaling.finetuned"));
        unknown.sort_unstable();
        let of = self.architecture;
        let unknown =
            unknown.iter().map(|key| format!("metadata `{key}` is not known of the {of} architecture"));
        self.problems.extend(unknown);
        self.problems
    }
}
