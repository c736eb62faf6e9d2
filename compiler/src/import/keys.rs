//! Reads a JSON object key by key. A missing key gets the family's default, a bad value becomes a problem,
//! and a key that was never read is unknown.

use serde_json::{Map, Value};

/// Keys that do not affect the computation: provenance, training, generation and tokenizer settings.
pub(crate) const HARMLESS: [&str; 32] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "dtype",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "use_bfloat16",
    "use_cache",
];

/// Problems and assumptions collected while a config is read.
#[derive(Default)]
pub(crate) struct Findings {
    /// Reasons to refuse.
    pub(crate) problems: Vec<String>,
    /// Absent keys, for which transformers' defaults are used.
    pub(crate) defaulted: Vec<String>,
    /// Sentences for readers of the draft.
    pub(crate) notes: Vec<String>,
}

/// An object, and the keys read so far.
pub(crate) struct Keys<'a> {
    map: &'a Map<String, Value>,
    /// Prefix of keys in messages: empty, or for example `rope_parameters.`.
    prefix: String,
    asked: Vec<String>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>, prefix: &str) -> Keys<'a> {
        Keys { map, prefix: prefix.to_owned(), asked: Vec::new() }
    }

    /// The full name of a key.
    pub(crate) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value, `null` included; marks the key as known.
    pub(crate) fn get(&mut self, key: &str) -> Option<&'a Value> {
        self.asked.push(key.to_owned());
        self.map.get(key)
    }

    /// The value unless absent or `null`; marks the key as known.
    pub(crate) fn given(&mut self, key: &str) -> Option<&'a Value> {
        self.get(key).filter(|value| !value.is_null())
    }

    /// A whole number of at least 1, or the default when absent.
    pub(crate) fn count(&mut self, found: &mut Findings, key: &str, default: usize) -> Option<usize> {
        let Some(value) = self.get(key) else {
            found.defaulted.push(self.path(key));
            return Some(default);
        };
        self.as_count(found, key, value)
    }

    /// A whole number of at least 1; `None` inside when absent or `null`.
    pub(crate) fn count_or_null(&mut self, found: &mut Findings, key: &str) -> Option<Option<usize>> {
        match self.given(key) {
            Some(value) => self.as_count(found, key, value).map(Some),
            None => Some(None),
        }
    }

    fn as_count(&self, found: &mut Findings, key: &str, value: &Value) -> Option<usize> {
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        if count.is_none() {
            found
                .problems
                .push(format!("`{}` is {value}: a whole number of at least 1 is wanted", self.path(key)));
        }
        count
    }

    /// A number above 0; `None` inside when absent or `null`.
    pub(crate) fn number_or_null(&mut self, found: &mut Findings, key: &str) -> Option<Option<f64>> {
        let Some(value) = self.given(key) else { return Some(None) };
        let number = value.as_f64().filter(|number| *number > 0.0);
        if number.is_none() {
            found.problems.push(format!("`{}` is {value}: a number above 0 is wanted", self.path(key)));
        }
        number.map(Some)
    }

    /// A number above 0; the inner `None` means absent, `null` or zero.
    pub(crate) fn number_or_zero(&mut self, found: &mut Findings, key: &str) -> Option<Option<f64>> {
        match self.given(key).and_then(Value::as_f64) {
            Some(0.0) => Some(None),
            _ => self.number_or_null(found, key),
        }
    }

    /// A number above 0, or the default when absent.
    pub(crate) fn number(&mut self, found: &mut Findings, key: &str, default: f64) -> Option<f64> {
        if !self.map.contains_key(key) {
            self.asked.push(key.to_owned());
            found.defaulted.push(self.path(key));
            return Some(default);
        }
        self.required_number(found, key)
    }

    /// A number above 0 that must be there.
    pub(crate) fn required_number(&mut self, found: &mut Findings, key: &str) -> Option<f64> {
        let number = self.number_or_null(found, key)?;
        if number.is_none() {
            found.problems.push(format!("`{}` is missing: a number above 0 is wanted", self.path(key)));
        }
        number
    }

    /// `true` or `false`, or the default when absent.
    pub(crate) fn flag(&mut self, found: &mut Findings, key: &str, default: bool) -> Option<bool> {
        let Some(value) = self.get(key) else { return Some(default) };
        let flag = value.as_bool();
        if flag.is_none() {
            found.problems.push(format!("`{}` is {value}: `true` or `false` is wanted", self.path(key)));
        }
        flag
    }

    /// A key that may have one of these values only; any other means an unknown model.
    pub(crate) fn only(&mut self, found: &mut Findings, key: &str, allowed: &[Value], why: &str) {
        if let Some(value) = self.get(key)
            && !allowed.contains(value)
        {
            found.problems.push(format!("`{}` = {value}: {why}", self.path(key)));
        }
    }

    /// Marks keys as known and ignored.
    pub(crate) fn harmless(&mut self, keys: &[&str]) {
        self.asked.extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Reports every key that was never read.
    pub(crate) fn finish(self, found: &mut Findings, of: &str) {
        for (key, value) in self.map {
            if !self.asked.iter().any(|asked| asked == key) {
                let mut shown = value.to_string();
                if shown.chars().count() > 60 {
                    shown = shown.chars().take(57).chain("...".chars()).collect();
                }
                found.problems.push(format!("`{}` = {shown}: not a known key of {of}", self.path(key)));
            }
        }
    }
}
