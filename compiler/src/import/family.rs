//! Reads the config of a known family: its keys, and the variants that are refused.

use super::ImportError;
use super::dimensions::{activation, all_stop_ids};
use super::draft::{
    DENSE, Draft, DraftHead, DraftNames, FULL, LINEAR, Modules, Naming, Projections, Stacked,
};
use super::families::{FAMILIES, Family, OWN, Reader, WRAPPERS};
use super::keys::{Findings, HARMLESS, Keys};
use super::layers;
use super::quantization;
use crate::blocks::attention::import as attention;
use crate::blocks::delta_net::import as delta_net;
use crate::blocks::experts::import as experts;
use crate::blocks::products::spec::Gated;
use crate::blocks::vision::import as vision;
use crate::spec::types::{Activation, Around, Ffn, Norm, NormWeight};
use serde_json::{Map, Value, json};

/// Reads the config of a known family, or of a multimodal wrapper around one.
pub(super) fn read(config: &Map<String, Value>) -> Result<Draft, ImportError> {
    let refuse = |problem: String| Err(ImportError { problems: vec![problem] });
    let names = FAMILIES.iter().map(|it| it.name).chain(WRAPPERS.iter().map(|it| it.name));
    let names = names.chain(OWN.iter().map(|(name, _)| *name));
    let known = names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let name = match config.get("model_type") {
        Some(Value::String(name)) => name.as_str(),
        other => {
            let shown = other.map_or("missing".to_owned(), Value::to_string);
            return refuse(format!("`model_type` is {shown}: it names the family; known are {known}"));
        }
    };
    let mut found = Findings::default();
    let wrapper = WRAPPERS.iter().find(|it| it.name == name);
    let text = wrapper.map_or(name, |wrapper| wrapper.text);
    let whole = |draft: Option<Draft>, found: Findings| match draft {
        Some(draft) if found.problems.is_empty() => {
            Ok(Draft { defaulted: found.defaulted, notes: found.notes, ..draft })
        }
        _ => Err(ImportError { problems: found.problems }),
    };
    let own = OWN.iter().find(|(name, _)| *name == text).map(|(_, read)| *read);
    let Some(part) = own.map(Part::Own).or_else(|| Part::of_a_table(text)) else {
        return refuse(format!("`model_type` = {name:?}: not a known family; known are {known}"));
    };
    let draft = match wrapper {
        None => part.read(text, Keys::new(config, ""), None, &mut found),
        Some(wrapper) => {
            let Some(Value::Object(text)) = config.get("text_config") else {
                return refuse("`text_config` is no object: it holds the language model".to_owned());
            };
            if let Some(other) = text.get("model_type").filter(|it| **it != wrapper.text) {
                let wanted = wrapper.text;
                return refuse(format!("`text_config.model_type` is {other}: {wanted:?} is wanted"));
            }
            let (mut outer, keys) = (Keys::new(config, ""), Keys::new(text, "text_config."));
            let draft = part.read(wrapper.text, keys, Some(&mut outer), &mut found);
            let draft = draft.map(|draft| with_tower(draft, wrapper.name, text, &mut outer));
            let why = format!("only `[{:?}]` is known for this family", wrapper.architecture);
            outer.only(&mut found, "architectures", &[json!([wrapper.architecture]), Value::Null], &why);
            outer.harmless(&["text_config", "vision_config", "image_token_id", "video_token_id"]);
            outer.harmless(&["vision_start_token_id", "vision_end_token_id"]);
            outer.harmless(wrapper.others);
            outer.harmless(&HARMLESS);
            outer.finish(&mut found, &format!("the {} family", wrapper.name));
            draft
        }
    };
    whole(draft, found)
}

/// A draft with what its wrapper says of the vision tower. One that is not known is left out, and says why.
fn with_tower(draft: Draft, wrapper: &str, config: &Map<String, Value>, outer: &mut Keys) -> Draft {
    let windowed = draft.mixers.iter().filter(|(name, mixer)| {
        let there = draft.pattern.iter().any(|layer| layer.mixer == *name);
        there && mixer.kv().is_some_and(|kv| kv.window.is_some())
    });
    let sliding = windowed.map(|(name, _)| (*name).to_owned()).collect();
    let text = vision::TextFacts { hidden: draft.hidden, config, sliding };
    let tower = Some(vision::read(wrapper, outer, &text));
    Draft { tower, ..draft }
}

