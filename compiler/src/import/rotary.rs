//! Rotary settings, in the style of transformers 4 (`rope_theta`, `rope_scaling`) and of 5
//! (`rope_parameters`); names, defaults and precedence as in transformers' `modeling_rope_utils`.

use super::keys::{Findings, Keys};
use crate::blocks::latent_attention::spec::QueryScale;
use crate::spec::types::{Rotary, RotaryPairs, RotaryScaling};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Stands for an absent object.
static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// Default part of a head that is rotated, in families that rotate only a part.
const DEFAULT_PART: f64 = 0.25;

/// How much of a head a family rotates.
#[derive(Clone, Copy)]
pub(crate) enum Turned {
    /// All of it.
    Whole,
    /// All of it; there are settings for images.
    WholeWithImages,
    /// The part that a factor says, a quarter by default; there are settings for images.
    Part,
    /// As many dimensions as `rotary_dim` says, or else a factor; by default all.
    Dimensions,
    /// All of a further part of a head, which a factor says once more.
    FurtherPart,
}

impl Turned {
    /// Default base in transformers.
    fn default_theta(self) -> f64 {
        match self {
            Turned::Whole | Turned::Part | Turned::FurtherPart => 10_000.0,
            Turned::WholeWithImages => 500_000.0,
            Turned::Dimensions => 5_000_000.0,
        }
    }
}

/// Reads every rotary key of a config.
pub(crate) fn read(
    keys: &mut Keys,
    found: &mut Findings,
    head_dim: Option<usize>,
    context: Option<usize>,
    turned: Turned,
) -> Option<Rotary> {
    let (settings, prefix) = settings(keys, found)?;
    let mut inner = Keys::new(settings, &prefix);
    let theta = theta(keys, &mut inner, found, turned.default_theta());
    if matches!(turned, Turned::WholeWithImages | Turned::Part) {
        sections(&mut inner, found);
    }
    let dims = match turned {
        Turned::Part => part_of_heads(keys, &mut inner, found, head_dim),
        Turned::Dimensions => dimensions(keys, &mut inner, found, head_dim),
        Turned::FurtherPart => {
            inner.harmless(&["partial_rotary_factor", "llama_4_scaling_beta", "max_position_embeddings"]);
            head_dim
        }
        Turned::Whole | Turned::WholeWithImages => {
            whole_heads(keys, found);
            whole_heads(&mut inner, found);
            head_dim
        }
    };
    let outer_original = keys.number_or_null(found, "original_max_position_embeddings");
    let kind = kind(&mut inner, found)?;
    let mut scaled = Scaled { keys: inner, found, context, outer_original };
    let scaling = match kind {
        Kind::Default => Some(RotaryScaling::None),
        Kind::Linear => scaled.factor().map(|factor| RotaryScaling::Linear { factor }),
        Kind::Llama3 => scaled.llama3(),
        Kind::Yarn => scaled.yarn(),
    };
    let Scaled { keys: inner, found, .. } = scaled;
    inner.finish(found, &format!("rotary embeddings of type {:?}", kind.name()));
    let (dims, theta, scaling) = (dims?, theta?, scaling?);
    Some(Rotary { dims, theta, pairs: RotaryPairs::Halves, turning: None, scaling })
}

/// What rotary settings say of attention over latents.
pub(crate) struct OfLatents {
    /// Of the part that rotates.
    pub(crate) rotary: Rotary,
    /// Multiplies scores besides what the width of a key does, if anything does.
    pub(crate) score_factor: Option<f64>,
    /// What multiplies queries.
    pub(crate) query_scale: QueryScale,
}

/// Reads every rotary key of a config whose heads have a further part that rotates.
pub(crate) fn of_latents(
    keys: &mut Keys,
    found: &mut Findings,
    rotated: Option<usize>,
    context: Option<usize>,
) -> Option<OfLatents> {
    let (settings, prefix) = settings(keys, found)?;
    let mut inner = Keys::new(settings, &prefix);
    let growth = inner.required_number(found, "llama_4_scaling_beta");
    let original = inner.count_or_null(found, "original_max_position_embeddings");
    let why = "only \"yarn\" is known of this family";
    let key = if inner.get("rope_type").is_some() { "rope_type" } else { "type" };
    inner.only(found, key, &[Value::from("yarn")], why);
    let all = inner.number_or_zero(found, "mscale_all_dim").map(|all| all.unwrap_or(0.0));
    let factor = inner.required_number(found, "factor");
    let path = inner.path("mscale_all_dim");
    let rotary = read(keys, found, rotated, context, Turned::FurtherPart)?;
    let magnitude = magnitude(factor?, all?);
    let score_factor = (magnitude != 1.0).then_some(magnitude * magnitude);
    if let Some(factor) = score_factor {
        found.notes.push(format!(
            "{path} multiplies scores by {factor:.4}, as in transformers: params.json of a release may say \
             otherwise (`apply_scale`)."
        ));
    }
    let Some(original) = original? else {
        let path = inner.path("original_max_position_embeddings");
        found.problems.push(format!("`{path}` is missing: queries are scaled by it"));
        return None;
    };
    let query_scale = QueryScale { growth: growth? as f32, original };
    Some(OfLatents { rotary, score_factor, query_scale })
}