/// How the text part of a config is read.
enum Part {
    /// As a family of the table.
    Family(&'static Family),
    /// By a reader of its own.
    Own(Reader),
}

impl Part {
    fn of_a_table(name: &str) -> Option<Part> {
        FAMILIES.iter().find(|family| family.name == name).map(Part::Family)
    }

    /// Reads the text part of the family called `name` from `keys`; `outer` holds keys that a wrapper has
    /// instead.
    fn read(
        &self,
        name: &str,
        mut keys: Keys,
        outer: Option<&mut Keys>,
        found: &mut Findings,
    ) -> Option<Draft> {
        match self {
            Part::Family(family) => read_family(family, keys, outer, found),
            Part::Own(read) => {
                let draft = read(&mut keys, outer, found);
                keys.harmless(&HARMLESS);
                keys.finish(found, &format!("the {name} family"));
                draft
            }
        }
    }
}

/// Reads the text part from `keys`; `outer` holds keys that a wrapper has instead.
fn read_family(
    family: &Family,
    mut keys: Keys,
    mut outer: Option<&mut Keys>,
    found: &mut Findings,
) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", family.hidden);
    let layers = keys.count(found, "num_hidden_layers", family.layers);
    let vocabulary = keys.count(found, "vocab_size", family.vocabulary);
    let context = keys.count(found, "max_position_embeddings", family.context);
    let eps = keys.number(found, "rms_norm_eps", 1e-6);
    let weight = if family.hybrid.is_some() { NormWeight::OnePlus } else { NormWeight::Plain };
    let norm = eps.map(|eps| Norm { eps: eps as f32, weight });
    let tied = tied(&mut keys, outer.as_deref_mut(), found);
    let activation = activation(family, &mut keys, found);
    let ended_by = all_stop_ids(family.stop_ids, &mut keys, outer.as_deref_mut(), found, vocabulary);
    let attention = attention::read(family, &mut keys, found, (hidden, context, norm));
    let pattern = layers::pattern(family, &mut keys, found, layers);
    let delta = match family.hybrid {
        Some(_) => delta_net::read(&mut keys, found, eps).map(Some),
        None => Some(None),
    };
    let ffn = ffn(family, &mut keys, found, activation);
    let some_dense = pattern.as_ref().is_some_and(|pattern| pattern.iter().any(|layer| layer.ffn.is_some()));
    let dense = match activation.filter(|_| some_dense) {
        Some(activation) => keys
            .count(found, "intermediate_size", family.width)
            .map(|width| vec![(DENSE, Gated { width, activation, bias: false }.into())]),
        None => Some(Vec::new()),
    };
    let quantization = match outer.as_deref_mut() {
        Some(outer) => quantization::read(outer, found),
        None => quantization::read(&mut keys, found),
    };
    if family.hybrid.is_some() {
        // transformers does not read it either: the state is f32.
        keys.harmless(&["mamba_ssm_dtype"]);
        let why = "this family always gates attention";
        keys.only(found, "attn_output_gate", &[json!(true), Value::Null], why);
    }
    let head = if family.hybrid.is_some() { draft_head(&mut keys, found) } else { Some(DraftHead::Never) };
    refuse_variants(family, &mut keys, found);
    keys.harmless(&HARMLESS);
    keys.finish(found, &format!("the {} family", family.name));
    let vision = outer.is_some();
    if family.experts.is_some_and(|experts| experts.stacked == Stacked::Transposed) {
        let note =
            "Unquantised releases stack experts transposed, which is not known: names are those of others.";
        found.notes.push(note.to_owned());
    }
    Some(Draft {
        family: family.name,
        hidden: hidden?,
        layers: layers?,
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: norm?,
        around: Around::default(),
        pattern: pattern?,
        mixers: delta?
            .map(|delta| (LINEAR, delta.into()))
            .into_iter()
            .chain([(FULL, attention?.into())])
            .collect(),
        ffn: ffn?,
        others: dense?,
        head: head?,
        stop_ids: ended_by?,
        naming: Naming {
            prefix: if vision { "model.language_model." } else { "model." },
            embedding: "embed_tokens.weight",
            norm: "norm.weight",
            head: "lm_head.weight",
            mixer_norm: "input_layernorm.weight",
            ffn_norm: "post_attention_layernorm.weight",
            modules: Modules::USUAL,
            draft: DraftNames::USUAL,
            projections: family.hybrid.map_or(Projections::Apart, |hybrid| hybrid.projections),
            stacked: family.experts.map_or(Stacked::No, |experts| experts.stacked),
            towers: if vision { &["model.visual.*"] } else { &[] },
        },
        gguf: None,
        quantization: quantization?,
        tower: None,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

/// Reads `mtp_num_hidden_layers` and related keys. transformers does not read them: the model is the same
/// without.
fn draft_head(keys: &mut Keys, found: &mut Findings) -> Option<DraftHead> {
    let (key, dedicated) = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings");
    let own = keys.flag(found, dedicated, false)?;
    let layers = keys.given(key);
    let Some(layers) = layers else { return Some(DraftHead::Unsaid) };
    match layers.as_u64() {
        Some(0) => Some(DraftHead::Absent),
        Some(1) if !own => Some(DraftHead::Present),
        Some(more) => {
            let with = if own { " and embeddings of its own" } else { "" };
            let note = format!("A draft head of {more} layers{with} is not known: mtp.* is left out.");
            found.notes.push(note);
            Some(DraftHead::Absent)
        }
        None => {
            let problem = format!("`{}` is {layers}: a whole number of at least 0 is wanted", keys.path(key));
            found.problems.push(problem);
            None
        }
    }
}

/// Whether the head is tied to the embedding: a wrapper's own key decides, as in transformers.
fn tied(keys: &mut Keys, outer: Option<&mut Keys>, found: &mut Findings) -> Option<bool> {
    let key = "tie_word_embeddings";
    let Some(outer) = outer else { return keys.flag(found, key, false) };
    let tied = outer.flag(found, key, false)?;
    if keys.given(key).is_some() && keys.flag(found, key, false)? != tied {
        found.notes.push(format!("{key} = {tied} goes before text_config.{key}, as in transformers."));
    }
    Some(tied)
}

fn ffn(
    family: &Family,
    keys: &mut Keys,
    found: &mut Findings,
    activation: Option<Activation>,
) -> Option<Ffn> {
    let bias = if family.name == "llama" {
        keys.flag(found, "mlp_bias", false)
    } else {
        keys.only(found, "mlp_bias", &[json!(false), Value::Null], "this family's ffn has no biases");
        Some(false)
    };
    if let Some(experts_of) = family.experts {
        return experts::read(experts_of, keys, found, activation).map(Ffn::Experts);
    }
    if family.hybrid.is_some() {
        // Releases carry this key about experts, but this family has none.
        keys.only(found, "mlp_only_layers", &[json!([]), Value::Null], "this family has no experts");
    }
    let width = keys.count(found, "intermediate_size", family.width);
    Some(Gated { width: width?, activation: activation?, bias: bias? }.into())
}

/// Reports every setting that would make it a different model.
fn refuse_variants(family: &Family, keys: &mut Keys, found: &mut Findings) {
    let (off, null) = (json!(false), Value::Null);
    let why = format!("only `[{:?}]` is known for this family", family.architecture);
    keys.only(found, "architectures", &[json!([family.architecture]), null.clone()], &why);
    keys.only(found, "pretraining_tp", &[json!(1), null.clone()], "only 1 is known");
    for key in ["is_encoder_decoder", "add_cross_attention", "is_decoder", "tie_encoder_decoder"] {
        // Decoder-only models set `is_decoder: false`; the key is about encoder-decoder pairs.
        keys.only(found, key, &[off.clone(), null.clone()], "only `false` is known");
    }
    keys.only(found, "rope_interleaved", &[off.clone(), null.clone()], "only `false` is known");
    keys.only(found, "pruned_heads", &[json!({}), null.clone()], "pruned heads are not known");
    keys.only(found, "cross_attention_hidden_size", std::slice::from_ref(&null), "only null is known");
    keys.only(found, "use_sliding_window", &[off, null.clone()], "sliding windows are not known yet");
    match family.name {
        "llama" => keys.only(found, "sliding_window", &[null], "sliding windows are not known yet"),
        // Without `use_sliding_window` these two have no effect.
        _ => keys.harmless(&["sliding_window", "max_window_layers"]),
    }
}