/// YaRN's magnitude of what is scaled by `factor`.
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// The object with the settings and its name: `rope_scaling` if it sets anything, else `rope_parameters`.
fn settings<'a>(keys: &mut Keys<'a>, found: &mut Findings) -> Option<(&'a Map<String, Value>, String)> {
    let mut object = |key: &str| match keys.given(key) {
        None => Some(&*EMPTY),
        Some(Value::Object(map)) => Some(map),
        Some(other) => {
            found.problems.push(format!("`{key}` is {other}: an object or null is wanted"));
            None
        }
    };
    let (old, new) = (object("rope_scaling"), object("rope_parameters"));
    let (old, new) = (old?, new?);
    match (old.is_empty(), new.is_empty()) {
        (false, false) if old != new => {
            let problem = "`rope_scaling` and `rope_parameters` are both given and differ: keep one";
            found.problems.push(problem.to_owned());
            None
        }
        (false, _) => Some((old, keys.path("rope_scaling."))),
        _ => Some((new, keys.path("rope_parameters."))),
    }
}

/// The base of the frequencies: the inner object's key takes precedence over the config's own.
fn theta(keys: &mut Keys, inner: &mut Keys, found: &mut Findings, default: f64) -> Option<f64> {
    let outer = match keys.get("rope_theta") {
        Some(_) => Some(keys.required_number(found, "rope_theta")?),
        None => None,
    };
    let own = match inner.get("rope_theta") {
        Some(_) => Some(inner.required_number(found, "rope_theta")?),
        None => None,
    };
    if let (Some(outer), Some(own)) = (outer, own)
        && outer != own
    {
        let path = inner.path("rope_theta");
        found.notes.push(format!("{path} = {own} goes before rope_theta = {outer}, as in transformers."));
    }
    if outer.is_none() && own.is_none() {
        found.defaulted.push("rope_theta".to_owned());
    }
    Some(own.or(outer).unwrap_or(default))
}

/// Checks `mrope_section`: positions in time, height and width, each for some of the frequencies. Text has
/// the same position in all three, so they have no effect.
fn sections(inner: &mut Keys, found: &mut Findings) {
    let stated = inner.get("mrope_section").is_some();
    inner.harmless(&["mrope_interleaved"]);
    if stated {
        let path = inner.path("mrope_section");
        let note = format!("{path} is for images: the three positions of a text token are equal.");
        found.notes.push(note);
    }
}

/// The part of a head that is rotated, with the name of its key: the inner object's takes precedence over the
/// config's own. The inner `None` means that neither is there.
fn factor(keys: &mut Keys, inner: &mut Keys, found: &mut Findings) -> Option<Option<(String, f64)>> {
    let key = "partial_rotary_factor";
    let outer = keys.number_or_null(found, key)?;
    let own = inner.number_or_null(found, key)?;
    let path = if own.is_some() { inner.path(key) } else { keys.path(key) };
    Some(own.or(outer).map(|factor| (path, factor)))
}

/// The leading dimensions of a head that are rotated, by a factor.
fn part_of_heads(
    keys: &mut Keys,
    inner: &mut Keys,
    found: &mut Findings,
    head_dim: Option<usize>,
) -> Option<usize> {
    let Some((path, factor)) = factor(keys, inner, found)? else {
        found.defaulted.push(keys.path("partial_rotary_factor"));
        return part(found, "partial_rotary_factor", DEFAULT_PART, head_dim?);
    };
    part(found, &path, factor, head_dim?)
}

/// The same by `rotary_dim`, or else by a factor. Where both are there, they agree.
fn dimensions(
    keys: &mut Keys,
    inner: &mut Keys,
    found: &mut Findings,
    head_dim: Option<usize>,
) -> Option<usize> {
    let stated = keys.count_or_null(found, "rotary_dim")?;
    let factor = factor(keys, inner, found)?;
    let (path, head_dim) = (keys.path("rotary_dim"), head_dim?);
    let by_factor = match factor {
        Some((path, factor)) => {
            let dims = part(found, &path, factor, head_dim)?;
            Some((path, dims))
        }
        None => None,
    };
    match (stated, by_factor) {
        (Some(dims), _) if dims > head_dim || !dims.is_multiple_of(2) => {
            let known = format!("an even number of 2 to the {head_dim} of a head is known");
            found.problems.push(format!("`{path}` is {dims}: {known}"));
            None
        }
        (Some(dims), Some((factor, other))) if dims != other => {
            found.problems.push(format!("`{path}` is {dims}, and `{factor}` gives {other}: keep one"));
            None
        }
        (stated, by_factor) => Some(stated.or(by_factor.map(|(_, dims)| dims)).unwrap_or(head_dim)),
    }
}

fn part(found: &mut Findings, path: &str, factor: f64, head_dim: usize) -> Option<usize> {
    // Truncated, as in transformers.
    let dims = (head_dim as f64 * factor) as usize;
    let turns = (2..=head_dim).contains(&dims) && dims.is_multiple_of(2);
    if !turns {
        let problem = format!(
            "`{path}` = {factor} turns {dims} of the {head_dim} dimensions of a head: an even number of 2 to \
             {head_dim} is known"
        );
        found.problems.push(problem);
    }
    turns.then_some(dims)
}

/// These families rotate whole heads: transformers ignores another factor or fails on it.
fn whole_heads(keys: &mut Keys, found: &mut Findings) {
    if let Some(value) = keys.given("partial_rotary_factor")
        && value.as_f64() != Some(1.0)
    {
        let path = keys.path("partial_rotary_factor");
        found.problems.push(format!("`{path}` = {value}: this family turns whole heads, only 1.0 is known"));
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Default,
    Linear,
    Llama3,
    Yarn,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Default, Kind::Linear, Kind::Llama3, Kind::Yarn];

    fn name(self) -> &'static str {
        match self {
            Kind::Default => "default",
            Kind::Linear => "linear",
            Kind::Llama3 => "llama3",
            Kind::Yarn => "yarn",
        }
    }
}

/// Reads `rope_type`, or its older name `type`.
fn kind(inner: &mut Keys, found: &mut Findings) -> Option<Kind> {
    let (new, old) = (inner.get("rope_type"), inner.get("type"));
    let key = if new.is_some() { "rope_type" } else { "type" };
    let Some(value) = new.or(old) else { return Some(Kind::Default) };
    let kind = Kind::ALL.into_iter().find(|kind| value.as_str() == Some(kind.name()));
    if kind.is_none() {
        let known = Kind::ALL.map(|kind| format!("`{}`", kind.name())).join(", ");
        let path = inner.path(key);
        found.problems.push(format!("`{path}` = {value}: not a known rotary type; known are {known}"));
    }
    kind
}

/// The settings of one type of scaling.
struct Scaled<'a, 'f> {
    keys: Keys<'a>,
    found: &'f mut Findings,
    context: Option<usize>,
    /// The config's own `original_max_position_embeddings`, which takes precedence; the outer `None` means
    /// that it is bad.
    /// bad.
    outer_original: Option<Option<f64>>,
}

impl Scaled<'_, '_> {
    fn factor(&mut self) -> Option<f64> {
        self.keys.required_number(self.found, "factor")
    }

    /// The context of pre-training; by default the model's own context.
    fn original(&mut self) -> Option<f64> {
        let key = "original_max_position_embeddings";
        let own = self.keys.number_or_null(self.found, key)?;
        match self.outer_original?.or(own) {
            Some(original) => Some(original),
            None => {
                let path = self.keys.path(key);
                self.found.defaulted.push(path);
                Some(self.context? as f64)
            }
        }
    }

    fn llama3(&mut self) -> Option<RotaryScaling> {
        let factor = self.factor();
        let low = self.keys.required_number(self.found, "low_freq_factor");
        let high = self.keys.required_number(self.found, "high_freq_factor");
        let original = self.original();
        let (low, high) = (low?, high?);
        if low >= high {
            let (low_key, high_key) = (self.keys.path("low_freq_factor"), self.keys.path("high_freq_factor"));
            self.found.problems.push(format!("`{low_key}` = {low} is not below `{high_key}` = {high}"));
            return None;
        }
        Some(RotaryScaling::Llama3 { factor: factor?, low, high, original: original? })
    }

    fn yarn(&mut self) -> Option<RotaryScaling> {
        let original = self.original();
        // `null` asks for the ratio of the contexts; an absent key is an error, as in transformers.
        let factor = match self.keys.get("factor") {
            Some(Value::Null) => Some(self.context? as f64 / original?),
            _ => self.factor(),
        };
        // In these four keys zero counts as absent.
        let beta_fast = self.keys.number_or_zero(self.found, "beta_fast").map(|it| it.unwrap_or(32.0));
        let beta_slow = self.keys.number_or_zero(self.found, "beta_slow").map(|it| it.unwrap_or(1.0));
        let mscale = self.keys.number_or_zero(self.found, "mscale");
        let mscale_all_dim = self.keys.number_or_zero(self.found, "mscale_all_dim");
        let attention_factor = self.keys.number_or_null(self.found, "attention_factor");
        let truncate = self.keys.flag(self.found, "truncate", true);
        let (factor, beta_fast, beta_slow) = (factor?, beta_fast?, beta_slow?);
        if beta_fast < beta_slow {
            let (fast, slow) = (self.keys.path("beta_fast"), self.keys.path("beta_slow"));
            self.found.problems.push(format!("`{slow}` = {beta_slow} is above `{fast}` = {beta_fast}"));
            return None;
        }
        let magnitude = |scale: f64| magnitude(factor, scale);
        let attention_factor = attention_factor?.unwrap_or(match (mscale?, mscale_all_dim?) {
            (Some(mscale), Some(all)) => magnitude(mscale) / magnitude(all),
            _ => magnitude(1.0),
        });
        Some(RotaryScaling::Yarn {
            factor,
            original: original?,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: truncate?,
        })
    }
}
